// The commands of a conversation: lines that begin with a slash.
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "tools/chat_program.h"
#include "tools/store_report.h"

namespace moeflux {
namespace {

constexpr uint64_t kMostFileBytes = uint64_t{256} << 20;

std::pair<std::string, std::string> split_word(const std::string& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const size_t rest = line.find_first_not_of(' ', end);
  return {line.substr(0, end), rest == line.npos ? "" : line.substr(rest)};
}

std::string trimmed(std::string text) {
  text.erase(std::min(text.find_last_not_of(" \t\r\n") + 1, text.size()));
  return text;
}

void check_messages(const OrderedJson& messages, const std::string& where) {
  if (!messages.is_array()) fail(Errc::Corrupt, "{}: want {{\"messages\": [...]}}", where);
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& one = messages[i];
    const bool good = one.is_object() && one.contains("role") && one["role"].is_string() &&
                      one.contains("content") && (one["content"].is_string() || one["content"].is_null());
    if (!good) fail(Errc::Corrupt, "{}: message {} has no text for 'role' and 'content'", where, i + 1);
  }
}

}  // namespace

const std::vector<ChatProgram::Command>& ChatProgram::commands() {
  static const std::vector<Command> all = {
      {"help", "", "this list", &ChatProgram::help},
      {"system", "[TEXT | none]", "what the model is told first", &ChatProgram::set_system},
      {"reset", "", "forget the conversation, but not the system message", &ChatProgram::reset},
      {"undo", "", "take the last message and its answer back", &ChatProgram::undo},
      {"retry", "", "answer the last message again, otherwise", &ChatProgram::retry},
      {"save", "FILE", "write the conversation to a file, as JSON", &ChatProgram::save},
      {"load", "FILE", "go on with a conversation from a file", &ChatProgram::load},
      {"stats", "", "what was computed, read and waited for so far", &ChatProgram::stats},
      {"set", "[NAME [VALUE | default]]", "show the settings, or set one: /set temp 0.7", &ChatProgram::set},
      {"reasoning", "show | fold | hide", "what becomes of the model's thoughts",
       &ChatProgram::set_reasoning},
      {"thought", "", "the thoughts of the last answer", &ChatProgram::thought},
      {"quit", "", "leave", &ChatProgram::quit}};
  return all;
}

void ChatProgram::obey(const std::string& line) {
  const auto [word, argument] = split_word(trimmed(line));
  const std::string name = word.substr(1);
  for (const Command& command : commands())
    if (name == command.name) return (this->*command.run)(argument);
  fail(Errc::InvalidArgument,
       "there is no command {}; /help lists them, and // begins a message with a slash", word);
}

void ChatProgram::help(const std::string&) {
  std::string text;
  for (const Command& command : commands())
    text += fmt::format("/{:<30} {}\n", fmt::format("{} {}", command.name, command.arguments), command.help);
  text +=
      "\nSeveral lines: begin and end with \"\"\", end a line with \\, press Alt-Enter, or paste.\n"
      "// begins a message with a slash. Ctrl-C stops an answer; Ctrl-D leaves.\n"
      "After an answer: its speed; tokens read before it; experts found in memory, bytes\n"
      "read per token; tokens in the context.";
  say(text);
}

void ChatProgram::set_system(const std::string& argument) {
  if (argument == "none")
    options_.system.reset();
  else if (!argument.empty())
    options_.system = argument;
  say(options_.system ? "system: " + *options_.system : "there is no system message");
}

void ChatProgram::reset(const std::string&) {
  messages_.clear();
  session_.reset();
  say("a new conversation");
}

void ChatProgram::undo(const std::string&) {
  if (messages_.empty()) fail(Errc::InvalidArgument, "there is nothing to take back");
  while (!messages_.empty() && messages_.back()["role"] != "user") messages_.erase(messages_.size() - 1);
  if (!messages_.empty()) {
    say(fmt::format("taken back: {}", harmless(messages_.back()["content"].get<std::string>())));
    messages_.erase(messages_.size() - 1);
  }
}

