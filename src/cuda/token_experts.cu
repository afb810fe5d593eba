#include "cuda/token_experts.h"

#include <algorithm>

#include "cuda/bulk.cuh"
#include "cuda/device.h"
#include "cuda/mail.cuh"
#include "cuda/matvec.cuh"
#include "cuda/overlap.cuh"

namespace moeflux::cuda {
namespace {

constexpr uint32_t kWorkers = 512;  // threads that compute; one more warp, the clerk, asks for memory
constexpr uint32_t kThreads = kWorkers + 32;
constexpr uint32_t kSpanBlocks = 4;            // row blocks of 16 whose hidden values make a span
constexpr uint32_t kSegment = 8;               // spans of columns that arrive together: one for each chain
constexpr uint32_t kPieces = 2 * kSpanBlocks;  // of a segment: gate and up of each row block
constexpr uint32_t kMostSegments = 16, kMostPicks = ExpertMail::kMostPicks;
constexpr uint32_t kSpanPackets = 20;  // 16 of codes, 4 of the span's floats

// Hidden spans are sent as packets. Spans and row blocks are drawn: a thread block that waits for a span
// waits for one that is running, however few of them run at once.
struct TokenJob {
  PartTiles gate, up, down;
  Picks picks;
  Joined joined;
  Quantised x;
  const float* weights;
  ExpertSum sum;
  ExpertMail* mail;
  bool told;  // the picks' records are sent
  float clamp;
  uint32_t top_k, each;               // picks, without and with what is joined
  uint32_t x_spans;                   // of the input
  uint32_t pick_spans, hidden_spans;  // of a pick's hidden values, and of all
  uint32_t gate_blocks, down_blocks;  // row blocks
  uint32_t gate_bytes, down_bytes;    // of a row block
  uint32_t segments, segment_tiles;
  // In shared memory: segments; in place of those that have been used, down, and after it the hidden spans
  // and the sums of down; the input.
  uint32_t piece_bytes, segment_bytes, used_segments, hidden_at, sums_at, x_at, bytes;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

struct Board {   // of a thread block, in shared memory
  TokenJob job;  // constant memory is far when it is read for the first time
  Arrival segment[kMostSegments], down, used;
  __align__(16) float sums[kSpanBlocks * 16][2][4];  // of rows of gate and up: pairs of chains
  float weights[kMostPicks];
  const uint8_t* records[kMostPicks];
  uint32_t span, launch;       // span: drawn last
  uint32_t block, next_block;  // drawn first and last
};

__device__ inline void wait_for_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }
__device__ inline uint32_t flag_of(const Board& board) { return mail_flag(board.launch); }

// Four row blocks of gate and of up, in segments; by one warp.
__device__ void ask_gate_up(Board& board, uint32_t span, uint8_t* memory) {
  const TokenJob& job = board.job;
  const uint32_t lane = threadIdx.x % 32, place = span / job.pick_spans,
                 first = span % job.pick_spans * kSpanBlocks,
                 blocks = min(kSpanBlocks, job.gate_blocks - first);
  const auto tile_bytes = static_cast<uint32_t>(job.gate.m.tile_bytes),
             n_tiles = static_cast<uint32_t>(job.gate.m.n_tiles);
  const bool joined = place == job.top_k;
  const uint8_t *record = board.records[place], *gate = record + (joined ? job.joined.gate : job.gate.offset),
                *up = record + (joined ? job.joined.up : job.up.offset);
  const auto bytes = [&](uint32_t segment) {
    return min(job.segment_tiles, n_tiles - segment * job.segment_tiles) * tile_bytes;
  };
  if (lane < job.segments) board.segment[lane].expect(2 * blocks * bytes(lane));
  __syncwarp();
#pragma unroll 1
  for (uint32_t i = lane; i < job.segments * kPieces; i += 32) {
    const uint32_t segment = i / kPieces, piece = i % kPieces, block = piece / 2;
    if (block >= blocks) continue;
    board.segment[segment].copy(
        memory + segment * job.segment_bytes + piece * job.piece_bytes,
        (piece % 2 ? up : gate) + size_t{first + block} * job.gate_bytes + segment * job.piece_bytes,
        bytes(segment));
  }
}

// A row block of down of every pick; by one warp.
__device__ void ask_down(Board& board, uint32_t block, uint8_t* memory) {
  const TokenJob& job = board.job;
  const uint32_t lane = threadIdx.x % 32;
  if (lane == 0) board.down.expect(job.each * job.down_bytes);
  __syncwarp();
  if (lane < job.each)
    board.down.copy(memory + lane * job.down_bytes,
                    board.records[lane] + (lane == job.top_k ? job.joined.down : job.down.offset) +
                        size_t{block} * job.down_bytes,
                    job.down_bytes);
}

// Where rows have their spans in a row block in shared memory: BlockSpans with short addresses. The same for
// gate, up and down, which have one format.
struct SpanPlaces {
  uint32_t tile_bytes, span_bytes, scales_at, twice;

