// The feed-forward part of the cuda backend. Where all experts are on the device, the host takes no part:
// kernels find the records of the chosen experts in a table. Otherwise the host sees the choice, experts on
// the device are computed first, and the others in portions as the store hands them out.
#include <algorithm>
#include <cstring>

#include "base/progress.h"
#include "cuda/cuda_stages.h"
#include "cuda/pointwise.h"

namespace moeflux::cuda {
namespace {

CudaStep& own(Step& step) { return static_cast<CudaStep&>(step); }

constexpr size_t kPortion = 16;  // leases that are taken at once

}  // namespace

ExpertWork CudaBackend::expert_work(CudaStep& s, const LayerWeights& layer) {
  const ExpertLayer* stored = manifest_.find_layer(layer.index);
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
    check_cuda(cudaMemcpy(table.as<>(), records.data(), table.size(), cudaMemcpyHostToDevice),
               "writing the table of experts");
  }
  return table.as<const std::byte*>();
}

void CudaBackend::run_portion(const ExpertWork& work,
                              std::span<const std::pair<uint32_t, std::byte*>> experts) {
  if (experts.empty()) return;
  const size_t bytes = work.n_experts * sizeof(std::byte*);
  std::vector<std::byte*> records(work.n_experts);
  for (const auto& [e, record] : experts) records[e] = record;
  std::byte* table = portion_.get(bytes);
  // From pageable memory: the call returns when the bytes have been taken, in the order of the stream.
  check_cuda(cudaMemcpyAsync(table, records.data(), bytes, cudaMemcpyHostToDevice, stream_.get()),
             "writing a table of experts");
  compute_experts(work, reinterpret_cast<const std::byte* const*>(table), stream_.get());
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
    Progress progress("loading experts to the GPU", bytes);
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
  if (!tier_.holds_all()) store.load_all();
}

void CudaBackend::begin_experts(Step& step, const LayerWeights& layer, ExpertStore& store) {
  CudaStep& s = own(step);
  const MoeConfig& moe = m_.moe;
  if (holds_all()) return;
  s.host_ids.resize(s.n * moe.top_k);
  check_cuda(cudaMemcpyAsync(s.host_ids.data(), s.ids, s.host_ids.size() * sizeof(uint32_t),
                             cudaMemcpyDeviceToHost, stream_.get()),
             "reading routes");
  wait();
  std::vector<bool> wanted(moe.n_experts);
  for (const uint32_t id : s.host_ids) wanted[id] = true;
  const auto use = s.n > kSweepTokens ? ExpertStore::Use::Sweep : ExpertStore::Use::Decode;
  std::vector<ExpertKey> missing;
  for (uint64_t e = 0; e < moe.n_experts; ++e) {
    if (!wanted[e]) continue;
    const ExpertKey key{layer.index, e};
    if (!tier_.find(key)) {
      missing.push_back(key);
    } else if (use == ExpertStore::Use::Decode) {
      tier_.use(key);
    }
  }
  if (!missing.empty()) s.demand.emplace(store, missing, use);
}

void CudaBackend::complete_experts(Step& step, const LayerWeights& layer, ExpertStore&) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  const MoeConfig& moe = m_.moe;
  const ExpertWork work = expert_work(s, layer);
  ExpertSum sum{.x = s.x, .x_stride = m_.d_model};
  add_shared(s, layer, sum);
  if (s.host_ids.empty()) {
    experts(work, resident_table(layer.index), sum, stream_.get());
    tap(s, "mlp", layer.index, s.x, s.n, m_.d_model);
    return;
  }
  group_experts(work, stream_.get());
  const uint64_t first =
      manifest_.find_layer(layer.index)->parts.front().offset;  // expert_layout counts from it
  std::vector<std::pair<uint32_t, std::byte*>> portion;
  std::vector<bool> wanted(moe.n_experts);
  for (const uint32_t id : s.host_ids) wanted[id] = true;
  for (uint32_t e = 0; e < moe.n_experts; ++e)
    if (std::byte* slot = wanted[e] ? tier_.find({layer.index, e}) : nullptr)
      portion.emplace_back(e, slot + first);
  run_portion(work, portion);  // what is here, while the rest is on its way

  const auto use = s.n > kSweepTokens ? ExpertStore::Use::Sweep : ExpertStore::Use::Decode;
  std::vector<ExpertStore::Lease> leases;
  const auto flush = [&] {  // computes what has been copied; its slots may then be filled again
    check_cuda(cudaEventRecord(copied_.get(), copies_.get()), "the GPU");
    check_cuda(cudaStreamWaitEvent(stream_.get(), copied_.get()), "the GPU");
    run_portion(work, portion);
    portion.clear();
    tier_.unpin_all();
    check_cuda(cudaEventRecord(computed_.get(), stream_.get()), "the GPU");
    check_cuda(cudaStreamWaitEvent(copies_.get(), computed_.get()), "the GPU");
  };
  portion.clear();
  if (s.demand) flush();  // copies wait for what still reads the slots
  while (s.demand && s.demand->take(leases, kPortion)) {
    for (const ExpertStore::Lease& lease : leases) {
      std::byte* slot = tier_.place(lease.key(), use);
      if (!slot) {
        flush();
        slot = tier_.place(lease.key(), use);
        check(slot, "a slot on the device");
      }
      tier_.pin(lease.key());
      copy_to(slot, lease.bytes());
      portion.emplace_back(static_cast<uint32_t>(lease.key().expert), slot + first);
    }
    flush();
    check_cuda(cudaEventSynchronize(copied_.get()), "copying experts");  // then the leases may go
    leases.clear();
  }
  s.demand.reset();
  combine_experts(work, sum, stream_.get());
  s.host_ids.clear();
  tap(s, "mlp", layer.index, s.x, s.n, m_.d_model);
}

void CudaBackend::mlp(Step& step, const LayerWeights& layer) {
  CudaStep& s = own(step);
  if (s.mode == CudaStep::Mode::Replay) return;
  const Vectors h = h_.make(s.n, m_.d_model, fast_);
  rms_norm(s.x, m_.d_model, nullptr, on_device(layer.mlp_norm), m_.norm_eps, h, stream_.get());
  run_mlp(layer.dense, h, s.x, true);
  tap(s, "mlp", layer.index, s.x, s.n, m_.d_model);
}

}  // namespace moeflux::cuda