void ChatProgram::retry(const std::string&) {
  size_t n = messages_.size();
  while (n > 0 && messages_[n - 1]["role"] != "user") --n;
  if (n == 0) fail(Errc::InvalidArgument, "there is no message to answer again");
  while (messages_.size() > n) messages_.erase(messages_.size() - 1);
  ++n_retries_;
  turn();
}

void ChatProgram::save(const std::string& argument) {
  if (argument.empty()) fail(Errc::InvalidArgument, "/save wants a file name");
  write_text(argument, OrderedJson{{"model", options_.name}, {"messages", all_messages()}}.dump(2) + "\n");
  say(fmt::format("{} messages written to {}", all_messages().size(), argument));
}

void ChatProgram::load(const std::string& argument) {
  if (argument.empty()) fail(Errc::InvalidArgument, "/load wants a file name");
  const OrderedJson file = parse_ordered_json(read_text(argument, kMostFileBytes), argument);
  OrderedJson messages = file.is_object() && file.contains("messages") ? file["messages"] : file;
  check_messages(messages, argument);
  options_.system.reset();
  if (!messages.empty() && messages[0]["role"] == "system" && messages[0]["content"].is_string()) {
    options_.system = messages[0]["content"].get<std::string>();
    messages.erase(0);
  }
  messages_ = std::move(messages);
  say(fmt::format("{} messages read from {}", all_messages().size(), argument));
}

void ChatProgram::stats(const std::string&) {
  say(fmt::format("{} turns; the context holds {} of {} tokens; seed {}", n_turns_, session_.n_tokens(),
                  session_.capacity(), settings().seed.value_or(random_seed_) + n_retries_));
  print_store_table(
      stderr, engine_,
      {{"prompts", total_.n_prompt, total_.prefill_s, total_.prefill},
       {"answers", total_.n_new, total_.decode_s, total_.decode},
       {"all", total_.n_prompt + total_.n_new, total_.prefill_s + total_.decode_s, engine_.store_stats()}});
}

void ChatProgram::set(const std::string& argument) {
  const auto [name, value] = split_word(argument);
  if (name.empty()) {
    std::string text;
    const TextSettings now = settings();
    for (const Setting& setting : text_settings())
      text += fmt::format("{}{:<20} {}", text.empty() ? "" : "\n", setting.name, setting.show(now));
    return say(text);
  }
  const Setting* setting = find_setting(name == "temperature" ? "temp" : name);
  if (!setting) fail(Errc::InvalidArgument, "there is no setting '{}'; /set shows them", name);
  if (!value.empty()) {
    SettingArguments changed = options_.settings;
    if (value == "default" || setting->kind != Setting::Kind::List)
      std::erase_if(changed.given, [&](const auto& one) { return one.first == setting; });
    if (value != "default") changed.given.emplace_back(setting, value);
    std::swap(changed, options_.settings);
    try {
      text_request(settings(), model_, 0);
    } catch (const Error& e) {
      std::swap(changed, options_.settings);
      fail(Errc::InvalidArgument, "{}: {}", setting->name, e.what());
    }
  }
  say(fmt::format("{} {}    ({})", setting->name, setting->show(settings()), setting->help));
}

void ChatProgram::set_reasoning(const std::string& argument) {
  const auto& names = reasoning_names();
  const auto found = std::ranges::find(names, argument);
  if (!argument.empty() && found == names.end())
    fail(Errc::InvalidArgument, "'{}' is none of show, fold and hide", argument);
  if (!argument.empty()) options_.reasoning = static_cast<Reasoning>(found - names.begin());
  say("reasoning: " + names[static_cast<size_t>(options_.reasoning)]);
}

void ChatProgram::thought(const std::string&) {
  for (auto message = messages_.rbegin(); message != messages_.rend(); ++message)
    if ((*message)["role"] == "assistant" && message->contains("reasoning_content"))
      return say(harmless((*message)["reasoning_content"].get<std::string>()));
  say("there are no thoughts");
}

void ChatProgram::quit(const std::string&) { ended_ = true; }

}  // namespace moeflux
