// The reader that edits, on libedit. Characters are read here rather than by libedit, so that Ctrl-C and a
// window that changes its size are seen at once, and so that pasted line ends do not send half a message.
#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <langinfo.h>
#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/owned.h"
#include "io/file.h"
#include "text/utf8.h"
#include "tools/line_reader.h"

namespace moeflux {
namespace {

constexpr int kMostHistory = 1000;
constexpr wchar_t kInterrupt = 3;                // Ctrl-C
constexpr std::string_view kLineEnd = "\u21B5";  // how a line end inside a line is shown
constexpr std::string_view kTab = "\u21E5";
constexpr std::string_view kPasteBegin = "\033[200~", kPasteEnd = "\033[201~";
constexpr int kSequenceWaitMs = 50;  // for the rest of a key's bytes

// What terminals send, whatever they say that they are.
constexpr std::pair<const char*, const char*> kKeys[] = {
    {"^R", "em-inc-search-prev"},       {"\033[H", "ed-move-to-beg"},  {"\033OH", "ed-move-to-beg"},
    {"\033[1~", "ed-move-to-beg"},      {"\033[7~", "ed-move-to-beg"}, {"\033[F", "ed-move-to-end"},
    {"\033OF", "ed-move-to-end"},       {"\033[4~", "ed-move-to-end"}, {"\033[8~", "ed-move-to-end"},
    {"\033[3~", "ed-delete-next-char"}, {"\033[1;5D", "ed-prev-word"}, {"\033[1;5C", "em-next-word"}};

volatile std::sig_atomic_t resized = 0;  // a handler can reach nothing but what is global

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find(from, at), text.size());
    out.append(text, at, next - at);
    if (next < text.size()) out += to;
    at = next + from.size();
  }
  return out;
}

// Keys and pasted text, as characters.
class Keys {
 public:
  enum class Got { Character, End, Interrupted, Resized };

  Got next(wchar_t& character) {
    while (true) {
      if (bytes_.empty())
        if (const Got got = fill(-1); got != Got::Character) return got;
      if (take(kPasteBegin)) {
        pasting_ = true;
      } else if (pasting_ && take(kPasteEnd)) {
        pasting_ = false;
      } else {
        character = decode();
        if (!pasting_ || translate(character)) return Got::Character;
      }
    }
  }

 private:
  Got fill(int wait_ms) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&input, 1, wait_ms);
    if (ready < 0 && errno == EINTR) return resized ? Got::Resized : Got::Interrupted;
    if (ready == 0) return Got::End;
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) return resized ? Got::Resized : Got::Interrupted;
    if (n <= 0) return Got::End;
    bytes_.append(buffer, static_cast<size_t>(n));
    return Got::Character;
  }

  // A sequence that has begun may still be on its way; a single escape is a key of its own.
  bool take(std::string_view sequence) {
    while (bytes_.size() > 1 && bytes_.size() < sequence.size() && sequence.starts_with(bytes_))
      if (fill(kSequenceWaitMs) != Got::Character) return false;
    if (!bytes_.starts_with(sequence)) return false;
    bytes_.erase(0, sequence.size());
    return true;
  }

  wchar_t decode() {
    const auto lead = static_cast<unsigned char>(bytes_[0]);
    const size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    while (bytes_.size() < length)
      if (fill(kSequenceWaitMs) != Got::Character) break;
    const size_t n = std::min(length, bytes_.size());
    if (well_formed_bytes(std::string_view(bytes_).substr(0, n)) != n) {
      bytes_.erase(0, 1);
      return 0xFFFD;
    }
    const char* at = bytes_.data();
    const auto character = static_cast<wchar_t>(next_code_point(at));
    bytes_.erase(0, n);
    return character;
  }

  // Of pasted text; false for what has no place in a line.
  bool translate(wchar_t& character) {
    const bool after_return = std::exchange(after_return_, character == '\r');
    if (character == '\n' && after_return) return false;
    if (character == '\r' || character == '\n') character = 0x21B5;
    if (character == '\t') character = 0x21E5;
    return character >= 0x20 && character != 0x7F;
  }

  std::string bytes_;
  bool pasting_ = false, after_return_ = false;
};

struct EditTraits {
  using Handle = EditLine*;
  static constexpr Handle null = nullptr;
  static void release(Handle handle) { el_end(handle); }
};
struct HistoryTraits {
  using Handle = History*;
  static constexpr Handle null = nullptr;
  static void release(Handle handle) { history_end(handle); }
};

void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

