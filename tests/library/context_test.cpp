// Sequences: batches, generation, what a failed call leaves behind.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "library_test.h"

namespace library_test {
namespace {

using moeflux::Batch;
using moeflux::Context;
using moeflux::Model;
using moeflux::Token;

moeflux::OpenOptions exact(uint64_t sequences = 1) {
  moeflux::OpenOptions o = small();
  o.precision = "exact";
  o.sequences = sequences;
  return o;
}

TEST(LibraryContext, InterleavedSequencesAreThoseEvaluatedAlone) {
  moeflux::OpenOptions options = exact(5);
  options.chunk = 8;  // so that a batch takes several steps
  const Model model(storyteller(), options);
  const std::vector<Token> first = model.tokenize("Once upon a time, there was a little girl."),
                           second = model.tokenize("The dog ran to the park with a big stick and was happy.");
  const Context alone(model, 2), together(model, 3);
  const size_t n_vocab = alone.n_vocab();
  Batch batch;
  std::vector<std::vector<float>> want;
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) {
      batch.add(first[i], 2, i % 3 == 0);
      const auto logits = alone.eval(std::vector{first[i]}, 0);
      if (i % 3 == 0) want.push_back(logits);
    }
    if (i < second.size()) {
      batch.add(second[i], 0, i % 2 == 0);
      const auto logits = alone.eval(std::vector{second[i]}, 1);
      if (i % 2 == 0) want.push_back(logits);
    }
  }
  const std::vector<float> got = together.eval(batch);
  ASSERT_EQ(got.size(), want.size() * n_vocab);
  for (size_t row = 0; row < want.size(); ++row)
    EXPECT_TRUE(
        std::equal(want[row].begin(), want[row].end(), got.begin() + static_cast<ptrdiff_t>(row * n_vocab)))
        << "row " << row;
  EXPECT_EQ(together.tokens(2), first);
  EXPECT_EQ(together.tokens(0), second);
  EXPECT_EQ(together.pos_max(1), -1);
}

TEST(LibraryContext, TheLastTokenOfEachSequenceIsTheDefault) {
  const Model model(storyteller(), exact(2));
  const Context context(model, 2);
  const Batch batch{{10, 11, 12, 13}, {0, 1, 0, 1}};
  const std::vector<float> got = context.eval(batch);
  ASSERT_EQ(got.size(), 2 * context.n_vocab());
  context.clear(0);
  context.clear(1);
  EXPECT_TRUE(std::ranges::equal(context.eval(std::vector<Token>{10, 12}, 1),
                                 std::span(got).first(context.n_vocab())));
  EXPECT_TRUE(std::ranges::equal(context.eval(std::vector<Token>{11, 13}, 0),
                                 std::span(got).subspan(context.n_vocab())));
}

TEST(LibraryContext, WrongBatchesChangeNothing) {
  const Model model(storyteller(), exact());
  const Context context(model, 2);
  context.eval(std::vector<Token>{1, 2, 3});
  const auto n_vocab = static_cast<Token>(context.n_vocab());
  const std::vector<Token> too_many(model.info().ctx, 5);
  const auto fails = [&](const Batch& batch) { return status_of([&] { context.eval(batch); }); };
  EXPECT_EQ(fails({}), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails({{4, n_vocab}}), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails({{4, 5}, {0, 2}}), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails({too_many}), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails({{4, 5}, {0, 1}}), MOEFLUX_OUT_OF_MEMORY);  // the model was opened for one sequence
  EXPECT_EQ(context.tokens(0), (std::vector<Token>{1, 2, 3}));
  EXPECT_EQ(context.pos_max(1), -1);
  const std::vector<float> after = context.eval(std::vector<Token>{4});
  context.clear();
  EXPECT_EQ(context.eval(std::vector<Token>{1, 2, 3, 4}), after);
  context.clear();  // and room is given back
  context.eval(std::vector<Token>{4}, 1);
}

