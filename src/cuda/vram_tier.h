// Expert records in device memory: the tier in front of the ExpertStore. Slots of one class per record size,
// carved from a budget; some of them let the experts of a prefill pass through, the others are kept as a
// policy says. What is where is known to the host, and to kernels through one table per layer.
//
// One thread. The tier knows slots, not streams: whoever fills a slot sees to it that nothing reads it any
// more.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "package/manifest.h"
#include "store/expert_store.h"

namespace moeflux::cuda {

class VramTier {
 public:
  // Throws Error{OutOfMemory} where not even one expert of each record size fits, or the device has less.
  VramTier(const Manifest& manifest, uint64_t budget_bytes, const std::string& policy);
  ~VramTier();

  bool holds_all() const { return holds_all_; }  // has a slot for every expert
  size_t n_slots() const;
  size_t n_passing(uint64_t layer) const;  // slots that sweeps fill, in the class of this layer's experts
  uint64_t n_loaded() const { return n_loaded_; }
  uint64_t n_experts() const { return n_experts_; }

  // Where the expert's record is; null if it is not here.
  std::byte* find(ExpertKey key) const;
  void use(ExpertKey key);  // a decoding step uses it

  // A place for this expert, which is not here: from now on it counts as being here, and its record must be
  // copied there. Sweeps get a slot that others only pass through. Null if all slots that might be had are
  // pinned. Moves the expert that was there out.
  std::byte* place(ExpertKey key, ExpertStore::Use use);
  bool has_room(uint64_t layer, ExpertStore::Use use) const;  // place would find one

  // Pinned experts stay until they are let go, in the order in which they were pinned.
  void pin(ExpertKey key);
  size_t n_pinned() const { return pinned_.size(); }
  void unpin_first(size_t n);
  void unpin_all() { unpin_first(pinned_.size()); }

 private:
  struct Class;
  struct Layer {
    Class* cls = nullptr;
    ExpertId first = 0;
    uint64_t n_experts = 0;
  };
  const Layer& layer(uint64_t index) const;

  std::map<uint64_t, Layer> layers_;
  std::map<uint64_t, std::unique_ptr<Class>> classes_;  // by record size
  bool holds_all_ = true;
  uint64_t n_loaded_ = 0, n_experts_ = 0;
  std::vector<std::pair<Class*, size_t>> pinned_;
};

}  // namespace moeflux::cuda
