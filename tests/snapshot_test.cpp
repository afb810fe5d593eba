// Saved states: what comes back is what was saved, and nothing else is ever taken for it.
#include "gen/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "io/faulty_queue.h"
#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::some_tokens;

EngineOptions snapshot_engine(const std::string& backend, Precision precision = Precision::Exact) {
  EngineOptions o;
  o.backend = backend;
  o.precision = precision;
  o.ctx = 300;
  return o;
}

constexpr HistoryOptions kOptions{.checkpoint_every = 64};

class SnapshotOf : public testing::TestWithParam<std::string> {
 protected:
  static fs::path package() {
    const auto goldens = test::golden_families();
    const bool golden = std::ranges::find(goldens, GetParam()) != goldens.end();
    return golden ? test::golden_package(GetParam()) : test::variant_package(GetParam());
  }
};

struct Settings {
  const char* backend;
  Precision precision;
  KvType kv;
};
constexpr Settings kSettings[] = {{"cpu", Precision::Exact, KvType::F32},
                                  {"cpu", Precision::Fast, KvType::Bf16},
                                  {"cpu", Precision::Fast, KvType::Q8},
                                  {"cpu-ref", Precision::Exact, KvType::F32},
                                  {"cpu-ref", Precision::Fast, KvType::Bf16}};

TEST_P(SnapshotOf, ComesBackAsItWasInAnyState) {
  for (const Settings& s : kSettings) {
    const bool slow = std::string(s.backend) == "cpu-ref";
    EngineOptions o = snapshot_engine(s.backend, s.precision);
    o.kv = s.kv;
    Engine engine(package(), o);
    const std::vector<Token> tokens = some_tokens(200, 1), more = some_tokens(5, 2);
    History history(engine, kOptions);
    for (const size_t length : {0, 1, 2, 63, 64, 65, 130, 199, 200}) {
      if (slow && length > 70) break;
      history.eval(std::span(tokens).subspan(history.position(), length - history.position()), 0);
      const std::vector<std::byte> bytes = save_snapshot(history);
      ASSERT_EQ(bytes.size(), snapshot_bytes(history));
      const auto loaded = load_snapshot(engine, kOptions, bytes);
      ASSERT_TRUE(std::ranges::equal(loaded->tokens(), history.tokens()));
      ASSERT_EQ(loaded->checkpoints(), history.checkpoints());
      ASSERT_EQ(save_snapshot(*loaded), bytes) << s.backend << " at " << length;
      const auto again = history.copy();
      ASSERT_EQ(loaded->eval(more), again->eval(more)) << s.backend << " at " << length;
      ASSERT_EQ(save_snapshot(*loaded), save_snapshot(*again));
      // And it can go back as the other one can, to the same bits.
      loaded->cut(length * 2 / 3);
      again->cut(length * 2 / 3);
      ASSERT_EQ(loaded->eval(more), again->eval(more)) << s.backend << " at " << length;
      ASSERT_EQ(save_snapshot(*loaded), save_snapshot(*again));
    }
  }
}

