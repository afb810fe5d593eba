// How fast the GPU's products and experts are, beside plain reads of the same bytes: cuda_ops_bench [WORDS]
// WORDS: only the cases whose names contain them.
//
// Every launch of a round has its own weights, in all many times the L2 cache; a round is one graph, as in
// decoding. Times are medians over rounds, divided by the launches of a round.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/device.h"
#include "cuda/experts.h"
#include "cuda/linear.h"

namespace moeflux::cuda {
namespace {

constexpr int kRounds = 15;

__global__ void fill_kernel(uint32_t* to, size_t words, uint32_t tile_words, uint32_t code_words) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += stride) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(i >> 32);
    h = (h ^ h >> 15) * 2246822519u;
    h ^= h >> 13;
    to[i] = i % tile_words < code_words ? h : (h & 0x007f007f) | 0x3c003c00;  // scales near 0.01
  }
}

__global__ void noise_kernel(float* to, size_t n) {
  const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (i < n)
    to[i] = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(i + 1) * 2654435761u)) * 0x1p-31f;
}

__global__ void read_kernel(const uint4* from, size_t n, uint32_t* sink) {
  uint4 sum = make_uint4(0, 0, 0, 0);
  const size_t stride = size_t{gridDim.x} * blockDim.x;
#pragma unroll 8
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += stride) {
    const uint4 v = __ldcs(from + i);
    sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678) *sink = sum.x;
}

struct Bench {
  explicit Bench(std::string only) : words(std::move(only)) {}
  bool wants(const char* name) const { return std::string_view(name).find(words) != std::string_view::npos; }

  const std::string words;
  Stream stream = make_stream();
  DeviceBuffer weights;

  // Microseconds per call of fn(i), i < n, all in one graph.
  double time(int n, const std::function<void(int)>& fn) {
    for (int i = 0; i < n; ++i) fn(i);
    check_cuda(cudaStreamSynchronize(stream.get()), "warming up");
    cudaGraph_t graph;
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < n; ++i) fn(i);
    check_cuda(cudaStreamEndCapture(stream.get(), &graph), "capture");
    cudaGraphExec_t exec;
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
    const Graph owned(exec);
    cudaGraphDestroy(graph);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    std::vector<float> ms;
    for (int r = 0; r < kRounds + 2; ++r) {
      cudaEventRecord(begin, stream.get());
      check_cuda(cudaGraphLaunch(exec, stream.get()), "launch");
      cudaEventRecord(end, stream.get());
      check_cuda(cudaEventSynchronize(end), "round");
      float t;
      cudaEventElapsedTime(&t, begin, end);
      if (r >= 2) ms.push_back(t);
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    std::sort(ms.begin(), ms.end());
    return 1000.0 * ms[ms.size() / 2] / n;
  }

  double read_us(size_t bytes, int n) {
    return time(n, [&](int i) {
      const size_t at = i * bytes / 256 * 256;
      read_kernel<<<132 * 4, 512, 0, stream.get()>>>(reinterpret_cast<const uint4*>(weights.as() + at),
                                                     bytes / 16, weights.as<uint32_t>());
    });
  }

  void report(const char* name, double us, double bytes, double macs, double read) {
    std::printf("%-44s %8.2f us  %7.1f GB/s", name, us, bytes / us / 1e3);
    if (read > 0) std::printf("  plain read %7.2f us  %3.0f %%", read, 100 * read / us);
    if (macs > 0) std::printf("  %7.1f TMAC/s", macs / us / 1e6);
    std::printf("\n");
    std::fflush(stdout);
  }
};

struct Input {
  Input(Bench& b, size_t n, size_t cols)
      : f(n * cols * 4, "x"),
        q(n * span_count(cols) * 64, "q"),
        span(n * span_count(cols) * sizeof(QuantSpan), "s") {
    noise_kernel<<<static_cast<unsigned>((n * cols + 255) / 256), 256, 0, b.stream.get()>>>(f.as<float>(),
                                                                                            n * cols);
    vectors = {n, cols, f.as<float>(), cols, q.as<int8_t>(), span.as<QuantSpan>()};
    quantise(vectors, b.stream.get());
  }
  DeviceBuffer f, q, span;
  Vectors vectors;
};

const MatrixFormat k4 = MatrixFormat::affine(4, 64);

void products(Bench& b, const char* name, MatrixFormat format, std::vector<size_t> rows, size_t cols,
              size_t n, int calls, bool exact = false) {
  if (!b.wants(name)) return;
  const Input in(b, n, cols);
  size_t bytes = 0, all = 0;
  for (const size_t r : rows) bytes += matrix_bytes(format, r, cols), all += r;
  const DeviceBuffer out(all * n * 4, "out");
  calls = static_cast<int>(std::min<size_t>(calls, b.weights.size() / bytes));
  const double us = b.time(calls, [&](int i) {
    std::vector<Product> p;
    const std::byte* at = b.weights.as() + i * bytes;
    float* to = out.as<float>();
    for (const size_t r : rows) {
      p.push_back({.w = {at, format, r, cols}, .x = in.vectors, .out = to, .out_stride = r, .exact = exact});
      at += matrix_bytes(format, r, cols);
      to += r * n;
    }
    linear(p, b.stream.get());
  });
  b.report(name, us, static_cast<double>(bytes), n > 1 ? double(all) * cols * n : 0,
           n > 8 ? 0 : b.read_us(bytes, calls));
}