  __device__ explicit SpanPlaces(const Tiles& m)
      : tile_bytes(static_cast<uint32_t>(m.tile_bytes)),
        span_bytes(static_cast<uint32_t>(m.span_bytes)),
        scales_at(static_cast<uint32_t>(m.scales_at)),
        twice(static_cast<uint32_t>(m.tile_spans) - 1) {}
  __device__ uint32_t tile(uint32_t s) const { return (s >> twice) * tile_bytes; }
  __device__ uint32_t codes(uint32_t s) const { return tile(s) + (s & twice) * span_bytes; }
};

struct SpanInput {  // 64 columns of a vector
  int codes[16];
  QuantSpan span;

  template <class C>
  __device__ static SpanInput load(uint32_t codes_at, uint32_t span_at) {
    SpanInput x;
    C::template load_codes<1>(in_shared<const int8_t>(codes_at), 0, x.codes);
    x.span = *in_shared<const QuantSpan>(span_at);
    return x;
  }
};

// Adds span s of a row of the block at `block` to its chain.
template <class C>
__device__ float add_span(const Tiles& m, const SpanPlaces& at, uint32_t block, uint32_t s, uint32_t row,
                          const SpanInput& x, float c) {
  const auto* from = in_shared<const uint32_t>(block + at.codes(s) + row * 4);
  uint32_t w[C::words];
#pragma unroll
  for (int j = 0; j < C::words; ++j) w[j] = from[16 * j];
  const auto scales =
      C::scales(m, in_shared<const uint8_t>(block + at.tile(s) + at.scales_at + row * C::scale_bytes(m)));
  int dots[2];
  C::template dot<1>(w, x.codes, 0, dots);
  return C::add(scales, dots, x.span, c);
}

// The chains of 64 rows of gate and of up, as they arrive: half a warp has a chain of 16 rows, and the other
// half the chain that is added to it.
template <class C>
__device__ void gate_up_sums(Board& board, uint32_t span, uint32_t memory, uint32_t round) {
  const TokenJob& job = board.job;
  const uint32_t warp = threadIdx.x / 32, block = warp / 4, row = threadIdx.x % 16, pair = warp % 4,
                 chain = pair + threadIdx.x / 16 % 2 * 4;
  const bool mine = span % job.pick_spans * kSpanBlocks + block < job.gate_blocks;
  const SpanPlaces places(job.gate.m);
  const uint32_t x = memory + job.x_at, x_span = x + job.x_spans * 64, n = job.segments,
                 x_spans = job.x_spans, segment_bytes = job.segment_bytes, piece_bytes = job.piece_bytes,
                 used = job.used_segments;
  uint32_t gate = memory + 2 * block * piece_bytes;
  float g = 0, u = 0;
#pragma unroll 1
  for (uint32_t segment = 0; segment < n; ++segment, gate += segment_bytes) {
    const uint32_t s = segment * kSegment + chain;
    board.segment[segment].wait(round);
    if (mine && s < x_spans) {
      const SpanInput in = SpanInput::load<C>(x + s * 64, x_span + s * 16);
      g = add_span<C>(job.gate.m, places, gate, chain, row, in, g);
      u = add_span<C>(job.gate.m, places, gate + piece_bytes, chain, row, in, u);
    }
    if (segment + 1 != used) continue;
    __syncwarp();
    if (threadIdx.x % 32 == 0) board.used.arrive();
  }
  const float g_pair = __fadd_rn(g, __shfl_xor_sync(0xffffffffu, g, 16)),
              u_pair = __fadd_rn(u, __shfl_xor_sync(0xffffffffu, u, 16));
  board.sums[block * 16 + row][chain / 4][pair] = chain < 4 ? g_pair : u_pair;
}

// Four pairs of chains, in the order of the contract.
__device__ inline float pairs_tree(const float (&e)[4]) {
  const float4 all = *reinterpret_cast<const float4*>(e);
  return __fadd_rn(__fadd_rn(all.x, all.z), __fadd_rn(all.y, all.w));
}

// 64 hidden values, quantised and sent; by one warp. A rehearsal sends nothing: it brings the instructions.
__device__ __noinline__ void send_hidden(Board& board, uint32_t span, bool rehearsal) {
  const TokenJob& job = board.job;
  const uint32_t lane = threadIdx.x % 32, place = span / job.pick_spans, first = span % job.pick_spans * 64;
  const bool joined = place == job.top_k;
  const ptrdiff_t gate_bias = joined ? job.joined.gate_bias : job.gate.bias,
                  up_bias = joined ? job.joined.up_bias : job.up.bias;
  float v[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t at = 2 * lane + i, unit = first + at;
    float gate = pairs_tree(board.sums[at][0]), up = pairs_tree(board.sums[at][1]);
    const bool there = !rehearsal && unit < job.gate.m.rows;
    if (there && gate_bias != ExpertLayout::kNone)
      gate = __fadd_rn(gate, reinterpret_cast<const float*>(board.records[place] + gate_bias)[unit]);
    if (there && up_bias != ExpertLayout::kNone)
      up = __fadd_rn(up, reinterpret_cast<const float*>(board.records[place] + up_bias)[unit]);
    v[i] = gated_value(gate, up, job.clamp);
    if (unit >= job.gate.m.rows) v[i] = 0;
  }
  const uint32_t from = lane % 16 * 2;  // both halves of the warp make the same span
  const auto at = [&](float x, uint32_t which) { return __shfl_sync(0xffffffffu, x, which); };
  const float4 four = make_float4(at(v[0], from), at(v[1], from), at(v[0], from + 1), at(v[1], from + 1));
  QuantSpan q;
  const int codes = quantise_span(four, q);
  const float extra = lane == 16 ? q.xs : lane == 17 ? q.xb : lane == 18 ? q.xb_half[0] : q.xb_half[1];
  const uint32_t bytes = lane < 16 ? static_cast<uint32_t>(codes) : __float_as_uint(extra);
  if (rehearsal || lane >= kSpanPackets) return;
  send_packet(job.mail->hidden() + span * kSpanPackets + lane, flag_of(board), bytes);
}

// All hidden spans, as they come, to shared memory; by all workers.
__device__ void receive_hidden(const Board& board, uint8_t* memory) {
  constexpr uint32_t kPairs = kSpanPackets / 2, kAhead = 2;
  const TokenJob& job = board.job;
  const uint32_t flag = flag_of(board), n = job.hidden_spans * kPairs;
  uint8_t *codes = memory + job.hidden_at, *spans = codes + job.hidden_spans * 64;
  const uint64_t* packets = job.mail->hidden();
#pragma unroll 1
  for (uint32_t begin = threadIdx.x; begin < n; begin += kAhead * kWorkers) {
    uint32_t p[kAhead][2];
    bool there;
    do {
      there = true;
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i)
        there &= look_at_packets(packets + 2 * min(begin + i * kWorkers, n - 1), flag, p[i]);
    } while (!there);
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = begin + i * kWorkers, span = at / kPairs, pair = at % kPairs;
      if (at >= n) continue;
      *reinterpret_cast<uint2*>(pair < 8 ? codes + span * 64 + pair * 8
                                         : spans + span * 16 + (pair - 8) * 8) = make_uint2(p[i][0], p[i][1]);
    }
  }
}