TEST(LibraryContext, SmallBuffersAreRefused) {
  const Model model(storyteller(), exact());
  const Context context(model);
  const std::vector<Token> tokens{1, 2};
  moeflux_batch batch{};
  batch.size = sizeof batch;
  batch.tokens = tokens.data();
  batch.n_tokens = tokens.size();
  std::vector<float> logits(context.n_vocab());
  EXPECT_EQ(moeflux_eval(context.get(), &batch, logits.data(), logits.size() - 1), MOEFLUX_TOO_SMALL);
  EXPECT_EQ(moeflux_eval(context.get(), &batch, nullptr, logits.size()), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(context.pos_max(), -1);
  const std::vector<uint8_t> none{0, 0};
  batch.want_logits = none.data();
  EXPECT_EQ(moeflux_eval(context.get(), &batch, nullptr, 0), MOEFLUX_OK);
  EXPECT_EQ(context.pos_max(), 1);
}

TEST(LibraryGenerate, GivesWhatTheProgramGives) {
  const std::string command = std::string(MOEFLUX_PROGRAM) + " run " + STORYTELLER +
                              " 'One day, Lily' --backend cpu --seed 11 --temp 0.8 -n 40 2>/dev/null";
  FILE* program = popen(command.c_str(), "r");
  ASSERT_NE(program, nullptr);
  std::string want(4096, '\0');
  want.resize(fread(want.data(), 1, want.size(), program));
  ASSERT_EQ(pclose(program), 0);
  const Model model(storyteller(), small());
  moeflux::GenerateOptions options;
  options.sampling = model.sampling();
  options.sampling->seed = 11;
  options.sampling->temperature = 0.8;
  options.max_tokens = 40;
  options.continued = true;
  const auto got = Context(model).generate(model.tokenize("One day, Lily"), options);
  ASSERT_FALSE(got.text.empty());
  EXPECT_TRUE(want.find(got.text) != std::string::npos) << want << "\n---\n" << got.text;
}

TEST(LibraryGenerate, GoesOnAfterItself) {
  const Model model(storyteller(), exact());
  const Context context(model);
  const auto prompt = model.tokenize("Once upon a time");
  const auto whole = context.generate(prompt, greedy_options(model, 24));
  ASSERT_EQ(whole.tokens.size(), 24u);
  context.clear();
  // In parts, each of which leaves a token that is not evaluated before something follows it.
  std::vector<Token> held = prompt, got = context.generate(prompt, greedy_options(model, 7)).tokens;
  held.insert(held.end(), got.begin(), got.end());
  EXPECT_EQ(context.tokens(), held);
  EXPECT_EQ(context.pos_max(), static_cast<int64_t>(held.size()) - 1);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), whole.tokens.begin()));
  const auto next = context.generate(std::vector{whole.tokens[7]}, greedy_options(model, 4)).tokens;
  EXPECT_TRUE(std::equal(next.begin(), next.end(), whole.tokens.begin() + 8));
  // ... an evaluation, too.
  const std::vector<float> logits = context.eval(std::vector{whole.tokens[12]});
  EXPECT_EQ(static_cast<Token>(std::ranges::max_element(logits) - logits.begin()), whole.tokens[13]);
}

TEST(LibraryGenerate, KeepsWhatItHoldsOfAWholeText) {
  const Model model(storyteller(), exact());
  const Context context(model);
  auto text = model.tokenize("Once upon a time");
  moeflux::GenerateOptions options = greedy_options(model, 10);
  options.whole_text = true;
  const auto first = context.generate(text, options);
  EXPECT_EQ(first.n_reused, 0u);
  text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  text.push_back(model.tokenize(" The", 0).front());
  const auto second = context.generate(text, options);
  EXPECT_EQ(second.n_reused, text.size() - 2);
  const auto other = model.tokenize("The end of it.");
  const auto third = context.generate(other, options);
  EXPECT_EQ(third.n_reused, 0u);
  context.clear();
  EXPECT_EQ(context.generate(text, options).tokens, second.tokens);
  context.clear();
  EXPECT_EQ(context.generate(other, options).tokens, third.tokens);
}

