#include "cpu/worker_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>

#include "base/threads.h"

namespace moeflux {
namespace {

constexpr int kSpins = 4000;  // some hundreds of microseconds: longer than the gaps within a token

constexpr size_t kAheadPiece = 1024;       // bytes between two looks at what is to be done
constexpr size_t kMostAhead = 768 * 1024;  // of a hint: it must still be in the cache when it is used

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
  start_threads(
      std::max<size_t>(threads, 1) - 1, [this](size_t i) { serve(i + 1); }, [this] { end(); }, workers_);
  for (size_t w = 1; w < threads && threads <= cores.size(); ++w) pin(workers_[w - 1], cores[w]);
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() {
  stop_ = true;
  ++region_;
  region_.notify_all();
}

void WorkerPool::run_region(size_t n, Call call, void* work, const std::function<void()>& first) {
  call_ = call;
  work_ = work;
  n_ = n;
  next_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  region_.fetch_add(
      1);  // sequentially consistent with sleepers_: a worker is either seen asleep or sees this
  if (sleepers_.load() > 0) region_.notify_all();
  std::exception_ptr thrown;
  if (first) try {
      first();
    } catch (...) {
      thrown = std::current_exception();  // workers use what the caller holds: the region ends as always
    }
  take_items(0);
  gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int spins = 0; gate_.load(std::memory_order_acquire) > 0; ++spins) {
    wait_usefully();
    if (spins > kSpins / 8) sched_yield();  // the worker may be waiting for this very processor
  }
  if (thrown) std::rethrow_exception(thrown);
}

void WorkerPool::fetch_ahead(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  ahead_end_.store(0, std::memory_order_relaxed);  // no thread takes the new begin with the old end
  ahead_.store(begin, std::memory_order_relaxed);
  ahead_end_.store(begin + std::min(bytes, kMostAhead), std::memory_order_relaxed);
}

void WorkerPool::wait_usefully() {
  const uintptr_t end = ahead_end_.load(std::memory_order_relaxed);
  if (ahead_.load(std::memory_order_relaxed) >= end) return relax();
  const uintptr_t at = ahead_.fetch_add(kAheadPiece, std::memory_order_relaxed);
  for (uintptr_t line = at; line < at + kAheadPiece && line < end; line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);  // never faults, whatever the address
}

bool WorkerPool::enter() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while (gate & kOpen)
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
  return false;
}

void WorkerPool::take_items(size_t worker) {
  for (size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < n_;
       i = next_.fetch_add(1, std::memory_order_relaxed))
    call_(work_, i, worker);
}

void WorkerPool::serve(size_t worker) {
  for (uint32_t seen = 0;;) {
    for (int spins = 0; region_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins)
      wait_usefully();
    if (region_.load(std::memory_order_acquire) == seen) {
      ++sleepers_;
      region_.wait(seen);
      --sleepers_;
    }
    seen = region_.load(std::memory_order_acquire);
    if (stop_) return;       // after the load: it is set before region_ changes for the last time
    if (!enter()) continue;  // too late, or too early by a moment: then region_ will have moved on
    take_items(worker);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace moeflux
