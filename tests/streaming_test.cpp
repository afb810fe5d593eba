// What streams and what is kept changes no bit: the same logits for every cache size, policy, queue, depth,
// prefetch setting, thread count and delay, and after every fault.
#include <gtest/gtest.h>

#include <cerrno>

#include "gen/engine.h"
#include "io/faulty_queue.h"
#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

std::vector<Token> prompt(size_t n) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<Token>((i * i * 7 + i * 31 + 5) % 256));
  return tokens;
}

// The logits of a prompt's last token and of some decoded ones after it.
std::vector<float> logits_of(Engine& engine) {
  const auto sequence = engine.make_sequence();
  std::vector<float> all = engine.eval(*sequence, prompt(70));
  for (Token t = 0; t < 12; ++t) {
    const std::vector<float> next = engine.eval(*sequence, std::vector<Token>{t % 4 * 50 + t});
    all.insert(all.end(), next.begin(), next.end());
  }
  return all;
}

std::vector<float> logits_of(const fs::path& package, const EngineOptions& options) {
  Engine engine(package, options);
  return logits_of(engine);
}

uint64_t expert_bytes(const fs::path& package) { return Package(package).manifest().expert_bytes(); }

EngineOptions streaming(const fs::path& package, double share) {
  EngineOptions o;
  o.ctx = 128;
  const uint64_t least = ExpertStore::least_budget(Package(package).manifest());
  o.ram = std::max(least, static_cast<uint64_t>(share * static_cast<double>(expert_bytes(package))));
  return o;
}

class Streaming : public testing::TestWithParam<std::string> {};

TEST_P(Streaming, SameBitsWhateverIsKeptAndHoweverItIsReadThreads) {
  const fs::path& package = test::golden_package(GetParam());
  EngineOptions all;
  all.ctx = 128;
  const std::vector<float> want = logits_of(package, all);
  size_t n = 0;
  for (const double share : {0.0, 0.1, 0.4, 0.9})
    for (const std::string& policy : policy_names())
      for (const auto mode : {PrefetchOptions::Mode::Off, PrefetchOptions::Mode::On}) {
        EngineOptions o = streaming(package, share);
        o.policy = policy;
        o.prefetch.mode = mode;
        o.prefetch.router = n % 3 != 0;
        o.prefetch.previous = n % 4 != 0;
        o.reads.queue = n % 2 ? "pread" : "auto";
        o.reads.depth = n % 5 ? 1 + 3 * n : 1;
        o.reads.piece_bytes = n % 3 ? 4096 : 1 << 20;
        o.reads.direct = n % 7 < 4;
        o.threads = 1 + n % 3;
        o.chunk = n % 2 ? 512 : 40;
        ASSERT_EQ(logits_of(package, o), want)
            << "budget " << share << ", policy " << policy << ", combination " << n;
        ++n;
      }
}

TEST_P(Streaming, SameBitsWithLateShortAndReorderedReadsThreads) {
  const fs::path& package = test::golden_package(GetParam());
  EngineOptions all;
  all.ctx = 128;
  const std::vector<float> want = logits_of(package, all);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    EngineOptions o = streaming(package, 0.15 * static_cast<double>(seed));
    o.prefetch.mode = PrefetchOptions::Mode::On;
    o.reads.piece_bytes = 8192;
    o.reads.depth = 1 + 4 * seed;
    o.wrap_queue = [seed](std::unique_ptr<ReadQueue> inner) {
      return std::make_unique<FaultyQueue>(
          std::move(inner),
          Faults{.shorten = 0.3, .delay = 0.3, .most_delay = std::chrono::microseconds(200)}, seed);
    };
    ASSERT_EQ(logits_of(package, o), want) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Streaming,
                         testing::Values("qwen3_moe", "deepseek_v3", "qwen3_5_moe", "gpt_oss"),
                         [](const auto& test) { return test.param; });

TEST(StreamingFaults, AFailedReadEndsOneRequestAndTheNextSucceeds) {
  const fs::path& package = test::golden_package("qwen3_moe");
  EngineOptions o = streaming(package, 0.3);
  FaultyQueue* queue = nullptr;
  test::read_with_faults(o, queue);
  Engine engine(package, o);
  const std::vector<float> want = logits_of(engine);
  int after = 0;
  for (const int err : {EIO, ENXIO}) {
    queue->set({.error = [err, countdown = after * 7](const ReadRequest&) mutable {
      return countdown-- > 0 ? 0 : err;
    }});
    const auto sequence = engine.make_sequence();
    EXPECT_THROW(engine.eval(*sequence, prompt(70)), Error);
    EXPECT_THROW(engine.eval(*sequence, prompt(1)), Error);  // it is not continued as if nothing had happened
    queue->set({});
    EXPECT_EQ(logits_of(engine), want);
    ++after;
  }
}

