#include "cuda/vram_tier.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace moeflux::cuda {

struct VramTier::Class {
  static constexpr uint32_t kNowhere = UINT32_MAX;
  uint64_t record_bytes = 0;
  DeviceBuffer memory;
  struct Slot {
    uint32_t id = kNowhere;  // the expert in it
    uint32_t pins = 0;
  };
  std::vector<Slot> slots;
  size_t n_kept = 0;            // slots [0, n_kept) are the policy's, the others are passed through
  size_t n_used = 0;            // of the kept ones, how many have ever been filled
  size_t next_passing = 0;      // in turn
  std::vector<uint32_t> where;  // by ExpertId: slot or kNowhere
  std::unique_ptr<EvictionPolicy> policy;

  std::byte* at(size_t slot) const { return memory.as<>() + slot * record_bytes; }

  // One that can be filled; nothing where all that might be had are pinned.
  std::optional<size_t> find_slot(ExpertStore::Use use) const {
    if (n_used < n_kept) return n_used;
    if (use == ExpertStore::Use::Decode && n_kept) {
      const auto victim = policy->victim([&](ExpertId i) { return slots[where[i]].pins == 0; });
      if (victim) return where[*victim];
    }
    const size_t n_passing = slots.size() - n_kept;
    for (size_t i = 0; i < n_passing; ++i) {
      const size_t slot = n_kept + (next_passing + i) % n_passing;
      if (slots[slot].pins == 0) return slot;
    }
    return std::nullopt;
  }
};

VramTier::VramTier(const Manifest& manifest, uint64_t budget, const std::string& policy) {
  const uint64_t least = ExpertStore::least_budget(manifest);
  if (budget < least)
    fail(Errc::OutOfMemory,
         "{} of device memory for experts are too little: one expert of each record size needs {}",
         format_bytes(budget), format_bytes(least));
  std::map<uint64_t, uint64_t> experts, n_layers, widest;  // by record size
  for (const ExpertLayer& l : manifest.layers) {
    experts[l.record_bytes] += l.n_experts();
    ++n_layers[l.record_bytes];
    widest[l.record_bytes] = std::max<uint64_t>(widest[l.record_bytes], l.n_experts());
    n_experts_ += l.n_experts();
  }
  const auto rest = static_cast<double>(budget - least);
  for (const auto& [bytes, n] : experts) {
    const double share = static_cast<double>(bytes * n) / static_cast<double>(manifest.expert_bytes());
    const auto more = static_cast<uint64_t>(share * rest / static_cast<double>(bytes));
    auto cls = std::make_unique<Class>();
    cls->record_bytes = bytes;
    const size_t slots = std::min<uint64_t>(1 + more, n);
    cls->slots.resize(slots);
    cls->n_kept =
        slots == n ? slots : slots - std::max<size_t>(1, std::min<size_t>(slots / 8, widest[bytes]));
    cls->memory = DeviceBuffer(slots * bytes, "expert slots");
    cls->where.resize(n_layers[bytes] * widest[bytes], Class::kNowhere);
    cls->policy = make_policy(policy, {.n_layers = static_cast<uint32_t>(n_layers[bytes]),
                                       .n_experts = static_cast<uint32_t>(widest[bytes]),
                                       .n_slots = static_cast<uint32_t>(std::max<size_t>(cls->n_kept, 1))});
    holds_all_ &= slots == n;
    classes_[bytes] = std::move(cls);
  }
  std::map<uint64_t, ExpertId> next;
  for (const ExpertLayer& l : manifest.layers) {
    layers_[l.layer] = {classes_.at(l.record_bytes).get(), next[l.record_bytes], l.n_experts()};
    next[l.record_bytes] += static_cast<ExpertId>(widest[l.record_bytes]);
  }
}

VramTier::~VramTier() = default;

const VramTier::Layer& VramTier::layer(uint64_t index) const {
  const auto it = layers_.find(index);
  check(it != layers_.end(), "a layer with experts");
  return it->second;
}

size_t VramTier::n_slots() const {
  size_t sum = 0;
  for (const auto& [_, c] : classes_) sum += c->slots.size();
  return sum;
}

size_t VramTier::n_passing(uint64_t index) const {
  const Class& c = *layer(index).cls;
  return c.slots.size() - c.n_kept;
}

std::byte* VramTier::find(ExpertKey key) const {
  const Layer& l = layer(key.layer);
  const uint32_t slot = l.cls->where[l.first + key.expert];
  return slot == Class::kNowhere ? nullptr : l.cls->at(slot);
}

void VramTier::use(ExpertKey key) {
  const Layer& l = layer(key.layer);
  const auto id = static_cast<ExpertId>(l.first + key.expert);
  const uint32_t slot = l.cls->where[id];
  if (slot != Class::kNowhere && slot < l.cls->n_kept) l.cls->policy->use(id);
}

std::byte* VramTier::place(ExpertKey key, ExpertStore::Use use) {
  const Layer& l = layer(key.layer);
  Class& c = *l.cls;
  const auto id = static_cast<ExpertId>(l.first + key.expert);
  check(c.where[id] == Class::kNowhere, "an expert that is not on the device yet");
  const std::optional<size_t> slot = c.find_slot(use);
  if (!slot) return nullptr;
  Class::Slot& s = c.slots[*slot];
  if (s.id != Class::kNowhere) {
    if (*slot < c.n_kept) c.policy->remove(s.id);
    c.where[s.id] = Class::kNowhere;
    --n_loaded_;
  }
  s.id = id;
  c.where[id] = static_cast<uint32_t>(*slot);
  ++n_loaded_;
  if (*slot < c.n_kept) {
    c.n_used = std::max(c.n_used, *slot + 1);
    c.policy->insert(id);
  } else {
    c.next_passing = (*slot - c.n_kept + 1) % (c.slots.size() - c.n_kept);
  }
  return c.at(*slot);
}

bool VramTier::has_room(uint64_t index, ExpertStore::Use use) const {
  return layer(index).cls->find_slot(use).has_value();
}

void VramTier::pin(ExpertKey key) {
  const Layer& l = layer(key.layer);
  const uint32_t slot = l.cls->where[l.first + key.expert];
  check(slot != Class::kNowhere, "an expert that is on the device");
  ++l.cls->slots[slot].pins;
  pinned_.emplace_back(l.cls, slot);
}

void VramTier::unpin_first(size_t n) {
  check(n <= pinned_.size(), "experts that were pinned");
  const auto end = pinned_.begin() + static_cast<ptrdiff_t>(n);
  for (auto it = pinned_.begin(); it != end; ++it) --it->first->slots[it->second].pins;
  pinned_.erase(pinned_.begin(), end);
}

}  // namespace moeflux::cuda
