// Every function with handles that are null, closed, of another kind or made up, with null pointers, wrong
// lengths and in any order: an error each time the contract says so, and never a crash.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "library_test.h"

namespace library_test {
namespace {

using moeflux::Token;

// Chooses the arguments of one call, and remembers whether one of them must make it fail.
class Arguments {
 public:
  explicit Arguments(uint32_t seed) : random_(seed) {}

  template <class H>
  struct Pool {
    std::vector<H*> open, closed;
  };
  Pool<moeflux_model> models;
  Pool<moeflux_context> contexts;
  Pool<moeflux_sampler> samplers;
  Pool<moeflux_cancel> cancels;

  void begin() { must_fail_ = false, bad_handle_ = false; }
  bool must_fail() const { return must_fail_; }
  bool bad_handle() const { return bad_handle_; }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool rarely() { return below(6) == 0; }
  void fail_if(bool wrong) { must_fail_ |= wrong; }

  template <class H>
  H* handle(Pool<H>& pool) {
    if (!rarely() && !pool.open.empty()) return pool.open[below(static_cast<uint32_t>(pool.open.size()))];
    must_fail_ = bad_handle_ = true;
    switch (below(4)) {
      case 0:
        return nullptr;
      case 1:
        return pool.closed.empty() ? nullptr : pool.closed[below(static_cast<uint32_t>(pool.closed.size()))];
      case 2:
        return reinterpret_cast<H*>(of_another_kind(pool));
      default:
        return reinterpret_cast<H*>(static_cast<uintptr_t>(below(2) ? random_() : below(100'000)));
    }
  }
  // One that the function can do without.
  template <class H>
  H* handle_or_null(Pool<H>& pool) {
    const bool must_fail = must_fail_, bad_handle = bad_handle_;
    H* found = handle(pool);
    if (!found) must_fail_ = must_fail, bad_handle_ = bad_handle;
    return found;
  }
  // A pointer that the function must have.
  template <class T>
  T* needed(T* pointer) {
    if (!rarely()) return pointer;
    must_fail_ = true;
    return nullptr;
  }
  // One that it can do without.
  template <class T>
  T* optional(T* pointer) {
    return below(2) ? pointer : nullptr;
  }
  template <class S>
  S sized() {
    S value;
    std::memset(&value, 0, sizeof value);
    value.size = sizeof value;
    if (rarely()) {
      const size_t wrong[] = {0, 1, sizeof(S) - 1, SIZE_MAX, size_t{1} << 40};
      value.size = wrong[below(5)];
      must_fail_ = true;
    }
    return value;
  }
  Token token(uint64_t n_vocab) {
    if (!rarely()) return below(static_cast<uint32_t>(n_vocab));
    must_fail_ = true;
    return static_cast<Token>(n_vocab) + below(1u << 30);
  }

 private:
  template <class H>
  void* of_another_kind(const Pool<H>&) {
    std::vector<void*> others;
    const auto add = [&](const auto& pool) {
      using Other = std::remove_pointer_t<std::decay_t<decltype(pool.open[0])>>;
      if constexpr (!std::is_same_v<Other, H>)
        others.insert(others.end(), pool.open.begin(), pool.open.end());
    };
    add(models), add(contexts), add(samplers), add(cancels);
    return others.empty() ? nullptr : others[below(static_cast<uint32_t>(others.size()))];
  }

  std::mt19937_64 random_;
  bool must_fail_ = false, bad_handle_ = false;
};

class Calls {
 public:
  explicit Calls(uint32_t seed) : a_(seed) { fill(); }
  ~Calls() {
    for (moeflux_context* c : a_.contexts.open) moeflux_context_free(c);
    for (moeflux_sampler* s : a_.samplers.open) moeflux_sampler_free(s);
    for (moeflux_cancel* c : a_.cancels.open) moeflux_cancel_free(c);
    for (moeflux_model* m : a_.models.open) moeflux_close(m);
    fs::remove(file_);
  }

  void run(size_t n) {
    std::vector<std::string> names;
    for (const auto& [name, call] : calls_) names.push_back(name);
    for (size_t i = 0; i < n; ++i) {
      const std::string& name = names[a_.below(static_cast<uint32_t>(names.size()))];
      a_.begin();
      const moeflux_status status = calls_.at(name)();
      ++(status == MOEFLUX_OK ? n_succeeded[name] : n_failed[name]);
      if (a_.must_fail()) {
        ASSERT_NE(status, MOEFLUX_OK) << name << " in call " << i;
      }
      if (a_.bad_handle() && status != MOEFLUX_INVALID_HANDLE) {  // another argument was wrong, too
        ASSERT_EQ(status, MOEFLUX_INVALID_ARGUMENT) << name << " in call " << i;
      }
      ASSERT_NE(status, MOEFLUX_INTERNAL) << name << ": " << moeflux_last_error();
      ASSERT_STRNE(moeflux_status_name(status), "no status of moeflux");
      if (status != MOEFLUX_OK) {
        ASSERT_STRNE(moeflux_last_error(), "") << name;
      }
    }
  }

  std::map<std::string, size_t> n_succeeded, n_failed;
  size_t n_functions() const { return calls_.size(); }

 private:
  template <class H>
  static void move_to_closed(Arguments::Pool<H>& pool, H* handle, moeflux_status status) {
    if (status != MOEFLUX_OK) return;
    std::erase(pool.open, handle);
    pool.closed.push_back(handle);
  }
  // Text or tokens that a call gave, freed.
  struct Given {
    ~Given() { moeflux_free(memory), moeflux_free(tokens); }
    char* memory = nullptr;
    Token* tokens = nullptr;
    size_t n = 0;
  };
  std::vector<Token> some_tokens(size_t most) {
    std::vector<Token> tokens;
    for (size_t n = a_.below(static_cast<uint32_t>(most)) + 1; tokens.size() < n;)
      tokens.push_back(a_.token(kVocab));
    return tokens;
  }
  uint32_t sequence() {
    if (!a_.rarely()) return a_.below(2);
    a_.fail_if(true);
    return 4 + a_.below(1u << 31);
  }
  moeflux_chat chat() {
    static const char* const messages[] = {
        R"([{"role": "user", "content": "Hi"}])", "[]", "[{}]", "[1]", "{}", "[", ""};
    auto c = a_.sized<moeflux_chat>();
    c.messages_json = a_.needed(messages[a_.rarely() ? a_.below(7) : 0]);
    if (a_.rarely()) c.tools_json = messages[a_.below(7)];
    if (a_.rarely()) c.variables_json = messages[a_.below(7)];
    c.no_answer = a_.below(2);
    return c;
  }
  moeflux_sampling sampling() {
    auto s = a_.sized<moeflux_sampling>();
    const size_t size = s.size;
    s.size = sizeof s;
    if (!a_.models.open.empty()) moeflux_sampling_defaults(a_.models.open[0], &s);
    s.size = size;
    s.temperature = a_.below(2);
    if (a_.rarely()) a_.fail_if(true), s.top_p = -1;
    if (a_.rarely()) s.n_banned = 1, a_.fail_if(true);  // of a null list
    if (a_.rarely()) s.n_logit_bias = SIZE_MAX, a_.fail_if(true);
    return s;
  }

  void fill() {
    calls_["open"] = [this] {
      if (a_.models.open.size() > 2) return moeflux_status{MOEFLUX_OK};
      moeflux_model* model = nullptr;
      auto o = a_.sized<moeflux_open_options>();
      o.backend = "cpu", o.threads = 1, o.ctx = 64, o.sequences = 4;
      if (a_.rarely()) o.backend = "none", a_.fail_if(true);
      if (a_.rarely()) o.n_stripes = 3, a_.fail_if(true);
      const moeflux_status status = moeflux_open(a_.needed(STORYTELLER), &o, a_.needed(&model));
      if (status == MOEFLUX_OK) a_.models.open.push_back(model);
      return status;
    };
    calls_["close"] = [this] {
      if (a_.models.open.size() == 1 && a_.below(8)) return moeflux_status{MOEFLUX_OK};
      moeflux_model* model = a_.handle(a_.models);
      const moeflux_status status = moeflux_close(model);
      move_to_closed(a_.models, model, status);
      return status;
    };
    calls_["load_experts"] = [this] { return moeflux_load_experts(a_.handle(a_.models)); };
    calls_["get_info"] = [this] {
      auto info = a_.sized<moeflux_model_info>();
      return moeflux_get_info(a_.handle(a_.models), a_.needed(&info));
    };
    calls_["get_plan"] = [this] {
      auto plan = a_.sized<moeflux_plan>();
      return moeflux_get_plan(a_.handle(a_.models), a_.needed(&plan));
    };
    calls_["get_stats"] = [this] {
      auto stats = a_.sized<moeflux_stats>();
      return moeflux_get_stats(a_.handle(a_.models), a_.needed(&stats));
    };
    calls_["plan_json"] = [this] {
      Given g;
      return moeflux_plan_json(a_.handle(a_.models), a_.needed(&g.memory));
    };
    calls_["stats_json"] = [this] {
      Given g;
      return moeflux_stats_json(a_.handle(a_.models), a_.needed(&g.memory));
    };
    fill_text();
    fill_samplers();
    fill_contexts();
  }

  void fill_text() {
    calls_["tokenize"] = [this] {
      Given g;
      size_t n = 5;
      if (a_.rarely()) n = SIZE_MAX - a_.below(100), a_.fail_if(true);
      const uint32_t flags = a_.below(4) | (a_.rarely() ? (a_.fail_if(true), 64u) : 0);
      return moeflux_tokenize(a_.handle(a_.models), a_.needed("hello"), n, flags, a_.needed(&g.tokens),
                              a_.needed(&g.n));
    };
    calls_["detokenize"] = [this] {
      Given g;
      const std::vector<Token> tokens{a_.below(kVocab),
                                      a_.below(1u << 31)};  // unknown ones stand for nothing
      size_t n = tokens.size();
      if (a_.rarely()) n = SIZE_MAX / 2, a_.fail_if(true);
      return moeflux_detokenize(a_.handle(a_.models), a_.needed(tokens.data()), n, 0, a_.needed(&g.memory),
                                a_.needed(&g.n));
    };
    calls_["token_bytes"] = [this] {
      Given g;
      return moeflux_token_bytes(a_.handle(a_.models), a_.token(kVocab), a_.needed(&g.memory),
                                 a_.needed(&g.n));
    };
    calls_["find_token"] = [this] {
      Token token = 0;
      return moeflux_find_token(a_.handle(a_.models), a_.needed("7"), a_.needed(&token));
    };
    calls_["stop_tokens"] = [this] {
      Given g;
      return moeflux_stop_tokens(a_.handle(a_.models), a_.needed(&g.tokens), a_.needed(&g.n));
    };
    calls_["apply_template"] = [this] {
      Given g;
      const moeflux_chat c = chat();
      return moeflux_apply_template(a_.handle(a_.models), a_.needed(&c), a_.needed(&g.memory),
                                    a_.needed(&g.n));
    };
    calls_["chat_tokens"] = [this] {
      Given g;
      const moeflux_chat c = chat();
      return moeflux_chat_tokens(a_.handle(a_.models), a_.needed(&c), a_.needed(&g.tokens), a_.needed(&g.n));
    };
    calls_["parse_answer"] = [this] {
      Given g;
      const moeflux_chat c = chat();
      size_t n = 2;
      if (a_.rarely()) n = SIZE_MAX, a_.fail_if(true);
      return moeflux_parse_answer(a_.handle(a_.models), a_.needed(&c), a_.needed("\xff!"), n,
                                  a_.needed(&g.memory));
    };
  }

  void fill_samplers() {
    calls_["sampling_defaults"] = [this] {
      auto s = a_.sized<moeflux_sampling>();
      return moeflux_sampling_defaults(a_.handle(a_.models), a_.needed(&s));
    };
    calls_["sampler_new"] = [this] {
      if (a_.samplers.open.size() > 3) return moeflux_status{MOEFLUX_OK};
      moeflux_sampler* sampler = nullptr;
      moeflux_model* model = a_.handle(a_.models);
      moeflux_status status;
      if (a_.below(2)) {
        const moeflux_sampling s = sampling();
        status = moeflux_sampler_new(model, &s, a_.needed(&sampler));
      } else {
        status = moeflux_sampler_new(model, nullptr, a_.needed(&sampler));
      }
      if (status == MOEFLUX_OK) a_.samplers.open.push_back(sampler);
      return status;
    };
    calls_["sampler_free"] = [this] {
      moeflux_sampler* sampler = a_.handle(a_.samplers);
      const moeflux_status status = moeflux_sampler_free(sampler);
      move_to_closed(a_.samplers, sampler, status);
      return status;
    };
    calls_["sampler_read"] = [this] {
      const std::vector<Token> tokens = some_tokens(4);
      size_t n = tokens.size();
      if (a_.rarely()) n = SIZE_MAX, a_.fail_if(true);
      return moeflux_sampler_read(a_.handle(a_.samplers), a_.needed(tokens.data()), n);
    };
    calls_["sampler_accept"] = [this] {
      return moeflux_sampler_accept(a_.handle(a_.samplers), a_.token(kVocab));
    };
    calls_["sampler_sample"] = [this] {
      const std::vector<float> logits(kVocab, 0.5f);
      Token token = 0;
      size_t n = logits.size();
      if (a_.rarely()) n = a_.below(2) ? SIZE_MAX : n - 1, a_.fail_if(true);
      return moeflux_sampler_sample(a_.handle(a_.samplers), a_.needed(logits.data()), n, a_.below(1000),
                                    a_.needed(&token));
    };
    calls_["cancel_new"] = [this] {
      if (a_.cancels.open.size() > 3) return moeflux_status{MOEFLUX_OK};
      moeflux_cancel* cancel = nullptr;
      const moeflux_status status = moeflux_cancel_new(a_.needed(&cancel));
      if (status == MOEFLUX_OK) a_.cancels.open.push_back(cancel);
      return status;
    };
    calls_["cancel_set"] = [this] { return moeflux_cancel_set(a_.handle(a_.cancels)); };
    calls_["cancel_reset"] = [this] { return moeflux_cancel_reset(a_.handle(a_.cancels)); };
    calls_["cancel_free"] = [this] {
      moeflux_cancel* cancel = a_.handle(a_.cancels);
      const moeflux_status status = moeflux_cancel_free(cancel);
      move_to_closed(a_.cancels, cancel, status);
      return status;
    };
  }

  void fill_contexts() {
    calls_["context_new"] = [this] {
      if (a_.contexts.open.size() > 3) return moeflux_status{MOEFLUX_OK};
      moeflux_context* context = nullptr;
      auto o = a_.sized<moeflux_context_options>();
      o.n_sequences = 2 + a_.below(2);
      if (a_.rarely()) o.n_sequences = UINT64_MAX, a_.fail_if(true);
      const moeflux_status status = moeflux_context_new(a_.handle(a_.models), &o, a_.needed(&context));
      if (status == MOEFLUX_OK) a_.contexts.open.push_back(context);
      return status;
    };
    calls_["context_free"] = [this] {
      moeflux_context* context = a_.handle(a_.contexts);
      const moeflux_status status = moeflux_context_free(context);
      move_to_closed(a_.contexts, context, status);
      return status;
    };
    calls_["eval"] = [this] {
      const std::vector<Token> tokens = some_tokens(5);
      std::vector<uint32_t> sequences;
      std::vector<uint8_t> want;
      for (size_t i = 0; i < tokens.size(); ++i)
        sequences.push_back(sequence()), want.push_back(a_.below(2) != 0);
      std::vector<float> logits(tokens.size() * kVocab);
      auto b = a_.sized<moeflux_batch>();
      b.n_tokens = tokens.size();
      b.tokens = a_.needed(tokens.data());
      b.sequences = sequences.data();
      b.want_logits = a_.optional(want.data());
      if (a_.rarely()) b.n_tokens = a_.below(2) ? 0 : SIZE_MAX, a_.fail_if(true);
      if (a_.rarely()) b.cancel = a_.handle_or_null(a_.cancels);
      return moeflux_eval(a_.handle(a_.contexts), a_.needed(&b), a_.optional(logits.data()), logits.size());
    };
    calls_["seq_pos_max"] = [this] {
      int64_t position = 0;
      return moeflux_seq_pos_max(a_.handle(a_.contexts), sequence(), a_.needed(&position));
    };
    calls_["seq_tokens"] = [this] {
      Given g;
      return moeflux_seq_tokens(a_.handle(a_.contexts), sequence(), a_.needed(&g.tokens), a_.needed(&g.n));
    };
    calls_["seq_clear"] = [this] { return moeflux_seq_clear(a_.handle(a_.contexts), sequence()); };
    calls_["seq_remove"] = [this] {
      const uint32_t number = sequence();
      uint64_t begin = a_.below(4), end = a_.below(2) ? UINT64_MAX : begin + a_.below(4);
      if (a_.rarely()) begin = UINT64_MAX - a_.below(3), end = 0, a_.fail_if(true);
      return moeflux_seq_remove(a_.handle(a_.contexts), number, begin, end);
    };
    calls_["seq_copy"] = [this] {
      const uint32_t from = sequence(), to = sequence();
      return moeflux_seq_copy(a_.handle(a_.contexts), from, to);
    };
    calls_["seq_checkpoint"] = [this] { return moeflux_seq_checkpoint(a_.handle(a_.contexts), sequence()); };
    calls_["seq_checkpoints"] = [this] {
      uint64_t* positions = nullptr;
      size_t n = 0;
      const moeflux_status status =
          moeflux_seq_checkpoints(a_.handle(a_.contexts), sequence(), a_.needed(&positions), a_.needed(&n));
      moeflux_free(positions);
      return status;
    };
    calls_["seq_restore_to"] = [this] {
      return moeflux_seq_restore_to(a_.handle(a_.contexts), sequence(),
                                    a_.rarely() ? UINT64_MAX : a_.below(8));
    };
    calls_["state_size"] = [this] {
      size_t n = 0;
      return moeflux_state_size(a_.handle(a_.contexts), sequence(), a_.needed(&n));
    };
    calls_["state_save"] = [this] {
      size_t n = state_.size();
      if (a_.rarely()) n = a_.below(100), a_.fail_if(true);
      size_t written = 0;
      const moeflux_status status = moeflux_state_save(a_.handle(a_.contexts), sequence(),
                                                       a_.needed(state_.data()), n, a_.needed(&written));
      if (status == MOEFLUX_OK) n_state_ = written;
      return status;
    };
    calls_["state_load"] = [this] {
      size_t n = n_state_;
      if (a_.rarely()) n = a_.below(2) ? SIZE_MAX : n / 2, a_.fail_if(true);
      return moeflux_state_load(a_.handle(a_.contexts), sequence(), a_.needed(state_.data()), n);
    };
    calls_["state_save_file"] = [this] {
      const char* path = file_.c_str();
      if (a_.rarely()) path = "/there/is/no/such/folder/state", a_.fail_if(true);
      return moeflux_state_save_file(a_.handle(a_.contexts), sequence(), a_.needed(path));
    };
    calls_["state_load_file"] = [this] {
      const char* path = file_.c_str();
      if (a_.rarely()) path = STORYTELLER, a_.fail_if(true);
      return moeflux_state_load_file(a_.handle(a_.contexts), sequence(), a_.needed(path));
    };
    calls_["generate"] = [this] {
      const std::vector<Token> prompt = some_tokens(4);
      auto o = a_.sized<moeflux_generate_options>();
      const moeflux_sampling s = sampling();
      o.sampling = &s;
      o.max_tokens = 1 + a_.below(3);
      o.whole_text = a_.below(2);
      o.continued = a_.below(2);
      o.draft = a_.below(4);
      o.draft_from = a_.below(2);
      if (a_.rarely()) o.draft_from = 3, a_.fail_if(true);
      if (a_.rarely()) o.n_stop = 2, a_.fail_if(true);
      if (a_.rarely()) o.grammar = "root ::= (", a_.fail_if(true);
      if (a_.rarely()) o.cancel = a_.handle_or_null(a_.cancels);
      auto r = a_.sized<moeflux_result>();
      size_t n = prompt.size();
      if (a_.rarely()) n = a_.below(2) ? 0 : SIZE_MAX, a_.fail_if(true);
      const moeflux_status status =
          moeflux_generate(a_.handle(a_.contexts), sequence(), a_.needed(prompt.data()), n, &o, &r);
      if (status == MOEFLUX_OK) moeflux_result_free(&r);
      return status;
    };
  }

  static constexpr uint32_t kVocab = 4096;  // of the storyteller
  Arguments a_;
  std::vector<std::byte> state_ = std::vector<std::byte>(4 << 20);
  size_t n_state_ = 0;  // of what was saved last
  const std::string file_ = fs::temp_directory_path() / ("moeflux-handles-" + std::to_string(getpid()));
  std::map<std::string, std::function<moeflux_status()>> calls_;
};

TEST(LibraryHandles, WrongUseGivesErrorsAndNothingElse) {
  std::map<std::string, size_t> succeeded, failed;
  size_t n_functions = 0;
  // Four times, and on until each of them has succeeded: which calls come depends on the compiler's order of
  // evaluation.
  for (uint32_t seed = 1; seed <= 4 || (succeeded.size() < n_functions && seed <= 20); ++seed) {
    Calls calls(seed);
    calls.run(5000);
    n_functions = calls.n_functions();
    for (const auto& [name, n] : calls.n_succeeded) succeeded[name] += n;
    for (const auto& [name, n] : calls.n_failed) failed[name] += n;
    if (HasFatalFailure()) return;
  }
  // Each of them has been reached in both ways.
  EXPECT_EQ(succeeded.size(), n_functions);
  EXPECT_EQ(failed.size(), n_functions);
}

TEST(LibraryHandles, WhatTakesNoHandle) {
  moeflux_free(nullptr);
  moeflux_result_free(nullptr);
  for (const moeflux_status status : {-1, 16, 1 << 30})
    EXPECT_STREQ(moeflux_status_name(status), "no status of moeflux");
  EXPECT_STREQ(moeflux_status_name(MOEFLUX_BUSY), "MOEFLUX_BUSY");
}

}  // namespace
}  // namespace library_test
