#include "cuda/cuda_sequence.h"

#include <cstring>

#include "cuda/device_test.h"
#include "model/sequence_test.h"

namespace moeflux::cuda {
namespace {

class CudaPages : public OnDevice {};
class CudaSequences : public OnDevice {};

TEST_F(CudaPages, LiveAsLongAsSomethingRefersToThem) {
  const auto pool = std::make_shared<DevicePagePool>(100'000, 3);
  DevicePage a = pool->take();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.get()) % 256, 0u);
  {
    const DevicePage b = a;
    a = pool->take();
    EXPECT_NE(a, b);
    EXPECT_EQ(pool->n_used(), 2u);
  }
  EXPECT_EQ(pool->n_used(), 1u);
  a = {};
  EXPECT_EQ(pool->n_used(), 0u);
}

TEST_F(CudaPages, PartsLieApartAndAreCopied) {
  const auto pool = std::make_shared<DevicePagePool>(1000, 3);
  EXPECT_EQ(pool->part_bytes(), 1024u);
  std::vector<DevicePage> pages;
  for (int i = 0; i < 4; ++i) {
    pages.push_back(pool->take());
    for (size_t part = 0; part < 3; ++part)
      check_cuda(
          cudaMemset(pages.back().get() + part * pool->stride(), 16 * i + static_cast<int>(part), 1024),
          "a test");
  }
  pool->copy(pages[1], pages[3], nullptr);
  check_cuda(cudaDeviceSynchronize(), "a test");
  for (size_t i = 0; i < 4; ++i)
    for (size_t part = 0; part < 3; ++part) {
      std::vector<uint8_t> bytes(1024);
      check_cuda(
          cudaMemcpy(bytes.data(), pages[i].get() + part * pool->stride(), 1024, cudaMemcpyDeviceToHost),
          "a test");
      EXPECT_EQ(bytes, std::vector<uint8_t>(1024, static_cast<uint8_t>(16 * (i == 1 ? 3 : i) + part)));
    }
}

TEST_F(CudaPages, MemoryIsUsedAgainAndGivenBack) {
  constexpr size_t kBytes = 5 * 20'224;
  const auto pool = std::make_shared<DevicePagePool>(kBytes / 5, 5);
  pool->take();
  const uint64_t one = pool->reserved_bytes();
  for (int round = 0; round < 3; ++round) {
    std::vector<DevicePage> pages, more;
    for (int i = 0; i < 2000; ++i) pages.push_back(pool->take());
    EXPECT_GE(pool->reserved_bytes(), 2000 * kBytes);
    EXPECT_LE(pool->reserved_bytes(), 2000 * kBytes + 2 * one);
    for (size_t i = 0; i < pages.size(); i += 2) pages[i] = {};  // no slab is free as a whole
    for (int i = 0; i < 1000; ++i) more.push_back(pool->take());
    EXPECT_LE(pool->reserved_bytes(), 2000 * kBytes + 2 * one);
    pages.clear(), more.clear();
    EXPECT_EQ(pool->n_used(), 0u);
    EXPECT_EQ(pool->reserved_bytes(), one);
  }
}

constexpr size_t kCapacity = 700;

// Attention layers, one of them with a window, and, where asked for, a delta net.
ModelConfig small_model(Mixer mixer, bool delta) {
  ModelConfig m;
  m.layers = {{.mixer = mixer}, {.mixer = mixer, .window = 100}, {.mixer = mixer}};
  if (mixer == Mixer::Mla) m.layers[1].window = 0;
  if (delta) m.layers.push_back({.mixer = Mixer::DeltaNet});
  m.attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 24};
  m.mla = {.kv_rank = 32, .nope_dim = 8, .rope_dim = 8, .value_dim = 16};
  m.delta = {.n_key_heads = 1, .n_value_heads = 2, .key_dim = 8, .value_dim = 12, .conv_width = 3};
  return m;
}

