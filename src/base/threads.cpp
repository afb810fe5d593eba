#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace moeflux {

size_t hardware_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

void parallel_for(size_t n, size_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> stop = false;
  std::mutex mutex;
  std::exception_ptr first;  // guarded by mutex
  const auto run = [&] {
    while (!stop) {
      const size_t i = next++;
      if (i >= n) return;
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        stop = true;
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (size_t t = 1; t < std::min(threads, n); ++t) workers.emplace_back(run);
    run();
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace moeflux
