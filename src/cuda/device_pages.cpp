#include "cuda/device_pages.h"

#include <algorithm>

#include "base/checked.h"

namespace moeflux::cuda {
namespace {

constexpr size_t kPartAlign = 256;
// Of one part of a slab's pages: as much as the device maps at once. A thousand positions of a large model
// are then reserved together.
constexpr size_t kRunBytes = 2u << 20;

}  // namespace

DevicePagePool::DevicePagePool(size_t part_bytes, size_t n_parts, size_t keep)
    : part_bytes_(align_up(part_bytes, kPartAlign)),
      n_parts_(n_parts),
      slab_pages_(std::max<size_t>(1, kRunBytes / part_bytes_)),
      keep_(keep) {}

DevicePage DevicePagePool::take() {
  if (open_.empty()) {
    auto slab = std::make_unique<Slab>();
    slab->memory = DeviceBuffer(checked_mul(n_parts_, stride(), "KV cache"), "KV cache");
    slab->free.reserve(slab_pages_);
    for (size_t i = slab_pages_; i-- > 0;) slab->free.push_back(slab->memory.as<>() + i * part_bytes_);
    slabs_.reserve(slabs_.size() + 1);
    open_.reserve(slabs_.size() + 1);
    open_.push_back(slab.get());
    slabs_.push_back(std::move(slab));
    ++n_idle_;
  }
  Slab* slab = open_.back();
  n_idle_ -= slab->free.size() == slab_pages_;
  std::byte* page = slab->free.back();
  slab->free.pop_back();
  if (slab->free.empty()) open_.pop_back();
  ++n_used_;
  // Where making the reference fails, it gives the page back itself.
  return DevicePage(page, [pool = shared_from_this(), slab](std::byte* p) { pool->give_back(slab, p); });
}

void DevicePagePool::copy(const DevicePage& to, const DevicePage& from, cudaStream_t stream) const {
  check_cuda(cudaMemcpy2DAsync(to.get(), stride(), from.get(), stride(), part_bytes_, n_parts_,
                               cudaMemcpyDeviceToDevice, stream),
             "copying a page of a KV cache");
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