struct Bytes : StateSink, StateSource {
  void write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  void read(std::span<std::byte> into) override {
    check(at + into.size() <= bytes.size(), "enough bytes");
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), into.size(), into.begin());
    at += into.size();
  }
  std::vector<std::byte> bytes;
  size_t at = 0;
};

std::vector<std::byte> saved(const Sequence& s, Saved what = Saved::All) {
  Bytes to;
  s.save(to, what);
  EXPECT_EQ(to.bytes.size(), s.state_bytes(what));
  return to.bytes;
}

struct Trial {
  Trial(Mixer mixer, bool delta, KvType type)
      : model(small_model(mixer, delta)),
        stream(make_stream()),
        memory(std::make_shared<SequenceMemory>(model, type, stream.get())) {
    for (const SequenceMemory::Group& g : memory->groups) a_page_of_each += g.pool->page_bytes();
    if (memory->states) a_page_of_each += memory->states->page_bytes();
  }
  // With a state of bytes that tell where they are.
  std::unique_ptr<CudaSequence> filled(size_t position) const {
    auto s = std::make_unique<CudaSequence>(memory, kCapacity);
    Bytes from;
    from.bytes.resize(saved_bytes(model, position, memory->type, 0, Saved::All));
    for (size_t i = 0; i < from.bytes.size(); ++i) from.bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
    if (memory->states) {  // the number of tokens beside the state
      const uint64_t delta = saved_bytes(model, 0, memory->type, 0, Saved::Rest);
      std::memset(&from.bytes[from.bytes.size() - delta], 0, sizeof(uint32_t));
    }
    s->load(from, position);
    EXPECT_EQ(saved(*s), from.bytes);
    return s;
  }
  const ModelConfig model;
  const Stream stream;
  const std::shared_ptr<SequenceMemory> memory;
  uint64_t a_page_of_each = 0;
};

std::vector<std::byte*> table_of(const CudaSequence& s, size_t entries) {
  std::vector<std::byte*> table(entries);
  check_cuda(cudaMemcpy(table.data(), s.pages(), entries * sizeof(std::byte*), cudaMemcpyDeviceToHost),
             "a table");
  return table;
}

TEST_F(CudaSequences, MemoryComesWithTheTextAndIsShared) {
  for (const auto& [mixer, delta] :
       {std::pair(Mixer::Attention, false), std::pair(Mixer::Attention, true), std::pair(Mixer::Mla, false)})
    for (const KvType type : {KvType::F32, KvType::Bf16, KvType::Q8}) {
      const Trial trial(mixer, delta, type);
      EXPECT_EQ(CudaSequence(trial.memory, kCapacity).bytes(), 0u);
      const auto a = trial.filled(200);
      const std::vector<std::byte> before = saved(*a);
      const uint64_t all = a->bytes();
      EXPECT_LE(all, sequence_bytes(trial.model, 256, type) + (1u << 16));  // parts are aligned

      auto copy = a->copy();
      EXPECT_EQ(copy->bytes(), all);
      EXPECT_EQ(bytes_together({a.get(), copy.get()}), all);
      auto& b = static_cast<CudaSequence&>(*copy);
      b.begin_step(1);
      EXPECT_EQ(bytes_together({a.get(), &b}), all + trial.a_page_of_each);
      EXPECT_EQ(saved(b), before);
      b.begin_step(1);  // the pages are its own
      EXPECT_EQ(bytes_together({a.get(), &b}), all + trial.a_page_of_each);

      // What one writes the other does not see.
      const size_t n_groups = trial.memory->groups.size();
      const std::vector<std::byte*> table = table_of(b, 4 * n_groups);
      for (size_t g = 0; g < n_groups; ++g)
        check_cuda(cudaMemset(table[3 * n_groups + g], 0x77, trial.memory->groups[g].pool->part_bytes()),
                   "a test");
      if (delta) check_cuda(cudaMemset(b.state(), 0x77, trial.memory->states->page_bytes()), "a test");
      check_cuda(cudaDeviceSynchronize(), "a test");
      EXPECT_EQ(saved(*a), before);
      EXPECT_NE(saved(b), before);
      a->begin_step(1);
      EXPECT_EQ(bytes_together({a.get(), &b}), all + trial.a_page_of_each);
      a->begin_step(100);
      EXPECT_GT(a->bytes(), all);
      EXPECT_EQ(saved(*a), before);
      copy.reset();  // what it shared stays
      EXPECT_EQ(saved(*a), before);
    }
}

