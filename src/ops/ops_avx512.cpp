// AVX-512 with VNNI. Built with its own instruction flags: nothing here may be shared with other files, so
// that no processor meets instructions that it does not have.
#define MOEFLUX_ISA avx512

#include "ops/lanes_avx512.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_avx512;
const Ops kOps_avx512 = MOEFLUX_ISA::table("avx512");
}  // namespace moeflux
