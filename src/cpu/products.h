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
  bool exact = false;              // in every precision
  size_t first_row = 0, rows = 0;  // rows 0: all
  // As in linear.h: the second half of x's vectors is what the int8 form of the first half leaves over.
  bool fine = false;

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
      : ops_(ops), pool_(pool), fast_(precision == Precision::Fast), parts_(pool.size()) {}

  // Quantises all vectors of a panel, where the precision wants it.
  void quantise(const Panel& panel) const;
  void run(std::span<const Product> products);
  // first: see WorkerPool::run.
  void run(std::span<const GatedProduct> products, const std::function<void()>& first = {});
  // These will be multiplied with one vector next, together: threads that wait fetch the begin of their part.
  void fetch_ahead(std::span<const MatrixView* const> matrices) const;
  bool fast() const { return fast_; }

 private:
  struct Share {           // what a product has of the region: row blocks, in units that stay together
    size_t first_unit;     // of all shares' units
    size_t block, blocks;  // row blocks
    size_t n;              // vectors
  };
  struct Item {
    uint32_t product;
    uint32_t block, blocks;  // row blocks
    uint32_t first, n;       // vectors
  };
  void begin_region(size_t unit);
  void add_share(size_t first_block, size_t blocks, size_t n);
  template <class Fn>
  void each_item(size_t work, Fn fn, const std::function<void()>& first = {});
  void cut_items();
  void divide();
  bool take(size_t worker, Item& item);
  void multiply(const Product& p, const Item& item) const;
  void multiply_fine(const Product& p, const Item& item, size_t rows, float* out) const;
  void multiply_rows(const Product& p, const Item& item) const;
  bool quantises(const GatedProduct& p) const { return fast_ && has_integer_codes(p.w->down.w.format); }
  void gate(const GatedProduct& p, const Item& item, bool whole_spans) const;
  void multiply(const MatrixView& w, const Tiles& tiles, size_t block, size_t blocks, const Panel& x,
                const uint32_t* pick, size_t n, bool exact, float* out, size_t stride) const;

  const Ops& ops_;
  WorkerPool& pool_;
  const bool fast_;
  // Of the region under way:
  size_t unit_ = 1, n_units_ = 0;  // row blocks of a unit
  std::vector<Share> shares_;      // by product
  std::vector<Item> items_;        // where units are not handed out as they are
  struct alignas(64) Part {        // of the units: a thread's own, until it has done them
    std::atomic<size_t> next = 0;
    size_t end = 0;
  };
  std::vector<Part> parts_;  // by thread
};

}  // namespace moeflux
