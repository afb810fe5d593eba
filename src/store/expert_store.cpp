#include "store/expert_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/threads.h"

namespace moeflux {

struct ExpertStore::Slot {
  std::span<std::byte> bytes;
  std::optional<ExpertKey> key;
  int pins = 0;
};

struct ExpertStore::SlotClass {
  uint64_t most_slots = 0;
  AlignedBuffer memory;   // of all slots; pages cost nothing until a slot is used
  std::list<Slot> slots;  // most recently used first
  std::map<ExpertKey, std::list<Slot>::iterator> where;
};

ExpertStore::Lease::Lease(Slot& slot) noexcept : slot_(&slot) { ++slot.pins; }
ExpertStore::Lease::Lease(Lease&& o) noexcept : slot_(std::exchange(o.slot_, nullptr)) {}
ExpertStore::Lease::~Lease() {
  if (slot_) --slot_->pins;
}
std::span<const std::byte> ExpertStore::Lease::bytes() const noexcept { return slot_->bytes; }

ExpertStore::ExpertStore(const Package& package, uint64_t budget_bytes, bool check_reads)
    : package_(package), check_reads_(check_reads) {
  const Manifest& manifest = package.manifest();
  if (budget_bytes < least_budget(manifest))
    fail(Errc::OutOfMemory,
         "a budget of {} for experts is too small: one expert of each record size needs {}",
         format_bytes(budget_bytes), format_bytes(least_budget(manifest)));
  std::map<uint64_t, uint64_t> experts;  // by record size
  for (const ExpertLayer& l : manifest.layers) {
    layers_[l.layer] = &l;
    experts[l.record_bytes] += l.n_experts();
  }
  // Each class gets one slot, its share of the bytes that are left, and at most one slot per expert.
  const auto rest = static_cast<double>(budget_bytes - least_budget(manifest));
  for (const auto& [bytes, n] : experts) {
    const double share = static_cast<double>(bytes * n) / static_cast<double>(manifest.expert_bytes());
    const auto more = static_cast<uint64_t>(share * rest / static_cast<double>(bytes));
    SlotClass& cls = classes_[bytes];
    cls.most_slots = std::min<uint64_t>(1 + more, n);
    cls.memory = AlignedBuffer(cls.most_slots * bytes);
  }
}

ExpertStore::~ExpertStore() = default;

uint64_t ExpertStore::least_budget(const Manifest& manifest) {
  std::map<uint64_t, bool> sizes;
  for (const ExpertLayer& l : manifest.layers) sizes[l.record_bytes] = true;
  uint64_t sum = 0;
  for (const auto& [bytes, _] : sizes) sum += bytes;
  return sum;
}

const ExpertLayer& ExpertStore::layer(uint64_t layer) const {
  const auto it = layers_.find(layer);
  check(it != layers_.end(), "a layer with experts");
  return *it->second;
}

uint64_t ExpertStore::slot_bytes() const {
  uint64_t sum = 0;
  for (const auto& [bytes, cls] : classes_) sum += bytes * cls.most_slots;
  return sum;
}

size_t ExpertStore::most_leases(uint64_t l) const { return classes_.at(layer(l).record_bytes).most_slots; }

ExpertStore::Lease ExpertStore::lease(ExpertKey key) {
  const ExpertLayer& l = layer(key.layer);
  SlotClass& cls = classes_.at(l.record_bytes);
  if (const auto it = cls.where.find(key); it != cls.where.end()) {
    ++stats_.hits;
    cls.slots.splice(cls.slots.begin(), cls.slots, it->second);
    return Lease(*it->second);
  }
  ++stats_.misses;
  return Lease(load(cls, key, l));
}

ExpertStore::Slot& ExpertStore::load(SlotClass& cls, ExpertKey key, const ExpertLayer& l) {
  if (cls.slots.size() < cls.most_slots) {
    const size_t index = cls.slots.size();
    cls.slots.emplace_front().bytes = cls.memory.bytes().subspan(index * l.record_bytes, l.record_bytes);
  } else {
    auto it = std::find_if(cls.slots.rbegin(), cls.slots.rend(), [](const Slot& s) { return s.pins == 0; });
    check(it != cls.slots.rend(), "a slot that no lease pins");
    cls.slots.splice(cls.slots.begin(), cls.slots, std::next(it).base());
  }
  Slot& slot = cls.slots.front();
  if (slot.key) cls.where.erase(*slot.key);
  slot.key.reset();  // until the bytes are there and checked, the slot holds nothing
  package_.read_record(l, key.expert, slot.bytes, check_reads_);
  stats_.bytes_read += l.record_bytes;
  slot.key = key;
  cls.where[key] = cls.slots.begin();
  return slot;
}

void ExpertStore::load_all(size_t threads) {
  struct Load {
    const ExpertLayer* layer;
    uint64_t expert;
    std::span<std::byte> into;
  };
  std::vector<Load> loads;
  uint64_t bytes = 0;
  std::map<uint64_t, uint64_t> slots;
  for (const auto& [size, cls] : classes_) slots[size] = cls.most_slots;
  for (const auto& [index, l] : layers_) {
    if (slots[l->record_bytes] < l->n_experts()) return;
    slots[l->record_bytes] -= l->n_experts();
  }
  for (auto& [size, cls] : classes_)
    if (!cls.slots.empty()) return;  // in use already
  for (const auto& [index, l] : layers_) {
    SlotClass& cls = classes_.at(l->record_bytes);
    for (uint64_t e = 0; e < l->n_experts(); ++e, bytes += l->record_bytes) {
      const size_t at = cls.slots.size();
      Slot& slot = cls.slots.emplace_back();
      slot.bytes = cls.memory.bytes().subspan(at * l->record_bytes, l->record_bytes);
      loads.push_back({l, e, slot.bytes});
    }
  }
  Progress progress("loading experts", bytes);
  parallel_for(loads.size(), threads, [&](size_t i) {
    package_.read_record(*loads[i].layer, loads[i].expert, loads[i].into, check_reads_, true);
    progress.add(loads[i].layer->record_bytes);
  });
  std::map<uint64_t, std::list<Slot>::iterator> next;
  for (auto& [size, cls] : classes_) next[size] = cls.slots.begin();
  for (const Load& load : loads) {
    auto& it = next[load.layer->record_bytes];
    it->key = ExpertKey{load.layer->layer, load.expert};
    classes_.at(load.layer->record_bytes).where[*it->key] = it;
    ++it;
  }
  stats_.bytes_read += bytes;
}

}  // namespace moeflux
