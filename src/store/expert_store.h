// Hands out routed experts. A fixed number of slots, carved from one budget, hold expert records; a Demand
// asks for experts and gets leases of them in the order of their arrival, those in memory first; a lease pins
// an expert's bytes for as long as it lives. Reads go on while experts are computed. The store never pins
// more than fits, so that a demand may name more experts than there are slots, and several demands share one
// load of the same expert.
//
// A read that fails, ends early, does not return in time or gives bytes with a wrong checksum is an Error at
// whoever began to ask for that expert; the store stays usable, and whoever asks next, or has joined that
// load, tries again. What was expected, prefetched or evicted changes time, never results.
//
// All functions may be called by any thread; one Demand or Lease belongs to one thread at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/error.h"
#include "base/progress.h"
#include "base/trace.h"
#include "package/package.h"
#include "store/loader.h"
#include "store/policy.h"
#include "store/store_stats.h"

namespace moeflux {

struct ExpertKey {
  uint64_t layer, expert;
  auto operator<=>(const ExpertKey&) const = default;
};

// A step with more tokens of prompts than this is a sweep: it touches so many experts that keeping them would
// flush what decoding uses.
inline constexpr size_t kSweepTokens = 32;

// What a store holds at a moment, for people to look at.
struct StoreSnapshot {
  enum class Held : uint8_t { No, Loading, Yes };
  struct Layer {
    uint64_t layer = 0;
    std::vector<Held> held;  // by expert
    std::vector<float>
        used;  // by expert: of the layer's last steps (some fifty), the share that asked for it
  };
  std::vector<Layer> layers;
};

struct StoreOptions {
  uint64_t budget_bytes = 0;  // of slots, over all classes
  bool check_reads = true;
  std::string policy = policy_names().front();
  ReadSettings reads;
  size_t threads = 1;  // that make the slots' pages while all experts are loaded
  // With the kernel, where it allows it: reads then cost less. Pointless where each slot is read into once.
  bool register_memory = true;
  std::chrono::milliseconds read_timeout{30'000};
  Trace* trace = nullptr;
  ProgressSink progress = {};
  // Tests put a queue that misbehaves before the real one.
  std::function<std::unique_ptr<ReadQueue>(std::unique_ptr<ReadQueue>)> wrap_queue = {};
};

class ExpertStore {
  struct Slot;
  struct SlotClass;

 public:
  // Decode: experts are kept as the policy says. Sweep: a prompt touches nearly all experts once; they pass
  // through a few slots and leave what decoding uses in place. Fill: as decode, but nothing is computed with
  // one of them while the others are read.
  enum class Use : uint8_t { Decode, Sweep, Fill };

  class Lease {  // while it lives, the expert's bytes stay where they are
   public:
    Lease(Lease&& o) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    ExpertKey key() const noexcept;
    std::span<const std::byte> bytes() const noexcept;

   private:
    friend class ExpertStore;
    Lease(ExpertStore& store, Slot& slot) noexcept : store_(&store), slot_(&slot) {}
    ExpertStore* store_;
    Slot* slot_;  // null: moved away
  };

  // Experts that are wanted now. Destroying it discards what has not been taken: reads under way then end in
  // the cache.
  class Demand {
   public:
    Demand(ExpertStore& store, std::span<const ExpertKey> keys, Use use);
    Demand(const Demand&) = delete;
    ~Demand();
    // Adds leases of experts that are there, at least one and at most `most`, waiting if need be; false when
    // all have been handed out. Leases taken before must be given back first where the demand is larger than
    // the store.
    bool take(std::vector<Lease>& leases, size_t most = SIZE_MAX);
    bool any_ready() const;  // take would not wait

   private:
    friend class ExpertStore;
    ExpertStore& store_;
    const Use use_;
    std::vector<ExpertKey> pending_;  // without a slot yet; the next one last
    std::vector<Slot*> loading_;      // pinned by us
    std::vector<Slot*> ready_;        // pinned by us, not handed out
    std::optional<Error> error_;
  };

  // Throws Error{OutOfMemory} if not even one expert of each record size fits.
  ExpertStore(const Package& package, const StoreOptions& options);
  ~ExpertStore();

