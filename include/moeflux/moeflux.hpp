// moeflux for C++20: the C API of moeflux.h with objects that close themselves, exceptions, and containers.
// Header only: a program depends on the C functions of the library and on nothing else of it. docs/LIBRARY.md
// shows every call.
//
// What moeflux.h says of handles, threads and memory holds here. Model, Context, Sampler and Cancel can be
// moved, not copied; one that was moved away is closed. A callback may throw: the call that it came from
// ends, and throws that.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moeflux/moeflux.h"

namespace moeflux {
inline namespace v1 {  // apart from the names inside the library, which a static one brings along

using Token = moeflux_token;
using Info = moeflux_model_info;
using Plan = moeflux_plan;
using Stats = moeflux_stats;

class Error : public std::runtime_error {
 public:
  Error(moeflux_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  moeflux_status status() const noexcept { return status_; }  // MOEFLUX_NOT_FOUND, ...

 private:
  moeflux_status status_;
};

inline std::string version() { return moeflux_version(); }

namespace detail {

inline void check(moeflux_status status) {
  if (status != MOEFLUX_OK) throw Error(status, moeflux_last_error());
}

// Null for an empty text: the default.
inline const char* or_null(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

template <class T>
using Given = std::unique_ptr<T, decltype(&moeflux_free)>;

template <class Call>  // call(char**, size_t*)
std::string take_text(Call&& call) {
  char* text = nullptr;
  size_t n = 0;
  check(call(&text, &n));
  const Given<char> owned(text, moeflux_free);
  return std::string(text, n);
}

template <class Call>  // call(char**)
std::string take_json(Call&& call) {
  char* text = nullptr;
  check(call(&text));
  const Given<char> owned(text, moeflux_free);
  return std::string(text);
}

template <class Call>  // call(moeflux_token**, size_t*)
std::vector<Token> take_tokens(Call&& call) {
  Token* tokens = nullptr;
  size_t n = 0;
  check(call(&tokens, &n));
  const Given<Token> owned(tokens, moeflux_free);
  return {tokens, tokens + n};
}

inline std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> out;
  for (const std::string& text : texts) out.push_back(text.c_str());
  return out;
}

// Keeps what a callback throws on its way through C, where no exception may pass.
class Caught {
 public:
  template <class Work>
  void run(Work&& work) noexcept {
    try {
      work();
    } catch (...) {
      if (!first_) first_ = std::current_exception();
    }
  }
  bool any() const noexcept { return first_ != nullptr; }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

template <class Handle, moeflux_status (*close)(Handle*)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle* handle) noexcept : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    Owned taken(std::move(other));  // closes, at the end, what was here
    std::swap(handle_, taken.handle_);
    return *this;
  }
  ~Owned() { reset(); }
  void reset() noexcept {
    if (handle_) close(std::exchange(handle_, nullptr));
  }
  Handle* get() const noexcept { return handle_; }

 private:
  Handle* handle_ = nullptr;
};

}  // namespace detail

struct Progress {
  std::string what;
  uint64_t done = 0, total = 0;
  bool tokens = false;  // counted in tokens rather than bytes
  bool ended = false;
};

// Texts that are empty and numbers that are 0 stand for the default, as in moeflux_open_options.
struct OpenOptions {
  std::string backend = {}, precision = {}, kv = {}, isa = {};
  uint64_t ram_bytes = 0, vram_bytes = 0;
  double vram_share = 0;
  uint64_t max_memory_bytes = 0;
  uint64_t ctx = 0, sequences = 0, chunk = 0;
  uint32_t threads = 0;
  bool check_reads = true;
  std::vector<std::string> stripes = {};
  // May be called by any thread until the model is closed; what they throw is dropped.
  std::function<void(const Progress&)> on_progress = {};
  std::function<void(bool warning, const std::string&)> on_log = {};
};

struct Chat {  // JSON, as in moeflux_chat
  std::string messages = {}, tools = {}, variables = {};
  bool answer = true;  // ends with the beginning of the model's answer
};

// Model::sampling() gives the model's own.
struct Sampling {
  uint64_t seed = 0;
  double temperature = 1;
  uint64_t top_k = 0;
  double top_p = 1, min_p = 0, typical_p = 1, top_n_sigma = 0;
  double xtc_probability = 0, xtc_threshold = 0.1;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  uint64_t penalty_window = UINT64_MAX;
  double dry_multiplier = 0, dry_base = 1.75;
  uint64_t dry_allowed_length = 2, dry_window = UINT64_MAX;
  std::optional<std::vector<std::string>> dry_breakers = {};  // none: new lines, colons, quotes and stars
  bool mirostat = false;
  double mirostat_tau = 5, mirostat_eta = 0.1;
  std::vector<std::pair<Token, double>> logit_bias = {};
  std::vector<Token> banned = {};
};

namespace detail {

// A Sampling in its C form, which points into it.
class CSampling {
 public:
  explicit CSampling(const Sampling& s)
      : breakers_(pointers(s.dry_breakers.value_or(std::vector<std::string>{}))) {
    for (const auto& [token, bias] : s.logit_bias) biases_.push_back({bias, token, 0});
    c_.size = sizeof c_;
    c_.seed = s.seed;
    c_.temperature = s.temperature;
    c_.top_k = s.top_k;
    c_.top_p = s.top_p;
    c_.min_p = s.min_p;
    c_.typical_p = s.typical_p;
    c_.top_n_sigma = s.top_n_sigma;
    c_.xtc_probability = s.xtc_probability;
    c_.xtc_threshold = s.xtc_threshold;
    c_.repetition_penalty = s.repetition_penalty;
    c_.frequency_penalty = s.frequency_penalty;
    c_.presence_penalty = s.presence_penalty;
    c_.penalty_window = s.penalty_window;
    c_.dry_multiplier = s.dry_multiplier;
    c_.dry_base = s.dry_base;
    c_.dry_allowed_length = s.dry_allowed_length;
    c_.dry_window = s.dry_window;
    static const char* const none = nullptr;
    if (s.dry_breakers) c_.dry_breakers = breakers_.empty() ? &none : breakers_.data();
    c_.n_dry_breakers = breakers_.size();
    c_.mirostat = s.mirostat;
    c_.mirostat_tau = s.mirostat_tau;
    c_.mirostat_eta = s.mirostat_eta;
    c_.logit_bias = biases_.data();
    c_.n_logit_bias = biases_.size();
    c_.banned = s.banned.data();
    c_.n_banned = s.banned.size();
  }
  CSampling(const CSampling&) = delete;
  const moeflux_sampling* get() const { return &c_; }

