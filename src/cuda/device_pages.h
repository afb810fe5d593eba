// Device memory of sequences in pages of one size, counted by reference, so that sequences can share what
// they have in common. A page is not written while it is shared: who wants to, copies it first. Whoever uses
// pages does so in the order of one stream, so that one can be given back before the device has done with it.
//
// A page has equal parts, one for each layer. The same part of pages that were reserved together lies side by
// side: kernels go over one layer of many pages, and would otherwise touch a piece of all memory in each.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"

namespace moeflux::cuda {

using DevicePage = std::shared_ptr<std::byte>;  // its first part, or none

class DevicePagePool : public std::enable_shared_from_this<DevicePagePool> {
 public:
  // keep: how many slabs that nobody uses stay, for the next sequence.
  DevicePagePool(size_t part_bytes, size_t n_parts, size_t keep = 1);
  DevicePagePool(const DevicePagePool&) = delete;

  DevicePage take();  // uninitialised, parts aligned to 256 bytes; throws Error{OutOfMemory}
  void copy(const DevicePage& to, const DevicePage& from, cudaStream_t stream) const;

  size_t part_bytes() const { return part_bytes_; }
  size_t page_bytes() const { return part_bytes_ * n_parts_; }
  size_t stride() const { return part_bytes_ * slab_pages_; }  // from part to part
  size_t n_used() const { return n_used_; }                    // pages that are referred to
  uint64_t reserved_bytes() const { return slabs_.size() * slab_pages_ * page_bytes(); }

 private:
  struct Slab {  // pages that are reserved together, and given back together when none is used
    DeviceBuffer memory;
    std::vector<std::byte*> free;
  };
  void give_back(Slab* slab, std::byte* page) noexcept;

  const size_t part_bytes_, n_parts_, slab_pages_, keep_;
  size_t n_used_ = 0, n_idle_ = 0;  // pages; slabs of which none is used
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<Slab*> open_;  // those with a free page
};

}  // namespace moeflux::cuda
