#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>

#include "base/error.h"

namespace moeflux {
namespace {

// The first processor of the core that `cpu` belongs to; itself where the system does not say.
int first_sibling(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  int first = cpu;
  file >> first;
  return first;
}

size_t quota_cores() {  // of the control group; many where there is no quota
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return SIZE_MAX;
  return static_cast<size_t>(std::max(1.0, quota / period + 0.5));
}

}  // namespace

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores, siblings;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &set)) continue;
      const int first = first_sibling(cpu);
      if (std::ranges::find(siblings, first) != siblings.end()) continue;
      siblings.push_back(first);
      cores.push_back(cpu);
    }
  if (cores.empty()) cores.push_back(0);
  cores.resize(std::min(cores.size(), quota_cores()));
  return cores;
}

size_t hardware_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

void start_threads(size_t n, const std::function<void(size_t)>& body, const std::function<void()>& stop,
                   std::vector<std::jthread>& threads) {
  for (size_t i = 0; i < n; ++i) try {
      threads.emplace_back(body, i);
    } catch (const std::system_error& e) {
      stop();
      threads.clear();
      fail(Errc::OutOfMemory, "the system refuses thread {} of {}: {}", i + 1, n, e.code().message());
    }
}

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
