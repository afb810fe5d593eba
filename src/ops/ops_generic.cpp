// Baseline instructions only. Built with its own instruction flags: nothing here may be shared with other
// files, so that no processor meets instructions that it does not have.
#define MOEFLUX_ISA generic

#include "ops/lanes_generic.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_generic;
const Ops kOps_generic = MOEFLUX_ISA::table("generic");
}  // namespace moeflux
