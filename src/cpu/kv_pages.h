// Memory of KV caches in pages of one size, counted by reference, so that sequences can share what they have
// in common. A page is not written while it is shared: who wants to, copies it first. For one thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"

namespace moeflux {

class KvPagePool;

// A reference to a page, or none.
class KvPage {
 public:
  KvPage() = default;
  KvPage(const KvPage& o) noexcept;
  KvPage(KvPage&& o) noexcept : header_(std::exchange(o.header_, nullptr)) {}
  KvPage& operator=(KvPage o) noexcept {
    std::swap(header_, o.header_);
    return *this;
  }
  ~KvPage();

  explicit operator bool() const { return header_; }
  std::byte* data() const;  // aligned to 64 bytes
  bool shared() const;      // by another reference

 private:
  friend class KvPagePool;
  struct Header;
  explicit KvPage(Header* header) : header_(header) {}
  Header* header_ = nullptr;
};

class KvPagePool {
 public:
  explicit KvPagePool(size_t page_bytes);
  KvPagePool(const KvPagePool&) = delete;
  ~KvPagePool();  // no page is referred to any more

  KvPage take();  // zero-filled; throws Error{OutOfMemory}
  size_t page_bytes() const { return page_bytes_; }
  size_t n_used() const { return n_used_; }  // pages that are referred to
  uint64_t reserved_bytes() const { return slabs_.size() * slab_pages_ * stride_; }

 private:
  friend class KvPage;
  struct Slab;  // pages that are reserved together, and given back together when none is used
  void give_back(KvPage::Header* header) noexcept;

  const size_t page_bytes_, stride_, slab_pages_;
  size_t n_used_ = 0;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<Slab*> open_;  // those with a free page
};

}  // namespace moeflux
