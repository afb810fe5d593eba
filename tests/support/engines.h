// What tests of engines share: tokens to evaluate, and reads that can be made to fail.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "gen/engine.h"
#include "io/faulty_queue.h"

namespace moeflux::test {

inline std::vector<Token> some_tokens(size_t n, Token seed) {
  std::vector<Token> tokens;
  for (Token t = 0; t < n; ++t) tokens.push_back((t * 37 + seed * 101) % 128);
  return tokens;
}

inline std::vector<Token> joined(std::vector<Token> a, std::span<const Token> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The backends that keep to a contract, and cuda where there is a GPU.
inline std::vector<std::string> with_gpu(std::vector<std::string> backends) {
  try {
    cuda_device();
    backends.emplace_back("cuda");
  } catch (const Error&) {
  }
  return backends;
}

// An engine with these options reads through a queue that misbehaves as it is told; `queue` is set when the
// engine is made.
inline void read_with_faults(EngineOptions& options, FaultyQueue*& queue) {
  options.wrap_queue = [&queue](std::unique_ptr<ReadQueue> inner) {
    auto faulty = std::make_unique<FaultyQueue>(std::move(inner), Faults{});
    queue = faulty.get();
    return faulty;
  };
}

}  // namespace moeflux::test
