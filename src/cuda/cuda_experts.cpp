// The feed-forward part of the cuda backend. Where all experts are on the device, the host takes no part:
// kernels find the records of the chosen experts in a table. Otherwise the host sees the choice, experts on
// the device are computed first, and the others in portions as the store hands them out.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/progress.h"
#include "cuda/cuda_stages.h"
#include "cuda/pointwise.h"

namespace moeflux::cuda {
namespace {

constexpr size_t kPortion = 16;            // leases that are taken at once, experts that are copied together
constexpr size_t kMostPortion = 48;        // of a sweep
constexpr size_t kHostTokens = 8;          // of a step, up to which the processor takes a part of the experts
constexpr uint64_t kTryAgain = 16;         // divisions of missing experts between attempts
constexpr size_t kProbeBytes = 64u << 20;  // whose copy is timed
constexpr double kWeight = 0.1;            // of the newest measurement of a speed

}  // namespace

ExpertWork CudaBackend::expert_work(CudaStep& s, const LayerWeights& layer) {
  const ExpertLayer* stored = manifest_.find_layer(layer.store_layer);
  // Any address will do: what counts is where the parts lie from the start of the record on.
  MlpWeights w = bind_expert(*stored, {reinterpret_cast<const std::byte*>(uintptr_t{4096}), 0});
  ExpertWork work{
      .layout = expert_layout(w, m_.moe.activation == Activation::ClampedSwiglu ? m_.moe.clamp : 0),
      .exact = !fast_,
      .x = s.h,
      .top_k = m_.moe.top_k,
      .n_experts = m_.moe.n_experts,
      .ids = s.ids,
      .weights = s.weights};
  work.scratch =
      expert_scratch_.get(experts_scratch(work.layout, s.n, work.top_k, work.n_experts, work.exact));
  if (experts_mail(work.layout, work.top_k) <= mail_.size()) work.mail = mail_.as<>();
  return work;
}

void CudaBackend::run_mlp(const MlpWeights& w, const Vectors& x, float* out, bool add) {
  Mlp p{.layout = expert_layout(w),
        .record = on_device(w.gate.w.data),
        .exact = !fast_,
        .add = add,
        .x = x,
        .out = out,
        .out_stride = m_.d_model};
  p.scratch = mlp_scratch_.get(mlp_scratch(p.layout, x.n, p.exact));
  cuda::mlp(p, stream_.get());
}

void CudaBackend::add_shared(CudaStep& s, const LayerWeights& layer, ExpertSum& sum) {
  if (!m_.moe.shared_width) return;
  float* shared = shared_.get(s.n * m_.d_model);
  run_mlp(layer.shared, s.h, shared, false);
  sum.shared = shared;
  sum.shared_gate = s.shared_gate;
}

// The table of a layer whose experts are all on the device.
const std::byte* const* CudaBackend::resident_table(uint64_t layer) {
  DeviceBuffer& table = tables_[layer];
  if (table.size() == 0) {
    std::vector<const std::byte*> records(m_.moe.n_experts);
    const uint64_t first = manifest_.find_layer(layer)->parts.front().offset;
    for (uint64_t e = 0; e < records.size(); ++e) records[e] = tier_.find({layer, e}) + first;
    table = DeviceBuffer(records.size() * sizeof(std::byte*), "table of experts");
    upload(table.as<>(), records.data(), table.size(), "writing the table of experts");
  }
  return table.as<const std::byte*>();
}

// [n_experts] records, null but for these. It is pinned memory, which kernels read where it lies. Those of a
// sweep read it once for every tile of vectors, while the bus is busy: copies_ brings it to them, behind the
// experts themselves.
CudaBackend::Table CudaBackend::make_table(std::span<const ExpertRecord> experts, bool sweeps) {
  Table table;
  if (!spare_tables_.empty()) {
    table = std::move(spare_tables_.back());
    spare_tables_.pop_back();
  }
  const size_t bytes = m_.moe.n_experts * sizeof(std::byte*);
  if (table.host.size() == 0) table.host = PinnedBuffer(bytes, "a table of experts");
  std::memset(table.host.as<>(), 0, bytes);
  for (const auto& [e, record] : experts) table.host.as<std::byte*>()[e] = record;
  table.records = table.host.as<const std::byte*>();
  if (!sweeps) return table;
  if (table.device.size() == 0) table.device = DeviceBuffer(bytes, "a table of experts");
  copy_to(table.device.as<>(), {table.host.as<>(), bytes});
  table.records = table.device.as<const std::byte*>();
  return table;
}

// copied: these are on their way, behind `copies_`.
void CudaBackend::run_portion(const ExpertWork& work, std::span<const ExpertRecord> experts, bool copied,
                              bool sweeps) {
  if (experts.empty()) return;
  const Table& table = used_tables_.emplace_back(make_table(experts, sweeps));
  if (copied || sweeps) {
    check_cuda(cudaEventRecord(copied_.get(), copies_.get()), "the GPU");
    check_cuda(cudaStreamWaitEvent(stream_.get(), copied_.get()), "the GPU");
  }
  compute_experts(work, table.records, stream_.get());
}

void CudaBackend::copy_to(std::byte* slot, std::span<const std::byte> record) {
  check_cuda(cudaMemcpyAsync(slot, record.data(), record.size(), cudaMemcpyHostToDevice, copies_.get()),
             "copying an expert");
}

void CudaBackend::load_experts(ExpertStore& store) {
  if (tier_.n_loaded() < tier_.n_experts()) {
    std::vector<ExpertKey> keys;
    uint64_t bytes = 0;
    for (const ExpertLayer& l : manifest_.layers)
      for (uint64_t e = 0; e < l.n_experts(); ++e)
        if (!tier_.find({l.layer, e}) && keys.size() < tier_.n_slots()) {
          keys.push_back({l.layer, e});
          bytes += l.record_bytes;
        }
    Progress progress("loading experts to the GPU", bytes, store.progress());
    ExpertStore::Demand demand(store, keys, ExpertStore::Use::Sweep);
    std::vector<ExpertStore::Lease> leases;
    while (demand.take(leases, kPortion)) {
      for (const ExpertStore::Lease& lease : leases) {
        copy_to(tier_.place(lease.key(), ExpertStore::Use::Decode), lease.bytes());
        progress.add(lease.bytes().size());
      }
      check_cuda(cudaStreamSynchronize(copies_.get()), "copying experts");
      leases.clear();
    }
  }
  if (tier_.holds_all()) return;
  store.load_all();
  prepare_misses(store);
}

// -- experts that are not on the device

// Copies in the background need pinned memory; and how fast they are decides who computes what is missing.
void CudaBackend::prepare_misses(ExpertStore& store) {
  if (copy_bytes_per_s_ > 0) return;
  for (const std::span<std::byte> m : store.memory())
    pinned_.emplace_back(m.data(), m.size(), "expert slots in RAM");
  const std::span<std::byte> from = store.memory().front();
  const size_t bytes = std::min(from.size(), kProbeBytes);
  const DeviceBuffer to(bytes, "a probe of the bus");
  for (int round = 0; round < 2; ++round) {  // the first one warms up
    const auto start = std::chrono::steady_clock::now();
    copy_to(to.as<>(), from.first(bytes));
    check_cuda(cudaStreamSynchronize(copies_.get()), "copying to the GPU");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    copy_bytes_per_s_ = static_cast<double>(bytes) / took.count();
  }
  host_bytes_per_s_ = copy_bytes_per_s_;  // until it has been measured
}

// Of n experts that are in RAM, how many the processor computes while the others are copied.
size_t CudaBackend::host_part(size_t n) {
  if (!host_experts_) return 0;
  // A processor that was once slow (its threads were asleep) is tried again now and then.
  if (n && ++n_divisions_ % kTryAgain == 0) return 1;
  size_t best = 0;
  double least = INFINITY;
  for (size_t host = 0; host <= n; ++host) {
    const double time = std::max(static_cast<double>(host) / host_bytes_per_s_,
                                 static_cast<double>(n - host) / copy_bytes_per_s_);
    if (time < least) least = time, best = host;
  }
  return best;
}

DeviceTierStats CudaBackend::device_tier() const {
  return {.exists = true,
          .holds_all = holds_all(),
          .found = n_hits_,
          .copied = n_copied_ + n_ahead_,
          .computed = n_computed_,
          .ahead = n_ahead_,
          .unused = n_unused_,
          .copy_bytes_per_s = copy_bytes_per_s_,
          .host_bytes_per_s = host_bytes_per_s_};
}

// The device says by a number that a layer's choice or a step's lists are there. Where that takes long, an
// ordinary wait leaves the processor to others, and reports what may have gone wrong.
void CudaBackend::wait_until_told() {
  constexpr auto kWatch = std::chrono::milliseconds(2);
  const std::atomic_ref told(*told_.as<uint32_t>());
  ++n_told_;
  const auto start = std::chrono::steady_clock::now();
  while (told.load(std::memory_order_acquire) != n_told_)
    if (std::chrono::steady_clock::now() - start > kWatch) {
      wait();
      n_told_ = told.load(std::memory_order_acquire);
      return;
    }
}

bool CudaBackend::takes_part(const CudaStep& s) const { return s.n <= kHostTokens && host_experts_; }

// The choice as the host sees it, behind what the processor may need of the experts' input.
std::span<uint32_t> CudaBackend::chosen_ids(const CudaStep& s) {
  const size_t n_ids = s.n * m_.moe.top_k, n_values = takes_part(s) ? s.n * m_.d_model : 0;
  if (chosen_.size() < n_values * sizeof(float) + n_ids * sizeof(uint32_t)) {
    chosen_ = PinnedBuffer(n_values * sizeof(float) + n_ids * sizeof(uint32_t), "routes");
    ++moves_.count;
  }
  return {reinterpret_cast<uint32_t*>(chosen_.as<float>() + n_values), n_ids};
}

// The choice, and the experts' input where the processor may need it, on their way to the host.
void CudaBackend::send_chosen(CudaStep& s) {
  const std::span<uint32_t> ids = chosen_ids(s);
  if (s.layer_mode == CudaStep::Mode::Replay) {
    // is in the graph
  } else if (s.n <= kHostTokens) {
    publish({.ids = s.ids,
             .n_ids = ids.size(),
             .values = s.h.f,
             .n_values = takes_part(s) ? s.n * m_.d_model : 0,
             .ids_to = ids.data(),
             .values_to = chosen_.as<float>(),
             .told = told_.as<uint32_t>(),
             .count = told_count_.as<uint32_t>()},
            stream_.get());
  } else {
    check_cuda(cudaMemcpyAsync(ids.data(), s.ids, ids.size_bytes(), cudaMemcpyDeviceToHost, stream_.get()),
               "reading routes");
  }
  finish_layer(s);
  // Not among what is recorded: the host waits for it.
  if (s.n > kHostTokens) check_cuda(cudaEventRecord(chosen_there_.get(), stream_.get()), "the GPU");
}

void CudaBackend::read_chosen(CudaStep& s, const LayerWeights& layer) {
  const std::span<uint32_t> ids = chosen_ids(s);
  if (s.n <= kHostTokens)
    wait_until_told();
  else
    check_cuda(cudaEventSynchronize(chosen_there_.get()), "the GPU");
  if (s.tap.wants("topk_ids")) {
    if (tell_chosen(s, layer.index, ids)) upload(s.ids, ids.data(), ids.size_bytes(), "changing routes");
    tap(s, "topk_weights", layer.index, s.weights, s.n, m_.moe.top_k);
  }
  s.host_ids.assign(ids.begin(), ids.end());
}

// How fast the last copies were, which ran beside what else uses the memory. The device has done them.
void CudaBackend::learn_copy_speed() {
  if (timed_bytes_ == 0) return;
  float ms = 0;
  const cudaError_t result = cudaEventElapsedTime(&ms, copying_.get(), copied_.get());
  if (result != cudaErrorNotReady) check_cuda(result, "timing copies");
  const double speed = static_cast<double>(timed_bytes_) / (ms * 1e-3);
  if (ms > 0) copy_bytes_per_s_ += kWeight * (speed - copy_bytes_per_s_);
  timed_bytes_ = 0;
}

void CudaBackend::begin_experts(Step& step, const LayerWeights& layer, ExpertStore& store) {
  CudaStep& s = own(step);
  const MoeConfig& moe = m_.moe;
  if (holds_all()) {  // some of them perhaps since copies ahead, which may be under way
    for (const Ahead& a : ahead_) check_cuda(cudaStreamWaitEvent(stream_.get(), a.copied.get()), "the GPU");
    return;
  }
  prepare_misses(store);
  size_t n_before = portions_.size();  // of the layer before
  const bool comes_ahead = !ahead_.empty(), may_change = s.tap.wants("topk_ids") && !s.tap.late;
  s.grouped = false;
  send_chosen(s);
  if (comes_ahead && !may_change) launch_ahead(s, layer);  // while the choice is on its way to the host
  read_chosen(s, layer);
  if (comes_ahead && may_change) launch_ahead(s, layer);
  learn_copy_speed();
  in_flight_.clear();  // the device has read what they hold, and the tables and results of the layer before
  for (; n_before > 0; --n_before) release_portion();
  std::ranges::move(used_tables_, std::back_inserter(spare_tables_));
  used_tables_.clear();
  n_results_ = 0;
  s.hits.clear();
  s.next = nullptr;
  std::vector<bool> wanted(moe.n_experts);
  for (const uint32_t id : s.host_ids) wanted[id] = true;
  take_chosen_ahead(wanted);
  const auto use = s.batch.sweeps() ? ExpertStore::Use::Sweep : ExpertStore::Use::Decode;
  const uint64_t first = manifest_.find_layer(layer.store_layer)->parts.front().offset;
  std::vector<ExpertKey> missing;
  for (uint32_t e = 0; e < moe.n_experts; ++e) {
    if (!wanted[e]) continue;
    const ExpertKey key{layer.store_layer, e};
    std::byte* slot = tier_.find(key);
    if (!slot) {
      missing.push_back(key);
      continue;
    }
    if (use == ExpertStore::Use::Decode) tier_.use(key);
    tier_.pin(key);  // others are copied before it is computed
    s.hits.push_back({e, slot + first});
  }
  n_hits_ += s.hits.size();
  s.n_missing = missing.size();
  if (s.n_missing) s.demand.emplace(store, missing, use);
}

// The experts of these leases, on the processor; first: see HostExperts.
void CudaBackend::compute_on_host(const CudaStep& s, const ExpertWork& work, const ExpertLayer& stored,
                                  std::span<const ExpertStore::Lease> leases, Elsewhere& results,
                                  const std::function<void()>& first) {
  const size_t d = m_.d_model;
  if (results_.size() < s.host_ids.size() * d * sizeof(float))
    results_ = PinnedBuffer(s.host_ids.size() * d * sizeof(float), "results of experts");
  results.results = results_.as<float>();
  std::vector<uint32_t> tokens;  // sorted by expert
  tokens.reserve(s.host_ids.size());
  std::vector<HostExperts::Part> parts;
  uint64_t bytes = 0;
  for (const ExpertStore::Lease& lease : leases) {
    bytes += lease.bytes().size();
    HostExperts::Part part{bind_expert(stored, lease.bytes()), tokens.data() + tokens.size(), 0,
                           results_.as<float>() + n_results_ * d};
    for (size_t p = 0; p < s.host_ids.size(); ++p)
      if (s.host_ids[p] == lease.key().expert) {
        results.row[p] = static_cast<uint8_t>(n_results_++);
        tokens.push_back(static_cast<uint32_t>(p / work.top_k));
        ++part.n;
      }
    parts.push_back(part);
  }
  const auto start = std::chrono::steady_clock::now();
  host_experts_->compute(parts, chosen_.as<float>(), s.n, first);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  host_bytes_per_s_ += kWeight * (static_cast<double>(bytes) / took.count() - host_bytes_per_s_);
}

void CudaBackend::complete_experts(Step& step, const LayerWeights& layer, ExpertStore& store) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  ExpertWork work = expert_work(s, layer);
  ExpertSum sum{.x = s.x, .x_stride = m_.d_model};
  if (s.host_ids.empty()) {
    const bool has_shared = m_.moe.shared_width > 0;
    if (has_shared) work.shared_layout = expert_layout(layer.shared);
    if (has_shared && can_join(work, work.shared_layout)) {
      work.shared = on_device(layer.shared.gate.w.data);
      sum.shared_gate = s.shared_gate;
    } else {
      add_shared(s, layer, sum);
    }
    work.told = s.told;
    experts(work, resident_table(layer.store_layer), sum, stream_.get());
  } else {
    if (!s.grouped) group_experts(work, stream_.get());
    const Elsewhere elsewhere = compute_chosen(s, work, layer, sum);
    combine_experts(work, sum, elsewhere, stream_.get());
    copy_ahead(s, store);
    s.host_ids.clear();
  }
  tap(s, "mlp", layer.index, s.x, s.n, m_.d_model);
}

