// Reads what somebody types, line by line. With libedit in a terminal that can do it: cursor keys, history
// (kept in a file), UTF-8, and line ends inside a line by Alt-Enter or by pasting. Otherwise (a pipe,
// TERM=dumb, a build without libedit) lines as they come.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace moeflux {

class LineReader {
 public:
  enum class Kind { Line, End, Interrupted };  // the last one by Ctrl-C
  struct Result {
    Kind kind;
    std::string text = {};  // without the line end
  };
  virtual ~LineReader() = default;
  virtual Result read(const std::string& prompt) = 0;
  virtual bool edits() const { return false; }
};

struct LineReaderOptions {
  bool interactive = false;                      // show prompts
  std::optional<std::filesystem::path> history;  // none: only as long as the program runs
};

std::unique_ptr<LineReader> make_line_reader(const LineReaderOptions& options);
// Null where it is not built in.
std::unique_ptr<LineReader> make_editing_reader(const LineReaderOptions& options);

}  // namespace moeflux
