// AVX-512 with AMX tiles. Built with its own instruction flags: nothing here may be shared with other files,
// so that no processor meets instructions that it does not have.
#define MOEFLUX_ISA amx

#include "ops/lanes_amx.h"
// The lanes come first.
#include "ops/kernels.h"

namespace moeflux {
extern const Ops kOps_amx;
const Ops kOps_amx = MOEFLUX_ISA::table("amx");
}  // namespace moeflux
