// The kernels for NEON, which every 64-bit ARM has.
#define EXCISE_NEON
#include "isa_table.hpp"

namespace excise {

const Isa* neon() {
    static const Isa isa = make_table("neon");
    return &isa;
}

}  // namespace excise
