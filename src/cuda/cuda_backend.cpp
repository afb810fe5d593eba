#include "cuda/cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/checked.h"
#include "cuda/cuda_stages.h"
#include "cuda/delta.h"
#include "cuda/pointwise.h"
#include "cuda/router.h"

namespace moeflux {

bool built_with_cuda() { return true; }

CudaDevice cuda_device() {
  const cuda::DeviceInfo d = cuda::open_device();
  return {.name = d.name, .total_bytes = d.total_bytes, .free_bytes = d.free_bytes};
}

double measure_cuda_memory() {
  constexpr size_t kBytes = 1u << 30;
  constexpr int kRounds = 8;
  cuda::open_device();
  const cuda::DeviceBuffer from(kBytes, "a probe of its memory"), to(kBytes, "a probe of its memory");
  const cuda::Stream stream = cuda::make_stream();
  const auto copy = [&] {
    cuda::check_cuda(cudaMemcpyAsync(to.as<>(), from.as<>(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
                     "copying");
  };
  copy();
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "copying");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) copy();
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "copying");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return 2.0 * kRounds * static_cast<double>(kBytes) / took.count();
}

std::unique_ptr<Backend> make_cuda_backend(const ModelConfig& model, const ModelWeights& weights,
                                           std::span<const std::byte> resident, const Manifest& manifest,
                                           const CudaOptions& options, std::unique_ptr<HostExperts> host) {
  return std::make_unique<cuda::CudaBackend>(model, weights, resident, manifest, options, std::move(host));
}

namespace cuda {
namespace {

constexpr size_t kMostGraphs = 64;  // recorded steps; of those recorded layer by layer, an eighth

void refuse_sizes(const ModelConfig& m) {
  const auto refuse = [](const char* what, uint64_t have, uint64_t most) {
    if (have > most)
      fail(Errc::Unsupported, "the backend cuda computes {} of up to {}, not {}", what, most, have);
  };
  if (m.has(Mixer::Attention)) refuse("attention heads", m.attention.head_dim, kMostValueDim);
  if (m.has(Mixer::Mla)) refuse("latents", m.mla.kv_rank, kMostValueDim);
  if (m.has(Mixer::DeltaNet)) refuse("delta-net keys", m.delta.key_dim, kMostDeltaKeyDim);
  refuse("layers of experts", m.moe.n_experts, kMostRoutedExperts);
}

// What experts of any layer need of it.
size_t mail_bytes(const Manifest& manifest, size_t top_k) {
  size_t most = sizeof(uint64_t);
  for (const ExpertLayer& l : manifest.layers) {
    const MlpWeights w = bind_expert(l, {reinterpret_cast<const std::byte*>(uintptr_t{4096}), 0});
    most = std::max(most, experts_mail(expert_layout(w), top_k));
  }
  return most;
}

}  // namespace

CudaBackend::CudaBackend(const ModelConfig& model, const ModelWeights& weights,
                         std::span<const std::byte> resident, const Manifest& manifest,
                         const CudaOptions& options, std::unique_ptr<HostExperts> host)
    : m_(model),
      mtp_(mtp_config(model)),
      w_(weights),
      resident_(resident),
      manifest_(manifest),
      fast_(options.precision == Precision::Fast),
      kv_(options.kv),
      stream_((refuse_sizes(model), open_device(), make_stream())),
      copies_(make_stream()),
      memory_(std::make_shared<SequenceMemory>(model, options.kv, stream_.get())),
      mtp_memory_(std::make_shared<SequenceMemory>(mtp_, options.kv, stream_.get())),
      copying_(make_timed_event()),
      copied_(make_timed_event()),
      chosen_there_(make_event()),
      weights_(resident.size(), "resident weights"),
      inv_freq_(model.rope.inv_freq.size() * sizeof(float), "rotary frequencies"),
      counters_(kMostGraphTokens * std::max<size_t>({model.attention.n_heads, model.delta.n_key_heads, 1}) *
                    sizeof(uint32_t),
                "counters"),
      mail_(mail_bytes(manifest, model.moe.top_k), "hidden values of experts"),
      entry_mail_(entry_mail(std::max<size_t>(model.moe.n_experts + 1, 2 * model.delta.n_value_heads)),
                  "small products"),
      tier_(manifest, options.slot_bytes, options.policy),
      host_experts_(std::move(host)),
      told_(sizeof(uint32_t), "a number"),
      told_count_(sizeof(uint32_t), "a number") {
  check_cuda(cudaMemsetAsync(counters_.as<>(), 0, counters_.size(), stream_.get()), "clearing counters");
  clear_mail();
  check_cuda(cudaMemsetAsync(told_count_.as<>(), 0, told_count_.size(), stream_.get()), "clearing counters");
  *told_.as<uint32_t>() = 0;
  upload(weights_.as<>(), resident.data(), resident.size(), "copying the resident weights");
  upload(inv_freq_.as<>(), model.rope.inv_freq.data(), inv_freq_.size(), "copying the rotary frequencies");
  wait();
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_.get());
  cudaStreamSynchronize(copies_.get());
}