// Pairs of chains of 16 rows of down: half a warp has chains k and k + 4 of a pick.
template <class C>
__device__ void down_sums(const TokenJob& job, uint32_t memory) {
  const uint32_t row = threadIdx.x % 16, spans = job.pick_spans;
  const SpanPlaces places(job.down.m);
  const uint32_t codes = memory + job.hidden_at, x_span = codes + job.hidden_spans * 64;
#pragma unroll 1
  for (uint32_t task = threadIdx.x / 16; task < job.each * 4; task += kWorkers / 16) {
    const uint32_t p = task / 4, block = memory + p * job.down_bytes, first = p * spans;
    float c[2] = {};
#pragma unroll 1
    for (uint32_t begin = task % 4; begin < spans; begin += 8)
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t s = begin + 4 * i;
        if (s >= spans) break;
        const SpanInput in = SpanInput::load<C>(codes + (first + s) * 64, x_span + (first + s) * 16);
        c[i] = add_span<C>(job.down.m, places, block, s, row, in, c[i]);
      }
    in_shared<float>(memory + job.sums_at)[(p * 16 + row) * 4 + task % 4] = __fadd_rn(c[0], c[1]);
  }
}

// A row of the result: the sum over picks in order, then a shared expert that was computed before.
__device__ float row_sum(const Board& board, uint32_t row, uint32_t memory, float shared, float gate) {
  const TokenJob& job = board.job;
  const auto* sums = in_shared<const float[4]>(memory + job.sums_at) + threadIdx.x;
  float total = 0;
#pragma unroll 8
  for (uint32_t p = 0; p < job.each; ++p) {
    float y = pairs_tree(sums[p * 16]);
    const ptrdiff_t bias = p == job.top_k ? job.joined.down_bias : job.down.bias;
    if (bias != ExpertLayout::kNone)
      y = __fadd_rn(y, reinterpret_cast<const float*>(board.records[p] + bias)[row]);
    total = __fmaf_rn(board.weights[p], y, total);
  }
  if (job.sum.shared) total = __fmaf_rn(job.sum.shared_gate ? sigmoid_value(gate) : 1.0f, shared, total);
  return total;
}

