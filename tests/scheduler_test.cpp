// Texts that are generated together are the texts that each would be alone.
#include "gen/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <future>

#include "io/faulty_queue.h"
#include "support/engines.h"
#include "support/support.h"

namespace moeflux {
namespace {

EngineOptions small_engine() {
  EngineOptions o;
  o.precision = Precision::Exact;
  o.ctx = 256;
  o.chunk = 64;
  return o;
}

TextJob job(const std::string& text, const TextModel& model, size_t n, uint64_t seed) {
  TextJob j;
  j.prompt.tokens = model.encode_text(text, Markers::AsText);
  j.request.generate.max_tokens = n;
  j.request.generate.sampler.temperature = 1;
  j.request.generate.sampler.seed = seed;
  j.request.generate.ignore_stop_tokens = true;
  j.request.generate.stop_tokens = model.stop_tokens();
  return j;
}

// A job whose outcome can be waited for.
std::future<TextOutcome> run(Scheduler& scheduler, TextJob j, JobId* id = nullptr) {
  auto promise = std::make_shared<std::promise<TextOutcome>>();
  std::future<TextOutcome> outcome = promise->get_future();
  j.on_done = [promise](TextOutcome o) { promise->set_value(std::move(o)); };
  const JobId given = scheduler.submit(std::move(j));
  if (id) *id = given;
  return outcome;
}

class SchedulerThreads : public testing::TestWithParam<std::string> {
 protected:
  const fs::path& package = test::text_package(GetParam());
  const TextModel model{package};
};

TEST_P(SchedulerThreads, TextsTogetherAreTheTextsAlone) {
  Engine engine(package, small_engine());
  std::vector<TextJob> jobs;
  for (size_t i = 0; i < 9; ++i)
    jobs.push_back(job(std::string(1 + 17 * i, static_cast<char>('a' + i)), model, 5 + 3 * i, i));
  std::vector<TextResult> alone;
  for (const TextJob& j : jobs) alone.push_back(TextSession(engine, model).generate(j.prompt, j.request));

  Scheduler scheduler(engine, model, {.parallel = 4, .busy_chunk = 10});
  std::vector<std::future<TextOutcome>> together;
  for (const TextJob& j : jobs) together.push_back(run(scheduler, j));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const TextOutcome outcome = together[i].get();
    ASSERT_FALSE(outcome.error) << outcome.error->what();
    EXPECT_EQ(outcome.result.generated.tokens, alone[i].generated.tokens) << "text " << i;
    EXPECT_EQ(outcome.result.text, alone[i].text);
    EXPECT_EQ(outcome.result.generated.finish, FinishReason::Length);
  }
  ASSERT_TRUE(scheduler.wait_idle(std::chrono::seconds(10)));
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.finished, jobs.size());
  size_t prompts = 0, chosen = 0;
  for (const TextJob& j : jobs) prompts += j.prompt.tokens.size(), chosen += j.request.generate.max_tokens;
  EXPECT_EQ(stats.prompt_tokens, prompts);
  EXPECT_EQ(stats.new_tokens, chosen);
  EXPECT_LT(stats.steps, chosen);  // several at a time
}

// The plain backend keeps logits, as one on a GPU does: steps in which all texts can do with the likeliest
// tokens, before them some with a text that cannot.
TEST_P(SchedulerThreads, TextsTogetherAreTheTextsAloneWhereLogitsStayWithTheBackend) {
  constexpr size_t kLengths[] = {12, 14, 3, 16};
  std::vector<TextJob> jobs;
  for (size_t i = 0; i < 4; ++i) {
    jobs.push_back(job(std::string(3 + i, static_cast<char>('a' + i)), model, kLengths[i], i));
    SamplerOptions& sampler = jobs[i].request.generate.sampler;
    i == 2   ? void(sampler.penalties.repetition = 1.2)
    : i == 3 ? void(sampler.top_p = 0.9)
             : void(sampler.top_k = 9);
    jobs[i].request.generate.ignore_stop_tokens = i != 3;
    if (i == 3) jobs[i].request.generate.stop_tokens.clear();
  }
  for (const std::string& backend : test::with_gpu({"cpu-ref"})) {
    EngineOptions options = small_engine();
    options.backend = backend;
    Engine engine(package, options);
    std::vector<std::vector<Token>> alone;
    for (const TextJob& j : jobs)
      alone.push_back(TextSession(engine, model).generate(j.prompt, j.request).generated.tokens);
    Scheduler scheduler(engine, model, {.parallel = 3, .busy_chunk = 10});
    std::vector<std::future<TextOutcome>> together;
    for (const TextJob& j : jobs) together.push_back(run(scheduler, j));
    for (size_t i = 0; i < jobs.size(); ++i)
      EXPECT_EQ(together[i].get().result.generated.tokens, alone[i]) << backend << ", text " << i;
  }
}

TEST_P(SchedulerThreads, CancelEndsATextAtAnyMomentAndNoOther) {
  Engine engine(package, small_engine());
  const TextJob stays = job("a text that goes on", model, 60, 1);
  const std::string alone = TextSession(engine, model).generate(stays.prompt, stays.request).text;
  Scheduler scheduler(engine, model, {.parallel = 2});
  auto kept = run(scheduler, stays);
  for (const size_t when : {0, 1, 7}) {
    std::atomic<size_t> seen = 0;
    std::promise<void> reached;
    TextJob goes = job("a text that does not", model, 200, 2);
    goes.on_text = [&](const TextPiece&) {
      if (++seen == when) reached.set_value();
      return Next::Continue;
    };
    JobId id = 0;
    auto outcome = run(scheduler, goes, &id);
    if (when > 0) reached.get_future().wait();
    scheduler.cancel(id);
    const TextOutcome o = outcome.get();
    EXPECT_FALSE(o.error);
    EXPECT_EQ(o.result.generated.finish, FinishReason::Cancelled);
    EXPECT_GE(o.result.generated.tokens.size(), when);
    EXPECT_LT(o.result.generated.tokens.size(), 200u);
    scheduler.cancel(id);  // once more: nothing
  }
  EXPECT_EQ(kept.get().result.text, alone);
}

