#include "cuda/entry.h"
#include "cuda/mail.cuh"
#include "cuda/matvec.cuh"
#include "cuda/overlap.cuh"
#include "cuda/router.cuh"
#include "cuda/span.cuh"

namespace moeflux::cuda {
namespace {

constexpr unsigned kThreads = kRouteThreads;
constexpr size_t kMostTokens = 8, kMostShared = 96u << 10;

struct EntryMail {
  uint32_t launch;
  uint32_t unused[31];
  __device__ uint64_t* sums() { return reinterpret_cast<uint64_t*>(this + 1); }
};

// A block has 16 rows of a matrix and 4 of the 16 partial sums of each (ops/linear.h): columns congruent to
// them modulo 16. It sends them to the first block, which adds up and chooses; the last block makes the
// vectors for other kernels.
struct Job {
  Tiles m;
  const float* bias;
  float* out;
  unsigned rows, blocks;  // row blocks
};
struct Jobs {
  Job job[2];
  unsigned n;  // tokens
  unsigned cols, rows;
  const float *x, *w;
  float eps;
  Vectors h, rest;
  bool routes;
  DeviceRule rule;
  uint32_t* ids;
  float* weights;
  Entry::Ahead ahead;
  const std::byte* const* records;
  ExpertMail* expert_mail;
  EntryMail* mail;
  // Of sum s of row r of token t: pairs of sums lie side by side.
  __device__ uint64_t* packet(unsigned t, unsigned r, unsigned s) const {
    return mail->sums() + ((size_t{t} * 8 + s / 2) * rows + r) * 2 + s % 2;
  }
};

// Weights of row block `block`, partial sums 4 quad .. + 3, as [span][4][16 rows], four steps of a sum each:
// the columns of a span that are congruent modulo 16.
template <MatrixType kType>
__device__ void stage(const Tiles& m, unsigned block, unsigned quad, float4* to) {
  constexpr unsigned kEach = kWide<kType>, kPhases = 4 / kEach;
  const unsigned items = static_cast<unsigned>((m.cols + 63) / 64) * 16 * kPhases;
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < items; i += kThreads) {
    const unsigned row = i % 16, phase = i / 16 % kPhases, s = i / 16 / kPhases;
    float w[4][kEach];
    decode_span<kType>(m, block, s, row, quad * kPhases + phase, w);
#pragma unroll
    for (unsigned b = 0; b < kEach; ++b)
      to[s * 64 + (phase * kEach + b) * 16 + row] = make_float4(w[0][b], w[1][b], w[2][b], w[3][b]);
  }
}

// The same for plain formats, the usual ones: time goes into waiting, so many words are requested at once.
template <MatrixType kType>
__device__ void stage_plain(const Tiles& m, unsigned block, unsigned quad, float4* to) {
  constexpr unsigned kEach = kWide<kType>, kPhases = 4 / kEach, kAhead = 8;
  const unsigned items = static_cast<unsigned>((m.cols + 63) / 64) * 16 * kPhases;
  const uint8_t* codes = BlockSpans(m, block).data + quad * kPhases * 64;
#pragma unroll 1
  for (unsigned begin = threadIdx.x; begin < items; begin += kAhead * kThreads) {
    uint32_t words[kAhead][4];
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const unsigned i = min(begin + j * kThreads, items - 1), row = i % 16, phase = i / 16 % kPhases,
                     s = i / 16 / kPhases;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        asm volatile("ld.global.nc.u32 %0, [%1];"
                     : "=r"(words[j][k])
                     : "l"(codes + (s * (4096 / kEach) + k * (1024 / kEach) + phase * 64 + row * 4)));
    }
#pragma unroll
    for (unsigned j = 0; j < kAhead; ++j) {
      const unsigned i = min(begin + j * kThreads, items - 1), row = i % 16, phase = i / 16 % kPhases,
                     s = i / 16 / kPhases;
#pragma unroll
      for (unsigned b = 0; b < kEach; ++b)
        to[s * 64 + (phase * kEach + b) * 16 + row] =
            make_float4(plain_value<kType>(words[j][0], b), plain_value<kType>(words[j][1], b),
                        plain_value<kType>(words[j][2], b), plain_value<kType>(words[j][3], b));
    }
  }
}

// The common form is known to the compiler, which can then read ahead.
template <MatrixType kType>
__device__ void stage_affine(const Tiles& m, unsigned block, unsigned quad, float4* to) {
  if (m.scale != ScaleType::Bf16 || m.group != 64) return stage<kType>(m, block, quad, to);
  Tiles common = m;
  common.scale = ScaleType::Bf16;
  common.group = 64;
  common.tile_spans = 1;
  stage<kType>(common, block, quad, to);
}

