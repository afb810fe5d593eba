// Which processors there are, starting threads, and a plain parallel loop for work that takes milliseconds
// per item (conversion, loading, checking).
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace moeflux {

size_t hardware_threads();

// One processor of each physical core that this process may use, no more of them than its CPU quota allows.
// Never empty.
std::vector<int> usable_cores();

// Adds n threads that call body(0) to body(n - 1). If the system refuses one, those before it end after
// stop() has been called, and Error{OutOfMemory} is thrown.
void start_threads(size_t n, const std::function<void(size_t)>& body, const std::function<void()>& stop,
                   std::vector<std::jthread>& threads);

// Calls work(i) for every i in [0, n) from up to `threads` threads, in increasing order of start. The first
// exception stops the loop (items under way finish) and is thrown again here.
void parallel_for(size_t n, size_t threads, const std::function<void(size_t)>& work);

}  // namespace moeflux
