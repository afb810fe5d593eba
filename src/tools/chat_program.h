// A conversation at a terminal or through a pipe: reads messages and commands, shows answers as they come.
// Answers go to stdout, everything else to stderr. What fails ends a turn, not the conversation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gen/text_session.h"
#include "tools/answer_view.h"
#include "tools/interrupt.h"
#include "tools/line_reader.h"
#include "tools/setting_options.h"

namespace moeflux {

struct ChatOptions {
  std::string name;  // of the model
  std::optional<std::string> system;
  OrderedJson template_variables = OrderedJson::object();
  SettingArguments settings;
  std::shared_ptr<const Grammar> grammar;
  Reasoning reasoning = Reasoning::Show;
  bool interactive = false;
};

class ChatProgram {
 public:
  ChatProgram(Engine& engine, const TextModel& model, ChatOptions options);

  // Until the input ends or /quit. How many turns and commands have failed.
  size_t run(LineReader& reader);

 private:
  struct Command {
    const char *name, *arguments, *help;
    void (ChatProgram::*run)(const std::string& argument);
  };
  static const std::vector<Command>& commands();

  std::optional<std::string> read_message(LineReader& reader);  // nothing: the input has ended
  void handle(const std::string& message);
  void obey(const std::string& line);

  void turn();  // answers the last message
  TextResult generate(const TextPrompt& prompt, AnswerView& view, const std::string& reading);
  void show_status(const TextResult& result, bool read_again) const;
  OrderedJson all_messages() const;  // with the system message
  TextSettings settings() const;
  void say(const std::string& line) const;  // dimmed, to stderr

  void help(const std::string& argument);
  void set_system(const std::string& argument);
  void reset(const std::string& argument);
  void undo(const std::string& argument);
  void retry(const std::string& argument);
  void save(const std::string& argument);
  void load(const std::string& argument);
  void stats(const std::string& argument);
  void set(const std::string& argument);
  void set_reasoning(const std::string& argument);
  void thought(const std::string& argument);
  void quit(const std::string& argument);

  Engine& engine_;
  const TextModel& model_;
  ChatOptions options_;
  TextSession session_;
  std::optional<Interrupt> interrupt_;  // while somebody is there to press Ctrl-C
  OrderedJson messages_ = OrderedJson::array();
  const uint64_t random_seed_ = random_seed();
  size_t n_retries_ = 0, n_turns_ = 0, n_failed_ = 0;
  GenerationTimes total_;
  bool ended_ = false;
};

}  // namespace moeflux