__device__ void stage_any(const Tiles& m, unsigned block, unsigned quad, float4* to) {
  switch (m.type) {
    case MatrixType::F32:
      return stage_plain<MatrixType::F32>(m, block, quad, to);
    case MatrixType::F16:
      return stage_plain<MatrixType::F16>(m, block, quad, to);
    case MatrixType::Bf16:
      return stage_plain<MatrixType::Bf16>(m, block, quad, to);
    case MatrixType::Affine4:
      return stage_affine<MatrixType::Affine4>(m, block, quad, to);
    default:
      return stage_affine<MatrixType::Affine8>(m, block, quad, to);
  }
}

// The quads of a vector that a thread holds: number threadIdx.x + k * kThreads.
template <unsigned kQuads>
__device__ void load_quads(const float* from, unsigned cols, float4 (&v)[kQuads]) {
#pragma unroll
  for (unsigned k = 0; k < kQuads; ++k) {
    const unsigned i = threadIdx.x + k * kThreads;
    v[k] = 4 * i < cols ? reinterpret_cast<const float4*>(from)[i] : make_float4(0, 0, 0, 0);
  }
}

// x -> w * (x / rms(x)).
template <unsigned kQuads>
__device__ void normalise(const Jobs& j, const float4 (&w)[kQuads], float4 (&x)[kQuads], float* room) {
  float sum = 0;
#pragma unroll
  for (unsigned k = 0; k < kQuads; ++k)
    sum = fmaf(x[k].x, x[k].x, fmaf(x[k].y, x[k].y, fmaf(x[k].z, x[k].z, fmaf(x[k].w, x[k].w, sum))));
  const float mean = reduce_four<false>(sum, room) / static_cast<float>(j.cols);
  const float inverse = __fdiv_rn(1.0f, sqrtf(mean + j.eps));
#pragma unroll
  for (unsigned k = 0; k < kQuads; ++k)
    x[k] = make_float4(w[k].x * (x[k].x * inverse), w[k].y * (x[k].y * inverse), w[k].z * (x[k].z * inverse),
                       w[k].w * (x[k].w * inverse));
}

template <unsigned kQuads>
__device__ void write_vectors(const Jobs& j, unsigned t, const float4 (&v)[kQuads]) {
#pragma unroll
  for (unsigned k = 0; k < kQuads; ++k) {
    const unsigned i = threadIdx.x + k * kThreads;
    if (4 * i < j.cols) reinterpret_cast<float4*>(j.h.f + t * j.h.stride)[i] = v[k];
    if (!j.h.q) continue;
    QuantSpan span;
    const int codes = quantise_span(v[k], span);
    const size_t spans = span_count(j.cols), s = i / 16, at = t * spans + s;
    if (s < spans) {
      reinterpret_cast<int*>(j.h.q)[at * 16 + i % 16] = codes;
      if (i % 16 == 0) j.h.span[at] = span;
    }
    if (!j.rest.q) continue;
    const auto left = [&](float x, int byte) {
      return __fmaf_rn(-span.xs, static_cast<float>(static_cast<int8_t>(codes >> (8 * byte))), x);
    };
    store_quantised(make_float4(left(v[k].x, 0), left(v[k].y, 1), left(v[k].z, 2), left(v[k].w, 3)), j.rest,
                    t, i);
  }
}

// Sixteen sums in the order of ops/linear.h: always the halves.
__device__ float tree(const float (&s)[16]) {
  float half[8];
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) half[i] = __fadd_rn(s[i], s[i + 8]);
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) half[i] = __fadd_rn(half[i], half[i + 4]);
  return __fadd_rn(__fadd_rn(half[0], half[2]), __fadd_rn(half[1], half[3]));
}

// The results of a token, as their sums come, to shared memory and, if they are real, to where they belong. A
// thread looks at two rows at once.
__device__ void receive(const Jobs& j, unsigned t, uint32_t flag, bool real, float* results) {
  constexpr unsigned kAhead = 2;
#pragma unroll 1
  for (unsigned begin = threadIdx.x; begin < j.rows; begin += kAhead * kThreads) {
    float sums[kAhead][16];
    bool there;
    do {
      there = true;
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i)
#pragma unroll
        for (unsigned s = 0; s < 16; s += 2) {
          uint32_t two[2];
          there &= look_at_packets(j.packet(t, min(begin + i * kThreads, j.rows - 1), s), flag, two);
          sums[i][s] = __uint_as_float(two[0]);
          sums[i][s + 1] = __uint_as_float(two[1]);
        }
    } while (real && !there);
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const unsigned r = begin + i * kThreads;
      if (r >= j.rows) break;
      const bool second = r >= j.job[0].rows;
      const Job& job = j.job[second];
      const unsigned row = second ? r - j.job[0].rows : r;
      float y = tree(sums[i]);
      if (job.bias) y = __fadd_rn(y, job.bias[row]);
      results[r] = y;
      if (real) job.out[size_t{t} * job.rows + row] = y;
    }
  }
}

