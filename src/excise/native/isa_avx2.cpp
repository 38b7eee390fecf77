// The kernels for AVX2; compiled with its flags, called only where the processor has it.
#define EXCISE_AVX2
#include "isa_table.hpp"

namespace excise {

const Isa* avx2() {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return nullptr;
    static const Isa isa = make_table("avx2");
    return &isa;
}

}  // namespace excise