// Copies are begun first, then the processor's threads, and while they work come the launches, which wait for
// the copies on the device.
Elsewhere CudaBackend::compute_chosen(CudaStep& s, const ExpertWork& work, const LayerWeights& layer,
                                      ExpertSum& sum) {
  const ExpertLayer& stored = *manifest_.find_layer(layer.store_layer);
  const uint64_t first = stored.parts.front().offset;  // expert_layout counts from there
  const bool sweeps = s.batch.sweeps();
  const auto use = sweeps ? ExpertStore::Use::Sweep : ExpertStore::Use::Decode;
  const size_t most = portion_of(s, layer.store_layer);
  const bool divides = s.n <= kHostTokens && s.host_ids.size() <= Elsewhere::kMostPicks;
  Elsewhere elsewhere;
  std::ranges::fill(elsewhere.row, Elsewhere::kNot);
  std::vector<ExpertRecord> copied;
  bool begun = false, recorded = false;
  const auto compute = [&] {  // what is on the device or on its way to it
    if (!std::exchange(begun, true)) {
      run_portion(work, s.hits, false, sweeps);
      add_shared(s, layer, sum);
    }
    if (copied.empty()) return;
    if (std::exchange(recorded, true)) timed_bytes_ = 0;  // the time would be that of several portions
    run_portion(work, copied, true, sweeps);
    copied.clear();
  };
  if (sweeps || s.n_missing == 0 || !s.demand->any_ready()) compute();
  std::vector<ExpertStore::Lease> leases;
  while (s.n_missing) {
    if (!in_flight_.empty() && !s.demand->any_ready()) {  // others may be waiting for their slots
      check_cuda(cudaStreamSynchronize(copies_.get()), "copying experts");
      in_flight_.clear();
    }
    s.demand->take(leases, most);
    s.n_missing -= leases.size();
    const size_t n_host = divides ? host_part(leases.size()) : 0, n_copied = leases.size() - n_host;
    const bool times = !recorded && n_copied > 0 && !sweeps;
    if (times) check_cuda(cudaEventRecord(copying_.get(), copies_.get()), "the GPU");
    for (size_t i = 0; i < n_copied; ++i) {
      const ExpertKey key = leases[i].key();
      std::byte* slot = tier_.place(key, use);
      if (!slot) {
        if (!make_room(key.layer, use)) {  // those that are there are computed first
          compute();
          end_portion(unlisted_pins());
          check(make_room(key.layer, use), "a slot on the device");
        }
        slot = tier_.place(key, use);
      }
      tier_.pin(key);
      if (times) timed_bytes_ += leases[i].bytes().size();
      copy_to(slot, leases[i].bytes());
      copied.push_back({static_cast<uint32_t>(key.expert), slot + first});
    }
    n_copied_ += n_copied;
    n_computed_ += n_host;
    if (n_host)
      compute_on_host(s, work, stored, std::span(leases).subspan(n_copied), elsewhere, compute);
    else
      compute();
    if (s.n_missing) end_portion(unlisted_pins());
    for (size_t i = 0; i < n_copied; ++i) in_flight_.push_back(std::move(leases[i]));
    leases.clear();
  }
  if (s.next) {
    end_portion(unlisted_pins());
  } else {  // nothing is copied before the host has seen that all of it is computed
    while (!portions_.empty()) release_portion();
    tier_.unpin_all();
  }
  s.demand.reset();
  return elsewhere;
}

