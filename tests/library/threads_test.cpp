// Several threads, several models, and many of them one after the other.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <random>
#include <thread>

#include "library_test.h"

namespace library_test {
namespace {

using moeflux::Context;
using moeflux::Finish;
using moeflux::Model;
using moeflux::Next;
using moeflux::Token;

#ifdef __SANITIZE_THREAD__
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif
#if defined(MOEFLUX_SANITIZED) && !defined(__SANITIZE_THREAD__)
constexpr bool kCountsLeaks = true;  // at the end, and keeps what is freed for a while
#else
constexpr bool kCountsLeaks = false;
#endif

// Text without end, within the context.
moeflux::GenerateOptions endless(const Model& model) {
  moeflux::GenerateOptions o = greedy_options(model, 0);
  o.ignore_stop_tokens = true;
  return o;
}

TEST(LibraryThreads, CancelsAtAnyMoment) {
  const Model model(storyteller(), small());
  const auto prompt = model.tokenize("Once upon a time, there was a little boy named Tim.");
  const Context context(model);
  const auto whole = context.generate(prompt, endless(model)).tokens;
  std::mt19937 random(1);
  size_t n_early = 0;
  for (int i = 0; i < (kSlow ? 10 : 60); ++i) {
    context.clear();
    const moeflux::Cancel cancel;
    moeflux::GenerateOptions options = endless(model);
    options.cancel = &cancel;
    std::thread other([&, us = random() % 30'000] {
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      cancel.set();
    });
    const auto result = context.generate(prompt, options);
    other.join();
    // Whatever there was by then is right, and the sequence goes on from there.
    ASSERT_LE(result.tokens.size(), whole.size());
    ASSERT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), whole.begin()));
    if (result.finish != Finish::Cancelled) continue;
    ++n_early;
    std::vector<Token> held = context.tokens();
    if (!result.tokens.empty()) {
      std::vector<Token> want = prompt;
      want.insert(want.end(), result.tokens.begin(), result.tokens.end());
      ASSERT_EQ(held, want);
    }
    if (held.size() + 4 > small().ctx) continue;  // ended so late that nothing more fits
    cancel.reset();
    options.whole_text = true;
    options.max_tokens = 3;
    held.push_back(prompt.front());
    ASSERT_EQ(context.generate(held, options).finish, Finish::Length);
  }
  EXPECT_GT(n_early, 0u);
}

TEST(LibraryThreads, ACancelThatIsSetBeforeIsNotLost) {
  const Model model(storyteller(), small());
  const Context context(model);
  const moeflux::Cancel cancel;
  cancel.set();
  moeflux::GenerateOptions options = endless(model);
  options.cancel = &cancel;
  const auto result = context.generate(std::vector<Token>{1, 2}, options);
  EXPECT_EQ(result.finish, Finish::Cancelled);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(status_of([&] { context.eval(std::vector<Token>{1, 2}, 0, &cancel); }), MOEFLUX_CANCELLED);
  EXPECT_EQ(context.pos_max(), -1);
  cancel.reset();
  options.max_tokens = 2;
  EXPECT_EQ(context.generate(std::vector<Token>{1, 2}, options).finish, Finish::Length);
}

TEST(LibraryThreads, ACancelEndsALongPromptBetweenItsChunks) {
  moeflux::OpenOptions open = small();
  open.chunk = 4;
  const Model model(storyteller(), open);
  const Context context(model);
  const moeflux::Cancel cancel;
  moeflux::GenerateOptions options = endless(model);
  options.cancel = &cancel;
  options.on_prompt = [&](size_t done, size_t total) {
    EXPECT_EQ(total, 40u);
    if (done >= 12) cancel.set();
    return Next::Continue;
  };
  EXPECT_EQ(context.generate(std::vector<Token>(40, 7), options).finish, Finish::Cancelled);
  EXPECT_EQ(context.tokens(), std::vector<Token>(12, 7));
}

TEST(LibraryThreads, CallbacksStopThrowAndUseOtherThings) {
  const Model model(storyteller(), small());
  const Context context(model);
  const auto prompt = model.tokenize("Once upon a time");
  moeflux::GenerateOptions options = endless(model);
  int n = 0;
  options.on_text = [&](const moeflux::Piece&) {
    EXPECT_EQ(status_of([&] { context.pos_max(); }), MOEFLUX_BUSY);
    EXPECT_FALSE(model.tokenize("a b c").empty());
    EXPECT_GT(model.stats().hits + model.stats().misses, 0u);
    return ++n == 5 ? Next::Stop : Next::Continue;
  };
  const auto stopped = context.generate(prompt, options);
  EXPECT_EQ(stopped.finish, Finish::Stop);
  EXPECT_EQ(stopped.tokens.size(), 5u);
  options.on_text = [&](const moeflux::Piece&) -> Next { throw std::runtime_error("the caller's own"); };
  try {
    context.generate(prompt, options);
    FAIL() << "what the callback threw was lost";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "the caller's own");
  }
  options.on_text = {};
  options.max_tokens = 2;
  context.generate(prompt, options);  // still usable
}