 private:
  std::vector<const char*> breakers_;
  std::vector<moeflux_bias> biases_;
  moeflux_sampling c_{};
};

}  // namespace detail

// Any thread may set it, at any moment; calls that were given it then end after the step that they are in.
class Cancel {
 public:
  Cancel() {
    moeflux_cancel* handle = nullptr;
    detail::check(moeflux_cancel_new(&handle));
    handle_ = Handle(handle);
  }
  void set() const { detail::check(moeflux_cancel_set(handle_.get())); }
  void reset() const { detail::check(moeflux_cancel_reset(handle_.get())); }
  moeflux_cancel* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<moeflux_cancel, moeflux_cancel_free>;
  Handle handle_;
};

class Model {
 public:
  explicit Model(const std::filesystem::path& package, const OpenOptions& options = {})
      : callbacks_(std::make_unique<Callbacks>(options.on_progress, options.on_log)) {
    const std::vector<const char*> stripes = detail::pointers(options.stripes);
    moeflux_open_options c{};
    c.size = sizeof c;
    c.backend = detail::or_null(options.backend);
    c.precision = detail::or_null(options.precision);
    c.kv = detail::or_null(options.kv);
    c.isa = detail::or_null(options.isa);
    c.ram_bytes = options.ram_bytes;
    c.vram_bytes = options.vram_bytes;
    c.vram_share = options.vram_share;
    c.max_memory_bytes = options.max_memory_bytes;
    c.ctx = options.ctx;
    c.sequences = options.sequences;
    c.chunk = options.chunk;
    c.threads = options.threads;
    c.no_read_checks = !options.check_reads;
    c.stripes = stripes.data();
    c.n_stripes = stripes.size();
    if (options.on_progress) c.on_progress = report_progress;
    if (options.on_log) c.on_log = report_log;
    c.user = callbacks_.get();
    moeflux_model* handle = nullptr;
    detail::check(moeflux_open(package.c_str(), &c, &handle));
    handle_ = Handle(handle);
  }

  void load_experts() const { detail::check(moeflux_load_experts(get())); }
  Info info() const { return filled<Info>(moeflux_get_info); }
  Plan plan() const { return filled<Plan>(moeflux_get_plan); }
  Stats stats() const { return filled<Stats>(moeflux_get_stats); }
  std::string plan_json() const {
    return detail::take_json([&](char** json) { return moeflux_plan_json(get(), json); });
  }
  std::string stats_json() const {
    return detail::take_json([&](char** json) { return moeflux_stats_json(get(), json); });
  }

