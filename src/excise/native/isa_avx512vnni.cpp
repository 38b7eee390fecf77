// The kernels for AVX-512 with whole-number products (VNNI); called only where the processor has both.
#define EXCISE_AVX512
#define EXCISE_VNNI
#include "isa_table.hpp"

namespace excise {

const Isa* avx512vnni() {
    if (!avx512() || !__builtin_cpu_supports("avx512vnni")) return nullptr;
    static const Isa isa = make_table("avx512vnni");
    return &isa;
}

}  // namespace excise
