// The kernels for AVX-512; compiled with its flags, called only where the processor has it.
#define EXCISE_AVX512
#include "isa_table.hpp"

namespace excise {

const Isa* avx512() {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return nullptr;
    static const Isa isa = make_table("avx512");
    return &isa;
}

}  // namespace excise
