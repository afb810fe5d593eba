#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "gen/text_session.h"
#include "tools/answer_view.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/standard_streams.h"
#include "tools/store_report.h"
#include "tools/text_options.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostPromptBytes = uint64_t{1} << 30;
constexpr size_t kDefaultIds = 16;  // new tokens after a prompt of ids

struct RunArguments {
  std::string package;
  std::optional<std::string> prompt, file, tokens, routing_log;
  std::optional<uint64_t> logprobs;
  Reasoning reasoning = Reasoning::Show;
  bool chat = false, special = false, json = false, stats = false;
  TextArguments text;
  EngineArguments engine;
};

[[noreturn]] void wrong_usage(const std::string& option, const std::string& what) {
  throw CLI::ValidationError(option, what);
}

std::vector<Token> parse_tokens(const std::string& text) {
  std::vector<Token> tokens;
  const char *at = text.data(), *end = at + text.size();
  while (at <= end) {
    Token t = 0;
    const auto [next, err] = std::from_chars(at, end, t);
    if (err != std::errc() || (next != end && *next != ','))
      wrong_usage("--tokens", fmt::format("'{}' is not a list such as 1,2,3", text));
    tokens.push_back(t);
    at = next + 1;
  }
  return tokens;
}

void check_usage(const RunArguments& o) {
  if (o.prompt.has_value() + o.file.has_value() + o.tokens.has_value() > 1)
    wrong_usage("PROMPT", "a prompt is given once: as an argument, with --file, or with --tokens");
  if (o.logprobs && !o.json) wrong_usage("--logprobs", "they are part of the answer with --json");
  if (o.text.system && !o.chat) wrong_usage("--system", "it is part of a conversation: use it with --chat");
  if (!o.text.template_args.empty() && !o.chat) wrong_usage("--template-arg", "use it with --chat");
  if (o.chat && o.special) wrong_usage("--special", "the chat template sets the markers with --chat");
  if (!o.tokens) return;
  if (o.chat || o.special || o.text.grammar || o.text.json_schema || o.text.settings.has("stop"))
    wrong_usage("--tokens", "a prompt of ids gives ids: it goes with no option about text");
}

// Without the line end that echo and editors put at the end.
std::string prompt_text(const RunArguments& o) {
  std::string text, where = "the prompt";
  if (o.file) {
    text = read_text(*o.file, kMostPromptBytes);
    where = *o.file;
  } else if (o.prompt && *o.prompt != "-") {
    text = *o.prompt;
  } else if (!o.prompt && isatty(STDIN_FILENO)) {
    wrong_usage("PROMPT", "there is none: give it as an argument, with --file, or on standard input");
  } else {
    text = read_standard_input();
    where = "standard input";
  }
  const bool typed = o.prompt && *o.prompt != "-";
  if (!typed && text.ends_with('\n')) text.pop_back();
  if (text.empty()) wrong_usage("PROMPT", where + " is empty: there is nothing to continue");
  return readable_text(std::move(text), where);
}

// What one run has shown and counted so far, and its end: the same for text and ids.
class Report {
 public:
  Report(const RunArguments& o, const Engine& engine) : o_(o), engine_(engine), log_(o.routing_log, engine) {}

  Tap tap() { return log_.tap(); }
  // After each new token.
  void token() {
    const auto now = Clock::now();
    const StoreStats stats = engine_.store_stats();
    if (n_tokens_++ > 0) {
      Json one = to_json(stats - at_last_);
      one["seconds"] = std::chrono::duration<double>(now - last_).count();
      per_token_.push_back(std::move(one));
    }
    last_ = now;
    at_last_ = stats;
  }