TEST_P(SnapshotOf, IsUnderstoodByOtherBackends) {
  for (const Precision precision : {Precision::Exact, Precision::Fast}) {
    Engine fast(package(), snapshot_engine("cpu", precision)),
        plain(package(), snapshot_engine("cpu-ref", precision));
    const std::vector<Token> tokens = some_tokens(75, 1), more = some_tokens(3, 2);
    for (auto [from, to] : {std::pair(&fast, &plain), std::pair(&plain, &fast)}) {
      History history(*from, kOptions);
      history.eval(tokens);
      const auto moved = load_snapshot(*to, kOptions, save_snapshot(history));
      const std::vector<float> got = moved->eval(more), want = history.eval(more);
      double squares = 0, errors = 0;
      for (size_t i = 0; i < want.size(); ++i)
        squares += double{want[i]} * want[i], errors += double{got[i] - want[i]} * (got[i] - want[i]);
      EXPECT_LE(std::sqrt(errors / squares), precision == Precision::Exact ? 1e-4 : 5e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SnapshotOf,
                         testing::Values("qwen3_moe", "qwen3_next", "qwen3_5_moe", "gpt_oss", "deepseek_v3",
                                         "next_dense_k5", "mixtral_old_tied", "gptoss_i40_k3"),
                         [](const auto& test) { return test.param; });

template <class Fn>
std::pair<Errc, std::string> error_of(Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    return {e.code, e.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {Errc::Io, ""};
}

std::vector<std::byte> snapshot_of(Engine& engine, size_t n = 100) {
  History history(engine, kOptions);
  history.eval(some_tokens(n, 1));
  return save_snapshot(history);
}

TEST(Snapshot, OfAnotherModelOrSettingsIsRefusedByName) {
  Engine engine(test::golden_package("qwen3_next"), snapshot_engine("cpu"));
  const std::vector<std::byte> bytes = snapshot_of(engine);
  const auto refusal = [&](const fs::path& package, const EngineOptions& o) {
    Engine other(package, o);
    return error_of([&] { load_snapshot(other, kOptions, bytes); });
  };
  auto [code, text] = refusal(test::golden_package("qwen3_moe"), snapshot_engine("cpu"));
  EXPECT_EQ(code, Errc::InvalidArgument);
  EXPECT_NE(text.find("another model (qwen3_next"), text.npos) << text;
  std::tie(code, text) = refusal(test::golden_package("qwen3_next"), snapshot_engine("cpu", Precision::Fast));
  EXPECT_EQ(code, Errc::InvalidArgument);
  EXPECT_NE(text.find("precision exact, KV cache f32; here precision fast, KV cache bf16"), text.npos)
      << text;
  EngineOptions small = snapshot_engine("cpu");
  small.ctx = 99;
  std::tie(code, text) = refusal(test::golden_package("qwen3_next"), small);
  EXPECT_EQ(code, Errc::InvalidArgument);
  EXPECT_NE(text.find("100 tokens does not fit in the context of 99"), text.npos) << text;
}

TEST(Snapshot, OfAnotherVersionIsRefused) {
  Engine engine(test::golden_package("qwen3_moe"), snapshot_engine("cpu"));
  std::vector<std::byte> bytes = snapshot_of(engine, 3);
  bytes[8] = std::byte{2};
  const auto [code, text] = error_of([&] { load_snapshot(engine, kOptions, bytes); });
  EXPECT_EQ(code, Errc::Unsupported);
  EXPECT_NE(text.find("version 2; this program reads version 1"), text.npos) << text;
}

TEST(Snapshot, DamageAndTruncationAreRefusedEverywhere) {
  Engine engine(test::golden_package("qwen3_next"), snapshot_engine("cpu"));
  const std::vector<std::byte> good = snapshot_of(engine, 70);
  const auto refused = [&](std::span<const std::byte> bytes, const std::string& what) {
    const auto [code, text] = error_of([&] { load_snapshot(engine, kOptions, bytes); });
    EXPECT_TRUE(code == Errc::Corrupt || code == Errc::Unsupported) << what << ": " << text;
  };
  for (size_t at = 0; at < good.size(); at += at < 600 ? 1 : 9973) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    refused(bad, "byte " + std::to_string(at));
  }
  for (size_t n = 0; n < good.size(); n += n < 600 ? 1 : 9973)
    refused(std::span(good).first(n), std::to_string(n) + " bytes");
  std::vector<std::byte> longer = good;
  longer.push_back({});
  refused(longer, "one byte more");
}

// A header with a right checksum whose numbers lie.
TEST(Snapshot, LyingHeadersAreRefused) {
  Engine engine(test::golden_package("qwen3_next"), snapshot_engine("cpu"));
  const std::vector<std::byte> good = snapshot_of(engine, 70);
  constexpr size_t kHeader = 112 + 70 * 4 + 16;  // one checkpoint
  const auto lie = [&](size_t at, uint64_t value) {
    std::vector<std::byte> bad = good;
    std::memcpy(&bad[at], &value, sizeof value);
    const uint64_t checksum = xxh3(std::span(bad).first(kHeader));
    std::memcpy(&bad[kHeader], &checksum, sizeof checksum);
    return error_of([&] { load_snapshot(engine, kOptions, bad); }).first;
  };
  for (const uint64_t value : {uint64_t{0}, uint64_t{69}, uint64_t{71}, uint64_t{1} << 20, UINT64_MAX})
    for (const size_t field : {32, 40, 48, 56})  // tokens, checkpoints, bytes of the state, of all
      EXPECT_EQ(lie(field, value), Errc::Corrupt) << field << ": " << value;
  EXPECT_EQ(lie(112 + 70 * 4, 0), Errc::Corrupt);   // a checkpoint at 0
  EXPECT_EQ(lie(112 + 70 * 4, 71), Errc::Corrupt);  // beyond the end
  EXPECT_EQ(lie(112, UINT64_MAX), Errc::Corrupt);   // a token that is none
}

TEST(Snapshot, FilesAppearWhole) {
  Engine engine(test::golden_package("qwen3_moe"), snapshot_engine("cpu"));
  History history(engine, kOptions);
  history.eval(some_tokens(100, 1));
  const test::TempFolder temp;
  save_snapshot(history, temp / "a");
  const auto bytes = save_snapshot(history);
  const std::string file = test::read_file(temp / "a");
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(file)), bytes));
  EXPECT_EQ(test::folder_content(temp.path()).size(), 1u);
  EXPECT_EQ(save_snapshot(*load_snapshot(engine, kOptions, temp / "a")), bytes);
  EXPECT_THROW(save_snapshot(history, temp / "not there" / "a"), Error);
}

TEST(Snapshot, OfABrokenTextIsRefused) {
  const fs::path& package = test::golden_package("qwen3_moe");
  EngineOptions o = snapshot_engine("cpu");
  o.ram = ExpertStore::least_budget(Package(package).manifest());
  FaultyQueue* queue = nullptr;
  test::read_with_faults(o, queue);
  Engine engine(package, o);
  History history(engine, kOptions);
  queue->set({.error = [](const ReadRequest&) { return EIO; }});
  EXPECT_THROW(history.eval(some_tokens(9, 1)), Error);
  EXPECT_EQ(error_of([&] { save_snapshot(history); }).first, Errc::InvalidArgument);
}

}  // namespace
}  // namespace moeflux
