#include "support/support.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "base/json.h"
#include "convert/synth.h"

extern char** environ;

namespace moeflux::test {

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "moeflux-test-XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ec;
  fs::remove_all(path_, ec);
}

fs::path data_folder() { return MOEFLUX_TEST_DATA; }
fs::path storyteller() { return data_folder().parent_path().parent_path() / "models" / "storyteller"; }
fs::path heldout() { return data_folder() / "demo" / "heldout.jsonl"; }
std::vector<std::string> folders_of(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_folder() / name))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> golden_families() { return folders_of("goldens"); }

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

namespace {

// The program with its arguments, as execve wants them.
struct CommandLine {
  explicit CommandLine(const std::vector<std::string>& args) : words{MOEFLUX_PROGRAM} {
    words.insert(words.end(), args.begin(), args.end());
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
  }
  std::vector<std::string> words;
  std::vector<char*> argv;
};

}  // namespace

ProgramResult run_program(const std::vector<std::string>& args, const std::string& input) {
  const TempFolder temp;
  const CommandLine command(args);
  const std::string in = (temp / "in").string(), out = (temp / "out").string(), err = (temp / "err").string();
  write_file(in, input);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) {
    const int i = open(in.c_str(), O_RDONLY), o = open(out.c_str(), O_WRONLY | O_CREAT, 0600),
              e = open(err.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(i, 0);
    dup2(o, 1);
    dup2(e, 2);
    execve(command.argv[0], command.argv.data(), environ);
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out), read_file(err)};
}

RunningProgram::RunningProgram(const std::vector<std::string>& args) {
  const CommandLine command(args);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  out_ = Fd(ends[0]);
  const Fd in(ends[1]);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, 0);
    dup2(in.get(), 1);
    dup2(nothing, 2);
    execve(command.argv[0], command.argv.data(), environ);
    _exit(127);
  }
}

std::string RunningProgram::line() {
  std::string line;
  for (char c; read(out_.get(), &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

void RunningProgram::end(int signal) {
  if (pid_ < 0) return;
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::vector<std::pair<std::string, std::string>> folder_content(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files.emplace_back(fs::relative(entry.path(), folder), read_file(entry.path()));
  std::ranges::sort(files);
  return files;
}

namespace {

// Kept as published, so that nothing is rounded.
void convert_exactly(const fs::path& checkpoint, const fs::path& package, bool mtp = false) {
  ConvertOptions options;
  options.width = {Width::Keep, Width::Keep, 64};
  options.mtp = mtp;
  convert_package(open_source(checkpoint, package, mtp, true), package, options);
}

}  // namespace

const fs::path& golden_checkpoint(const std::string& family) {
  static const TempFolder folder;
  static std::map<std::string, fs::path> made;
  if (const auto it = made.find(family); it != made.end()) return it->second;
  write_synthetic_checkpoint(data_folder() / "goldens" / family, folder / family, {});
  return made[family] = folder / family;
}

const fs::path& golden_package(const std::string& family) {
  static const TempFolder folder;
  static std::map<std::string, fs::path> made;
  if (const auto it = made.find(family); it != made.end()) return it->second;
  convert_exactly(golden_checkpoint(family), folder / family);
  return made[family] = folder / family;
}

const fs::path& variant_package(const std::string& name) {
  static const TempFolder folder;
  static std::map<std::string, fs::path> made;
  if (const auto it = made.find(name); it != made.end()) return it->second;
  const TempFolder checkpoint;
  write_synthetic_checkpoint(data_folder() / "variants" / name, checkpoint / name, {});
  convert_exactly(checkpoint / name, folder / name);
  return made[name] = folder / name;
}

const fs::path& mtp_checkpoint(const std::string& family) {
  static const TempFolder folder;
  static std::map<std::string, fs::path> made;
  if (const auto it = made.find(family); it != made.end()) return it->second;
  const TempFolder source;
  for (const char* name : {"config.json", "tensors.json"})
    fs::copy(data_folder() / "goldens" / family / name, source / name);
  Json all = Json::parse(read_file(source / "tensors.json"));
  all["tensors"].update(Json::parse(read_file(data_folder() / "mtp" / family / "tensors.json"))["tensors"]);
  write_file(source / "tensors.json", all.dump());
  write_synthetic_checkpoint(source.path(), folder / family, {});
  return made[family] = folder / family;
}

const fs::path& mtp_package(const std::string& family) {
  static const TempFolder folder;
  static std::map<std::string, fs::path> made;
  if (const auto it = made.find(family); it != made.end()) return it->second;
  convert_exactly(mtp_checkpoint(family), folder / family, true);
  return made[family] = folder / family;
}

const fs::path& text_package(const std::string& family, const std::string& tokenizer) {
  static const TempFolder folder;
  static std::map<std::string, fs::path> made;
  const std::string name = family + "-" + tokenizer;
  if (const auto it = made.find(name); it != made.end()) return it->second;
  const fs::path package = folder / name;
  fs::copy(golden_package(family), package, fs::copy_options::recursive);
  const auto replace = [&](const std::string& file, const std::string& text) {
    fs::remove(package / file);
    write_file(package / file, text);
  };
  replace("tokenizer.json", read_file(data_folder() / "tokenizers" / tokenizer / "tokenizer.json"));
  replace("tokenizer_config.json", "{}");
  replace("generation_config.json", R"({"eos_token_id": 288, "temperature": 0.9, "top_k": 40})");
  replace("chat_template.jinja",
          "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content | trim }}<|end|>{% endfor %}"
          "{% if add_generation_prompt %}<|start|>assistant\n{% if think %}<think>\n{% endif %}{% endif %}");
  return made[name] = package;
}

}  // namespace moeflux::test
