// A fixed set of threads for short parallel regions: the caller and size() - 1 workers, each pinned to a core
// of its own. Between regions workers spin for a moment and then sleep, so that a region costs microseconds
// while a token is computed and nothing while the program waits. Nobody waits for a worker that has not come
// by the time the last item is taken: its core may be another program's just then. One caller at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace moeflux {

class WorkerPool {
 public:
  explicit WorkerPool(size_t threads);
  ~WorkerPool();
  size_t size() const { return workers_.size() + 1; }

  // Calls work(i, worker) for every i in [0, n), each once, from all threads; returns when all are done.
  // Items are handed out in order, one at a time. work must not throw and must not call run. `first`, where
  // it is given, is called by the caller before it takes items, while the workers have begun; it may throw.
  template <class Work>
  void run(size_t n, Work&& work, const std::function<void()>& first = {}) {
    if (n <= 1 || workers_.empty()) {
      if (first) first();
      for (size_t i = 0; i < n; ++i) work(i, size_t{0});
      return;
    }
    using Fn = std::remove_reference_t<Work>;
    run_region(
        n, [](void* w, size_t i, size_t worker) { (*static_cast<Fn*>(w))(i, worker); },
        const_cast<void*>(static_cast<const void*>(&work)), first);
  }

  // What a worker will read soon: while it waits, it brings that into its cache. A hint; a later one takes
  // the place of the one before. The memory must stay as long as the pool.
  void fetch_ahead(size_t worker, std::span<const std::byte> data);

 private:
  using Call = void (*)(void* work, size_t item, size_t worker);
  void run_region(size_t n, Call call, void* work, const std::function<void()>& first);
  void serve(size_t worker);
  void end();
  void take_items(size_t worker);
  void wait_usefully(size_t worker);

  bool enter();

  // Of the current region: written by the caller while the gate is closed and nobody inside.
  Call call_ = nullptr;
  void* work_ = nullptr;
  size_t n_ = 0;
  alignas(64) std::atomic<uint32_t> region_ = 0;  // counts regions; workers wait for it to change
  alignas(64) std::atomic<size_t> next_ = 0;      // next item
  static constexpr uint32_t kOpen = 1u << 31;
  alignas(64) std::atomic<uint32_t> gate_ = 0;  // kOpen while workers may enter, plus how many are inside
  alignas(64) std::atomic<uint32_t> sleepers_ = 0;
  std::atomic<bool> stop_ = false;
  struct alignas(64) Hint {
    std::atomic<const std::byte*> begin = nullptr, end = nullptr;  // what fetch_ahead was given
    const std::byte *of = nullptr, *at = nullptr;  // the worker's own: the begin that it follows, and how far
  };
  std::vector<Hint> hints_;  // by worker
  std::vector<std::jthread> workers_;
};

}  // namespace moeflux