void routed(Bench& b, const char* name, size_t d, size_t width, size_t n_experts, size_t top_k, size_t n,
            int calls) {
  if (!b.wants(name)) return;
  const Input in(b, n, d);
  ExpertLayout layout;
  const size_t part = matrix_bytes(k4, width, d), record = (3 * part + 4095) / 4096 * 4096;
  layout.gate = {k4, width, d, 0};
  layout.up = {k4, width, d, static_cast<ptrdiff_t>(part)};
  layout.down = {k4, d, width, static_cast<ptrdiff_t>(2 * part)};
  const size_t records = b.weights.size() / record;
  // Every layer has its own table of experts; all of them together go round the memory.
  std::vector<const std::byte*> table;
  std::vector<uint32_t> ids;
  uint32_t seed = 1;
  for (int i = 0; i < calls; ++i) {
    for (size_t e = 0; e < n_experts; ++e)
      table.push_back(b.weights.as() + (i * n_experts + e) % records * record);
    for (size_t t = 0; t < n; ++t)
      for (size_t j = 0; j < top_k; ++j) {
        uint32_t e;
        do {
          seed = seed * 1664525u + 1013904223u;
          e = (seed >> 8) % n_experts;
        } while (std::find(ids.end() - static_cast<ptrdiff_t>(j), ids.end(), e) != ids.end());
        ids.push_back(e);
      }
  }
  const DeviceBuffer device_table(table.size() * 8, "table"), device_ids(ids.size() * 4, "ids"),
      weights(n * top_k * 4, "weights"), x(n * d * 4, "x"),
      scratch(experts_scratch(layout, n, top_k, n_experts, false), "scratch");
  check_cuda(cudaMemcpy(device_table.as(), table.data(), table.size() * 8, cudaMemcpyHostToDevice), "table");
  check_cuda(cudaMemcpy(device_ids.as(), ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "ids");
  noise_kernel<<<static_cast<unsigned>((n * top_k + 255) / 256), 256, 0, b.stream.get()>>>(
      weights.as<float>(), n * top_k);
  check_cuda(cudaMemset(x.as(), 0, x.size()), "x");
  const double us = b.time(calls, [&](int i) {
    const ExpertWork w{layout,
                       false,
                       in.vectors,
                       top_k,
                       n_experts,
                       device_ids.as<uint32_t>() + i * n * top_k,
                       weights.as<float>(),
                       scratch.as()};
    experts(w, device_table.as<const std::byte*>() + i * n_experts, {x.as<float>(), d}, b.stream.get());
  });
  const size_t used = std::min(n * top_k, n_experts), bytes = used * 3 * part;
  b.report(name, us, static_cast<double>(bytes), n > 1 ? 3.0 * d * width * n * top_k : 0,
           n > 1 ? 0 : b.read_us(bytes, calls));
}

void run(const std::string& words) {
  const DeviceInfo device = open_device();
  std::printf("%s, %d multiprocessors\n", device.name.c_str(), device.n_multiprocessors);
  Bench b(words);
  b.weights = DeviceBuffer(size_t{6} << 30, "weights");
  fill_kernel<<<1024, 256, 0, b.stream.get()>>>(b.weights.as<uint32_t>(), b.weights.size() / 4, 144, 128);
  const double peak = b.read_us(size_t{4} << 30, 1);
  b.report("plain read of 4 GiB", peak, 4.0 * (1 << 30), 0, 0);

  std::printf("-- one token (Qwen3-30B-A3B shapes, 4 bits, groups of 64)\n");
  products(b, "q, k, v 5120 x 2048", k4, {4096, 512, 512}, 2048, 1, 48);
  products(b, "o 2048 x 4096", k4, {2048}, 4096, 1, 48);
  products(b, "router 128 x 2048, bf16 exact", MatrixFormat::plain(MatrixType::Bf16), {128}, 2048, 1, 48,
           true);
  routed(b, "experts 8 of 128, 768", 2048, 768, 128, 8, 1, 48);
  routed(b, "experts 8 of 256, 512", 2048, 512, 256, 8, 1, 40);
  routed(b, "experts 8 of 256, 2048 (7168)", 7168, 2048, 256, 8, 1, 16);
  products(b, "head 151936 x 2048", k4, {151936}, 2048, 1, 16);
  products(b, "head 151936 x 2048, 8 bits", MatrixFormat::affine(8, 64), {151936}, 2048, 1, 8);
  products(b, "head 151936 x 2048, bf16", MatrixFormat::plain(MatrixType::Bf16), {151936}, 2048, 1, 8, true);

  std::printf("-- a few\n");
  products(b, "q, k, v 5120 x 2048, 4 vectors", k4, {4096, 512, 512}, 2048, 4, 48);
  products(b, "q, k, v 5120 x 2048, 16 vectors", k4, {4096, 512, 512}, 2048, 16, 48);
  routed(b, "experts 8 of 128, 768, 4 tokens", 2048, 768, 128, 8, 4, 48);
  routed(b, "experts 8 of 128, 768, 32 tokens", 2048, 768, 128, 8, 32, 16);

  std::printf("-- many\n");
  for (const size_t n : {512, 2048, 4096}) {
    char name[64];
    std::snprintf(name, sizeof name, "q, k, v 5120 x 2048, %zu vectors", n);
    products(b, name, k4, {4096, 512, 512}, 2048, n, 6);
    std::snprintf(name, sizeof name, "o 2048 x 4096, %zu vectors", n);
    products(b, name, k4, {2048}, 4096, n, 6);
    std::snprintf(name, sizeof name, "router bf16 exact, %zu vectors", n);
    products(b, name, MatrixFormat::plain(MatrixType::Bf16), {128}, 2048, n, 6, true);
    std::snprintf(name, sizeof name, "experts 8 of 128, 768, %zu tokens", n);
    routed(b, name, 2048, 768, 128, 8, n, 6);
  }
}

}  // namespace
}  // namespace moeflux::cuda

int main(int argc, char** argv) {
  try {
    moeflux::cuda::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
