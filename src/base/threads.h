// A plain parallel loop for work that takes milliseconds per item (conversion, loading, checking).
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace moeflux {

size_t hardware_threads();

// One processor of each physical core that this process may use, no more of them than its CPU quota allows.
// Never empty.
std::vector<int> usable_cores();

// Calls work(i) for every i in [0, n) from up to `threads` threads, in increasing order of start. The first
// exception stops the loop (items under way finish) and is thrown again here.
void parallel_for(size_t n, size_t threads, const std::function<void(size_t)>& work);

}  // namespace moeflux
