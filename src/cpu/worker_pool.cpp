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
constexpr size_t kMostAhead = 512 * 1024;  // of a hint: it must still be in the cache when it is used

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

WorkerPool::WorkerPool(size_t threads) : hints_(std::max<size_t>(threads, 1)) {
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
    relax();
    if (spins > kSpins / 8) sched_yield();  // the worker may be waiting for this very processor
  }
  if (thrown) std::rethrow_exception(thrown);
}

void WorkerPool::fetch_ahead(size_t worker, std::span<const std::byte> data) {
  Hint& hint = hints_[worker];
  hint.begin.store(nullptr, std::memory_order_relaxed);  // a new begin is not taken with the old end
  hint.end.store(data.data() + std::min(data.size(), kMostAhead), std::memory_order_release);
  hint.begin.store(data.data(), std::memory_order_release);
}

// Loads, not requests: processors drop requests when many are under way.
void WorkerPool::wait_usefully(size_t worker) {
  Hint& hint = hints_[worker];
  const std::byte* begin = hint.begin.load(std::memory_order_acquire);
  const std::byte* end = hint.end.load(std::memory_order_acquire);
  if (begin != hint.of) hint.of = hint.at = begin;
  if (!begin || hint.at >= end || hint.begin.load(std::memory_order_relaxed) != begin) return relax();
  const std::byte* stop = hint.at + std::min<size_t>(kAheadPiece, static_cast<size_t>(end - hint.at));
  for (; hint.at < stop; hint.at += 64) static_cast<void>(*static_cast<const volatile std::byte*>(hint.at));
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
      wait_usefully(worker);
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