  // `flags`: MOEFLUX_TEXT_START, MOEFLUX_TEXT_MARKERS.
  std::vector<Token> tokenize(std::string_view text, uint32_t flags = MOEFLUX_TEXT_START) const {
    return detail::take_tokens([&](Token** tokens, size_t* n) {
      return moeflux_tokenize(get(), text.data(), text.size(), flags, tokens, n);
    });
  }
  // `flags`: MOEFLUX_TEXT_PLAIN.
  std::string detokenize(std::span<const Token> tokens, uint32_t flags = 0) const {
    return detail::take_text([&](char** text, size_t* n) {
      return moeflux_detokenize(get(), tokens.data(), tokens.size(), flags, text, n);
    });
  }
  std::string token_bytes(Token token) const {
    return detail::take_text(
        [&](char** bytes, size_t* n) { return moeflux_token_bytes(get(), token, bytes, n); });
  }
  Token find_token(const std::string& name) const {
    Token token = 0;
    detail::check(moeflux_find_token(get(), name.c_str(), &token));
    return token;
  }
  std::vector<Token> stop_tokens() const {
    return detail::take_tokens(
        [&](Token** tokens, size_t* n) { return moeflux_stop_tokens(get(), tokens, n); });
  }

  std::string apply_template(const Chat& chat) const {
    const moeflux_chat c = c_chat(chat);
    return detail::take_text(
        [&](char** text, size_t* n) { return moeflux_apply_template(get(), &c, text, n); });
  }
  std::vector<Token> chat_tokens(const Chat& chat) const {
    const moeflux_chat c = c_chat(chat);
    return detail::take_tokens(
        [&](Token** tokens, size_t* n) { return moeflux_chat_tokens(get(), &c, tokens, n); });
  }
  std::string parse_answer(const Chat& chat, std::string_view answer) const {  // JSON
    const moeflux_chat c = c_chat(chat);
    return detail::take_json(
        [&](char** json) { return moeflux_parse_answer(get(), &c, answer.data(), answer.size(), json); });
  }

  // The model's own defaults, with a seed that is new each time.
  Sampling sampling() const {
    const moeflux_sampling c = filled<moeflux_sampling>(moeflux_sampling_defaults);
    Sampling s;
    s.seed = c.seed;
    s.temperature = c.temperature;
    s.top_k = c.top_k;
    s.top_p = c.top_p;
    s.min_p = c.min_p;
    s.typical_p = c.typical_p;
    s.top_n_sigma = c.top_n_sigma;
    s.xtc_probability = c.xtc_probability;
    s.xtc_threshold = c.xtc_threshold;
    s.repetition_penalty = c.repetition_penalty;
    s.frequency_penalty = c.frequency_penalty;
    s.presence_penalty = c.presence_penalty;
    s.penalty_window = c.penalty_window;
    s.dry_multiplier = c.dry_multiplier;
    s.dry_base = c.dry_base;
    s.dry_allowed_length = c.dry_allowed_length;
    s.dry_window = c.dry_window;
    s.mirostat = c.mirostat != 0;
    s.mirostat_tau = c.mirostat_tau;
    s.mirostat_eta = c.mirostat_eta;
    return s;
  }

  void close() noexcept { handle_.reset(); }
  moeflux_model* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<moeflux_model, moeflux_close>;
  struct Callbacks {
    Callbacks(std::function<void(const Progress&)> progress,
              std::function<void(bool, const std::string&)> log)
        : on_progress(std::move(progress)), on_log(std::move(log)) {}
    std::function<void(const Progress&)> on_progress;
    std::function<void(bool, const std::string&)> on_log;
  };

  static void report_progress(void* user, const moeflux_progress* p) {
    detail::Caught caught;
    caught.run([&] {
      static_cast<Callbacks*>(user)->on_progress(
          {p->what, p->done, p->total, p->unit == MOEFLUX_UNIT_TOKENS, p->ended != 0});
    });
  }
  static void report_log(void* user, int32_t level, const char* message) {
    detail::Caught caught;
    caught.run([&] { static_cast<Callbacks*>(user)->on_log(level == MOEFLUX_LOG_WARNING, message); });
  }
  static moeflux_chat c_chat(const Chat& chat) {
    moeflux_chat c{};
    c.size = sizeof c;
    c.messages_json = chat.messages.c_str();
    c.tools_json = detail::or_null(chat.tools);
    c.variables_json = detail::or_null(chat.variables);
    c.no_answer = !chat.answer;
    return c;
  }
  template <class S>
  S filled(moeflux_status (*fill)(moeflux_model*, S*)) const {
    S value{};
    value.size = sizeof value;
    detail::check(fill(get(), &value));
    return value;
  }