std::unique_ptr<Sequence> CudaBackend::make_sequence(size_t capacity) {
  return std::make_unique<CudaSequence>(memory_, capacity);
}

std::unique_ptr<Sequence> CudaBackend::make_mtp_sequence(size_t capacity) {
  return w_.mtp ? std::make_unique<CudaSequence>(mtp_memory_, capacity) : nullptr;
}

void CudaBackend::wait() { check_cuda(cudaStreamSynchronize(stream_.get()), "the GPU"); }

// In the order of the stream: a copy from pageable memory on its own may still be under way when it returns.
void CudaBackend::upload(void* to, const void* from, size_t bytes, const char* what) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()), what);
}

bool CudaBackend::tap(const CudaStep& s, std::string_view name, uint64_t layer, float* values, size_t rows,
                      size_t cols) {
  if (!s.tap.wants(name)) return false;
  std::vector<float> host(rows * cols);
  const size_t bytes = host.size() * sizeof(float);
  wait();
  check_cuda(cudaMemcpy(host.data(), values, bytes, cudaMemcpyDeviceToHost), "reading a stage's result");
  if (!s.tap.call({name, layer, rows, cols, host})) return false;
  upload(values, host.data(), bytes, "changing a stage's result");
  return true;
}

// -- graphs

CudaStep::~CudaStep() {
  if (!recording) return;
  cudaGraph_t graph = nullptr;  // of a step that failed half-way
  cudaStreamEndCapture(recording, &graph);
  if (graph) cudaGraphDestroy(graph);
}

// A tap of routes that may not be told late looks at a step only where the host does not steer it.
std::optional<GraphKey> CudaBackend::graph_key(const CudaStep& s) const {
  const bool looked_at =
      s.tap.call && (s.batch.mtp() || !(s.tap.only_routes && (s.tap.late || !holds_all())));
  if (!s.each_one() || looked_at || s.n > kMostGraphTokens || s.batch.logit_rows.size() != s.n) return {};
  return GraphKey{.n = s.n,
                  .positions = context_bucket(s),
                  .mtp = s.batch.mtp(),
                  .final_norm = !s.batch.final_norm.empty(),
                  .lists = !s.batch.shortlists.empty(),
                  .routes = static_cast<bool>(s.tap.call)};
}

// A step like others before: recorded the second time, when scratch memory has its size, then replayed for as
// long as that stays where it is.
void CudaBackend::choose_mode(CudaStep& s) {
  const std::optional<GraphKey> key = graph_key(s);
  if (!key || !holds_all()) return;
  s.key = *key;
  const auto it = graphs_.find(*key);
  if (it == graphs_.end() || it->second.moves != moves_.count) return;
  s.mode = it->second.graph ? CudaStep::Mode::Replay : CudaStep::Mode::Record;
}

void CudaBackend::begin_recording(CudaStep& s) {
  check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "recording a step");
  s.recording = stream_.get();
}

Graph CudaBackend::finish_recording(CudaStep& s) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(std::exchange(s.recording, nullptr), &graph), "recording a step");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(result, "making a graph of a step");
  return Graph(ready);
}

// The same for a layer, in a step that is not recorded as a whole.
void CudaBackend::choose_layer_mode(CudaStep& s, const LayerWeights& layer) {
  s.layer_mode = CudaStep::Mode::Eager;
  s.layer_key.reset();
  const std::optional<GraphKey> key = graph_key(s);
  if (!key || holds_all() || !layer.config->sparse) return;
  s.layer_key = {*key, layer.store_layer};
  const auto it = layers_.find(*s.layer_key);
  if (it == layers_.end() || it->second.moves != moves_.count) return;
  s.layer_mode = it->second.graph ? CudaStep::Mode::Replay : CudaStep::Mode::Record;
  if (s.layer_mode == CudaStep::Mode::Record) begin_recording(s);
}