// The records of all picks, by the clerk: sent before the launch ahead has ended, or found when it has.
__device__ void find_records(Board& board) {
  const TokenJob& job = board.job;
  const uint32_t lane = threadIdx.x % 32;
  if (!job.told) wait_for_previous();
  if (job.told && lane < job.top_k) {
    uint32_t half[2];
    while (!look_at_packets(job.mail->records[lane], flag_of(board), half)) {
    }
    board.records[lane] = reinterpret_cast<const uint8_t*>(uint64_t{half[1]} << 32 | half[0]);
  } else if (lane < job.each) {
    board.records[lane] = pick_at(job.picks, job.joined, job.top_k, 0, lane).record;
  }
  __syncwarp();
}

// Not before the launch ahead has ended: what comes next relies on that.
__device__ inline void let_next() {
  wait_for_previous();
  let_next_begin();
}

// The clerk's part of the spans: it asks for memory, and for down when there is room and no other span to do.
__device__ void serve_spans(Board& board, uint8_t* memory) {
  const TokenJob& job = board.job;
  const uint32_t lane = threadIdx.x % 32, block = board.block;
  uint32_t span = board.span;
  for (uint32_t round = 0; span < job.hidden_spans; ++round) {
    before_copies();
    ask_gate_up(board, span, memory);
    if (round == 0) let_next();
    board.segment[0].wait(round);
    uint32_t next = lane == 0 ? atomicAdd(&job.mail->next_span, 1) : 0;
    next = __shfl_sync(0xffffffffu, next, 0);
    board.used.wait(round);
    before_copies();
    if (next >= job.hidden_spans && block < job.down_blocks) ask_down(board, block, memory);
    if (lane == 0) board.span = next;
    __syncthreads();
    span = next;
    if (span < job.hidden_spans) __syncthreads();
  }
}

