// Prompts that begin like earlier ones: what is found, how long it is kept, and what becomes of the folder
// when things go wrong.
#include "gen/prefix_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

using test::joined;
using test::some_tokens;

constexpr uint64_t kPlenty = 1u << 30;

EngineOptions prefix_engine() {
  EngineOptions o;
  o.backend = "cpu";
  o.precision = Precision::Exact;
  o.ctx = 400;
  return o;
}

std::unique_ptr<History> evaluated(Engine& engine, std::span<const Token> tokens,
                                   const HistoryOptions& options = {.checkpoint_every = 64}) {
  auto history = std::make_unique<History>(engine, options);
  history->eval(tokens);
  return history;
}

// Logits of the prompt's last token, by way of what the cache has; `found`: how much that was.
std::vector<float> by_cache(PrefixCache& cache, Engine& engine, std::span<const Token> prompt,
                            size_t* found) {
  auto history = cache.find(prompt);
  *found = history ? history->position() : 0;
  if (!history) history = std::make_unique<History>(engine);
  return history->eval(prompt.subspan(*found));
}

std::vector<float> fresh(Engine& engine, std::span<const Token> prompt) {
  return engine.eval(*engine.make_sequence(), prompt);
}

class Warnings {
 public:
  PrefixCacheOptions options(const fs::path& folder = {}, uint64_t disk_bytes = kPlenty) {
    return {.ram_bytes = kPlenty,
            .folder = folder,
            .disk_bytes = disk_bytes,
            .history = {.checkpoint_every = 64},
            .warn = [this](const std::string& text) { texts.push_back(text); }};
  }
  bool one_has(const std::string& part) const {
    return std::ranges::any_of(texts, [&](const std::string& t) { return t.find(part) != t.npos; });
  }
  std::vector<std::string> texts;
};

TEST(PrefixCache, FindsTheLongestBeginning) {
  Engine engine(test::golden_package("qwen3_moe"), prefix_engine());
  Warnings w;
  PrefixCache cache(w.options(), engine);
  const std::vector<Token> a = some_tokens(200, 1), b = joined(some_tokens(120, 1), some_tokens(50, 2));
  size_t found = 0;
  EXPECT_EQ(by_cache(cache, engine, a, &found), fresh(engine, a));
  EXPECT_EQ(found, 0u);
  cache.keep(*evaluated(engine, a));
  cache.keep(*evaluated(engine, b));
  EXPECT_EQ(cache.stats().ram_entries, 2u);
  const auto expect = [&](const std::vector<Token>& prompt, size_t want) {
    EXPECT_EQ(by_cache(cache, engine, prompt, &found), fresh(engine, prompt));
    EXPECT_EQ(found, want);
  };
  expect(joined(a, some_tokens(9, 3)), 200);
  expect(joined(b, some_tokens(9, 3)), 170);
  expect(joined(some_tokens(150, 1), some_tokens(9, 3)), 150);
  expect(a, 199);  // the last token's logits are wanted
  expect(some_tokens(80, 1), 79);
  expect(some_tokens(80, 5), 0);
  EXPECT_EQ(cache.find({}), nullptr);
  const PrefixCacheStats s = cache.stats();
  EXPECT_EQ(s.n_asked, 7u);
  EXPECT_EQ(s.n_from_ram, 5u);
  EXPECT_EQ(s.tokens_found, 200u + 170 + 150 + 199 + 79);
  EXPECT_TRUE(w.texts.empty());
}

TEST(PrefixCache, UsesCheckpointsWhereTheStateCannotGoBack) {
  Engine engine(test::golden_package("qwen3_next"), prefix_engine());
  const test::TempFolder temp;
  const std::vector<Token> a = some_tokens(200, 1), like_a = joined(some_tokens(180, 1), some_tokens(9, 3));
  for (const bool from_disk : {false, true}) {
    Warnings w;
    PrefixCache cache(w.options(temp.path()), engine);
    if (!from_disk) cache.keep(*evaluated(engine, a));
    size_t found = 0;
    EXPECT_EQ(by_cache(cache, engine, like_a, &found), fresh(engine, like_a));
    EXPECT_EQ(found, 128u);
    EXPECT_EQ(by_cache(cache, engine, joined(a, like_a), &found), fresh(engine, joined(a, like_a)));
    EXPECT_EQ(found, 200u);
    EXPECT_EQ(cache.stats().n_from_disk, from_disk);
    EXPECT_TRUE(w.texts.empty());
  }
}