void CudaBackend::finish_layer(CudaStep& s) {
  if (!s.layer_key) return;
  Recorded& layer = layers_[*s.layer_key];
  if (s.layer_mode == CudaStep::Mode::Eager) {  // the next one like it is recorded
    layer = {Graph(), moves_.count};
    return;
  }
  if (s.layer_mode == CudaStep::Mode::Record) layer = {finish_recording(s), moves_.count};
  check_cuda(cudaGraphLaunch(layer.graph.get(), stream_.get()), "launching a layer");
}

void CudaBackend::tell_routes(const CudaStep& s, const uint32_t* ids) {
  const size_t k = m_.moe.top_k, each = s.n * k;
  for (const LayerWeights& layer : w_.layers) {
    if (!layer.config->sparse) continue;
    const auto* first = ids + layer.index * each;
    std::vector<float> values(first, first + each);
    s.tap.call({"topk_ids", layer.index, s.n, k, values});
  }
}

void CudaBackend::clear_mail() {
  for (const DeviceBuffer* mail : {&mail_, &entry_mail_})
    check_cuda(cudaMemsetAsync(mail->as<>(), 0, mail->size(), stream_.get()), "clearing mail");
}

// -- stages

std::unique_ptr<Step> CudaBackend::begin(const Batch& batch, const Tap& tap) {
  auto s = std::make_unique<CudaStep>(batch, tap);
  const size_t n = s->n, n_slices = batch.slices.size(), n_rows = batch.logit_rows.size();
  const size_t slices_at = n * sizeof(TokenInfo), ids_at = slices_at + n_slices * sizeof(SliceInfo),
               rows_at = ids_at + n * sizeof(uint32_t), wishes_at = rows_at + n_rows * sizeof(uint32_t),
               hidden_at = align_up(wishes_at + batch.wishes.size_bytes(), 16),
               bytes = hidden_at + batch.hidden.size_bytes();
  if (!std::exchange(settled_, false)) {
    wait();        // for what still reads the step before
    clear_mail();  // if that failed, packets may lie there under a flag that comes again
  }
  forget_failed_step();
  timed_bytes_ = 0;
  n_told_ = *told_.as<uint32_t>();
  if (graphs_.size() > kMostGraphs) graphs_.clear();  // a server meets many sizes of steps
  if (layers_.size() > kMostGraphs / 8 * m_.n_layers()) layers_.clear();
  if (staging_.size() < bytes) {
    staging_ = PinnedBuffer(2 * bytes, "step");
    ++moves_.count;
  }
  auto* tokens = staging_.as<TokenInfo>();
  auto* slices = reinterpret_cast<SliceInfo*>(staging_.as<>() + slices_at);
  auto* ids = reinterpret_cast<uint32_t*>(staging_.as<>() + ids_at);
  const bool guesses = n_rows == n;  // what follows each token is asked for where some may be taken back
  for (size_t i = 0; i < n_slices; ++i) {
    const Slice& slice = batch.slices[i];
    auto& sequence = static_cast<CudaSequence&>(*slice.sequence);
    sequence.begin_step(slice.count, guesses);
    slices[i] = {.state = sequence.state(),
                 .after = {},
                 .n_after = static_cast<uint32_t>(sequence.states_after().size()),
                 .first = static_cast<uint32_t>(slice.first),
                 .count = static_cast<uint32_t>(slice.count),
                 .position = static_cast<uint32_t>(sequence.position())};
    for (size_t k = 0; k < slices[i].n_after; ++k)
      slices[i].after[k] = reinterpret_cast<float*>(sequence.states_after()[k].get());
    for (size_t t = slice.first; t < slice.first + slice.count; ++t)
      tokens[t] = {sequence.pages(), batch.tokens[t],
                   static_cast<uint32_t>(sequence.position() + t - slice.first)};
  }
  std::copy(batch.tokens.begin(), batch.tokens.end(), ids);
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(),
            reinterpret_cast<uint32_t*>(staging_.as<>() + rows_at));
  std::copy(batch.wishes.begin(), batch.wishes.end(),
            reinterpret_cast<ShortlistWish*>(staging_.as<>() + wishes_at));
  std::copy(batch.hidden.begin(), batch.hidden.end(), reinterpret_cast<float*>(staging_.as<>() + hidden_at));
  std::byte* info = info_.get(bytes);
  choose_mode(*s);
  if (s->mode == CudaStep::Mode::Replay) return s;
  if (s->mode == CudaStep::Mode::Record) begin_recording(*s);
  check_cuda(cudaMemcpyAsync(info, staging_.as<>(), bytes, cudaMemcpyHostToDevice, stream_.get()),
             "copying a step's tokens");
  s->tokens = reinterpret_cast<const TokenInfo*>(info);
  s->slices = reinterpret_cast<const SliceInfo*>(info + slices_at);
  s->token_ids = reinterpret_cast<const uint32_t*>(info + ids_at);
  s->logit_rows = reinterpret_cast<const uint32_t*>(info + rows_at);
  s->wishes = reinterpret_cast<const ShortlistWish*>(info + wishes_at);
  s->hidden = reinterpret_cast<const float*>(info + hidden_at);
  s->x = x_.get(n * m_.d_model);
  const size_t half = m_.rope.inv_freq.size();
  float *cosine = rope_.get(2 * n * half), *sine = cosine + n * half;
  s->rope = {cosine, sine, half, m_.rope.interleaved};
  rope_table(s->tokens, n, inv_freq_.as<float>(), half, m_.rope.scale, cosine, sine, stream_.get());
  return s;
}

