#include "base/buffer.h"

#include <sys/mman.h>

#include <utility>

#include "base/checked.h"

namespace moeflux {

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail(Errc::OutOfMemory, "cannot reserve {} bytes of memory", bytes);
  if (bytes >= (4u << 20))
    madvise(p, bytes, MADV_HUGEPAGE);  // advice: its refusal changes speed, not results
  data_ = static_cast<std::byte*>(p);
}

void make_pages(std::span<std::byte> pages) noexcept {
#ifdef MADV_POPULATE_WRITE
  madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE);
#else
  static_cast<void>(pages);
#endif
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_) munmap(data_, size_);
}

}  // namespace moeflux
