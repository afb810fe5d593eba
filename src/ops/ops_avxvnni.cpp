// AVX2 with AVX-VNNI. Built with its own instruction flags: nothing here may be shared with other files, so
// that no processor meets instructions that it does not have.
#define MOEFLUX_ISA avxvnni

#include "ops/lanes_avx2.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_avxvnni;
const Ops kOps_avxvnni = MOEFLUX_ISA::table("avxvnni");
}  // namespace moeflux
