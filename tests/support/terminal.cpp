#include "support/terminal.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace moeflux::test {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("popen");
  std::string out;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
  pclose(pipe);
  return out;
}

}  // namespace

bool has_tmux() { return std::system("tmux -V >/dev/null 2>&1") == 0; }

Terminal::Terminal(const std::vector<std::string>& args, const std::string& kind) {
  std::string command = "env TERM=" + kind + " LC_ALL=C.UTF-8 " + quoted(MOEFLUX_PROGRAM);
  for (const std::string& arg : args) (command += ' ') += quoted(arg);
  // Ctrl-C reaches all programs of the terminal; the shell must live to tell how ours ended.
  tmux({"new-session", "-d", "-x", "80", "-y", "24",
        "trap : INT; " + command + "; echo exit code $?; exec sleep 600"});
}

Terminal::~Terminal() { tmux({"kill-server"}); }

std::string Terminal::tmux(const std::vector<std::string>& args, const std::string& input) const {
  std::string command = "LC_ALL=C.UTF-8 tmux -u -f /dev/null -S ";
  command += quoted(folder_ / "socket");
  for (const std::string& arg : args) (command += ' ') += quoted(arg);
  command += " 2>&1";
  if (input.empty()) return output_of(command);
  const TempFolder temp;
  write_file(temp / "input", input);
  return output_of(command + " <" + quoted(temp / "input"));
}

void Terminal::type(const std::string& text) { tmux({"send-keys", "-l", text}); }

void Terminal::press(const std::vector<std::string>& keys) {
  std::vector<std::string> args = {"send-keys"};
  args.insert(args.end(), keys.begin(), keys.end());
  tmux(args);
}

void Terminal::paste(const std::string& text) {
  tmux({"load-buffer", "-"}, text);
  tmux({"paste-buffer", "-p", "-r"});
}

void Terminal::resize(int columns, int rows) {
  tmux({"resize-window", "-x", std::to_string(columns), "-y", std::to_string(rows)});
}

std::string Terminal::screen() const { return tmux({"capture-pane", "-p", "-S", "-"}); }

bool Terminal::shows(const std::string& text, size_t times) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    const std::string all = screen();
    size_t n = 0;
    for (size_t at = all.find(text); at != all.npos; at = all.find(text, at + 1)) ++n;
    if (n >= times) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  return false;
}

}  // namespace moeflux::test
