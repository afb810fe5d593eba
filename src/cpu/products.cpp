#include "cpu/products.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr size_t kItemVectors = 128;  // their int8 form and a row block's weights fit in the second cache
constexpr size_t kItemBlocks = 4;     // row blocks of an item, unless there are few vectors
constexpr size_t kGateBlocks = 128;   // row blocks times vectors: gate and up results of an item on the stack
constexpr size_t kWorthForking = 1 << 16;  // multiply-adds: a microsecond or two
constexpr size_t kSpanBlocks = 64 / kTileRows;

// So few vectors that memory is the limit, or nearly so.
constexpr bool is_few(size_t vectors) { return vectors >= 1 && vectors <= 8; }

}  // namespace

Panel Activations::make(size_t n, size_t cols) {
  const size_t spans = span_count(cols);
  return {n, cols, floats_.get(n * cols), cols, q_.get(n * spans * 64), scale_.get(n * spans)};
}

void Products::quantise(const Panel& panel) const {
  if (!fast_) return;
  pool_.run(panel.n, [&](size_t t, size_t) { ops_.quantise(panel.f + t * panel.stride, panel, t); });
}

void Products::begin_region(size_t unit) {
  unit_ = unit;
  n_units_ = 0;
  shares_.clear();
}

void Products::add_share(size_t first_block, size_t blocks, size_t n) {
  shares_.push_back({n_units_, first_block, blocks, n});
  n_units_ += (blocks + unit_ - 1) / unit_;
}

// Units of row blocks, vectors in pieces of kItemVectors.
void Products::cut_items() {
  items_.clear();
  for (size_t i = 0; i < shares_.size(); ++i)
    for (size_t b = 0; b < shares_[i].blocks; b += unit_)
      for (size_t t = 0; t < shares_[i].n; t += kItemVectors)
        items_.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(shares_[i].block + b),
                          static_cast<uint32_t>(std::min(unit_, shares_[i].blocks - b)),
                          static_cast<uint32_t>(t),
                          static_cast<uint32_t>(std::min(kItemVectors, shares_[i].n - t))});
}

// Each thread goes through a part of the units from one end to the other, so that what it fetches ahead is
// what it needs next; who is done with his own helps the others.
void Products::divide() {
  const size_t threads = parts_.size();
  for (size_t t = 0; t < threads; ++t) {
    parts_[t].next.store(t * n_units_ / threads, std::memory_order_relaxed);
    parts_[t].end = (t + 1) * n_units_ / threads;
  }
}

// The next units of a part, half of what is left there at most: long streams of weights come faster than
// short ones, and small pieces at the end let threads end together. False: there are no more.
bool Products::take(size_t worker, Item& item) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[(worker + i) % parts_.size()];
    for (size_t at = part.next.load(std::memory_order_relaxed); at < part.end;) {
      size_t product = 0;
      while (product + 1 < shares_.size() && shares_[product + 1].first_unit <= at) ++product;
      const Share& share = shares_[product];
      const size_t done = (at - share.first_unit) * unit_, fitting = kGateBlocks / (unit_ * share.n);
      const size_t units = std::clamp<size_t>((part.end - at) / 2, 1, std::max<size_t>(fitting, 1));
      const size_t blocks = std::min(units * unit_, share.blocks - done);
      if (!part.next.compare_exchange_weak(at, at + (blocks + unit_ - 1) / unit_, std::memory_order_relaxed))
        continue;
      item = {static_cast<uint32_t>(product), static_cast<uint32_t>(share.block + done),
              static_cast<uint32_t>(blocks), 0, static_cast<uint32_t>(share.n)};
      return true;
    }
  }
  return false;
}

template <class Fn>
void Products::each_item(size_t work, Fn fn, const std::function<void()>& first) {
  if (work >= kWorthForking && std::ranges::all_of(shares_, [](const Share& s) { return is_few(s.n); })) {
    divide();
    const auto all = [&](size_t, size_t worker) {
      for (Item item; take(worker, item);) fn(item);
    };
    return pool_.run(parts_.size(), all, first);
  }
  cut_items();
  if (work >= kWorthForking)
    return pool_.run(
        items_.size(), [&](size_t i, size_t) { fn(items_[i]); }, first);
  if (first) first();
  for (const Item& item : items_) fn(item);
}

