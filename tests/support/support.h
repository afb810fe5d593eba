// What tests share: folders that go away, fixtures, and running the program as a user would.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/owned.h"

namespace moeflux::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path data_folder();  // tests/data of the source tree
fs::path storyteller();  // models/storyteller: a small trained model, as a package
fs::path heldout();      // texts that it was not trained on

struct ProgramResult {
  int exit_code = -1;  // 128 + signal where it was killed
  std::string out, err;
};

// Runs the moeflux binary with these arguments and standard input, and waits for it.
ProgramResult run_program(const std::vector<std::string>& args, const std::string& input = "");

// The program under way, its standard error dropped; killed with its owner.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& args);
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram() { end(SIGKILL); }

  std::string line();    // the next one of its standard output
  void end(int signal);  // and waits for its end

 private:
  Fd out_;
  pid_t pid_ = -1;
};

std::vector<std::string> folders_of(const std::string& name);  // names below tests/data/NAME, sorted
std::vector<std::string> golden_families();                    // those of tests/data/goldens

std::string read_file(const fs::path& path);
void write_file(const fs::path& path, const std::string& bytes);

// Relative path -> content of every file below a folder.
std::vector<std::pair<std::string, std::string>> folder_content(const fs::path& folder);

// A synthetic checkpoint of a golden family, made once per test process.
const fs::path& golden_checkpoint(const std::string& family);
// A package of it with everything kept as stored, made once per test process.
const fs::path& golden_package(const std::string& family);
const fs::path& variant_package(const std::string& name);  // the same of tests/data/variants
// The same of a golden family with the multi-token-prediction layer of tests/data/mtp.
const fs::path& mtp_checkpoint(const std::string& family);
const fs::path& mtp_package(const std::string& family);
// The same as one that has text: a tokenizer of tests/data/tokenizers, and a chat template whose turns are
// "<|start|>ROLE\nCONTENT<|end|>"; <|end|> ends a text.
const fs::path& text_package(const std::string& family, const std::string& tokenizer = "byte_level");

}  // namespace moeflux::test