TEST(LibraryGenerate, GuessesChangeNothingButTheNumberOfSteps) {
  moeflux::OpenOptions open = small();
  open.sequences = 2;
  const Model model(storyteller(), open);
  const Context context(model), other(model);
  const auto prompt = model.tokenize("The cat sat on the mat. The cat sat on the mat. The cat sat");
  moeflux::GenerateOptions options = greedy_options(model, 40);
  const auto without = context.generate(prompt, options);
  EXPECT_EQ(without.n_guessed, 0u);
  options.draft = 3;
  options.draft_from = moeflux::DraftFrom::Ngram;
  const auto guessed = other.generate(prompt, options);
  EXPECT_EQ(guessed.tokens, without.tokens);
  EXPECT_EQ(guessed.text, without.text);
  EXPECT_GT(guessed.n_guessed, 0u);
  EXPECT_LE(guessed.n_right, guessed.n_guessed);
  EXPECT_EQ(other.tokens(), context.tokens());

  // A callback may end it between guesses: the sequence holds what was chosen.
  for (size_t most = 1; most < 12; ++most) {
    other.clear();
    size_t n = 0;
    options.on_text = [&](const moeflux::Piece& piece) {
      if (piece.token && ++n == most) throw std::runtime_error("enough");
      return moeflux::Next::Continue;
    };
    EXPECT_THROW(other.generate(prompt, options), std::runtime_error);
    std::vector<Token> want = prompt;
    want.insert(want.end(), without.tokens.begin(), without.tokens.begin() + static_cast<ptrdiff_t>(most));
    EXPECT_EQ(other.tokens(), want) << most;
  }
  options.on_text = {};
  options.draft_from = moeflux::DraftFrom::Mtp;
  EXPECT_EQ(status_of([&] { other.generate(prompt, options); }), MOEFLUX_UNSUPPORTED);
}

TEST(LibraryGenerate, StopsGrammarsAndLogprobs) {
  const Model model(storyteller(), small());
  const Context context(model);
  const auto prompt = model.tokenize("Once upon a time");
  moeflux::GenerateOptions options = greedy_options(model, 30);
  options.continued = true;
  options.stop = {"old bridge"};
  const auto stopped = context.generate(prompt, options);
  EXPECT_EQ(stopped.finish, moeflux::Finish::Stop);
  EXPECT_TRUE(stopped.at_stop_text);
  EXPECT_EQ(stopped.text.find("old"), std::string::npos);
  context.clear();
  options.stop.clear();
  options.grammar = R"(root ::= " yes" | " no")";
  const std::string held = context.generate(prompt, options).text;
  EXPECT_TRUE(held == " yes" || held == " no") << held;
  context.clear();
  options.grammar.clear();
  options.json_schema = R"({"type": "boolean"})";
  const std::string boolean = context.generate(prompt, options).text;
  EXPECT_TRUE(boolean == "true" || boolean == "false") << boolean;
  options.grammar = "root ::= \"a\"";
  EXPECT_EQ(status_of([&] { context.generate(prompt, options); }), MOEFLUX_INVALID_ARGUMENT);
  options.grammar = "root ::= (";
  options.json_schema.clear();
  EXPECT_EQ(status_of([&] { context.generate(prompt, options); }), MOEFLUX_INVALID_ARGUMENT);
  options.grammar.clear();
  options.logprobs = 3;
  options.max_tokens = 4;
  context.clear();
  size_t n = 0;
  options.on_text = [&](const moeflux::Piece& piece) {
    if (!piece.token) return moeflux::Next::Continue;
    ++n;
    EXPECT_EQ(piece.top.size(), 3u);
    EXPECT_EQ(piece.top[0].token, *piece.token);  // the likeliest was taken
    EXPECT_EQ(piece.top[0].logprob, piece.logprob);
    EXPECT_LT(piece.logprob, 0);
    return moeflux::Next::Continue;
  };
  context.generate(prompt, options);
  EXPECT_EQ(n, 4u);
}

