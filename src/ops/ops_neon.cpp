// ARMv8.2 NEON with dot products. Built with its own instruction flags: nothing here may be shared with other
// files, so that no processor meets instructions that it does not have.
#define MOEFLUX_ISA neon

#include "ops/lanes_neon.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_neon;
const Ops kOps_neon = MOEFLUX_ISA::table("neon");
}  // namespace moeflux
