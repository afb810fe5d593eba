// Going back, copies, checkpoints and saved states. What is left always has the logits of a fresh evaluation.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "library_test.h"

namespace library_test {
namespace {

using moeflux::Context;
using moeflux::Model;
using moeflux::Token;

class LibrarySequences : public testing::Test {
 protected:
  static moeflux::OpenOptions options() {
    moeflux::OpenOptions o = small();
    o.precision = "exact";
    o.sequences = 4;
    return o;
  }
  // What a fresh evaluation of these tokens and one more gives.
  std::vector<float> fresh(std::vector<Token> tokens) const {
    tokens.push_back(kNext);
    return Context(model).eval(tokens);
  }
  std::vector<float> next(uint32_t sequence = 0) const { return context.eval(std::vector{kNext}, sequence); }
  static std::vector<Token> numbered(size_t n, Token first = 100) {
    std::vector<Token> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(first + static_cast<Token>(i * 7 % 500));
    return tokens;
  }

  static constexpr Token kNext = 42;
  const Model model{storyteller(), options()};
  const Context context{model, 3};
  const std::vector<Token> text = numbered(90);
};

TEST_F(LibrarySequences, RemovesTheEnd) {
  for (const size_t n : {size_t{89}, size_t{64}, size_t{31}, size_t{1}, size_t{0}}) {
    context.clear();
    context.eval(text);
    context.remove(n);
    EXPECT_EQ(context.pos_max(), static_cast<int64_t>(n) - 1);
    EXPECT_EQ(next(), fresh({text.begin(), text.begin() + static_cast<ptrdiff_t>(n)})) << n;
  }
}

TEST_F(LibrarySequences, RemovesTheMiddleAndTheBeginning) {
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{10, 20}, {0, 30}, {60, 89}, {5, 5}}) {
    context.clear();
    context.eval(text);
    context.remove(begin, end);
    std::vector<Token> left(text.begin(), text.begin() + static_cast<ptrdiff_t>(begin));
    left.insert(left.end(), text.begin() + static_cast<ptrdiff_t>(end), text.end());
    EXPECT_EQ(context.tokens(), left);
    EXPECT_EQ(next(), fresh(left)) << begin << " to " << end;
  }
  EXPECT_EQ(status_of([&] { context.remove(1000); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(status_of([&] { context.remove(5, 4); }), MOEFLUX_INVALID_ARGUMENT);
}

TEST_F(LibrarySequences, RemovesWhatIsChosenAndNotEvaluated) {
  const auto generated = context.generate(text, greedy_options(model, 3)).tokens;
  std::vector<Token> held = text;
  held.insert(held.end(), generated.begin(), generated.end());
  context.copy(0, 1);
  EXPECT_EQ(context.tokens(1), held);
  context.remove(held.size() - 1);
  held.pop_back();
  EXPECT_EQ(context.tokens(), held);
  EXPECT_EQ(next(), fresh(held));
  held.push_back(generated.back());
  EXPECT_EQ(next(1), fresh(held));
}

TEST_F(LibrarySequences, CopiesGoTheirOwnWays) {
  context.eval(text);
  context.copy(0, 1);
  context.copy(0, 2);
  EXPECT_EQ(context.tokens(1), text);
  std::vector<Token> left = text, right = text;
  left.push_back(7), right.push_back(8);
  context.eval(std::vector<Token>{7}, 0);
  context.eval(std::vector<Token>{8}, 1);
  EXPECT_EQ(next(0), fresh(left));
  EXPECT_EQ(next(1), fresh(right));
  EXPECT_EQ(next(2), fresh(text));
  context.clear(1);
  context.copy(1, 0);  // of an empty one
  EXPECT_EQ(context.pos_max(0), -1);
  context.copy(2, 2);
  EXPECT_EQ(status_of([&] { context.copy(0, 3); }), MOEFLUX_INVALID_ARGUMENT);
}

TEST_F(LibrarySequences, CopiesNeedRoom) {
  const Context other(model, 2);
  other.eval(text, 0), other.eval(text, 1);
  context.eval(text, 0), context.eval(text, 1);
  EXPECT_EQ(status_of([&] { context.copy(0, 2); }), MOEFLUX_OUT_OF_MEMORY);
  EXPECT_EQ(context.pos_max(2), -1);
  context.copy(0, 1);  // in place of another
}

TEST_F(LibrarySequences, CheckpointsCanBeGoneBackTo) {
  context.eval(text);
  context.checkpoint();
  context.eval(numbered(20, 300));
  context.checkpoint();
  context.eval(numbered(5, 600));
  EXPECT_EQ(context.checkpoints(), (std::vector<uint64_t>{90, 110}));
  context.restore_to(90);
  EXPECT_EQ(context.tokens(), text);
  EXPECT_EQ(next(), fresh(text));
  EXPECT_EQ(context.checkpoints(), std::vector<uint64_t>{90});
  EXPECT_EQ(status_of([&] { context.restore_to(110); }), MOEFLUX_NOT_FOUND);
  EXPECT_EQ(status_of([&] { context.restore_to(50, 1); }), MOEFLUX_NOT_FOUND);
  EXPECT_EQ(status_of([&] { context.checkpoint(1); }), MOEFLUX_INVALID_ARGUMENT);  // it is empty
}

TEST_F(LibrarySequences, StatesThroughMemoryAndFiles) {
  const fs::path file = fs::temp_directory_path() / ("moeflux-state-" + std::to_string(getpid()));
  context.generate(text, greedy_options(model, 3));  // with a token that is not evaluated yet
  const auto held = context.tokens();
  const std::vector<std::byte> bytes = context.save();
  context.save(file);
  EXPECT_EQ(fs::file_size(file), bytes.size());
  EXPECT_EQ(context.tokens(), held);
  context.load(bytes, 1);
  EXPECT_EQ(context.tokens(1), held);
  EXPECT_EQ(context.save(1), bytes);
  EXPECT_EQ(next(1), fresh(held));
  // Another process would open the package anew.
  const Model again(storyteller(), options());
  const Context later(again);
  later.load(file);
  EXPECT_EQ(later.eval(std::vector{kNext}), fresh(held));
  fs::remove(file);
  EXPECT_EQ(status_of([&] { later.load(file); }), MOEFLUX_NOT_FOUND);
  EXPECT_EQ(status_of([&] { context.save(2u); }), MOEFLUX_INVALID_ARGUMENT);  // it is empty
}

TEST_F(LibrarySequences, WrongStatesAreRefusedAndChangeNothing) {
  context.eval(text);
  const std::vector<std::byte> bytes = context.save();
  context.eval(numbered(4, 900));
  const auto held = context.tokens();
  const auto load = [&](std::span<const std::byte> given) { return status_of([&] { context.load(given); }); };
  std::vector<std::byte> wrong = bytes;
  for (const size_t at : {size_t{0}, size_t{9}, bytes.size() / 3, bytes.size() - 1}) {
    wrong[at] ^= std::byte{0x40};
    EXPECT_NE(load(wrong), MOEFLUX_OK) << at;
    wrong[at] = bytes[at];
  }
  for (const size_t n : {size_t{0}, size_t{1}, size_t{100}, bytes.size() - 1})
    EXPECT_NE(load(std::span(bytes).first(n)), MOEFLUX_OK) << n;
  wrong.push_back(std::byte{0});
  EXPECT_NE(load(wrong), MOEFLUX_OK);
  moeflux::OpenOptions other = options();
  other.precision = "fast";
  const Model fast(storyteller(), other);
  EXPECT_EQ(status_of([&] { Context(fast).load(bytes); }), MOEFLUX_INVALID_ARGUMENT);
  other = options();
  other.ctx = 32;
  const Model narrow(storyteller(), other);
  EXPECT_EQ(status_of([&] { Context(narrow).load(bytes); }), MOEFLUX_INVALID_ARGUMENT);
  EXPECT_EQ(context.tokens(), held);
  EXPECT_EQ(next(), fresh(held));
  std::vector<std::byte> small(10);
  size_t n = 0;
  EXPECT_EQ(moeflux_state_save(context.get(), 0, small.data(), small.size(), &n), MOEFLUX_TOO_SMALL);
  EXPECT_EQ(moeflux_state_save(context.get(), 0, nullptr, 1 << 20, &n), MOEFLUX_INVALID_ARGUMENT);
}

// A small model with recurrent layers, and without text, as the program makes it.
class HybridPackage {
 public:
  HybridPackage() : folder_(fs::temp_directory_path() / ("moeflux-hybrid-" + std::to_string(getpid()))) {
    const std::string program = MOEFLUX_PROGRAM, at = folder_;
    fs::create_directories(folder_);
    const std::string commands = program + " synth " HYBRID " " + at + "/checkpoint >/dev/null 2>&1 && " +
                                 program + " convert " + at + "/checkpoint " + at +
                                 "/package --experts bf16 --resident bf16 >/dev/null 2>&1";
    if (std::system(commands.c_str()) != 0) throw std::runtime_error("cannot make a package: " + commands);
  }
  ~HybridPackage() { fs::remove_all(folder_); }
  fs::path path() const { return folder_ / "package"; }

 private:
  fs::path folder_;
};

TEST(LibraryRecurrent, GoesBackByCheckpointsOrRefuses) {
  const HybridPackage package;
  moeflux::OpenOptions options = small();
  options.precision = "exact";
  options.sequences = 2;
  const Model model(package.path(), options);
  const auto n_vocab = static_cast<Token>(model.info().n_vocab);
  std::vector<Token> text;
  for (Token i = 0; i < 150; ++i) text.push_back(i * 31 % n_vocab);
  const std::vector<Token> next{3};
  const auto fresh = [&](size_t n) {
    const Context context(model);
    context.eval(std::span(text).first(n));
    return context.eval(next);
  };
  const Context context(model, {.n_sequences = 1, .checkpoint_every = 64});
  for (const size_t n : {size_t{149}, size_t{128}, size_t{100}, size_t{64}, size_t{10}}) {
    context.clear();
    context.eval(text);
    context.remove(n);
    EXPECT_EQ(context.eval(next), fresh(n)) << n;
  }
  context.clear();
  context.eval(text);
  EXPECT_FALSE(context.checkpoints().empty());
  const Context strict(model, {.n_sequences = 1, .checkpoint_every = UINT64_MAX, .most_recompute = 20});
  context.clear();
  strict.eval(text);
  EXPECT_TRUE(strict.checkpoints().empty());
  EXPECT_EQ(status_of([&] { strict.remove(100); }), MOEFLUX_UNSUPPORTED);
  EXPECT_EQ(strict.tokens(), text);
  EXPECT_EQ(strict.eval(next), fresh(150));
  strict.remove(10);  // from the beginning, ten are evaluated
  EXPECT_EQ(strict.eval(next), fresh(10));
}

TEST(LibraryRecurrent, APackageWithoutTextHasTokens) {
  const HybridPackage package;
  const Model model(package.path(), small());
  EXPECT_FALSE(model.info().has_tokenizer || model.info().has_template);
  EXPECT_EQ(status_of([&] { model.tokenize("a"); }), MOEFLUX_NOT_FOUND);
  EXPECT_EQ(status_of([&] { model.apply_template({.messages = "[]"}); }), MOEFLUX_NOT_FOUND);
  const Context context(model);
  moeflux::GenerateOptions generate = greedy_options(model, 5);
  size_t n = 0;
  generate.on_text = [&](const moeflux::Piece& piece) {
    n += piece.token.has_value();
    EXPECT_TRUE(piece.text.empty());
    return moeflux::Next::Continue;
  };
  const auto result = context.generate(std::vector<Token>{1, 2, 3}, generate);
  EXPECT_EQ(result.tokens.size(), 5u);
  EXPECT_EQ(n, 5u);
  EXPECT_TRUE(result.text.empty());
  generate.stop = {"a"};
  EXPECT_EQ(status_of([&] { context.generate(std::vector<Token>{1}, generate); }), MOEFLUX_NOT_FOUND);
}

}  // namespace
}  // namespace library_test