// Each block asks for its share; by one thread.
__device__ void ask_for_states(const Entry::Ahead& ahead) {
  const size_t share = (ahead.floats / gridDim.x / 4 + 1) * 4, first = blockIdx.x * share,
               floats = first < ahead.floats ? min(share, ahead.floats - first) / 4 * 4 : 0;
  for (size_t i = 0; floats && i < ahead.n_slices; ++i)
    fetch_ahead(ahead.slices[i].state + ahead.at + first, floats * sizeof(float));
}

// The first block: it adds up, chooses, and tells the experts before it writes down the choice. A turn before
// its first one is a rehearsal, with what happens to be in the mail: it brings the instructions.
__device__ void conclude(const Jobs& j, float* shared) {
  const unsigned n = j.job[0].rows, k = j.routes ? j.rule.top_k : 0;
  const size_t room = j.routes ? (route_room(n, j.rule.n_groups, k) + 1) / 2 * 2 : 0;
  auto** records = reinterpret_cast<const std::byte**>(shared + room);
  float *results = reinterpret_cast<float*>(records + (j.records ? n : 0)),
        *unreal_weights = results + j.rows;
  auto* unreal_ids = reinterpret_cast<uint32_t*>(unreal_weights + k);
  for (unsigned e = threadIdx.x; j.records && e < n; e += kThreads) records[e] = j.records[e];
  uint32_t flag = 0, told_flag = 0;
#pragma unroll 1
  for (unsigned turn = 0; turn <= j.n; ++turn) {
    const bool real = turn > 0;
    const unsigned t = real ? turn - 1 : 0;
    if (turn == 1) {
      wait_for_previous();
      let_next_begin();
      flag = mail_flag(__ldcg(&j.mail->launch));
      if (j.expert_mail) told_flag = mail_flag(__ldcg(&j.expert_mail->launch));
    }
    receive(j, t, flag, real, results);
    __syncthreads();
    if (j.routes)
      route_token(j.rule, results, shared, real ? j.ids + t * k : unreal_ids,
                  real ? j.weights + t * k : unreal_weights, [&](unsigned pick, uint32_t id) {
                    if (!real || !j.expert_mail) return;
                    const auto record = reinterpret_cast<uint64_t>(records[id]);
                    send_packet(j.expert_mail->records[pick], told_flag, static_cast<uint32_t>(record));
                    send_packet(j.expert_mail->records[pick] + 1, told_flag,
                                static_cast<uint32_t>(record >> 32));
                  });
    __syncthreads();
  }
  // All sums have come, so nobody is still to read this.
  if (threadIdx.x == 0) j.mail->launch = (flag & ~(1u << 31)) + 1;
}

// A partial sum of a row, four steps a span; a span's weights are 64 quads from the last one's. What is used
// next is read meanwhile.
__device__ float partial_sum(const float4* weights, const float4* h, unsigned spans) {
  constexpr unsigned kAhead = 4;
  float4 a[kAhead], b[kAhead];
  const auto request = [&](unsigned begin) {
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const unsigned s = min(begin + i, spans - 1);
      a[i] = weights[s * 64];
      b[i] = h[s];
    }
  };
  request(0);
  float c = 0;
#pragma unroll 2
  for (unsigned begin = 0; begin < spans; begin += kAhead) {
    float4 product[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i)
      product[i] = make_float4(__fmul_rn(a[i].x, b[i].x), __fmul_rn(a[i].y, b[i].y),
                               __fmul_rn(a[i].z, b[i].z), __fmul_rn(a[i].w, b[i].w));
    request(begin + kAhead);
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      if (begin + i >= spans) break;
      c = __fadd_rn(c, product[i].x);
      c = __fadd_rn(c, product[i].y);
      c = __fadd_rn(c, product[i].z);
      c = __fadd_rn(c, product[i].w);
    }
  }
  return c;
}

