// Matrix products of the CPU backend, cut into items for the pool. How they are cut changes no bit: an item
// computes whole rows for whole vectors.
#pragma once

#include <atomic>

#include "cpu/worker_pool.h"
#include "model/backend.h"
#include "ops/ops.h"

namespace moeflux {

// Memory that grows to what is asked of it and stays: the token loop allocates nothing.
template <class T>
class Scratch {
 public:
  T* get(size_t n) {
    if (n * sizeof(T) > buffer_.size()) buffer_ = AlignedBuffer(n * sizeof(T));
    return reinterpret_cast<T*>(buffer_.data());
  }
  uint64_t bytes() const { return buffer_.size(); }

 private:
  AlignedBuffer buffer_;
};

constexpr size_t span_count(size_t cols) { return (cols + 63) / 64; }

// Vectors on their way into products: floats and their int8 form.
class Activations {
 public:
  // Room for n vectors; their floats are at panel.f, which the caller fills.
  Panel make(size_t n, size_t cols);
  uint64_t bytes() const { return floats_.bytes() + q_.bytes() + scale_.bytes(); }

 private:
  Scratch<float> floats_;
  Scratch<int8_t> q_;
  Scratch<SpanScale> scale_;
};

struct Product {  // out[t] = w x[pick[t]] (+ bias), t < n
  MatrixView w;
  Vector bias;
  Panel x;
  const uint32_t* pick;  // null: all in order
  size_t n;
  float* out;
  size_t out_stride;
  bool exact = false;                // in every precision
  size_t first_row = 0, rows = 0;    // rows 0: all
  const Panel* remainder = nullptr;  // of x: the product is fine (linear.h)

  size_t row_count() const { return rows ? rows : w.rows; }
  bool whole_blocks() const { return rows == 0 || (first_row % kTileRows == 0 && rows % kTileRows == 0); }
};

struct GatedProduct {  // hidden[t] = act(gate x[pick[t]], up x[pick[t]]), t < n
  const MlpWeights* w;
  Activation activation;
  float clamp;
  Panel x;
  const uint32_t* pick;
  size_t n;
  Panel hidden;
};

class Products {
 public:
  Products(const Ops& ops, WorkerPool& pool, Precision precision)
      : ops_(ops), pool_(pool), fast_(precision == Precision::Fast), items_(0), parts_(pool.size()) {}

  // Quantises all vectors of a panel, where the precision wants it.
  void quantise(const Panel& panel) const;
  void run(std::span<const Product> products);
  // first: see WorkerPool::run.
  void run(std::span<const GatedProduct> products, const std::function<void()>& first = {});
  bool fast() const { return fast_; }

 private:
  struct Item {
    uint32_t product;
    uint32_t block, blocks;  // row blocks
    uint32_t first, n;       // vectors
    bool alone;              // its weights are met twice, and come from the cache the second time
  };
  void cut(size_t product, size_t first_block, size_t blocks, size_t n, size_t per_item, bool alone = false);
  template <class Fn>
  void each_item(size_t work, Fn fn, const std::function<void()>& first = {});
  void divide();
  bool take(size_t worker, Item& item);
  void multiply(const Product& p, const Item& item) const;
  void multiply_rows(const Product& p, const Item& item) const;
  bool quantises(const GatedProduct& p) const { return fast_ && has_integer_codes(p.w->down.w.format); }
  void gate(const GatedProduct& p, const Item& item, bool whole_spans) const;
  void multiply(const MatrixView& w, const Tiles& tiles, size_t block, size_t blocks, const Panel& x,
                const uint32_t* pick, size_t n, bool exact, float* out, size_t stride) const;

  const Ops& ops_;
  WorkerPool& pool_;
  const bool fast_;
  std::vector<Item> items_;  // of the region under way
  struct alignas(64) Part {  // of the items: a thread's own, until it has done them
    std::atomic<size_t> next = 0;
    size_t end = 0;
  };
  std::vector<Part> parts_;  // by thread
};

}  // namespace moeflux