  void finish(const GenerationTimes& times, const DraftStats& drafts, Json answer, std::string remark) {
    log_.close();
    if (engine_.options().trace) engine_.options().trace->close();
    if (o_.json) {
      answer["prompt_tokens"] = times.n_prompt;
      answer["prefill_seconds"] = times.prefill_s;
      answer["decode_seconds"] = times.decode_s;
      answer["reads"] = describe_reads(engine_);
      answer["drive_bytes_per_second"] = engine_.drive().bytes_per_s;
      answer["store"] = {{"prompt", to_json(times.prefill)}, {"new_tokens", to_json(times.decode)}};
      answer["per_token"] = per_token_;
      if (drafts.guessed > 0)
        answer["drafts"] = {{"from", drafts.source == DraftSource::Mtp ? "mtp" : "ngram"},
                            {"guessed", drafts.guessed},
                            {"right", drafts.right},
                            {"pauses", drafts.pauses}};
      write_out(answer.dump() + "\n");
    }
    std::fflush(stdout);
    if (const std::string guesses = describe(drafts); !guesses.empty()) remark += "; " + guesses;
    const StoreStats all = engine_.store_stats();
    if (o_.stats)
      print_store_table(stderr, engine_,
                        {{"prompt", times.n_prompt, times.prefill_s, times.prefill},
                         {"new tokens", times.n_steps(), times.decode_s, times.decode},
                         {"all", times.n_prompt + times.n_steps(), times.prefill_s + times.decode_s, all}});
    fmt::print(stderr,
               "{} prompt tokens in {:.2f} s, {} more in {:.2f} s ({:.1f} tok/s){}; experts: {} hits, {} "
               "misses, {} read\n",
               times.n_prompt, times.prefill_s, times.n_steps(), times.decode_s, times.tokens_per_s(), remark,
               all.hits, all.misses, format_bytes(all.bytes_read));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const RunArguments& o_;
  const Engine& engine_;
  RoutingLogOption log_;
  Json per_token_ = Json::array();
  size_t n_tokens_ = 0;
  Clock::time_point last_;
  StoreStats at_last_;
};

std::unique_ptr<Engine> open_engine(const RunArguments& o) {
  auto engine = std::make_unique<Engine>(o.package, o.engine.options());
  if (!engine->store().holds_all()) fmt::print(stderr, "experts are read with {}\n", describe_reads(*engine));
  return engine;
}

Json logprobs_json(const Logprobs& logprobs, const TextModel* model) {
  const auto chance = [model](Token token, double logprob) {
    Json one = {{"token", token}, {"logprob", logprob}};
    if (model) one["text"] = replace_ill_formed(model->tokenizer().token_bytes(token));
    return one;
  };
  Json top = Json::array();
  for (const TokenChance& other : logprobs.top) top.push_back(chance(other.token, other.logprob));
  return {{"logprob", logprobs.chosen}, {"top", top}};
}

// Ids in, ids out. The likeliest token each time unless options say otherwise, and no token ends it: this is
// for programs that look at a model, with or without a tokenizer.
void run_ids(const RunArguments& o) {
  const std::vector<Token> prompt = parse_tokens(*o.tokens);
  TextSettings settings;
  settings.sampler.temperature = 0;
  settings.max_tokens = kDefaultIds;
  o.text.settings.apply(settings);
  const uint64_t seed = settings.seed.value_or(settings.sampler.temperature > 0 ? random_seed() : 0);
  GenerateOptions options = generate_options(settings, seed);
  if (settings.sampler.penalties.dry.multiplier > 0 || !settings.logit_bias.empty()) {
    options = text_request(settings, TextModel(o.package), seed).generate;
    options.stop_tokens.clear();
  }
  options.sampler.logprobs = o.logprobs;
  const auto engine = open_engine(o);
  const auto sequence = engine->make_sequence();
  if (options.max_tokens > sequence->capacity() ||
      prompt.size() + options.max_tokens > sequence->capacity() + 1)
    fail(Errc::InvalidArgument, "{} prompt tokens and {} new ones do not fit in the context of {} (--ctx)",
         prompt.size(), options.max_tokens, sequence->capacity());
  Report report(o, *engine);
  options.tap = report.tap();
  GenerationTimer timer(*engine, prompt.size());
  Json logprobs = Json::array();
  size_t n = 0;
  const Generated out = generate(*engine, *sequence, prompt, options, [&](const Sample& sample) {
    timer.token();
    report.token();
    if (sample.logprobs) logprobs.push_back(logprobs_json(*sample.logprobs, nullptr));
    if (!o.json) write_out(fmt::format("{}{}", n++ ? "," : "", sample.token));
    std::fflush(stdout);
    return Next::Continue;
  });
  if (!o.json) write_out("\n");
  Json answer = {{"tokens", out.tokens}, {"seed", seed}};
  if (o.logprobs) answer["logprobs"] = logprobs;
  report.finish(timer.times(), out.drafts, std::move(answer),
                settings.sampler.temperature > 0 ? fmt::format("; seed {}", seed) : "");
}

TextPrompt make_prompt(const RunArguments& o, const TextModel& model, const std::string& text) {
  if (!o.chat)
    return {model.encode_text(text, o.special ? Markers::Recognised : Markers::AsText), text, true};
  Conversation conversation;
  if (o.text.system)
    conversation.messages.push_back(
        {{"role", "system"}, {"content", readable_text(*o.text.system, "--system")}});
  conversation.messages.push_back({{"role", "user"}, {"content", text}});
  conversation.extra = o.text.template_variables();
  const ChatPrompt rendered =
      render_chat(model.chat_template(), model.tokenizer(), conversation, jinja::local_time_now());
  return {encode_chat(model.tokenizer(), rendered), rendered.text};
}

std::optional<AnswerOptions> answer_options(const RunArguments& o, const TextModel& model,
                                            const TextPrompt& prompt) {
  if (!o.chat) return {};
  return AnswerOptions{.format = model.chat_template().answer_format(),
                       .starts_in_thought = ends_in_thought(prompt.text)};
}

std::string describe_end(const TextResult& result, const TextSession& session, const TextSettings& settings) {
  if (result.generated.finish == FinishReason::Cancelled) return "; stopped by Ctrl-C";
  if (result.generated.finish == FinishReason::Stop) return "";
  const bool limited = settings.max_tokens && result.generated.tokens.size() >= *settings.max_tokens;
  return limited ? "; cut at --max-tokens"
                 : fmt::format("; cut, since the context of {} is full (--ctx)", session.capacity());
}

Json answer_json(const RunArguments& o, const Answer& answer, const TextResult& result, uint64_t seed) {
  Json json = {{"text", answer.text},
               {"tokens", result.generated.tokens},
               {"finish", to_string(result.generated.finish)},
               {"seed", seed}};
  if (o.chat) json["reasoning"] = answer.reasoning;
  if (!answer.tool_calls.empty()) json["tool_calls"] = Json::parse(answer.tool_calls.dump());
  if (result.stop_string) json["stop_text"] = *result.stop_string;
  if (result.generated.stop_token) json["stop_token"] = *result.generated.stop_token;
  return json;
}

void run_text(const RunArguments& o) {
  const std::string text = prompt_text(o);
  const auto grammar = o.text.load_grammar();
  const TextModel model(o.package);
  if (o.chat) check_grammar(model, grammar.get());
  TextSettings settings = default_settings(model);
  o.text.settings.apply(settings);
  const uint64_t seed = settings.seed.value_or(random_seed());
  TextRequest request = text_request(settings, model, seed);
  const TextPrompt prompt = make_prompt(o, model, text);
  request.grammar = grammar;
  request.grammar_after_thought = o.chat && ends_in_thought(prompt.text);
  request.generate.sampler.logprobs = o.logprobs;

  const auto engine = open_engine(o);
  TextSession session(*engine, model);
  Report report(o, *engine);
  request.generate.tap = report.tap();
  const Interrupt interrupt(Interrupt::Second::Kills);
  auto progress =
      std::make_unique<Progress>("reading the prompt", prompt.tokens.size(), Progress::Unit::Tokens);
  size_t n_read = 0;
  request.generate.on_prompt = [&](size_t done) {
    progress->add(done - std::exchange(n_read, done));
    return !interrupt.pending();
  };
  AnswerView view(answer_options(o, model, prompt), o.reasoning, o.json);
  Json logprobs = Json::array();
  const TextResult result = session.generate(prompt, request, [&](const TextPiece& piece) {
    progress.reset();
    view.token(piece.text);
    if (piece.sample) {
      report.token();
      if (piece.sample->logprobs) {
        Json one = logprobs_json(*piece.sample->logprobs, &model);
        one["token"] = piece.sample->token;
        logprobs.push_back(std::move(one));
      }
    }
    return interrupt.pending() ? Next::Cancel : Next::Continue;
  });
  progress.reset();
  view.finish();
  Json answer = o.json ? answer_json(o, view.answer(), result, seed) : Json::object();
  if (o.logprobs) answer["logprobs"] = logprobs;
  report.finish(result.times, result.generated.drafts, std::move(answer),
                describe_end(result, session, settings) +
                    (settings.sampler.temperature > 0 ? fmt::format("; seed {}", seed) : ""));
  if (result.generated.finish == FinishReason::Cancelled) throw Interrupted{};
}

void run(const RunArguments& o) {
  check_usage(o);
  o.tokens ? run_ids(o) : run_text(o);
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("run", "Continue a text, or answer a message");
  cmd->footer(
      "The new text alone goes to stdout, as it comes; thoughts, progress and figures go to stderr.\n"
      "Without PROMPT, --file or --tokens, the prompt is read from standard input.\n"
      "\n"
      "  moeflux run story.moe 'Once upon a time'                      continue a text\n"
      "  moeflux run story.moe --chat 'Tell me a story about a cake.'  answer a message\n"
      "  moeflux run story.moe --chat --json-schema person.json --file letter.txt\n"
      "  moeflux run story.moe --tokens 1,2,3 -n 16                    token ids in, ids out\n"
      "\n"
      "With --tokens, the likeliest token is taken each time (unless --temp says otherwise) and none ends "
      "the "
      "text.\n"
      "Ctrl-C ends the text; the exit code is then 130.");
  auto o = std::make_shared<RunArguments>();
  cmd->add_option("PACKAGE", o->package, "Folder of a package")->required();
  cmd->add_option("PROMPT", o->prompt,
                  "Text to continue or, with --chat, message to answer; - is standard input");
  cmd->add_option("--file", o->file, "Read the prompt from a file")->type_name("FILE");
  cmd->add_option("--tokens", o->tokens, "Prompt of token ids, separated by commas: ids in, ids out")
      ->type_name("IDS");
  cmd->add_flag("--chat", o->chat, "The prompt is a message: use the model's chat template");
  cmd->add_flag("--special", o->special, "Recognise markers such as <|im_start|> in the prompt");
  add_reasoning_option(*cmd, o->reasoning);
  add_text_options(*cmd, o->text);
  add_engine_options(*cmd, o->engine);
  add_routing_log_option(*cmd, o->routing_log);
  cmd->add_option("--logprobs", o->logprobs,
                  "With --json: log-probabilities of each new token and the N likeliest")
      ->type_name("N");
  cmd->add_flag("--stats", o->stats, "Print a table of what was read, found in memory and waited for");
  cmd->add_flag("--json", o->json, "Answer as JSON");
  cmd->callback([o] { run(*o); });
}

}  // namespace moeflux
