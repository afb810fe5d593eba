// Time to the first token of a prompt that repeats an earlier one but for its last line: the first time, with
// the earlier text's state in memory, and with it on disk after a restart.
//
//   prefix_bench PACKAGE FOLDER [TOKENS [LINE]]
//
// FOLDER is an empty one for the states. All experts are loaded first, where there is memory for them, and
// the states' files leave the page cache before they are read. Tokens are random.
#include <fcntl.h>
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "base/text.h"
#include "gen/prefix_cache.h"

namespace moeflux {
namespace {

constexpr uint64_t kBytes = 8ull << 30;

struct Run {
  double seconds;
  size_t found;
};

// Until the logits are there of which the first token is chosen.
Run first_token(Engine& engine, PrefixCache& cache, std::span<const Token> prompt, bool keep) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<History> history = cache.find(prompt);
  if (!history) history = std::make_unique<History>(engine);
  const size_t found = history->position();
  history->eval(prompt.subspan(found));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (keep) cache.keep(*history);
  return {seconds, found};
}

void leave_page_cache(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const File file = File::open_read(entry.path());
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

int run(const fs::path& package, const fs::path& folder, size_t n_tokens, size_t line) {
  EngineOptions options;
  options.ctx = n_tokens;
  std::mt19937 random(1);
  std::vector<Token> prompt(n_tokens);
  const PrefixCacheOptions cache_options{.ram_bytes = kBytes, .folder = folder, .disk_bytes = kBytes};
  Run first{};
  std::vector<Run> rams, disks;
  const auto new_line = [&](size_t n_vocab) {
    for (size_t i = n_tokens - line; i < n_tokens; ++i) prompt[i] = static_cast<Token>(random() % n_vocab);
  };
  {
    Engine engine(package, options);
    engine.load_experts();
    PrefixCache cache(cache_options, engine);
    for (Token& t : prompt) t = static_cast<Token>(random() % engine.config().n_vocab);
    engine.eval(*engine.make_sequence(), std::span(prompt).first(n_tokens / 8));  // memory for the steps
    first = first_token(engine, cache, prompt, true);
    for (int i = 0; i < 3; ++i) {
      new_line(engine.config().n_vocab);
      rams.push_back(first_token(engine, cache, prompt, false));
    }
    fmt::print("state: {} in memory, {} on disk\n", format_bytes(cache.stats().ram_bytes),
               format_bytes(cache.stats().disk_bytes));
  }
  for (int i = 0; i < 3; ++i) {
    Engine engine(package, options);
    engine.load_experts();
    engine.eval(*engine.make_sequence(), std::span(prompt).first(n_tokens / 8));
    leave_page_cache(folder);
    PrefixCache cache(cache_options, engine);
    new_line(engine.config().n_vocab);
    disks.push_back(first_token(engine, cache, prompt, false));
  }
  fmt::print("{:10} {:>8} tokens from {:>5}: {:.4f} s\n", "first", n_tokens, first.found, first.seconds);
  const auto print = [&](const char* name, const std::vector<Run>& runs) {
    for (const Run& r : runs)
      fmt::print("{:10} {:>8} tokens from {:>5}: {:.4f} s, {:.1f} %\n", name, n_tokens, r.found, r.seconds,
                 100 * r.seconds / first.seconds);
  };
  print("memory", rams);
  print("disk", disks);
  return 0;
}

}  // namespace
}  // namespace moeflux

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "prefix_bench PACKAGE FOLDER [TOKENS [LINE]]\n");
    return 2;
  }
  try {
    return moeflux::run(argv[1], argv[2], argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 4000,
                        argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 32);
  } catch (const moeflux::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