template <class C>
__device__ void work_on_spans(Board& board, uint32_t memory) {
  const TokenJob& job = board.job;
  uint32_t span = board.span;
  for (uint32_t round = 0; span < job.hidden_spans; ++round) {
    gate_up_sums<C>(board, span, memory, round);
    __syncthreads();
    if (threadIdx.x < 32) send_hidden(board, span, false);
    __syncwarp();
    wait_for_workers();  // who would look for what others send, and be in the way
    span = board.span;
    if (span < job.hidden_spans) __syncthreads();  // the sums are free again
  }
}

#endif

// A thread block per multiprocessor. It draws a span of hidden values and computes it, then a row block of
// the result; further draws have an outcome only where not all thread blocks run at once.
template <class C>
__global__ void __launch_bounds__(kThreads, 2) token_kernel(const __grid_constant__ TokenJob given) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ Board board;
  const TokenJob& job = board.job;
  const uint32_t base = shared_address(memory);
  const bool clerk = threadIdx.x >= kWorkers;
  if (threadIdx.x < sizeof(TokenJob) / 4)
    reinterpret_cast<uint32_t*>(&board.job)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(&given)[threadIdx.x];
  if (threadIdx.x == kWorkers) {
    for (uint32_t i = 0; i < given.segments; ++i) board.segment[i].init(1);
    board.down.init(1);
    board.used.init(kWorkers / 32);
    before_copies();
    // Before the wait: the launch before that drew has ended, since another kernel has waited for it.
    board.span = atomicAdd(&given.mail->next_span, 1);
    board.block = atomicAdd(&given.mail->next_block, 1);
    board.launch = __ldcg(&given.mail->launch);
  }
  __syncthreads();
  uint32_t block = board.block;
  if (threadIdx.x < 32) send_hidden(board, 0, true);

  if (clerk) {
    find_records(board);
    if (board.span >= job.hidden_spans) {
      if (block < job.down_blocks) ask_down(board, block, memory);
      let_next();
    }
    serve_spans(board, memory);
  } else {
    wait_for_previous();
    if (threadIdx.x < job.each)
      board.weights[threadIdx.x] = threadIdx.x < job.top_k ? job.weights[threadIdx.x]
                                   : job.sum.shared_gate   ? sigmoid_value(*job.sum.shared_gate)
                                                           : 1.0f;
    stage(job.x, 0, job.x_spans, memory + job.x_at, kWorkers - 1 - threadIdx.x, kWorkers);
    wait_for_workers();
    work_on_spans<C>(board, base);
  }

  for (uint32_t round = 0; block < job.down_blocks; ++round) {
    const uint32_t row = block * 16 + threadIdx.x;
    const bool mine = threadIdx.x < 16 && row < job.down.m.rows;
    float before = 0, shared = 0, gate = 0;
    if (threadIdx.x == kWorkers) board.next_block = atomicAdd(&job.mail->next_block, 1);
    if (mine) {
      before = job.sum.x[row];
      if (job.sum.shared) shared = job.sum.shared[row];
      if (job.sum.shared && job.sum.shared_gate) gate = *job.sum.shared_gate;
    }
    if (!clerk && round == 0) receive_hidden(board, memory);
    board.down.wait(round);
    __syncthreads();
    if (!clerk) down_sums<C>(job, base);
    block = board.next_block;
    __syncthreads();
    if (clerk && block < job.down_blocks) {
      before_copies();
      ask_down(board, block, memory);
    }
    if (mine) job.sum.x[row] = __fadd_rn(before, row_sum(board, row, base, shared, gate));
    if (block < job.down_blocks) __syncthreads();  // the sums are free again
  }

  // This thread block draws no more, and needs no flag. The last one leaves all as the next launch expects
  // it.
  if (threadIdx.x == kWorkers) {
    __threadfence();
    if (atomicInc(&job.mail->finished, gridDim.x - 1) == gridDim.x - 1) {
      job.mail->next_span = job.mail->next_block = 0;
      job.mail->launch = board.launch + 1;
    }
  }
#endif
}

struct Limits {
  uint32_t multiprocessors = 0;
  size_t shared_bytes = 0;  // of a thread block
};