TEST(LibraryThreads, AContextThatIsFreedEndsWhatIsAtWork) {
  const Model model(storyteller(), small());
  for (int i = 0; i < 5; ++i) {
    auto context = std::make_unique<Context>(model);
    std::latch started(1);
    std::atomic<int> n = 0;
    moeflux_context* const handle = context->get();
    std::thread other([&] {
      moeflux_generate_options c{};
      c.size = sizeof c;
      c.ignore_stop_tokens = 1;
      struct User {
        std::latch& started;
        std::atomic<int>& n;
      } user{started, n};
      c.user = &user;
      c.on_text = [](void* u, const moeflux_piece*) -> int32_t {
        auto& shared = *static_cast<User*>(u);
        if (shared.n++ == 0) shared.started.count_down();
        return MOEFLUX_CONTINUE;
      };
      moeflux_result r{};
      r.size = sizeof r;
      const std::vector<Token> prompt{1, 2, 3};
      EXPECT_EQ(moeflux_generate(handle, 0, prompt.data(), prompt.size(), &c, &r), MOEFLUX_OK);
      moeflux_result_free(&r);
    });
    started.wait();
    context.reset();
    other.join();
    EXPECT_EQ(moeflux_seq_clear(handle, 0), MOEFLUX_INVALID_HANDLE);
  }
}

TEST(LibraryThreads, OneCallAtATimeForAContext) {
  const Model model(storyteller(), small());
  const Context context(model);
  std::latch started(1), asked(1);
  moeflux::GenerateOptions options = greedy_options(model, 2);
  bool first = true;
  options.on_text = [&](const moeflux::Piece&) {
    if (std::exchange(first, false)) {
      started.count_down();
      asked.wait();
    }
    return Next::Continue;
  };
  std::thread other([&] { context.generate(std::vector<Token>{1, 2}, options); });
  started.wait();
  EXPECT_EQ(status_of([&] { context.clear(); }), MOEFLUX_BUSY);
  asked.count_down();
  other.join();
  context.clear();
}

TEST(LibraryThreads, TwoModelsAndManyContextsAtOnce) {
  moeflux::OpenOptions options = small();
  options.sequences = 3;
  options.precision = "exact";
  const Model first(storyteller(), options);
  options.ram_bytes = 4 << 20;  // of about 8: this one streams
  options.sequences = 2;
  const Model second(storyteller(), options);
  EXPECT_GT(second.plan().ssd_only_bytes, 0u);
  const std::vector<std::string> texts = {"Once upon a time", "The dog", "One day, a girl", "Tom was",
                                          "It was a sunny"};
  std::vector<std::vector<Token>> want, got(texts.size());
  for (const std::string& text : texts)
    want.push_back(Context(first).generate(first.tokenize(text), greedy_options(first, 40)).tokens);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i)
    threads.emplace_back([&, i] {
      const Model& model = i < 3 ? first : second;
      got[i] = Context(model).generate(model.tokenize(texts[i]), greedy_options(model, 40)).tokens;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, want);
}

TEST(LibraryThreads, AModelMayBeClosedBeforeItsContexts) {
  auto model = std::make_unique<Model>(storyteller(), small());
  const Context context(*model);
  const moeflux::Sampler sampler(*model);
  const auto options = greedy_options(*model, 5);
  const auto want = context.generate(std::vector<Token>{1, 2, 3}, options).tokens;
  model.reset();
  context.clear();
  EXPECT_EQ(context.generate(std::vector<Token>{1, 2, 3}, options).tokens, want);
  sampler.accept(1);
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t entries(const char* folder) {
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator(folder)) n += entry.path().native().size() > 0;
  return n;
}

TEST(LibraryThreads, ManyModelsOneAfterTheOtherLeaveNothingBehind) {
  const size_t cycles = kSlow ? 60 : 1000;
  const auto cycle = [] {
    const Model model(storyteller(), small());
    const Context context(model);
    context.eval(std::vector<Token>{1, 2, 3});
  };
  for (size_t i = 0; i < cycles / 10; ++i) cycle();  // what allocators keep for later is there by then
  const size_t memory = resident_bytes(), files = entries("/proc/self/fd"),
               threads = entries("/proc/self/task");
  for (size_t i = 0; i < cycles; ++i) cycle();
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  if (!kSlow && !kCountsLeaks) {
    EXPECT_LT(resident_bytes(), memory + (16 << 20)) << memory;  // a leak of 20 KB a cycle would show
  }
}

}  // namespace
}  // namespace library_test