TEST(StreamingFaults, StripesAreReadFromAllFolders) {
  const fs::path& package = test::golden_package("qwen3_moe");
  const test::TempFolder temp;
  fs::copy(package / "experts", temp / "experts", fs::copy_options::recursive);
  EngineOptions o = streaming(package, 0.3);
  const std::vector<float> want = logits_of(package, o);
  o.stripes = {temp.path()};
  EXPECT_EQ(logits_of(package, o), want);

  // Every second record comes from the second folder: damage there is noticed.
  const fs::path file = temp.path() / Package(package).manifest().layers[0].file;
  std::string bytes = test::read_file(file);
  for (char& c : bytes) c = static_cast<char>(c ^ 1);
  test::write_file(file, bytes);
  try {
    logits_of(package, o);
    FAIL() << "damaged bytes were used";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(file.string()), std::string::npos) << e.what();
  }
  fs::resize_file(file, 4096);
  EXPECT_THROW(Package(package, {temp.path()}), Error);
  fs::remove_all(temp / "experts");
  EXPECT_THROW(Package(package, {temp.path()}), Error);
}

// Three experts are chosen every time, and so are in memory and easy to guess; the fourth is never the one
// that was foreseen. Nothing is read for such guesses, not even to try them out.
TEST(StreamingCache, GuessesAreJudgedByWhatIsNotInMemory) {
  const fs::path& package = test::golden_package("qwen3_moe");
  EngineOptions o = streaming(package, 0.5);
  o.prefetch.mode = PrefetchOptions::Mode::Auto;
  Engine engine(package, o);
  const uint32_t n_experts = static_cast<uint32_t>(engine.config().moe.n_experts);
  ASSERT_EQ(engine.config().moe.top_k, 4u);
  uint32_t fourth = 3;
  const Tap tap{.call =
                    [&](const TapTensor& t) {
                      if (t.layer == 0) fourth = fourth + 1 < n_experts ? fourth + 1 : 3;
                      for (size_t i = 0; i < 3; ++i) t.values[i] = static_cast<float>(i);
                      t.values[3] = static_cast<float>(fourth);
                      return true;
                    },
                .only_routes = true};
  const auto sequence = engine.make_sequence();
  for (Token t = 0; t < 60; ++t) engine.eval(*sequence, std::vector<Token>{t}, 1, tap);
  EXPECT_GE(engine.prefetcher().predictor().repeated().share_right(), 0.5);
  EXPECT_GT(engine.store_stats().misses, 60u);
  EXPECT_EQ(engine.store_stats().prefetched, 0u);
}

TEST(StreamingCache, APromptLeavesWhatDecodingUses) {
  const fs::path& package = test::golden_package("qwen3_moe");
  EngineOptions o = streaming(package, 0.5);
  o.prefetch.mode = PrefetchOptions::Mode::Off;
  Engine engine(package, o);
  const auto decode = [&] {
    const auto sequence = engine.make_sequence();
    const StoreStats before = engine.store_stats();
    for (Token t = 0; t < 20; ++t) engine.eval(*sequence, std::vector<Token>{17});
    return (engine.store_stats() - before).misses;
  };
  decode();
  const uint64_t warm = decode();
  const auto sequence = engine.make_sequence();
  engine.eval(*sequence, prompt(100));
  const uint64_t after = decode();
  EXPECT_LE(after, warm + engine.store().slots_for(0) / 4);
}

TEST(StreamingCache, APromptReadsEachExpertAtMostOncePerChunk) {
  const fs::path& package = test::golden_package("qwen3_moe");
  for (const double share : {0.0, 0.25}) {
    EngineOptions o = streaming(package, share);
    Engine engine(package, o);
    const auto sequence = engine.make_sequence();
    engine.eval(*sequence, prompt(100));
    EXPECT_LE(engine.store_stats().bytes_read, expert_bytes(package));
  }
}

// Experts of three tiers, where there is a GPU.
class StreamingGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (test::with_gpu({}).empty()) GTEST_SKIP() << "there is no GPU";
  }
  static EngineOptions tiers(double vram, double ram, PrefetchOptions::Mode ahead) {
    EngineOptions o = streaming(package(), ram);
    o.backend = "cuda";
    o.vram = std::max(ExpertStore::least_budget(Package(package()).manifest()),
                      static_cast<uint64_t>(vram * static_cast<double>(expert_bytes(package()))));
    o.prefetch.mode = ahead;
    return o;
  }
  static const fs::path& package() { return test::golden_package("qwen3_moe"); }
};