void CudaBackend::embed(Step& step) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  dequantise_rows(on_device(w_.embedding), s.token_ids, s.n, s.x, m_.d_model, stream_.get());
  tap(s, "embed", 0, s.x, s.n, m_.d_model);
}

void CudaBackend::join_hidden(Step& step) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  const MtpWeights& w = *w_.mtp;
  const size_t d = m_.d_model;
  const Vectors both = mixed_.make(s.n, 2 * d, fast_);
  const auto half = [&](const float* x, Vector norm, size_t first) {
    rms_norm(x, d, nullptr, on_device(norm), m_.norm_eps,
             {.n = s.n, .cols = d, .f = both.f + first, .stride = 2 * d}, stream_.get());
  };
  half(s.x, w.embedding_norm, 0);
  half(s.hidden, w.hidden_norm, d);
  if (fast_) quantise(both, stream_.get());
  linear({.w = on_device(w.fc), .x = both, .out = s.x, .out_stride = d, .exact = !fast_}, stream_.get());
}

void CudaBackend::attention(Step& step, const LayerWeights& layer) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  choose_layer_mode(s, layer);
  if (s.layer_mode == CudaStep::Mode::Replay) return;
  switch (layer.config->mixer) {
    case Mixer::Attention:
      grouped_attention(s, layer);
      break;
    case Mixer::Mla:
      latent_attention(s, layer);
      break;
    case Mixer::DeltaNet:
      delta_net(s, layer);
      break;
  }
  tap(s, "attention", layer.index, s.x, s.n, m_.d_model);
}

Vectors CudaBackend::norm(CudaStep& s, Vector w) {
  const Vectors h = h_.make(s.n, m_.d_model, fast_);
  rms_norm(s.x, m_.d_model, nullptr, on_device(w), m_.norm_eps, h, stream_.get());
  return h;
}

bool CudaBackend::enter(Entry& entry) {
  if (!fast_ || !entry_can(entry)) return false;
  entry.mail = entry_mail_.as<>();
  cuda::enter(entry, stream_.get());
  return true;
}

// Kernels that use them follow each other.
uint32_t* CudaBackend::counters(size_t n) {
  check(n * sizeof(uint32_t) <= counters_.size(), "enough counters");
  return counters_.as<uint32_t>();
}

