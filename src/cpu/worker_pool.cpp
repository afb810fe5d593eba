#include "cpu/worker_pool.h"

#include <pthread.h>
#include <sched.h>

#include "base/threads.h"

namespace moeflux {
namespace {

constexpr int kSpins = 4000;  // some hundreds of microseconds: longer than the gaps within a token

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void pin(std::jthread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);  // its refusal changes speed, not results
}

}  // namespace

WorkerPool::WorkerPool(size_t threads) {
  const std::vector<int> cores = usable_cores();
  for (size_t w = 1; w < threads; ++w) {
    workers_.emplace_back([this, w] { serve(w); });
    if (threads <= cores.size()) pin(workers_.back(), cores[w]);
  }
}

WorkerPool::~WorkerPool() {
  stop_ = true;
  ++region_;
  region_.notify_all();
}

void WorkerPool::run_region(size_t n, Call call, void* work) {
  call_ = call;
  work_ = work;
  n_ = n;
  next_.store(0, std::memory_order_relaxed);
  active_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  region_.fetch_add(
      1);  // sequentially consistent with sleepers_: a worker is either seen asleep or sees this
  if (sleepers_.load() > 0) region_.notify_all();
  take_items(0);
  for (int spins = 0; active_.load(std::memory_order_acquire) > 0; ++spins) {
    relax();
    if (spins > kSpins / 8) sched_yield();  // the worker may be waiting for this very processor
  }
}

void WorkerPool::take_items(size_t worker) {
  for (size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < n_;
       i = next_.fetch_add(1, std::memory_order_relaxed))
    call_(work_, i, worker);
}

void WorkerPool::serve(size_t worker) {
  for (uint32_t seen = 0;;) {
    for (int spins = 0; region_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins) relax();
    if (region_.load(std::memory_order_acquire) == seen) {
      ++sleepers_;
      region_.wait(seen);
      --sleepers_;
    }
    ++seen;  // the caller starts no further region before all have left this one
    if (stop_) return;
    take_items(worker);
    active_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace moeflux
