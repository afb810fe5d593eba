#include "cuda/device_pages.h"

#include <algorithm>

#include "base/checked.h"

namespace moeflux::cuda {
namespace {

constexpr size_t kPageAlign = 256;
// Some hundred positions of a large model: reserving memory takes as long as a few tokens.
constexpr size_t kSlabBytes = 32u << 20;

}  // namespace

DevicePagePool::DevicePagePool(size_t page_bytes, size_t keep)
    : page_bytes_(page_bytes),
      stride_(align_up(page_bytes, kPageAlign)),
      slab_pages_(std::max<size_t>(1, kSlabBytes / stride_)),
      keep_(keep) {}

DevicePage DevicePagePool::take() {
  if (open_.empty()) {
    auto slab = std::make_unique<Slab>();
    slab->memory = DeviceBuffer(checked_mul(slab_pages_, stride_, "KV cache"), "KV cache");
    slab->free.reserve(slab_pages_);
    for (size_t i = slab_pages_; i-- > 0;) slab->free.push_back(slab->memory.as<>() + i * stride_);
    slabs_.reserve(slabs_.size() + 1);
    open_.reserve(slabs_.size() + 1);
    open_.push_back(slab.get());
    slabs_.push_back(std::move(slab));
    ++n_idle_;
  }
  Slab* slab = open_.back();
  // Where making the reference fails, it gives the page back itself.
  n_idle_ -= slab->free.size() == slab_pages_;
  std::byte* page = slab->free.back();
  slab->free.pop_back();
  if (slab->free.empty()) open_.pop_back();
  ++n_used_;
  return DevicePage(page, [pool = shared_from_this(), slab](std::byte* p) { pool->give_back(slab, p); });
}

void DevicePagePool::give_back(Slab* slab, std::byte* page) noexcept {
  if (slab->free.empty()) open_.push_back(slab);  // has room: it was reserved for every slab
  slab->free.push_back(page);
  --n_used_;
  if (slab->free.size() < slab_pages_ || ++n_idle_ <= keep_) return;
  --n_idle_;
  std::erase(open_, slab);
  std::erase_if(slabs_, [&](const auto& s) { return s.get() == slab; });
}

}  // namespace moeflux::cuda
