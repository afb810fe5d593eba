// How much memory this process may use, and how much it has used.
#pragma once

#include <cstdint>

namespace moeflux {

// What can be had without swapping: free and reclaimable memory, and what the control group leaves.
uint64_t available_memory();
uint64_t peak_memory();    // largest resident size of this process so far, or since it was reset
bool reset_peak_memory();  // to the present size; false where the system cannot

}  // namespace moeflux