  std::unique_ptr<Callbacks> callbacks_;  // the library holds its address
  Handle handle_;
};

class Sampler {
 public:
  explicit Sampler(const Model& model) { open(model, nullptr); }  // the model's own defaults
  Sampler(const Model& model, const Sampling& sampling) { open(model, detail::CSampling(sampling).get()); }

  void read(std::span<const Token> tokens) const {
    detail::check(moeflux_sampler_read(get(), tokens.data(), tokens.size()));
  }
  void accept(Token token) const { detail::check(moeflux_sampler_accept(get(), token)); }
  // The token for `position`, from the logits of the token before it.
  Token sample(std::span<const float> logits, uint64_t position) const {
    Token token = 0;
    detail::check(moeflux_sampler_sample(get(), logits.data(), logits.size(), position, &token));
    return token;
  }
  moeflux_sampler* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<moeflux_sampler, moeflux_sampler_free>;
  void open(const Model& model, const moeflux_sampling* sampling) {
    moeflux_sampler* handle = nullptr;
    detail::check(moeflux_sampler_new(model.get(), sampling, &handle));
    handle_ = Handle(handle);
  }
  Handle handle_;
};

struct Piece {
  std::string_view text;
  std::optional<Token> token;
  double logprob = 0;
  std::span<const moeflux_chance> top;
};

enum class Next : int32_t { Continue = MOEFLUX_CONTINUE, Stop = MOEFLUX_STOP, Cancel = MOEFLUX_CANCEL };
enum class Finish : int32_t {
  Stop = MOEFLUX_FINISH_STOP,
  Length = MOEFLUX_FINISH_LENGTH,
  Cancelled = MOEFLUX_FINISH_CANCELLED
};

enum class DraftFrom : uint32_t {  // where guesses of the next tokens come from
  Auto = MOEFLUX_DRAFT_AUTO,
  Ngram = MOEFLUX_DRAFT_NGRAM,
  Mtp = MOEFLUX_DRAFT_MTP
};

struct GenerateOptions {
  std::optional<Sampling> sampling = {};  // none: the model's own defaults
  uint64_t max_tokens = 0;                // 0: until the model ends its text or the context is full
  uint64_t min_tokens = 0;
  bool ignore_stop_tokens = false;
  bool whole_text = false;  // the prompt is the whole text: what the sequence holds of it is kept
  std::vector<std::string> stop = {};
  std::string grammar = {}, json_schema = {};
  bool continued = false;                 // the new text goes on inside the prompt's
  std::optional<uint64_t> logprobs = {};  // how many of the likeliest tokens to report beside each new one
  std::function<Next(const Piece&)> on_text = {};
  std::function<Next(size_t done, size_t total)> on_prompt = {};
  const Cancel* cancel = nullptr;
  uint64_t draft = 0;  // guesses at most so many tokens ahead
  DraftFrom draft_from = DraftFrom::Auto;
};

struct Result {
  std::string text = {};
  std::vector<Token> tokens = {};
  Finish finish = Finish::Length;
  std::optional<Token> stop_token = {};
  bool at_stop_text = false;
  uint64_t n_prompt = 0, n_reused = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  uint64_t bytes_read = 0;
  uint64_t n_guessed = 0, n_right = 0;  // tokens
};

// Tokens to evaluate: of one sequence, or of several.
struct Batch {
  std::vector<Token> tokens = {};
  std::vector<uint32_t> sequences = {};  // of each token; empty: all of sequence 0
  std::vector<uint8_t> want_logits =
      {};  // 1 for tokens whose logits are wanted; empty: the last one of each sequence

