#include "tools/chat_program.h"

#include <fmt/core.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>

#include "base/error.h"
#include "base/progress.h"
#include "base/terminal.h"
#include "base/text.h"
#include "tools/text_options.h"

namespace moeflux {
namespace {

constexpr const char* kBlock = "\"\"\"";

// What is typed while an answer comes is not shown in the middle of it; it is there for the next line.
class EchoOff {
 public:
  EchoOff() : is_terminal_(tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!is_terminal_) return;
    termios quiet = before_;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &quiet);
  }
  ~EchoOff() {
    if (is_terminal_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  EchoOff(const EchoOff&) = delete;
  EchoOff& operator=(const EchoOff&) = delete;

 private:
  termios before_{};
  const bool is_terminal_;
};

GenerationTimes sum(const GenerationTimes& a, const GenerationTimes& b) {
  return {a.n_prompt + b.n_prompt,   a.n_new + b.n_steps(),  // steps, since that is what took the time
          a.prefill_s + b.prefill_s, a.decode_s + b.decode_s, a.prefill + b.prefill, a.decode + b.decode};
}

}  // namespace

ChatProgram::ChatProgram(Engine& engine, const TextModel& model, ChatOptions options)
    : engine_(engine), model_(model), options_(std::move(options)), session_(engine, model) {
  text_request(settings(), model_, 0);  // says now what is wrong with the settings
  if (options_.interactive) interrupt_.emplace(Interrupt::Second::Counts);
}

size_t ChatProgram::run(LineReader& reader) {
  if (options_.interactive)
    say(
        fmt::format("{}: a context of {} tokens, {} of {} of experts in memory\n"
                    "/help lists commands; Ctrl-C stops an answer, Ctrl-D leaves",
                    options_.name, session_.capacity(), format_bytes(engine_.store().slot_bytes()),
                    format_bytes(engine_.plan().expert_bytes)));
  while (!ended_) {
    const auto message = read_message(reader);
    if (!message) break;
    if (interrupt_) interrupt_->clear();
    try {
      handle(*message);
    } catch (const Error& e) {
      ++n_failed_;
      std::fflush(stdout);
      fmt::print(stderr, "{}\n", e.what());
    }
  }
  return n_failed_;
}

std::optional<std::string> ChatProgram::read_message(LineReader& reader) {
  using Kind = LineReader::Kind;
  std::string text;
  bool in_block = false, more = false;
  while (true) {
    LineReader::Result line = reader.read(in_block || more ? ". " : "> ");
    if (line.kind == Kind::End) return text.empty() ? std::nullopt : std::optional(text);
    if (line.kind == Kind::Interrupted) {
      if (!reader.edits()) std::fputs("\n", stdout);
      if (!in_block && !more) say("Ctrl-D or /quit leaves");
      text.clear();
      in_block = more = false;
      continue;
    }
    if (!in_block && !more && line.text.starts_with(kBlock)) {
      in_block = true;
      line.text.erase(0, 3);
      if (line.text.empty()) continue;
    }
    if (in_block && line.text.ends_with(kBlock)) return text + line.text.substr(0, line.text.size() - 3);
    more = !in_block && line.text.ends_with('\\');
    if (more) line.text.back() = '\n';
    text += line.text;
    if (!in_block && !more) return text;
    if (in_block) text += '\n';
  }
}

void ChatProgram::handle(const std::string& message) {
  if (message.find_first_not_of(" \t\r\n") == message.npos) return;
  if (message.starts_with('/') && !message.starts_with("//")) return obey(message);
  const std::string text = message.starts_with("//") ? message.substr(1) : message;
  messages_.push_back({{"role", "user"}, {"content", readable_text(text, "the message")}});
  turn();
}

OrderedJson ChatProgram::all_messages() const {
  OrderedJson all = OrderedJson::array();
  if (options_.system) all.push_back({{"role", "system"}, {"content", *options_.system}});
  for (const OrderedJson& message : messages_) all.push_back(message);
  return all;
}

TextSettings ChatProgram::settings() const {
  TextSettings settings = default_settings(model_);
  options_.settings.apply(settings);
  return settings;
}

// Leaves either the message with its answer, or neither.
void ChatProgram::turn() {
  try {
    const ChatPrompt rendered =
        render_chat(model_.chat_template(), model_.tokenizer(),
                    {.messages = all_messages(), .tools = {}, .extra = options_.template_variables},
                    jinja::local_time_now());
    const TextPrompt prompt = session_.chat_prompt(rendered);
    const bool read_again = n_turns_ > 0 && session_.n_tokens() > 0 && session_.reusable(prompt) == 0;
    AnswerView view(AnswerOptions{.format = model_.chat_template().answer_format(),
                                  .starts_in_thought = ends_in_thought(rendered.text)},
                    options_.reasoning, false);
    const TextResult result =
        generate(prompt, view, read_again ? "reading the conversation again" : "reading");
    view.finish();
    ++n_turns_;
    total_ = sum(total_, result.times);
    show_status(result, read_again);
    if (result.generated.finish == FinishReason::Cancelled && view.answer().empty()) {
      messages_.erase(messages_.size() - 1);
      return say("the message was taken back");
    }
    messages_.push_back(view.answer().message());
  } catch (...) {
    messages_.erase(messages_.size() - 1);
    throw;
  }
}

TextResult ChatProgram::generate(const TextPrompt& prompt, AnswerView& view, const std::string& reading) {
  const TextSettings now = settings();
  TextRequest request = text_request(now, model_, now.seed.value_or(random_seed_) + n_retries_);
  request.grammar = options_.grammar;
  request.grammar_after_thought = ends_in_thought(prompt.text);
  const size_t n_new = prompt.tokens.size() - session_.reusable(prompt);
  auto progress = std::make_unique<Progress>(reading, n_new, Progress::Unit::Tokens);
  size_t n_read = 0;
  request.generate.on_prompt = [&](size_t done) {
    progress->add(done - std::exchange(n_read, done));
    return !(interrupt_ && interrupt_->pending());
  };
  const EchoOff quiet;
  return session_.generate(prompt, request, [&](const TextPiece& piece) {
    progress.reset();
    view.token(piece.text);
    return interrupt_ && interrupt_->pending() ? Next::Cancel : Next::Continue;
  });
}

void ChatProgram::show_status(const TextResult& result, bool read_again) const {
  const GenerationTimes& t = result.times;
  std::string line = fmt::format("{} tokens, {:.1f} tok/s", t.n_new, t.tokens_per_s());
  line += fmt::format(" | {} read{} in {:.2f} s", t.n_prompt, read_again ? " again" : "", t.prefill_s);
  if (result.n_reused) line += fmt::format(", {} kept", result.n_reused);
  if (t.n_steps())
    line += fmt::format(" | hit rate {:.1f} %, {}/token", 100 * t.decode.hit_rate(),
                        format_bytes(t.decode.bytes_read / t.n_steps()));
  if (const std::string drafts = describe(result.generated.drafts); !drafts.empty()) line += " | " + drafts;
  line += fmt::format(" | {}/{}", session_.n_tokens(), session_.capacity());
  if (result.generated.finish == FinishReason::Cancelled) line += " | stopped";
  if (result.generated.finish == FinishReason::Length)
    line += session_.n_tokens() >= session_.capacity() ? " | context full: /undo, /reset" : " | max-tokens";
  say("[" + line + "]");
}

void ChatProgram::say(const std::string& line) const {
  std::fflush(stdout);
  const bool dims = is_capable_terminal(STDERR_FILENO);
  fmt::print(stderr, "{}{}{}\n", dims ? "\033[2m" : "", line, dims ? "\033[0m" : "");
}

}  // namespace moeflux