TEST_P(SchedulerThreads, RefusesWhatCannotBeServed) {
  Engine engine(package, small_engine());
  Scheduler scheduler(engine, model, {.parallel = 1, .max_queue = 2});
  const auto code = [&](TextJob j) {
    try {
      scheduler.submit(std::move(j));
    } catch (const Error& e) {
      return e.code;
    }
    return Errc::Exists;
  };
  EXPECT_EQ(code({}), Errc::InvalidArgument);
  TextJob too_long = job("a", model, 1, 1);
  too_long.prompt.tokens.assign(257, 1);
  EXPECT_EQ(code(too_long), Errc::InvalidArgument);
  TextJob unknown = job("a", model, 1, 1);
  unknown.prompt.tokens.push_back(static_cast<Token>(model.n_vocab()));
  EXPECT_EQ(code(unknown), Errc::InvalidArgument);

  std::promise<void> begun, go_on;
  TextJob slow = job("a", model, 2, 1);
  slow.on_text = [&, first = true](const TextPiece&) mutable {
    if (std::exchange(first, false)) begun.set_value(), go_on.get_future().wait();
    return Next::Continue;
  };
  auto running = run(scheduler, slow);
  begun.get_future().wait();
  auto one = run(scheduler, job("b", model, 2, 1)), two = run(scheduler, job("c", model, 2, 1));
  EXPECT_EQ(code(job("d", model, 2, 1)), Errc::Busy);
  EXPECT_EQ(scheduler.stats().waiting, 2u);
  scheduler.stop_accepting();
  EXPECT_FALSE(scheduler.wait_idle(std::chrono::milliseconds(1)));
  go_on.set_value();
  EXPECT_FALSE(running.get().error);
  EXPECT_FALSE(one.get().error);
  EXPECT_FALSE(two.get().error);
  EXPECT_TRUE(scheduler.wait_idle(std::chrono::seconds(10)));
  EXPECT_EQ(code(job("e", model, 2, 1)), Errc::Busy);
  EXPECT_EQ(scheduler.stats().refused, 2u);
}

TEST_P(SchedulerThreads, WhatPromptsHaveInCommonIsEvaluatedOnce) {
  Engine engine(package, small_engine());
  const std::string beginning(150, 'q');
  std::vector<TextJob> jobs;
  for (uint64_t i = 0; i < 4; ++i) jobs.push_back(job(beginning, model, 12, i));
  jobs.push_back(job(beginning + " and more", model, 12, 9));
  std::vector<std::string> alone;
  for (const TextJob& j : jobs)
    alone.push_back(TextSession(engine, model).generate(j.prompt, j.request).text);

  SchedulerOptions options{.parallel = 4};
  options.prefixes.ram_bytes = 64u << 20;
  options.prefixes.history.checkpoint_every = 64;
  Scheduler scheduler(engine, model, options);
  std::vector<std::future<TextOutcome>> together;
  for (const TextJob& j : jobs) together.push_back(run(scheduler, j));
  size_t reused = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const TextOutcome outcome = together[i].get();
    ASSERT_FALSE(outcome.error) << outcome.error->what();
    EXPECT_EQ(outcome.result.text, alone[i]) << "text " << i;
    EXPECT_EQ(outcome.result.n_reused + outcome.result.times.n_prompt, jobs[i].prompt.tokens.size());
    reused += outcome.result.n_reused;
  }
  EXPECT_GE(reused, 4 * 64u);  // all but the first go on from what it left
  EXPECT_EQ(scheduler.stats().reused_tokens, reused);
}

TEST_P(SchedulerThreads, EndingItEndsEveryText) {
  Engine engine(package, small_engine());
  std::vector<std::future<TextOutcome>> outcomes;
  {
    Scheduler scheduler(engine, model, {.parallel = 2});
    for (int i = 0; i < 6; ++i) outcomes.push_back(run(scheduler, job("on and on", model, 200, 1)));
  }
  for (auto& o : outcomes) EXPECT_FALSE(o.get().error);
}

TEST_P(SchedulerThreads, AFailedReadEndsTheTextsOfItsStepAndTheNextSucceed) {
  EngineOptions o = small_engine();
  o.ram = ExpertStore::least_budget(Package(package).manifest());
  FaultyQueue* queue = nullptr;
  test::read_with_faults(o, queue);
  Engine engine(package, o);
  Scheduler scheduler(engine, model, {.parallel = 2});
  TextJob breaks = job("abc", model, 50, 3);
  breaks.on_text = [&, n = 0](const TextPiece&) mutable {
    if (++n == 4) queue->set({.error = [](const ReadRequest&) { return EIO; }});
    return Next::Continue;
  };
  const TextOutcome broken = run(scheduler, breaks).get();
  ASSERT_TRUE(broken.error);
  EXPECT_EQ(broken.error->code, Errc::Io);
  EXPECT_EQ(broken.result.generated.tokens.size(), 4u);
  queue->set({});
  const TextOutcome next = run(scheduler, job("abc", model, 8, 3)).get();
  EXPECT_FALSE(next.error);
  EXPECT_EQ(next.result.generated.tokens.size(), 8u);
  EXPECT_EQ(scheduler.stats().failed, 1u);
}

INSTANTIATE_TEST_SUITE_P(Families, SchedulerThreads, testing::Values("qwen3_moe", "qwen3_next"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace moeflux