TEST(PrefixCache, KeepsWhatWasUsedLastAndCountsSharedMemoryOnce) {
  Engine engine(test::golden_package("qwen3_moe"), prefix_engine());
  const std::vector<Token> begin = some_tokens(192, 1);
  const auto base = evaluated(engine, begin);
  const uint64_t one = base->sequence().bytes();
  PrefixCache cache({.ram_bytes = 2 * one}, engine);
  for (Token i = 0; i < 3; ++i) {  // each has one page more per layer
    const auto text = base->copy();
    text->eval(some_tokens(10, i));
    cache.keep(*text);
  }
  EXPECT_EQ(cache.stats().ram_entries, 3u);
  EXPECT_EQ(cache.stats().ram_bytes, one + one / 3 * 3);
  size_t found = 0;
  by_cache(cache, engine, joined(begin, joined(some_tokens(10, 0), begin)), &found);  // is used
  EXPECT_EQ(found, 202u);
  const auto more = base->copy();
  more->eval(some_tokens(10, 9));
  cache.keep(*more);  // another one must go
  EXPECT_EQ(cache.stats().ram_entries, 3u);
  EXPECT_LE(cache.stats().ram_bytes, 2 * one);
  const auto holds = [&](Token i) {
    by_cache(cache, engine, joined(begin, joined(some_tokens(10, i), begin)), &found);
    return found == 202;
  };
  EXPECT_TRUE(holds(0));
  EXPECT_FALSE(holds(1));
  EXPECT_TRUE(holds(2));
  EXPECT_TRUE(holds(9));
}

TEST(PrefixCache, ALongerTextReplacesItsBeginning) {
  Engine engine(test::golden_package("qwen3_moe"), prefix_engine());
  const test::TempFolder temp;
  Warnings w;
  PrefixCache cache(w.options(temp.path()), engine);
  History history(engine);
  for (int turn = 0; turn < 5; ++turn) {
    history.eval(some_tokens(60, static_cast<Token>(turn)));
    cache.keep(history);
    cache.keep(history);
    EXPECT_EQ(cache.stats().ram_entries, 1u);
    EXPECT_EQ(cache.stats().disk_entries, 1u);
    EXPECT_EQ(test::folder_content(temp.path()).size(), 2u);  // and the lock
  }
  const std::vector<Token> whole(history.tokens().begin(), history.tokens().end());
  history.eval(some_tokens(10, 9));
  cache.keep(history);  // little more: not worth writing
  EXPECT_EQ(cache.stats().disk_bytes, snapshot_bytes(*evaluated(engine, whole)));
}

TEST(PrefixCache, SurvivesARestart) {
  Engine engine(test::golden_package("gpt_oss"), prefix_engine());
  const test::TempFolder temp;
  const std::vector<Token> a = some_tokens(150, 1), prompt = joined(a, some_tokens(20, 3));
  Warnings w;
  {
    PrefixCache cache(w.options(temp.path()), engine);
    cache.keep(*evaluated(engine, a));
    EXPECT_THROW(PrefixCache(w.options(temp.path()), engine), Error);  // in use
  }
  PrefixCache cache(w.options(temp.path()), engine);
  size_t found = 0;
  EXPECT_EQ(by_cache(cache, engine, prompt, &found), fresh(engine, prompt));
  EXPECT_EQ(found, 150u);
  EXPECT_EQ(cache.stats().n_from_disk, 1u);
  by_cache(cache, engine, prompt, &found);  // is in memory now
  EXPECT_EQ(cache.stats().n_from_ram, 1u);
  EXPECT_TRUE(w.texts.empty());
}

TEST(PrefixCache, PassesOverWhatIsDamagedOrForeign) {
  Engine engine(test::golden_package("qwen3_moe"), prefix_engine());
  const test::TempFolder temp;
  const std::vector<Token> a = some_tokens(150, 1), prompt = joined(a, some_tokens(20, 3));
  const auto files = [&] {
    std::vector<fs::path> paths;
    for (const auto& f : fs::directory_iterator(temp.path()))
      if (f.path().extension() == ".state") paths.push_back(f.path());
    return paths;
  };
  {
    PrefixCache cache(Warnings().options(temp.path()), engine);
    cache.keep(*evaluated(engine, a));
  }
  const fs::path file = files().at(0);
  const std::string good = test::read_file(file);
  size_t found = 0;
  for (const size_t at : {size_t{5}, size_t{200}, good.size() / 2, good.size()}) {  // the last: cut short
    std::string bad = good;
    at < good.size() ? void(bad[at] ^= 1) : bad.resize(good.size() / 2);
    test::write_file(file, bad);
    Warnings w;
    PrefixCache cache(w.options(temp.path()), engine);
    EXPECT_EQ(by_cache(cache, engine, prompt, &found), fresh(engine, prompt));
    EXPECT_EQ(found, 0u) << at;
    EXPECT_TRUE(w.one_has(file.string())) << at;
    EXPECT_EQ(by_cache(cache, engine, prompt, &found), fresh(engine, prompt));
    EXPECT_EQ(w.texts.size(), 1u);  // said once
    EXPECT_EQ(files().size(), 1u);
    cache.keep(*evaluated(engine, a));  // and mended
    EXPECT_EQ(test::read_file(file), good);
    EXPECT_EQ(cache.stats().disk_bytes, good.size());
  }

  Warnings w;
  Engine other(test::golden_package("olmoe"), prefix_engine());
  PrefixCache cache(w.options(temp.path()), other);
  by_cache(cache, other, prompt, &found);
  EXPECT_EQ(found, 0u);
  EXPECT_TRUE(w.one_has("1 entries of other models"));
  EXPECT_EQ(test::read_file(file), good);
}

