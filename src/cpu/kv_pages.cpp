#include "cpu/kv_pages.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace moeflux {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kSlabBytes = 16u << 20;  // large enough for 2 MiB pages of the system; touched as it is used

}  // namespace

struct KvPage::Header {
  KvPagePool* pool;
  KvPagePool::Slab* slab;
  Header* next;  // of the slab's free pages
  size_t references;
};

struct KvPagePool::Slab {
  explicit Slab(size_t bytes) : memory(bytes) {}
  AlignedBuffer memory;
  size_t n_used = 0, n_touched = 0;  // pages from n_touched on are as the system gave them: zero
  KvPage::Header* free = nullptr;
};

KvPage::KvPage(const KvPage& o) noexcept : header_(o.header_) {
  if (header_) ++header_->references;
}

KvPage::~KvPage() {
  if (header_ && --header_->references == 0) header_->pool->give_back(header_);
}

std::byte* KvPage::data() const { return reinterpret_cast<std::byte*>(header_) + kAlign; }
bool KvPage::shared() const { return header_->references > 1; }

KvPagePool::KvPagePool(size_t page_bytes)
    : page_bytes_(page_bytes),
      stride_(kAlign + align_up(page_bytes, kAlign)),
      slab_pages_(std::max<size_t>(1, kSlabBytes / stride_)) {
  static_assert(sizeof(KvPage::Header) <= kAlign);
}

KvPagePool::~KvPagePool() { check(n_used_ == 0, "pages that nobody refers to any more"); }

KvPage KvPagePool::take() {
  if (open_.empty()) {
    slabs_.push_back(std::make_unique<Slab>(checked_mul(slab_pages_, stride_, "KV cache")));
    open_.push_back(slabs_.back().get());
  }
  Slab& slab = *open_.back();
  KvPage::Header* header = slab.free;
  if (header) {
    slab.free = header->next;
    std::memset(reinterpret_cast<std::byte*>(header) + kAlign, 0, page_bytes_);
  } else {
    header = reinterpret_cast<KvPage::Header*>(slab.memory.data() + slab.n_touched++ * stride_);
  }
  *header = {this, &slab, nullptr, 1};
  ++n_used_;
  if (++slab.n_used == slab_pages_) open_.pop_back();
  return KvPage(header);
}

void KvPagePool::give_back(KvPage::Header* header) noexcept {
  Slab& slab = *header->slab;
  header->next = std::exchange(slab.free, header);
  --n_used_;
  if (slab.n_used-- == slab_pages_) open_.push_back(&slab);
  if (slab.n_used > 0 || open_.size() == 1) return;  // one stays, for the next sequence
  std::erase(open_, &slab);
  std::erase_if(slabs_, [&](const auto& s) { return s.get() == &slab; });
}

}  // namespace moeflux