TEST_F(StreamingGpu, SameBitsWithAndWithoutCopiesAhead) {
  using Mode = PrefetchOptions::Mode;
  const std::vector<float> want = logits_of(package(), tiers(1, 1, Mode::Off));
  for (const double vram : {0.0, 0.1, 0.4, 0.9})
    for (const double ram : {0.0, 0.3, 1.0})
      for (const Mode mode : {Mode::Off, Mode::On})
        for (const size_t chunk : {512, 40}) {
          EngineOptions o = tiers(vram, ram, mode);
          o.chunk = chunk;
          Engine engine(package(), o);
          engine.load_experts();
          for (int round = 0; round < 2; ++round)
            ASSERT_EQ(logits_of(engine), want) << vram << " on the GPU, " << ram << " in RAM, " << chunk;
          const DeviceTierStats d = engine.device_tier();
          EXPECT_TRUE(mode == Mode::On || d.ahead + d.unused == 0);
          EXPECT_TRUE(mode == Mode::Off || ram < 1 || d.ahead > 0);
        }
}

// More texts than the processor computes for: layers of such steps are recorded up to their choice, which the
// host reads by copy.
TEST_F(StreamingGpu, ManyTextsAtOnce) {
  constexpr size_t kTexts = 12;
  const auto steps = [&](double vram) {
    Engine engine(package(), tiers(vram, 1, PrefetchOptions::Mode::On));
    engine.load_experts();
    std::vector<std::unique_ptr<Sequence>> texts;
    std::vector<Slice> slices;
    std::vector<uint32_t> rows;
    for (uint32_t i = 0; i < kTexts; ++i) {
      texts.push_back(engine.make_sequence());
      slices.push_back({texts.back().get(), i, 1});
      rows.push_back(i);
    }
    std::vector<float> logits(kTexts * engine.config().n_vocab);
    for (Token t = 0; t < 6; ++t) {
      std::vector<Token> tokens;
      for (Token i = 0; i < kTexts; ++i) tokens.push_back(5 + 7 * i + t);
      engine.step({tokens, slices, rows}, logits);
    }
    return logits;
  };
  EXPECT_EQ(steps(0.4), steps(1));
}

TEST_F(StreamingGpu, CopiesAheadLeaveWhatDecodingUses) {
  Engine engine(package(), tiers(0.5, 1, PrefetchOptions::Mode::On));
  engine.load_experts();
  const auto decode = [&] {
    const auto sequence = engine.make_sequence();
    const uint64_t before = engine.device_tier().found;
    for (Token t = 0; t < 20; ++t) engine.eval(*sequence, std::vector<Token>{17});
    return engine.device_tier().found - before;
  };
  decode();
  const uint64_t warm = decode();
  const auto sequence = engine.make_sequence();
  engine.eval(*sequence, prompt(100));
  EXPECT_GT(engine.device_tier().ahead, 0u);
  EXPECT_GE(decode() + 2, warm);  // what passed through the other slots may have been found there
}

// Slots that a failed step had pinned, on the device or in RAM, would be missing sooner or later: there are
// few of them here.
TEST_F(StreamingGpu, AStepThatEndsEarlyLeavesNothingPinned) {
  EngineOptions o = tiers(0.1, 0.3, PrefetchOptions::Mode::On);
  FaultyQueue* queue = nullptr;
  test::read_with_faults(o, queue);
  Engine engine(package(), o);
  const std::vector<float> want = logits_of(engine);
  struct Cancelled {};
  for (uint64_t n = 0; n < 60; ++n) {
    const auto sequence = engine.make_sequence();
    const uint64_t last = n % engine.config().n_layers();
    const Tap cancels{.call = [&](const TapTensor& t) -> bool {
                        if (t.layer == last) throw Cancelled();
                        return false;
                      },
                      .only_routes = true,
                      .late = n % 4 == 1};
    if (n % 2) {
      EXPECT_THROW(engine.eval(*sequence, prompt(70), 1, cancels), Cancelled);
      continue;
    }
    queue->set({.error = [countdown = n](const ReadRequest&) mutable { return countdown-- > 0 ? 0 : EIO; }});
    try {
      engine.eval(*sequence, prompt(70));  // with all that it needs in memory it may succeed
    } catch (const Error&) {
    }
    queue->set({});
  }
  EXPECT_EQ(logits_of(engine), want);
}

}  // namespace
}  // namespace moeflux