void CudaBackend::route(Step& step, const LayerWeights& layer) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  const MoeConfig& moe = m_.moe;
  float* logits = router_.get(s.n * (moe.n_experts + 1));
  float* gates = logits + s.n * moe.n_experts;  // of the shared expert
  RouterRule rule = router_rule(moe, layer.score_bias);
  if (!rule.score_bias.empty()) rule.score_bias = {on_device(layer.score_bias), rule.score_bias.size()};
  s.shared_gate = moe.shared_gated ? gates : nullptr;
  s.ids = ids_.get(m_.n_layers() * s.n * moe.top_k) + layer.index * s.n * moe.top_k;
  s.weights = router_weights_.get(s.n * moe.top_k);
  Entry entry{
      .x = s.x,
      .w = on_device(layer.mlp_norm),
      .eps = m_.norm_eps,
      .h = h_.make(s.n, m_.d_model, fast_),
      .small = {{.w = on_device(layer.router.w), .bias = on_device(layer.router.bias), .out = logits}},
      .rule = &rule,
      .ids = s.ids,
      .weights = s.weights};
  if (moe.shared_gated) entry.small[1] = {.w = on_device(layer.shared_gate), .out = gates};
  s.h = entry.h;
  s.told = false;
  if (s.layer_mode == CudaStep::Mode::Replay) return;
  const bool final_choice = s.mode != CudaStep::Mode::Eager || !s.tap.call;  // else a tap may change it
  if (holds_all() && final_choice && hears_choice(expert_work(s, layer))) {
    entry.records = resident_table(layer.store_layer);
    entry.expert_mail = mail_.as<>();
  }
  if (!s.tap && enter(entry)) {  // a tap may change the logits
    s.told = entry.expert_mail != nullptr;
  } else {
    rms_norm(s.x, m_.d_model, nullptr, entry.w, m_.norm_eps, s.h, stream_.get());
    Product products[2];
    for (size_t i = 0; i < 2; ++i)
      products[i] = {.w = entry.small[i].w,
                     .bias = entry.small[i].bias,
                     .x = s.h,
                     .out = entry.small[i].out,
                     .out_stride = entry.small[i].w.rows,
                     .exact = true};
    linear(std::span(products, moe.shared_gated ? 2 : 1), stream_.get());
    tap(s, "router_logits", layer.index, logits, s.n, moe.n_experts);
    cuda::route(rule, moe.n_experts, logits, s.n, s.ids, s.weights, stream_.get());
  }
  if (holds_all()) tap_routes(s, layer.index);  // else when the host has seen them
}

// True: the tap has changed them.
bool CudaBackend::tell_chosen(const CudaStep& s, uint64_t layer, std::span<uint32_t> ids) {
  std::vector<float> values(ids.begin(), ids.end());
  if (!s.tap.call({"topk_ids", layer, s.n, m_.moe.top_k, values})) return false;
  std::ranges::transform(values, ids.begin(), [](float v) { return static_cast<uint32_t>(v); });
  return true;
}

void CudaBackend::tap_routes(CudaStep& s, uint64_t layer) {
  if (!s.tap.wants("topk_ids") || s.mode != CudaStep::Mode::Eager) return;
  const size_t k = m_.moe.top_k, bytes = s.n * k * sizeof(uint32_t);
  std::vector<uint32_t> ids(s.n * k);
  wait();
  check_cuda(cudaMemcpy(ids.data(), s.ids, bytes, cudaMemcpyDeviceToHost), "reading routes");
  if (tell_chosen(s, layer, ids)) upload(s.ids, ids.data(), bytes, "changing routes");
  tap(s, "topk_weights", layer, s.weights, s.n, k);
}

std::span<const uint32_t> CudaBackend::chosen(const Step& step) const {
  return static_cast<const CudaStep&>(step).host_ids;
}

std::span<const uint32_t> CudaBackend::guess(Step&, const LayerWeights&) { return {}; }

// -- results

CudaBackend::Results CudaBackend::results_of(const CudaStep& s) const {
  const size_t rows = s.batch.logit_rows.size();
  Results r;
  r.norm_at = s.batch.shortlists.empty() ? rows * m_.n_vocab * sizeof(float) : rows * sizeof(Shortlist);
  r.routes_at = r.norm_at + s.batch.final_norm.size_bytes();
  const bool routes = s.tap.call && graph_key(s);  // a step like it may be recorded
  r.bytes = r.routes_at + (routes ? m_.n_layers() * s.n * m_.moe.top_k * sizeof(uint32_t) : 0);
  return r;
}

