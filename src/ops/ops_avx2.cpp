// AVX2, FMA, F16C. Built with its own instruction flags: nothing here may be shared with other files, so that
// no processor meets instructions that it does not have.
#define MOEFLUX_ISA avx2

#include "ops/lanes_avx2.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_avx2;
const Ops kOps_avx2 = MOEFLUX_ISA::table("avx2");
}  // namespace moeflux
