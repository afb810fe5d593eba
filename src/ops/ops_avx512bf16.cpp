// AVX-512 with VNNI and bf16 pairs. Built with its own instruction flags: nothing here may be shared with
// other files, so that no processor meets instructions that it does not have.
#define MOEFLUX_ISA avx512bf16

#include "ops/lanes_avx512.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_avx512bf16;
const Ops kOps_avx512bf16 = MOEFLUX_ISA::table("avx512bf16");
}  // namespace moeflux