void Products::fetch_ahead(std::span<const MatrixView* const> matrices) const {
  size_t total = 0;
  for (const MatrixView* m : matrices) total += m->n_row_blocks();
  for (size_t t = 1; t < parts_.size(); ++t) {  // the caller has other things to do
    size_t block = t * total / parts_.size();
    for (const MatrixView* m : matrices) {
      if (block < m->n_row_blocks()) {
        const size_t bytes = m->n_tiles_per_row() * m->format.tile_bytes();
        pool_.fetch_ahead(t, {m->data + block * bytes, (m->n_row_blocks() - block) * bytes});
        break;
      }
      block -= m->n_row_blocks();
    }
  }
}

void Products::run(std::span<const Product> products) {
  size_t total = 0, work = 0;
  const auto n_blocks = [](const Product& p) {
    return p.whole_blocks() ? (p.row_count() + kTileRows - 1) / kTileRows : 1;
  };
  for (const Product& p : products) {
    total += n_blocks(p);
    work += p.row_count() * p.w.cols * p.n;
  }
  const bool few = std::ranges::all_of(products, [](const Product& p) { return is_few(p.n); });
  begin_region(few ? 1 : std::clamp<size_t>(total / (4 * pool_.size()), 1, kItemBlocks));
  for (const Product& p : products) add_share(p.first_row / kTileRows, n_blocks(p), p.n);
  each_item(work, [&](const Item& item) { multiply(products[item.product], item); });
}

void Products::multiply(const MatrixView& w, const Tiles& tiles, size_t block, size_t blocks, const Panel& x,
                        const uint32_t* pick, size_t n, bool exact, float* out, size_t stride) const {
  const bool fast = fast_ && !exact && has_integer_codes(w.format);
  (fast ? ops_.linear_fast : ops_.linear_exact)(tiles, block, blocks, x, pick, n, out, stride);
}

// A panel without its first vectors.
static Panel skip(Panel x, size_t first) {
  x.f += first * x.stride;
  x.q += first * 64;
  x.scale += first;
  return x;
}

void Products::multiply(const Product& p, const Item& item) const {
  if (!p.whole_blocks()) return multiply_rows(p, item);
  const size_t row = (item.block - p.first_row / kTileRows) * kTileRows;
  const size_t rows = std::min(item.blocks * kTileRows, p.row_count() - row);
  float* out = p.out + item.first * p.out_stride + row;
  if (p.fine && fast_ && has_integer_codes(p.w.format))
    multiply_fine(p, item, rows, out);
  else
    multiply(p.w, tiles_of(p.w), item.block, item.blocks, p.pick ? p.x : skip(p.x, item.first),
             p.pick ? p.pick + item.first : nullptr, item.n, p.exact, out, p.out_stride);
  if (!p.bias.empty())
    for (size_t t = 0; t < item.n; ++t)
      for (size_t i = 0; i < rows; ++i) out[t * p.out_stride + i] += p.bias[p.first_row + row + i];
}

// Vectors and what they leave over meet the weights together.
void Products::multiply_fine(const Product& p, const Item& item, size_t rows, float* out) const {
  alignas(64) float both[2 * kItemVectors * kItemBlocks * kTileRows];
  uint32_t pick[2 * kItemVectors];
  const size_t n = item.n, width = item.blocks * kTileRows;
  for (size_t t = 0; t < n; ++t) {
    pick[t] = p.pick ? p.pick[item.first + t] : static_cast<uint32_t>(item.first + t);
    pick[n + t] = pick[t] + static_cast<uint32_t>(p.x.n / 2);
  }
  multiply(p.w, tiles_of(p.w), item.block, item.blocks, p.x, pick, 2 * n, false, both, width);
  for (size_t t = 0; t < n; ++t)
    for (size_t i = 0; i < rows; ++i)
      out[t * p.out_stride + i] = both[t * width + i] + both[(n + t) * width + i];
}