template <unsigned kQuads>
__global__ void __launch_bounds__(kThreads) entry_kernel(const __grid_constant__ Jobs j) {
  extern __shared__ __align__(16) float shared[];
  __shared__ __align__(16) float room[4];
  if (threadIdx.x == 0 && j.ahead.floats) ask_for_states(j.ahead);
  if (blockIdx.x == 0) return conclude(j, shared);
  const bool writer = blockIdx.x == gridDim.x - 1, second = blockIdx.x > 4 * j.job[0].blocks;
  const Job& job = j.job[second];
  const unsigned at = blockIdx.x - 1 - (second ? 4 * j.job[0].blocks : 0), block = at / 4, quad = at % 4;
  const unsigned spans = (j.cols + 63) / 64;
  auto *weights = reinterpret_cast<float4*>(shared), *h = weights + spans * 64;  // h: [4][spans]
  // What does not depend on the kernels before.
  float4 w[kQuads];
  load_quads(j.w, j.cols, w);
  if (!writer) stage_any(job.m, block, quad, weights);
  for (unsigned i = threadIdx.x; i < spans * 4; i += kThreads) h[i] = make_float4(0, 0, 0, 0);
  wait_for_previous();
  let_next_begin();
  const uint32_t flag = mail_flag(__ldcg(&j.mail->launch));
#pragma unroll 1
  for (unsigned t = 0; t < j.n; ++t) {
    float4 x[kQuads];
    load_quads(j.x + size_t{t} * j.cols, j.cols, x);
    normalise(j, w, x, room);
    if (writer) {
      write_vectors(j, t, x);
      __syncthreads();
      continue;
    }
    if (threadIdx.x % 4 == quad)
#pragma unroll
      for (unsigned k = 0; k < kQuads; ++k)
        if (const unsigned i = threadIdx.x + k * kThreads; 4 * i < j.cols) {
          float* to = reinterpret_cast<float*>(h) + i / 4;  // of sum 0; the others are a row further each
          to[0] = x[k].x, to[spans * 4] = x[k].y, to[spans * 8] = x[k].z, to[spans * 12] = x[k].w;
        }
    __syncthreads();
    if (threadIdx.x < 64) {
      const unsigned cls = threadIdx.x / 16, row = block * 16 + threadIdx.x % 16;
      const float c = partial_sum(weights + threadIdx.x, h + cls * spans, spans);
      if (row < job.rows)
        send_packet(j.packet(t, (second ? j.job[0].rows : 0) + row, quad * 4 + cls), flag,
                    __float_as_uint(c));
    }
    __syncthreads();
  }
}

constexpr unsigned kFewQuads = 4, kManyQuads = 12;

size_t shared_floats(const Entry& e) {
  const size_t steps = (e.h.cols + 63) / 64 * 4, rows = e.small[0].w.rows + e.small[1].w.rows;
  size_t end = rows;  // of conclude
  if (e.rule) {
    const size_t experts = e.small[0].w.rows, k = e.rule->top_k;
    end += (route_room(experts, e.rule->n_groups, k) + 1) / 2 * 2 + (e.records ? 2 * experts : 0) + 2 * k;
  }
  return std::max(steps * 68, end);
}

bool small_can(const MatrixView& m) {
  return !m || (m.format.type != MatrixType::Mxfp4 && m.format.type != MatrixType::Fp8);
}

}  // namespace

bool entry_can(const Entry& e) {
  return e.h.n <= kMostTokens && e.h.cols % 4 == 0 && e.h.stride % 4 == 0 &&
         e.h.cols <= 4 * kManyQuads * kThreads && e.small[0].w && small_can(e.small[0].w) &&
         small_can(e.small[1].w) && shared_floats(e) * sizeof(float) <= kMostShared;
}

size_t entry_mail(size_t rows) { return sizeof(EntryMail) + kMostTokens * rows * 16 * sizeof(uint64_t); }

void enter(const Entry& e, cudaStream_t stream) {
  Jobs j{};
  for (unsigned i = 0; i < 2; ++i) {
    const Entry::Small& s = e.small[i];
    if (!s.w) continue;
    j.job[i] = {tiles_of(s.w), s.bias, s.out, static_cast<unsigned>(s.w.rows),
                static_cast<unsigned>(s.w.n_row_blocks())};
    j.rows += j.job[i].rows;
  }
  j.n = static_cast<unsigned>(e.h.n);
  j.cols = static_cast<unsigned>(e.h.cols);
  j.x = e.x;
  j.w = e.w;
  j.eps = e.eps;
  j.h = e.h;
  j.rest = e.rest;
  j.routes = e.rule != nullptr;
  if (e.rule) j.rule = device_rule(*e.rule, e.small[0].w.rows);
  j.ids = e.ids;
  j.weights = e.weights;
  j.ahead = e.ahead;
  j.records = e.records;
  j.expert_mail = reinterpret_cast<ExpertMail*>(e.expert_mail);
  j.mail = reinterpret_cast<EntryMail*>(e.mail);
  const size_t bytes = shared_floats(e) * sizeof(float);
  const auto kernel = j.cols <= 4 * kFewQuads * kThreads ? entry_kernel<kFewQuads> : entry_kernel<kManyQuads>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "shared memory of a stage's start");
  launch_overlapped("entry", kernel, 4 * (j.job[0].blocks + j.job[1].blocks) + 2, kThreads, bytes, stream, j);
}

}  // namespace moeflux::cuda
