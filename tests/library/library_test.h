// What the tests of the library share.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <moeflux/moeflux.hpp>

namespace library_test {

namespace fs = std::filesystem;

inline const fs::path& storyteller() {
  static const fs::path path = STORYTELLER;
  return path;
}

// Two threads, so that tests that run at the same time leave room for each other.
inline moeflux::OpenOptions small() {
  moeflux::OpenOptions o;
  o.backend = "cpu";
  o.threads = 2;
  o.ctx = 256;
  return o;
}

inline moeflux::Sampling greedy(const moeflux::Model& model) {
  moeflux::Sampling s = model.sampling();
  s.temperature = 0;
  return s;
}

inline moeflux::GenerateOptions greedy_options(const moeflux::Model& model, uint64_t max_tokens) {
  moeflux::GenerateOptions o;
  o.sampling = greedy(model);
  o.max_tokens = max_tokens;
  return o;
}

// The status with which a call fails; MOEFLUX_OK where it does not.
template <class Call>
moeflux_status status_of(Call&& call) {
  try {
    call();
    return MOEFLUX_OK;
  } catch (const moeflux::Error& e) {
    return e.status();
  }
}

}  // namespace library_test