TEST(LibraryGenerate, WrongRequestsChangeNothing) {
  const Model model(storyteller(), small());
  const Context context(model);
  const auto prompt = model.tokenize("Once upon a time");
  const auto first = context.generate(prompt, greedy_options(model, 5));
  const auto held = context.tokens();
  const auto fails = [&](std::span<const Token> tokens, auto&& change) {
    moeflux::GenerateOptions options = greedy_options(model, 5);
    options.whole_text = true;
    change(options);
    return status_of([&] { context.generate(tokens, options); });
  };
  const auto nothing = [](auto&) {};
  EXPECT_EQ(fails({}, nothing), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails(std::vector<Token>(300, 1), nothing), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails(std::vector<Token>{1u << 30}, nothing), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails(prompt, [](auto& o) { o.sampling->top_p = 7; }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails(prompt, [](auto& o) { o.sampling->temperature = std::nan(""); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails(prompt, [](auto& o) { o.sampling->banned = {1u << 30}; }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(fails(prompt,
                  [](auto& o) {
                    o.sampling->logit_bias = {{1u << 30, 1.0}};
                  }),
            MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(context.tokens(), held);
}

TEST(LibraryGenerate, FillsTheContextAndNoMore) {
  moeflux::OpenOptions open = small();
  open.ctx = 32;
  const Model model(storyteller(), open);
  const Context context(model);
  moeflux::GenerateOptions options = greedy_options(model, 0);
  options.ignore_stop_tokens = true;
  const auto prompt = model.tokenize("Once upon a time");
  const auto result = context.generate(prompt, options);
  EXPECT_EQ(result.finish, moeflux::Finish::Length);
  EXPECT_EQ(result.tokens.size(), 32 - prompt.size() + 1);  // the last one needs no place
  EXPECT_EQ(status_of([&] { context.generate(prompt, options); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([&] { context.eval(prompt); }), MOEFLUX_INVALID_ARGUMENT);
  context.clear();
  EXPECT_EQ(context.generate(prompt, options).tokens, result.tokens);
}

TEST(LibrarySampler, ChoosesWhatGenerationChooses) {
  const Model model(storyteller(), exact());
  const Context context(model);
  const auto prompt = model.tokenize("Once upon a time");
  moeflux::Sampling sampling = model.sampling();
  sampling.seed = 5;
  sampling.temperature = 1.2;
  sampling.repetition_penalty = 1.3;
  sampling.dry_multiplier = 0.8;
  moeflux::GenerateOptions options;
  options.sampling = sampling;
  options.max_tokens = 20;
  options.ignore_stop_tokens = true;
  const auto want = context.generate(prompt, options).tokens;
  context.clear();
  sampling.banned = model.stop_tokens();
  const moeflux::Sampler sampler(model, sampling);
  sampler.read(prompt);
  std::vector<float> logits = context.eval(prompt);
  std::vector<Token> got;
  for (size_t i = 0; i < want.size(); ++i) {
    got.push_back(sampler.sample(logits, prompt.size() + i));
    sampler.accept(got.back());
    logits = context.eval(std::vector{got.back()});
  }
  EXPECT_EQ(got, want);
  EXPECT_EQ(status_of([&] { sampler.accept(1u << 30); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([&] { sampler.sample(std::span(logits).first(10), 0); }), MOEFLUX_INVALID_ARGUMENT);
  std::ranges::fill(logits, std::nanf(""));
  EXPECT_EQ(status_of([&] { sampler.sample(logits, 0); }), MOEFLUX_CORRUPT);
}

// A copy of the package in which every expert of one layer is damaged.
class DamagedPackage {
 public:
  DamagedPackage() : path_(fs::temp_directory_path() / ("moeflux-library-" + std::to_string(getpid()))) {
    fs::copy(storyteller(), path_, fs::copy_options::recursive);
    for (const auto& file : fs::directory_iterator(path_ / "experts")) {
      if (file.path().extension() != ".bin") continue;
      const std::string zeros(file.file_size(), '\0');
      std::ofstream(file.path(), std::ios::binary) << zeros;
    }
  }
  ~DamagedPackage() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(LibraryContext, AFailedReadBreaksOneSequenceUntilItIsCleared) {
  const DamagedPackage damaged;
  const Model model(damaged.path(), exact());
  const Context context(model);
  const std::vector<Token> tokens{1, 2, 3};
  EXPECT_EQ(status_of([&] { context.eval(tokens); }), MOEFLUX_CORRUPT);
  EXPECT_EQ(status_of([&] { context.eval(tokens); }), MOEFLUX_BROKEN);
  EXPECT_EQ(status_of([&] { context.generate(tokens); }), MOEFLUX_BROKEN);
  EXPECT_EQ(status_of([&] { context.copy(0, 0); }), MOEFLUX_OK);
  EXPECT_EQ(status_of([&] { context.checkpoint(); }), MOEFLUX_BROKEN);
  EXPECT_EQ(status_of([&] { context.save(); }), MOEFLUX_BROKEN);
  context.clear();
  EXPECT_EQ(status_of([&] { context.generate(tokens); }), MOEFLUX_CORRUPT);
  EXPECT_EQ(status_of([&] { context.generate(tokens); }), MOEFLUX_BROKEN);
  EXPECT_GT(model.stats().failed, 0u);
}

}  // namespace
}  // namespace library_test
