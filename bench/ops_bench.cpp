// Speed of single operations on one thread, for every instruction set that this processor can run. Figures
// are bytes of weights or keys and values per second, and multiply-adds (as two operations) per second;
// compare them with `moeflux bench --machine --threads 1`. Weights rotate over much more than the caches, as
// in a model.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "ops/ops.h"
#include "ops/test_matrix.h"

namespace moeflux {
namespace {

constexpr size_t kRotate = 256u << 20;

struct Setup {
  Setup(const Ops& o, const MatrixFormat& format, size_t rows, size_t cols, size_t n)
      : ops(o),
        each(matrix_bytes(format, rows, cols)),
        weights(std::max<size_t>(1, kRotate / each) * each),
        floats(n * cols),
        q(n * (cols + 63) / 64 * 64),
        scale(n * (cols + 63) / 64),
        out(n * rows) {
    uint32_t seed = 1;
    fill(TestMatrix(format, rows, cols, 3).bytes);
    for (float& x : floats)
      x = static_cast<float>(static_cast<int32_t>(seed = seed * 1664525u + 1013904223u)) * 0x1p-31f;
    panel = {n, cols, floats.data(), cols, q.data(), scale.data()};
    for (size_t t = 0; t < n; ++t) ops.quantise(&floats[t * cols], panel, t);
    view = {weights.data(), format, rows, cols};
  }
  void fill(const std::vector<std::byte>& one) {
    for (size_t i = 0; i < weights.size(); i += each) std::ranges::copy(one, weights.data() + i);
  }
  Tiles next() {
    view.data = weights.data() + at;
    at = (at + each) % weights.size();
    return tiles_of(view);
  }
  const Ops& ops;
  size_t each, at = 0;
  AlignedBuffer weights;
  std::vector<float> floats;
  std::vector<int8_t> q;
  std::vector<SpanScale> scale;
  std::vector<float> out;
  Panel panel;
  MatrixView view;
};

void linear(benchmark::State& state, const Ops* ops, MatrixFormat format, bool fast, size_t n) {
  constexpr size_t kRows = 768, kCols = 2048;
  Setup s(*ops, format, kRows, kCols, n);
  for (auto _ : state)
    (fast ? ops->linear_fast : ops->linear_exact)(s.next(), 0, kRows / 16, s.panel, nullptr, n, s.out.data(),
                                                  kRows);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * s.each));
  state.counters["ops/s"] = benchmark::Counter(static_cast<double>(2 * kRows * kCols * n),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void attend(benchmark::State& state, const Ops* ops, bool narrow, KvType type, size_t queries,
            size_t length) {
  constexpr size_t kDim = 128;
  const size_t part = kKvBlock * kDim * kv_value_bytes(type), page = 2 * part + 2 * kKvBlock * 4;
  AlignedBuffer memory(length / kKvBlock * page);
  std::fill_n(memory.data(), memory.size(), std::byte{0x3c});  // else all pages are one: the system's zeros
  std::vector<std::byte*> pages;
  for (size_t at = 0; at < memory.size(); at += page) pages.push_back(memory.data() + at);
  std::vector<float> q(queries * kDim, 0.1f), out(queries * kDim), sums(2 * queries),
      scratch(attend_scratch(kDim, kDim, queries));
  const KvHead kv{type, kDim, kDim, true, pages.data(), 0, part, 2 * part, 2 * part + kKvBlock * 4};
  std::vector<AttendRow> rows;
  for (size_t r = 0; r < queries; ++r)
    rows.push_back({&q[r * kDim], &out[r * kDim], &sums[2 * r], 0, length - 1});
  for (auto _ : state)
    for (size_t p = 0; p < length; p += kPartition)
      (narrow ? ops->attend_narrow : ops->attend)(kv, p, p + kPartition, 0.1f, rows.data(), queries,
                                                  scratch.data());
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations() * 2 * length * kDim * kv_value_bytes(type)));
  state.counters["ops/s"] = benchmark::Counter(static_cast<double>(4 * length * kDim * queries),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void delta(benchmark::State& state, const Ops* ops, size_t count) {
  constexpr size_t kDim = 128;
  std::vector<float> s(kDim * kDim), keys(kDim * kDeltaBlock), values(kDim * kDeltaBlock), decay(kDeltaBlock),
      x(kDeltaBlock * kDim, 0.05f), ones(kDeltaBlock, 0.5f), g(kDeltaBlock, -0.1f), out(kDeltaBlock * kDim),
      scratch(delta_scratch(kDim));
  const DeltaHead head{kDim, kDim, s.data(), keys.data(), values.data(), decay.data()};
  size_t index = 0;
  for (auto _ : state) {
    ops->delta_block(head, index, count,
                     {x.data(), x.data(), x.data(), kDim, kDim, ones.data(), g.data(), out.data(), kDim},
                     scratch.data());
    index = (index + count) % kDeltaBlock;
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * count));
}

void norm(benchmark::State& state, const Ops* ops) {
  std::vector<float> x(2048, 0.3f), w(2048, 1.0f), out(2048);
  for (auto _ : state) ops->rms_norm(x.data(), w.data(), x.size(), 1e-6f, out.data());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 2048 * 4));
}

void add_all() {
  for (const Ops* ops : runnable_ops()) {
    const std::string isa(ops->name);
    const auto add = [&](const std::string& name, auto fn) {
      benchmark::RegisterBenchmark((isa + "/" + name).c_str(), fn);
    };
    const std::pair<const char*, MatrixFormat> formats[] = {{"affine4", MatrixFormat::affine(4, 64)},
                                                            {"affine8", MatrixFormat::affine(8, 64)},
                                                            {"mxfp4", MatrixFormat::mxfp4()},
                                                            {"bf16", MatrixFormat::plain(MatrixType::Bf16)}};
    for (const auto& [name, format] : formats)
      for (const size_t n : {1, 2, 4, 8, 32, 128}) {
        const bool fast = has_integer_codes(format);
        add(std::string("linear/") + name + "/" + std::to_string(n),
            [=, f = format](benchmark::State& s) { linear(s, ops, f, fast, n); });
      }
    for (const auto& [name, type] :
         {std::pair("f32", KvType::F32), {"bf16", KvType::Bf16}, {"q8", KvType::Q8}})
      for (const bool narrow : {false, true})
        for (const auto& [n, length] : {std::pair(8, 4096), {8, 131072}, {64, 4096}})
          add(fmt::format("attend{}/{}/{}/{}", narrow ? "_narrow" : "", name, n, length),
              [=, t = type, q = n, l = length](benchmark::State& s) {
                attend(s, ops, narrow, t, static_cast<size_t>(q), static_cast<size_t>(l));
              });
    for (const size_t n : {1, 64})
      add("delta/" + std::to_string(n), [=](benchmark::State& s) { delta(s, ops, n); });
    add("rms_norm", [=](benchmark::State& s) { norm(s, ops); });
  }
}

}  // namespace
}  // namespace moeflux

int main(int argc, char** argv) {
  moeflux::add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