const Limits& limits() {
  static const Limits found = [] {
    int device = 0, n = 0, bytes = 0;
    check_cuda(cudaGetDevice(&device), "the GPU");
    check_cuda(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device), "the GPU");
    check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "the GPU");
    constexpr size_t kOwn = 8 << 10;  // what the kernel declares itself, and the system's part
    return Limits{static_cast<uint32_t>(n), static_cast<size_t>(bytes) - kOwn};
  }();
  return found;
}

TokenJob token_job(const ExpertWork& w, const Joined& joined) {
  const auto count = [](size_t n) { return static_cast<uint32_t>(n); };
  TokenJob job{};
  job.gate = part_tiles(w.layout.gate);
  job.up = part_tiles(w.layout.up);
  job.down = part_tiles(w.layout.down);
  job.joined = joined;
  job.x = {w.x.q, w.x.span};
  job.weights = w.weights;
  job.mail = reinterpret_cast<ExpertMail*>(w.mail);
  job.told = w.told;
  job.clamp = w.layout.clamp;
  job.top_k = count(w.top_k);
  job.each = job.top_k + (joined.record ? 1 : 0);
  job.pick_spans = count(span_count(w.layout.gate.rows));
  job.hidden_spans = job.each * job.pick_spans;
  job.gate_blocks = count((w.layout.gate.rows + 15) / 16);
  job.down_blocks = count((w.layout.down.rows + 15) / 16);
  job.gate_bytes = count(job.gate.m.n_tiles * job.gate.m.tile_bytes);
  job.down_bytes = count(job.down.m.n_tiles * job.down.m.tile_bytes);
  job.x_spans = count(span_count(w.layout.gate.cols));
  job.segments = (job.x_spans + kSegment - 1) / kSegment;
  job.segment_tiles = kSegment / count(job.gate.m.tile_spans);
  job.piece_bytes = job.segment_tiles * count(job.gate.m.tile_bytes);
  job.segment_bytes = kPieces * job.piece_bytes;
  job.hidden_at = (job.each * job.down_bytes + 127) / 128 * 128;
  job.used_segments =
      std::min(job.segments, (job.each * job.down_bytes + job.segment_bytes - 1) / job.segment_bytes);
  job.sums_at = job.hidden_at + count(staged_bytes(job.hidden_spans));
  job.x_at = std::max(job.segments * job.segment_bytes, job.sums_at + job.each * 64 * count(sizeof(float)));
  job.bytes = job.x_at + count(staged_bytes(job.x_spans));
  return job;
}

bool in_sixteens(const PartTiles& p) { return p.m.tile_bytes % 16 == 0 && p.offset % 16 == 0; }

}  // namespace

size_t experts_mail(const ExpertLayout& layout, size_t top_k) {
  return sizeof(ExpertMail) + (top_k + 1) * span_count(layout.gate.rows) * kSpanPackets * sizeof(uint64_t);
}

bool token_experts_can(const ExpertWork& w) {
  if (!w.mail || w.x.n != 1 || w.exact || !overlaps() || !has_integer_codes(w.layout.gate.format) ||
      w.layout.gate.format != w.layout.up.format || w.layout.gate.format != w.layout.down.format)
    return false;
  Joined with{};  // room for one that may be joined
  with.record = w.mail;
  const TokenJob job = token_job(w, with);
  return in_sixteens(job.gate) && in_sixteens(job.up) && in_sixteens(job.down) &&
         job.gate.m.tile_bytes < (1u << 15) && job.each <= kMostPicks && job.segments <= kMostSegments &&
         job.hidden_spans <= limits().multiprocessors && job.down_blocks <= limits().multiprocessors &&
         job.bytes <= limits().shared_bytes;
}

void token_experts(const ExpertWork& w, const std::byte* const* records, const Joined& joined,
                   const ExpertSum& sum, cudaStream_t stream) {
  TokenJob job = token_job(w, joined);
  job.picks = {w.ids, records, nullptr};
  job.sum = sum;
  with_codes(w.layout.gate.format, [&](auto codes) {
    const auto kernel = token_kernel<decltype(codes)>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(limits().shared_bytes)),
               "shared memory of a token's experts");
    launch_overlapped("experts of a token", kernel, limits().multiprocessors, kThreads, job.bytes, stream,
                      job);
  });
}

}  // namespace moeflux::cuda