  void add(Token token, uint32_t sequence, bool want) {
    tokens.push_back(token);
    sequences.push_back(sequence);
    want_logits.push_back(want);
  }
};

// As in moeflux_context_options, where 0 is the default.
struct ContextOptions {
  uint64_t n_sequences = 1;
  uint64_t checkpoint_every = 0, checkpoint_bytes = 0, most_recompute = 0;
};

class Context {
 public:
  explicit Context(const Model& model, uint64_t n_sequences = 1)
      : Context(model, ContextOptions{.n_sequences = n_sequences}) {}
  Context(const Model& model, const ContextOptions& options) : n_vocab_(model.info().n_vocab) {
    moeflux_context_options c{};
    c.size = sizeof c;
    c.n_sequences = options.n_sequences;
    c.checkpoint_every = options.checkpoint_every;
    c.checkpoint_bytes = options.checkpoint_bytes;
    c.most_recompute = options.most_recompute;
    moeflux_context* handle = nullptr;
    detail::check(moeflux_context_new(model.get(), &c, &handle));
    handle_ = Handle(handle);
  }

  // Rows of n_vocab logits, in the order of the tokens that wanted them.
  std::vector<float> eval(const Batch& batch, const Cancel* cancel = nullptr) const {
    std::vector<float> logits(n_rows(batch) * n_vocab_);
    moeflux_batch c{};
    c.size = sizeof c;
    c.n_tokens = batch.tokens.size();
    c.tokens = batch.tokens.data();
    c.sequences = checked_list(batch.sequences, batch.tokens.size(), "sequences");
    c.want_logits = checked_list(batch.want_logits, batch.tokens.size(), "want_logits");
    c.cancel = cancel ? cancel->get() : nullptr;
    detail::check(moeflux_eval(get(), &c, logits.data(), logits.size()));
    return logits;
  }
  // The logits of the last of these tokens of one sequence.
  std::vector<float> eval(std::span<const Token> tokens, uint32_t sequence = 0,
                          const Cancel* cancel = nullptr) const {
    return eval(Batch{{tokens.begin(), tokens.end()}, std::vector<uint32_t>(tokens.size(), sequence), {}},
                cancel);
  }

  int64_t pos_max(uint32_t sequence = 0) const {  // -1: empty
    int64_t position = 0;
    detail::check(moeflux_seq_pos_max(get(), sequence, &position));
    return position;
  }
  std::vector<Token> tokens(uint32_t sequence = 0) const {
    return detail::take_tokens(
        [&](Token** tokens, size_t* n) { return moeflux_seq_tokens(get(), sequence, tokens, n); });
  }
  void clear(uint32_t sequence = 0) const { detail::check(moeflux_seq_clear(get(), sequence)); }
  // The tokens from position `begin` up to `end`.
  void remove(uint64_t begin, uint64_t end = UINT64_MAX, uint32_t sequence = 0) const {
    detail::check(moeflux_seq_remove(get(), sequence, begin, end));
  }
  void copy(uint32_t from, uint32_t to) const { detail::check(moeflux_seq_copy(get(), from, to)); }
  void checkpoint(uint32_t sequence = 0) const { detail::check(moeflux_seq_checkpoint(get(), sequence)); }
  std::vector<uint64_t> checkpoints(uint32_t sequence = 0) const {
    uint64_t* positions = nullptr;
    size_t n = 0;
    detail::check(moeflux_seq_checkpoints(get(), sequence, &positions, &n));
    const detail::Given<uint64_t> owned(positions, moeflux_free);
    return {positions, positions + n};
  }
  void restore_to(uint64_t position, uint32_t sequence = 0) const {
    detail::check(moeflux_seq_restore_to(get(), sequence, position));
  }

  // A sequence's tokens and state, for this or a later process.
  std::vector<std::byte> save(uint32_t sequence = 0) const {
    size_t n = 0;
    detail::check(moeflux_state_size(get(), sequence, &n));
    std::vector<std::byte> bytes(n);
    detail::check(moeflux_state_save(get(), sequence, bytes.data(), bytes.size(), &n));
    bytes.resize(n);
    return bytes;
  }
  void save(const std::filesystem::path& file, uint32_t sequence = 0) const {
    detail::check(moeflux_state_save_file(get(), sequence, file.c_str()));
  }
  void load(std::span<const std::byte> bytes, uint32_t sequence = 0) const {
    detail::check(moeflux_state_load(get(), sequence, bytes.data(), bytes.size()));
  }
  void load(const std::filesystem::path& file, uint32_t sequence = 0) const {
    detail::check(moeflux_state_load_file(get(), sequence, file.c_str()));
  }