TEST_F(CudaSequences, GiveBackWhatNoQuerySees) {
  const Trial trial(Mixer::Attention, false, KvType::Bf16);
  const auto s = trial.filled(200);
  DevicePagePool& windowed = *trial.memory->groups[1].pool;
  EXPECT_EQ(windowed.n_used(), 3u);  // of positions 101 to 199
  EXPECT_EQ(s->removable(), 127 + 99 - 200u);
  s->begin_step(26);
  EXPECT_EQ(windowed.n_used(), 3u);
  s->end_step(26);
  EXPECT_EQ(windowed.n_used(), 3u);
  s->begin_step(300);
  EXPECT_EQ(windowed.n_used(), 7u);  // to position 499
  s->end_step(300);
  EXPECT_EQ(windowed.n_used(), 2u);  // 401 to 499
  EXPECT_EQ(trial.memory->groups[0].pool->n_used(), 8u);
}

TEST_F(CudaSequences, AnEarlierStateSharesWhatItCan) {
  for (const bool delta : {false, true}) {
    const Trial trial(Mixer::Attention, delta, KvType::Q8);
    const auto longer = trial.filled(300), shorter = trial.filled(130);
    Bytes rest;
    rest.bytes = saved(*shorter, Saved::Rest);
    const auto earlier = longer->earlier(rest, 130);
    EXPECT_EQ(saved(*earlier, Saved::Rest), rest.bytes);
    EXPECT_EQ(bytes_together({longer.get(), earlier.get()}),
              longer->bytes() + 3 * trial.memory->groups[1].pool->page_bytes() +
                  (delta ? trial.memory->states->page_bytes() : 0));
    EXPECT_FALSE(earlier->cut(100));
    const std::vector<std::byte> before = saved(*longer);
    static_cast<CudaSequence&>(*earlier).begin_step(1);
    EXPECT_EQ(saved(*longer), before);
  }
}

TEST_F(CudaSequences, AreCutWherePagesAreHeld) {
  const Trial trial(Mixer::Mla, false, KvType::Bf16);
  const auto whole = trial.filled(200);
  const auto copy = whole->copy();
  ASSERT_TRUE(copy->cut(64));
  EXPECT_EQ(copy->bytes(), trial.a_page_of_each);
  EXPECT_EQ(trial.filled(64)->bytes(), trial.a_page_of_each);
  ASSERT_TRUE(copy->cut(30));
  static_cast<CudaSequence&>(*copy).begin_step(1);
  EXPECT_EQ(bytes_together({whole.get(), copy.get()}), whole->bytes() + trial.a_page_of_each);
}

TEST_F(CudaSequences, KeepStatesOfShortSteps) {
  const Trial trial(Mixer::Mla, true, KvType::Bf16);
  const auto s = trial.filled(200);
  EXPECT_FALSE(s->can_cut(199));
  EXPECT_EQ(s->removable(), kMostBack + 1);
  const uint64_t before = s->bytes();
  s->begin_step(kMostBack + 1);
  ASSERT_EQ(s->states_after().size(), kMostBack);
  EXPECT_EQ(s->bytes(), before + kMostBack * trial.memory->states->page_bytes());
  s->begin_step(1);
  EXPECT_EQ(s->bytes(), before);
  s->begin_step(kMostBack + 1, false);  // as of a prompt's last piece
  EXPECT_EQ(s->bytes(), before);
  s->begin_step(kMostBack + 2);
  EXPECT_EQ(s->bytes(), before);
}

}  // namespace
}  // namespace moeflux::cuda