// -- slots that are filled again

Event CudaBackend::take_event() {
  if (spare_events_.empty()) return make_event();
  Event event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

// The experts of the tier's next pins have been launched.
void CudaBackend::end_portion(size_t n_pins) {
  portions_.push_back({take_event(), n_pins});
  check_cuda(cudaEventRecord(portions_.back().computed.get(), stream_.get()), "the GPU");
}

void CudaBackend::release_portion() {
  tier_.unpin_first(portions_.front().n_pins);
  spare_events_.push_back(std::move(portions_.front().computed));
  portions_.pop_front();
}

size_t CudaBackend::unlisted_pins() const {
  size_t n = tier_.n_pinned();
  for (const Portion& p : portions_) n -= p.n_pins;
  return n;
}

// Slots are filled again only when what they hold has been computed: where one is needed, copies wait on the
// device for the oldest portion. False: all that might be had hold experts that have not been launched.
bool CudaBackend::make_room(uint64_t layer, ExpertStore::Use use) {
  while (!tier_.has_room(layer, use)) {
    if (portions_.empty()) return false;
    check_cuda(cudaStreamWaitEvent(copies_.get(), portions_.front().computed.get()), "the GPU");
    release_portion();
  }
  return true;
}

void CudaBackend::forget_failed_step() {
  if (tier_.n_pinned() == 0 && ahead_.empty()) return;
  check_cuda(cudaStreamSynchronize(copies_.get()), "copying experts");
  in_flight_.clear();
  portions_.clear();
  ahead_.clear();
  tier_.unpin_all();
}

// A kernel's last blocks leave most of the device idle, which large portions do less often; but while one is
// computed another has to be copied, and a third one has come before it is needed.
size_t CudaBackend::portion_of(const CudaStep& s, uint64_t layer) const {
  return s.batch.sweeps() ? std::clamp(tier_.n_passing(layer) / 3, kPortion, kMostPortion) : kPortion;
}

// -- experts that are copied before they are chosen

// While this layer is computed, the bus brings the next one's experts, as far as they are in RAM and find a
// slot. What is there already must not make room for them, and is computed with the first of them.
void CudaBackend::copy_ahead(CudaStep& s, ExpertStore& store) {
  if (!s.next) return;
  const ExpertLayer& stored = *manifest_.find_layer(s.next->store_layer);
  const uint64_t first = stored.parts.front().offset;
  const auto use = ExpertStore::Use::Sweep;
  const size_t most = portion_of(s, stored.layer);
  std::vector<ExpertKey> missing;
  std::vector<ExpertRecord> portion;
  for (uint64_t e = 0; e < stored.n_experts(); ++e) {
    const ExpertKey key{stored.layer, e};
    if (std::byte* slot = tier_.find(key)) {
      tier_.pin(key);
      portion.push_back({static_cast<uint32_t>(e), slot + first});
    } else {
      missing.push_back(key);
    }
  }
  for (auto key = missing.begin();; portion.clear()) {
    Ahead& a = ahead_.emplace_back();  // leases live until copies have ended, even those of a step that fails
    a.n_there = portion.size();
    for (; key != missing.end() && a.leases.size() < most && make_room(stored.layer, use); ++key) {
      std::optional<ExpertStore::Lease> lease = store.lease_if_here(*key);
      if (!lease) continue;
      std::byte* slot = tier_.place(*key, use);
      tier_.pin(*key);
      a.leases.push_back(std::move(*lease));
      copy_to(slot, a.leases.back().bytes());
      portion.push_back({static_cast<uint32_t>(key->expert), slot + first});
    }
    if (portion.empty()) {  // the rest is not in RAM, or finds no slot
      ahead_.pop_back();
      break;
    }
    for (const ExpertRecord& r : portion) a.experts.push_back(r.expert);
    a.table = make_table(portion, true);
    a.copied = take_event();
    check_cuda(cudaEventRecord(a.copied.get(), copies_.get()), "the GPU");
  }
}

// Of those that nobody has chosen nothing is computed: their tables need not know the choice.
void CudaBackend::launch_ahead(CudaStep& s, const LayerWeights& layer) {
  const ExpertWork work = expert_work(s, layer);
  group_experts(work, stream_.get());
  s.grouped = true;
  for (Ahead& a : ahead_) {
    check_cuda(cudaStreamWaitEvent(stream_.get(), a.copied.get()), "the GPU");
    compute_experts(work, a.table.records, stream_.get());
    end_portion(a.experts.size());
  }
}

// What was copied ahead and is launched nobody asks for again.
void CudaBackend::take_chosen_ahead(std::vector<bool>& wanted) {
  for (Ahead& a : ahead_) {
    for (size_t i = 0; i < a.experts.size(); ++i) {
      const bool chosen = wanted[a.experts[i]], there = i < a.n_there;
      if (chosen) ++(there ? n_hits_ : n_ahead_);
      if (!chosen && !there) ++n_unused_;
      wanted[a.experts[i]] = false;
    }
    for (ExpertStore::Lease& lease : a.leases) in_flight_.push_back(std::move(lease));
    used_tables_.push_back(std::move(a.table));
    spare_events_.push_back(std::move(a.copied));
  }
  ahead_.clear();
}

void CudaBackend::mlp(Step& step, const LayerWeights& layer) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  run_mlp(layer.dense, norm(s, layer.mlp_norm), s.x, true);
  tap(s, "mlp", layer.index, s.x, s.n, m_.d_model);
}

}  // namespace moeflux::cuda