// Rows that begin or end inside a block, in no published model: the plain version.
void Products::multiply_rows(const Product& p, const Item& item) const {
  check(p.bias.empty(), "such rows have no bias");
  const bool fine = p.fine && fast_ && has_integer_codes(p.w.format);
  std::vector<float> more(fine ? p.rows : 0);
  for (size_t t = item.first; t < item.first + item.n; ++t) {
    const size_t at = p.pick ? p.pick[t] : t;
    float* out = p.out + t * p.out_stride;
    (fast_ && !p.exact ? linear_fast_ref : linear_exact_ref)(
        p.w, p.first_row, p.rows, p.x.f + at * p.x.stride, 1, p.x.cols, out, p.out_stride);
    if (!fine) continue;
    linear_fast_ref(p.w, p.first_row, p.rows, p.x.f + (p.x.n / 2 + at) * p.x.stride, 1, p.x.cols, more.data(),
                    p.rows);
    for (size_t i = 0; i < p.rows; ++i) out[i] += more[i];
  }
}

// Few experts and many threads: smaller items, and the hidden vectors are quantised when they are complete.
void Products::run(std::span<const GatedProduct> products, const std::function<void()>& first) {
  size_t total = 0, work = 0;
  for (const GatedProduct& p : products) {
    total += p.w->gate.w.n_row_blocks();
    work += 2 * p.w->gate.w.rows * p.x.cols * p.n;
  }
  const bool whole_spans = total >= kSpanBlocks * 4 * pool_.size();
  begin_region(whole_spans ? kSpanBlocks : 1);
  for (const GatedProduct& p : products) add_share(0, p.w->gate.w.n_row_blocks(), p.n);
  each_item(
      work, [&](const Item& item) { gate(products[item.product], item, whole_spans); }, first);
  if (whole_spans) return;
  for (const GatedProduct& p : products)
    for (size_t t = 0; quantises(p) && t < p.n; ++t)
      ops_.quantise(p.hidden.f + t * p.hidden.stride, p.hidden, t);
}

// 64 rows of gate and up make one span of the hidden vector, which is quantised at once. All rows of gate
// come before those of up: two streams, one after the other.
void Products::gate(const GatedProduct& p, const Item& item, bool whole_spans) const {
  alignas(64) float gates[kGateBlocks * kTileRows], ups[kGateBlocks * kTileRows];
  const Linear &gate = p.w->gate, &up = p.w->up;
  const Tiles gate_tiles = tiles_of(gate.w), up_tiles = tiles_of(up.w);
  const size_t row = item.block * kTileRows,
               rows = std::min<size_t>(item.blocks * kTileRows, gate.w.rows - row);
  const size_t span = row / 64, stride = item.blocks * kTileRows, most = kGateBlocks / item.blocks;
  Panel hidden = p.hidden;
  hidden.cols = rows;
  hidden.q += span * hidden.n * 64;
  hidden.scale += span * hidden.n;
  for (size_t t = item.first; t < item.first + item.n; t += most) {
    const size_t n = std::min(most, item.first + item.n - t);
    const Panel x = p.pick ? p.x : skip(p.x, t);
    const uint32_t* pick = p.pick ? p.pick + t : nullptr;
    multiply(gate.w, gate_tiles, item.block, item.blocks, x, pick, n, false, gates, stride);
    multiply(up.w, up_tiles, item.block, item.blocks, x, pick, n, false, ups, stride);
    for (size_t i = 0; i < n; ++i) {
      float *g = gates + stride * i, *u = ups + stride * i;
      for (size_t r = 0; !gate.bias.empty() && r < rows; ++r) g[r] += gate.bias[row + r];
      for (size_t r = 0; !up.bias.empty() && r < rows; ++r) u[r] += up.bias[row + r];
      if (p.activation == Activation::Swiglu)
        ops_.swiglu(g, u, rows, g);
      else
        ops_.clamped_swiglu(g, u, rows, p.clamp, g);
      if (whole_spans && quantises(p))
        ops_.quantise(g, hidden, t + i);
      else
        std::copy_n(g, rows, const_cast<float*>(hidden.f) + (t + i) * hidden.stride + row);
    }
  }
}

}  // namespace moeflux
