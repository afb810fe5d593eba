// Measures how fast a package runs with a given budget of expert slots, and what the store did meanwhile. It
// prints nothing; what the figures mean is in docs/PERFORMANCE.md.
#pragma once

#include <optional>
#include <vector>

#include "gen/engine.h"
#include "gen/routing.h"

namespace moeflux {

// What the slots hold when a measurement begins.
//   Cold: nothing; every repetition has an engine of its own.
//   Warm: what the tokens before have left there, once they have filled the slots.
//   Rotating: what another text has left there: several texts in turn, each a prefill and some decoded
//   tokens.
enum class CacheState : uint8_t { Cold, Warm, Rotating };

struct BenchRequest {
  EngineOptions engine;  // its context grows to what is measured
  CacheState state = CacheState::Warm;
  RoutingSpec routing = {};
  uint64_t seed = 0;
  uint64_t prompt = 512;               // tokens of a prefill; 0: none
  uint64_t generate = 64;              // decoded tokens; 0: none
  uint64_t repeat = 3;                 // prefills, parts that decoding is cut into, or texts in turn
  uint64_t sequences = 1;              // decoded together, a token of each per step
  std::vector<uint64_t> depths = {0};  // decode after this many tokens; Rotating decodes after its prefill
};

struct Rate {  // tokens per second of several repetitions
  double median = 0, least = 0, most = 0;
};

// What was measured of one kind of work, all repetitions together.
struct Measured {
  uint64_t depth = 0;      // tokens before
  uint64_t length = 0;     // tokens of one text
  uint64_t sequences = 1;  // texts at once
  uint64_t tokens = 0;     // measured in all
  double seconds = 0;
  Rate rate;
  StoreStats store;                   // what the store did meanwhile
  uint64_t touched_expert_bytes = 0;  // of the experts that were needed, each once per step
  // How fast the weights could be read between repetitions, and the tokens per byte read at the speed right
  // before and after each repetition: medians; 0: not measured. Memory that others use as well changes its
  // speed within seconds.
  double memory_bytes_per_s = 0, tokens_per_byte = 0;

  double per_token(double amount) const { return tokens ? amount / static_cast<double>(tokens) : 0.0; }
  double stall_share() const { return seconds > 0 ? store.stall_s / seconds : 0.0; }
  // Bytes that had to come from the drive: all that were read but those of experts that nobody asked for.
  double missed_bytes() const;
};

struct BenchResult {
  MemoryPlan plan;
  size_t threads = 0;
  ReadSettings reads;
  bool in_memory = false;      // all experts were loaded before
  double load_s = 0;           // until the engine was ready; of the last one where there were several
  uint64_t warmup_tokens = 0;  // decoded before the measurement
  bool slots_filled = false;   // before the measurement of decoding
  DeviceTierStats device;      // from the backend's start on
  std::optional<Measured> prefill;
  std::vector<Measured> decode;  // one for each depth
  uint64_t peak_bytes = 0;       // largest resident size
  bool peak_is_own = false;      // of this measurement; otherwise of the process so far

  // Weights, and keys and values of the positions before, that a decoded token touches: its share of the
  // step's, where several are decoded together.
  double token_bytes(const Measured& decoded) const;
  bool read_experts() const;  // while something was measured
};

BenchResult bench_package(const fs::path& package, const BenchRequest& request);

// What decoding could reach if it spent its time on nothing but reading what it missed from the drive and
// then all that it touches from memory, each at full speed: tokens per second.
double decode_limit(double missed_bytes, double touched_bytes, double drive_bytes_per_s,
                    double memory_bytes_per_s);

// What the drive gives when it is asked for random experts with these reads.
double drive_bytes_per_s(const Package& package, const ReadSettings& settings);

}  // namespace moeflux