  Result generate(std::span<const Token> prompt, const GenerateOptions& options = {},
                  uint32_t sequence = 0) const {
    std::optional<detail::CSampling> sampling;
    if (options.sampling) sampling.emplace(*options.sampling);
    const std::vector<const char*> stop = detail::pointers(options.stop);
    Callbacks callbacks{options, {}};
    moeflux_generate_options c{};
    c.size = sizeof c;
    c.sampling = sampling ? sampling->get() : nullptr;
    c.max_tokens = options.max_tokens;
    c.min_tokens = options.min_tokens;
    c.ignore_stop_tokens = options.ignore_stop_tokens;
    c.whole_text = options.whole_text;
    c.stop = stop.data();
    c.n_stop = stop.size();
    c.grammar = detail::or_null(options.grammar);
    c.json_schema = detail::or_null(options.json_schema);
    c.continued = options.continued;
    c.want_logprobs = options.logprobs.has_value();
    c.n_top = options.logprobs.value_or(0);
    c.on_text = options.on_text ? report_text : nullptr;
    c.on_prompt = options.on_prompt ? report_prompt : nullptr;
    c.user = &callbacks;
    c.cancel = options.cancel ? options.cancel->get() : nullptr;
    c.draft = options.draft;
    c.draft_from = static_cast<uint32_t>(options.draft_from);
    moeflux_result r{};
    r.size = sizeof r;
    const moeflux_status status = moeflux_generate(get(), sequence, prompt.data(), prompt.size(), &c, &r);
    const std::unique_ptr<moeflux_result, decltype(&moeflux_result_free)> owned(&r, moeflux_result_free);
    callbacks.caught.rethrow();
    detail::check(status);
    Result result;
    result.text.assign(r.text, r.n_bytes);
    result.tokens.assign(r.tokens, r.tokens + r.n_tokens);
    result.finish = static_cast<Finish>(r.finish);
    if (r.has_stop_token) result.stop_token = r.stop_token;
    result.at_stop_text = r.has_stop_text != 0;
    result.n_prompt = r.n_prompt;
    result.n_reused = r.n_reused;
    result.prefill_seconds = r.prefill_seconds;
    result.decode_seconds = r.decode_seconds;
    result.bytes_read = r.bytes_read;
    result.n_guessed = r.n_guessed;
    result.n_right = r.n_right;
    return result;
  }

  uint64_t n_vocab() const noexcept { return n_vocab_; }
  void close() noexcept { handle_.reset(); }
  moeflux_context* get() const noexcept { return handle_.get(); }

 private:
  using Handle = detail::Owned<moeflux_context, moeflux_context_free>;
  struct Callbacks {
    const GenerateOptions& options;
    detail::Caught caught;
  };

  static int32_t report_text(void* user, const moeflux_piece* p) {
    auto& callbacks = *static_cast<Callbacks*>(user);
    Next next = Next::Cancel;  // where it throws
    callbacks.caught.run([&] {
      Piece piece{std::string_view(p->text, p->n_bytes), {}, p->logprob, std::span(p->top, p->n_top)};
      if (p->has_token) piece.token = p->token;
      next = callbacks.options.on_text(piece);
    });
    return static_cast<int32_t>(next);
  }
  static int32_t report_prompt(void* user, size_t done, size_t total) {
    auto& callbacks = *static_cast<Callbacks*>(user);
    Next next = Next::Cancel;
    callbacks.caught.run([&] { next = callbacks.options.on_prompt(done, total); });
    return static_cast<int32_t>(next);
  }

  template <class T>
  static const T* checked_list(const std::vector<T>& list, size_t n, const char* name) {
    if (list.empty()) return nullptr;
    if (list.size() != n)
      throw Error(MOEFLUX_INVALID_ARGUMENT, std::string(name) +
                                                " of a batch: " + std::to_string(list.size()) + " for " +
                                                std::to_string(n) + " tokens");
    return list.data();
  }
  static size_t n_rows(const Batch& batch) {
    size_t n = 0;
    if (!batch.want_logits.empty()) {
      for (const uint8_t want : batch.want_logits) n += want != 0;
      return n;
    }
    if (batch.sequences.empty()) return !batch.tokens.empty();
    std::vector<bool> seen;
    for (const uint32_t sequence : batch.sequences) {
      if (sequence >= kMostSequences) break;  // which the library will refuse
      if (sequence >= seen.size()) seen.resize(sequence + 1);
      n += !seen[sequence];
      seen[sequence] = true;
    }
    return n;
  }
  static constexpr uint32_t kMostSequences = 1u << 20;

  uint64_t n_vocab_;
  Handle handle_;
};

}  // namespace v1
}  // namespace moeflux