TEST(PrefixCache, TheFolderStaysWithinItsLimit) {
  Engine engine(test::golden_package("qwen3_moe"), prefix_engine());
  const test::TempFolder temp;
  const uint64_t each = snapshot_bytes(*evaluated(engine, some_tokens(100, 0)));
  Warnings w;
  size_t found = 0;
  {
    PrefixCacheOptions o = w.options(temp.path(), 3 * each + each / 2);
    o.ram_bytes = 0;
    PrefixCache cache(o, engine);
    for (Token i = 0; i < 5; ++i) {
      cache.keep(*evaluated(engine, some_tokens(100, i)));
      if (i < 4) by_cache(cache, engine, joined(some_tokens(100, 0), some_tokens(3, 0)), &found);  // in use
      EXPECT_LE(cache.stats().disk_bytes, 3 * each + each / 2);
    }
    EXPECT_EQ(cache.stats().ram_entries, 0u);
    cache.keep(*evaluated(engine, some_tokens(400, 7)));  // too large: not written
    EXPECT_EQ(cache.stats().disk_entries, 3u);
  }
  PrefixCache cache(w.options(temp.path(), 2 * each), engine);  // less than there is
  EXPECT_EQ(cache.stats().disk_entries, 2u);
  for (Token i = 0; i < 5; ++i) {
    by_cache(cache, engine, joined(some_tokens(100, i), some_tokens(3, 0)), &found);
    EXPECT_EQ(found == 100, i == 4 || i == 0) << i;
  }
  EXPECT_TRUE(w.texts.empty());
}

TEST(PrefixCache, AFailureToWriteIsAWarning) {
  Engine engine(test::golden_package("qwen3_moe"), prefix_engine());
  const test::TempFolder temp;
  Warnings w;
  PrefixCache cache(w.options(temp / "cache"), engine);
  fs::remove_all(temp / "cache");
  const std::vector<Token> a = some_tokens(100, 1);
  cache.keep(*evaluated(engine, a));
  EXPECT_TRUE(w.one_has("cannot write"));
  size_t found = 0;
  by_cache(cache, engine, joined(a, a), &found);
  EXPECT_EQ(found, 100u);
}

// Writes one text after the other until it is killed; tells the pipe when it begins, and after each.
[[noreturn]] void write_until_killed(const fs::path& package, const fs::path& folder, int pipe) {
  Engine engine(package, prefix_engine());
  PrefixCache cache({.ram_bytes = 0, .folder = folder, .disk_bytes = kPlenty}, engine);
  std::vector<std::unique_ptr<History>> texts;
  for (Token i = 0; i < 12; ++i) texts.push_back(evaluated(engine, some_tokens(390, i)));
  for (const auto& text : texts) {
    if (write(pipe, "x", 1) != 1) _exit(1);
    cache.keep(*text);
  }
  for (;;) pause();
}

TEST(PrefixCache, KilledWhileWritingItLosesAtMostThatEntry) {
  const fs::path& package = test::golden_package("qwen3_moe");
  size_t n_whole = 0, n_torn = 0;
  for (int round = 0; round < 8; ++round) {
    const test::TempFolder temp;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(package, temp.path(), ends[1]);
    close(ends[1]);
    size_t begun = 0;  // entries that it had begun to write
    char c;
    while (begun < static_cast<size_t>(1 + round) && read(ends[0], &c, 1) == 1) ++begun;
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(ends[0], &c, 1) == 1) ++begun;
    close(ends[0]);
    for (const auto& f : fs::directory_iterator(temp.path())) n_torn += f.path().extension() == ".partial";

    Warnings w;
    Engine engine(package, prefix_engine());
    PrefixCache cache(w.options(temp.path()), engine);
    EXPECT_TRUE(w.texts.empty());
    EXPECT_GE(cache.stats().disk_entries + 1, begun);
    EXPECT_LE(cache.stats().disk_entries, begun);
    for (const auto& f : fs::directory_iterator(temp.path())) EXPECT_NE(f.path().extension(), ".partial");
    for (Token i = 0; i + 1 < begun; ++i) {
      size_t found = 0;
      by_cache(cache, engine, joined(some_tokens(390, i), some_tokens(2, 1)), &found);
      EXPECT_EQ(found, 390u);
      ++n_whole;
    }
    EXPECT_TRUE(w.texts.empty());
  }
  EXPECT_GE(n_whole, 20u);
  RecordProperty("torn", static_cast<int>(n_torn));  // how often it was killed in the middle of a file
}

TEST(PrefixMemory, IsLeftFreeByThePlan) {
  const fs::path& package = test::golden_package("mixtral");
  EngineOptions options = prefix_engine();
  const MemoryPlan all = Engine(package, options).plan();
  options.max_memory = all.host_bytes;
  options.kept_bytes = all.expert_bytes / 4;
  EXPECT_EQ(Engine(package, options).plan().ram_slot_bytes, all.expert_bytes - all.expert_bytes / 4);
  options.kept_bytes = all.host_bytes + 1;
  EXPECT_THROW(Engine(package, options), Error);
}

}  // namespace
}  // namespace moeflux