  const ExpertLayer& layer(uint64_t layer) const;
  const ProgressSink& progress() const { return options_.progress; }  // of everything that loads experts
  Lease lease(ExpertKey key);  // one expert for decoding, waiting for it
  // One expert of a sweep if it is in memory, and nothing otherwise: reads nothing and waits for nothing.
  // What is handed out counts as a hit, but not as a use that tells of the next ones.
  std::optional<Lease> lease_if_here(ExpertKey key);
  // These will probably be wanted next: read them while the drive has nothing better to do. Takes the place
  // of what was expected before; of that, whatever has not been begun is dropped.
  void expect(std::span<const ExpertKey> keys, Use use);
  // Loads every expert, where there is a slot for each; otherwise does nothing. Throws as a demand does.
  void load_all();

  bool holds_all() const { return holds_all_; }  // has a slot for every expert
  // Of these, the ones that would have to be read: neither there nor on their way.
  void keep_missing(std::vector<ExpertKey>& keys) const;
  size_t slots_for(uint64_t layer) const;  // in the class of this layer's experts
  StoreStats stats() const;
  StoreSnapshot snapshot() const;
  uint64_t slot_bytes() const;
  std::vector<std::span<std::byte>> memory() const;  // of all slots, for who wants to register it
  std::string_view queue_name() const { return loader_->queue_name(); }
  uint64_t registered_bytes() const { return registered_->registered_bytes(); }  // of slots, with the kernel

  // The smallest budget with which a package can run.
  static uint64_t least_budget(const Manifest& manifest);

 private:
  struct LayerInfo {
    const ExpertLayer* layer = nullptr;
    SlotClass* cls = nullptr;
    ExpertId first = 0;    // id of its expert 0 in the class
    uint64_t n_steps = 0;  // demands so far
  };
  struct Recency {  // of the uses of an expert: a sum in which each counts less with every step
    float sum = 0;
    uint64_t step = 0;  // of its layer, when it was last brought up to date
    float at(uint64_t now) const;
  };
  const LayerInfo& info(uint64_t layer) const;
  void make_slots(uint64_t budget);
  std::vector<std::span<std::byte>> page_pieces() const;
  std::vector<std::span<std::byte>> slot_groups() const;

  // All of these are called with mutex_ held.
  Slot*& where(ExpertKey key);
  void ask(Demand& demand, ExpertKey key);
  void touch(Slot& slot, Use use);
  void admit_all();
  bool admit(Demand& demand);
  bool admit_guess(ExpertKey key, Use use);
  Slot* find_room(SlotClass& cls, Use use, bool guess);
  void begin_load(Slot& slot, ExpertKey key, Use use, bool guess);
  void keep_cold(Slot& slot);
  void forget(Slot& slot);  // the slot holds nothing any more, whatever it held
  void set_free(Slot& slot);
  void unpin(Slot& slot);
  void drop_guesses();
  void settle(Slot& slot, std::optional<Error> error);
  void give_up_on(Demand& demand);
  void stall(Demand& demand, std::unique_lock<std::mutex>& lock);

  void loaded(uint64_t tag, const LoadResult& result);  // on a thread of the loader
  Error load_error(const Slot& slot, const LoadResult& result) const;

  const Package& package_;
  const StoreOptions options_;
  std::map<uint64_t, LayerInfo> layers_;
  bool holds_all_ = false;

  mutable std::mutex mutex_;                                // guards everything below but the loader
  std::condition_variable changed_;                         // a slot became ready, failed or free
  std::map<uint64_t, std::unique_ptr<SlotClass>> classes_;  // by record size
  std::vector<Slot*> slots_;                                // by load tag
  std::list<Demand*> demands_;                              // in the order of asking
  std::vector<ExpertKey> guesses_;                          // expected, without a slot yet; the next one last
  std::vector<Slot*> expected_;                             // expected, with a slot
  Use guess_use_ = Use::Decode;
  StoreStats stats_;
  const ReadQueue* registered_ = nullptr;  // the loader's
  std::unique_ptr<Loader> loader_;         // last: its threads end before what they write to
};

}  // namespace moeflux