void CudaBackend::logits(Step& step, std::span<float> out) {
  CudaStep& s = own(step);
  const std::span<float> final_norm = s.batch.final_norm;
  const std::span<Shortlist> lists = s.batch.shortlists;
  const Results r = results_of(s);
  if (host_.size() < r.bytes) {
    host_ = PinnedBuffer(r.bytes, "logits");
    ++moves_.count;
  }
  if (s.mode != CudaStep::Mode::Replay) compute_logits(s);
  if (s.mode == CudaStep::Mode::Record) graphs_[s.key] = {finish_recording(s), moves_.count};
  if (s.mode != CudaStep::Mode::Eager)
    check_cuda(cudaGraphLaunch(graphs_.at(s.key).graph.get(), stream_.get()), "launching a step");
  else if (const auto key = graph_key(s); key && holds_all())  // the next one like it is recorded
    graphs_[*key] = {Graph(), moves_.count};
  for (const Slice& slice : s.batch.slices) static_cast<CudaSequence&>(*slice.sequence).end_step(slice.count);
  if (r.norm_at == 0 && final_norm.empty()) return;
  lists.empty() ? wait() : wait_until_told();
  settled_ = true;
  if (!final_norm.empty()) std::memcpy(final_norm.data(), host_.as<>() + r.norm_at, final_norm.size_bytes());
  for (size_t i = 0; i < lists.size(); ++i) {
    const Shortlist& from = host_.as<Shortlist>()[i];
    lists[i].total = from.total;
    lists[i].n = from.n;
    std::ranges::copy(from.listed(), lists[i].keys);
  }
  if (!out.empty()) std::memcpy(out.data(), host_.as<>(), out.size_bytes());
  if (s.tap) s.tap.call({"logits", m_.n_layers(), s.batch.logit_rows.size(), m_.n_vocab, out});
  if (s.mode != CudaStep::Mode::Eager && s.tap.call)
    tell_routes(s, reinterpret_cast<const uint32_t*>(host_.as<>() + r.routes_at));
}

void CudaBackend::read_logits(size_t row, std::span<float> out) {
  check_cuda(
      cudaMemcpy(out.data(), logits_.get(0) + row * m_.n_vocab, out.size_bytes(), cudaMemcpyDeviceToHost),
      "reading the logits");
}

// The logits that are wanted, or lists of the best of them, and the final norm where that is.
void CudaBackend::compute_logits(CudaStep& s) {
  const size_t n = s.batch.logit_rows.size(), d = m_.d_model;
  const float* weight = on_device(s.batch.mtp() ? w_.mtp->norm : w_.final_norm);
  const bool all = s.tap || !s.batch.final_norm.empty();  // rows
  Vectors h;
  if (all) {
    h = h_.make(s.n, d, fast_);
    rms_norm(s.x, d, nullptr, weight, m_.norm_eps, h, stream_.get());
    if (tap(s, "final_norm", m_.n_layers(), h.f, s.n, d) && fast_) quantise(h, stream_.get());
  } else if (n) {
    h = wanted_.make(n, d, fast_);
    rms_norm(s.x, d, s.logit_rows, weight, m_.norm_eps, h, stream_.get());
  }
  float* result = n ? logits_.get(n * m_.n_vocab) : nullptr;
  if (n) {
    Product p{.w = on_device(w_.head), .x = h, .out = result, .out_stride = m_.n_vocab, .exact = !fast_};
    if (all && s.n > 1) {
      p.pick = s.logit_rows;
      p.n_picks = n;
    }
    linear(p, stream_.get());
  }
  read_results(s, result, h.f);
}

void CudaBackend::read_results(CudaStep& s, const float* logits, const float* final_norm) {
  const size_t n = s.batch.logit_rows.size();
  const Results r = results_of(s);
  const auto read = [&](size_t at, const void* from, size_t bytes, const char* what) {
    if (bytes)
      check_cuda(cudaMemcpyAsync(host_.as<>() + at, from, bytes, cudaMemcpyDeviceToHost, stream_.get()),
                 what);
  };
  if (s.batch.shortlists.empty()) {
    read(0, logits, r.norm_at, "reading the logits");
  } else {
    shortlist(logits, n, m_.n_vocab, s.wishes, maxima_.get(n * shortlist_blocks(m_.n_vocab)), lists_.get(n),
              stream_.get());
  }
  read(r.norm_at, final_norm, r.routes_at - r.norm_at, "reading the final norm");
  const size_t routes = s.mode == CudaStep::Mode::Eager ? 0 : r.bytes - r.routes_at;
  if (s.batch.shortlists.empty()) return read(r.routes_at, ids_.get(0), routes, "reading routes");
  publish({.ids = ids_.get(0),
           .n_ids = routes / sizeof(uint32_t),
           .lists = lists_.get(0),
           .n_lists = n,
           .ids_to = reinterpret_cast<uint32_t*>(host_.as<>() + r.routes_at),
           .lists_to = host_.as<Shortlist>(),
           .told = told_.as<uint32_t>(),
           .count = told_count_.as<uint32_t>()},
          stream_.get());
}

}  // namespace cuda
}  // namespace moeflux