class EditingReader : public LineReader {
 public:
  explicit EditingReader(const LineReaderOptions& options) : history_path_(options.history) {
    use_utf8();
    edit_ = Owned<EditTraits>(el_init("moeflux", stdin, stdout, stderr));
    history_ = Owned<HistoryTraits>(history_init());
    if (!edit_.get() || !history_.get()) fail(Errc::OutOfMemory, "the line editor cannot be set up");
    EditLine* edit = edit_.get();
    el_set(edit, EL_CLIENTDATA, this);
    el_set(edit, EL_PROMPT_ESC, &EditingReader::prompt, '\1');
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_SIGNAL, 0);
    el_set(edit, EL_GETCFN, &EditingReader::next_character);
    // Wide: of narrow names the editor makes copies that it never frees.
    el_wset(edit, EL_ADDFN, L"moeflux-interrupt", L"Give the line up", &EditingReader::on_interrupt);
    el_set(edit, EL_BIND, "^C", "moeflux-interrupt", nullptr);
    el_wset(edit, EL_ADDFN, L"moeflux-line-end", L"Put a line end in", &EditingReader::on_line_end);
    for (const char* key : {"\033\r", "\033\n"}) el_set(edit, EL_BIND, key, "moeflux-line-end", nullptr);
    for (const auto& [key, action] : kKeys) el_set(edit, EL_BIND, key, action, nullptr);
    el_set(edit, EL_HIST, history, history_.get());
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, kMostHistory);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    if (history_path_) history(history_.get(), &event, H_LOAD, history_path_->c_str());
    struct sigaction action {};
    action.sa_handler = [](int) { resized = 1; };
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, &before_);
  }
  ~EditingReader() override { sigaction(SIGWINCH, &before_, nullptr); }

  bool edits() const override { return true; }

  Result read(const std::string& prompt) override {
    prompt_ = "\1\033[1m\1" + prompt + "\1\033[0m\1";
    interrupted_ = false;
    el_resize(edit_.get());  // the window may have changed while an answer came
    set_bracketed_paste(true);
    int n = 0;
    const char* line = el_gets(edit_.get(), &n);
    set_bracketed_paste(false);
    if (interrupted_) {
      std::fputs("^C\n", stdout);
      return {Kind::Interrupted};
    }
    if (!line || n <= 0) {
      std::fputs("\n", stdout);
      return {Kind::End};
    }
    std::string text(line, static_cast<size_t>(n));
    if (text.ends_with('\n')) text.pop_back();
    remember(text);
    return {Kind::Line, replaced(replaced(text, kLineEnd, "\n"), kTab, "\t")};
  }

 private:
  static EditingReader& self(EditLine* edit) {
    void* data = nullptr;
    el_get(edit, EL_CLIENTDATA, &data);
    return *static_cast<EditingReader*>(data);
  }
  static char* prompt(EditLine* edit) { return self(edit).prompt_.data(); }

  static int next_character(EditLine* edit, wchar_t* character) {
    while (true) {
      switch (self(edit).keys_.next(*character)) {
        case Keys::Got::Character:
          return 1;
        case Keys::Got::End:
          return 0;
        case Keys::Got::Interrupted:
          *character = kInterrupt;
          return 1;
        case Keys::Got::Resized:
          resized = 0;
          el_resize(edit);
      }
    }
  }

  static unsigned char on_interrupt(EditLine* edit, wint_t) {
    self(edit).interrupted_ = true;
    return CC_NEWLINE;
  }
  static unsigned char on_line_end(EditLine* edit, wint_t) {
    el_insertstr(edit, std::string(kLineEnd).c_str());
    return CC_REFRESH;
  }

  static void set_bracketed_paste(bool on) {
    std::fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    std::fflush(stdout);
  }

  void remember(const std::string& line) {
    if (line.find_first_not_of(' ') == line.npos) return;
    HistEvent event;
    history(history_.get(), &event, H_ENTER, line.c_str());
    if (!history_path_) return;
    std::error_code ignored;  // without a place for its file, history is lost at the end, and nothing else
    fs::create_directories(history_path_->parent_path(), ignored);
    history(history_.get(), &event, H_SAVE, history_path_->c_str());
  }

  const std::optional<fs::path> history_path_;
  Keys keys_;
  std::string prompt_;
  bool interrupted_ = false;
  struct sigaction before_ {};
  Owned<HistoryTraits> history_;
  Owned<EditTraits> edit_;  // uses the history
};

}  // namespace

std::unique_ptr<LineReader> make_editing_reader(const LineReaderOptions& options) {
  return std::make_unique<EditingReader>(options);
}

}  // namespace moeflux
