// The kernels in plain C++, for any machine.
#include "isa_table.hpp"

namespace excise {

const Isa* plain() {
    static const Isa isa = make_table("plain");
    return &isa;
}

}  // namespace excise
