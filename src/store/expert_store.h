// Hands out routed experts. A lease pins an expert's bytes for as long as it lives; a failed read is an Error
// at the caller and leaves the store usable. This store reads when asked and keeps what fits in its budget
// (least recently used goes first), one class of slots per record size. One thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>

#include "package/package.h"
#include "store/store_stats.h"

namespace moeflux {

struct ExpertKey {
  uint64_t layer, expert;
  auto operator<=>(const ExpertKey&) const = default;
};

class ExpertStore {
  struct Slot;

 public:
  class Lease {  // while it lives, the expert's bytes stay where they are
   public:
    explicit Lease(Slot& slot) noexcept;
    Lease(Lease&& o) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    std::span<const std::byte> bytes() const noexcept;

   private:
    Slot* slot_;
  };

  // `budget_bytes` of slots over all classes; throws Error{OutOfMemory} if not even one expert of each class
  // fits.
  ExpertStore(const Package& package, uint64_t budget_bytes, bool check_reads);
  ~ExpertStore();

  const ExpertLayer& layer(uint64_t layer) const;
  Lease lease(ExpertKey key);
  // Loads every expert, where there is a slot for each; otherwise does nothing. Throws as lease does.
  void load_all(size_t threads);
  // How many leases of this layer's experts can be held at once.
  size_t most_leases(uint64_t layer) const;
  const StoreStats& stats() const { return stats_; }
  uint64_t slot_bytes() const;

  // The smallest budget with which a package can run.
  static uint64_t least_budget(const Manifest& manifest);

 private:
  struct SlotClass;
  Slot& load(SlotClass& cls, ExpertKey key, const ExpertLayer& layer);

  const Package& package_;
  const bool check_reads_;
  std::map<uint64_t, SlotClass> classes_;  // by record size
  std::map<uint64_t, const ExpertLayer*> layers_;
  StoreStats stats_;
};

}  // namespace moeflux
