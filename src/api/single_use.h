// One call at a time for an object, without waiting: a second one is told so, from another thread or from a
// callback of the first.
#pragma once

#include <atomic>
#include <memory>

#include "api/call.h"

namespace moeflux::api {

class SingleUse {
 public:
  class Use {
   public:
    explicit Use(std::atomic<bool>& taken) : taken_(taken) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { taken_ = false; }

   private:
    std::atomic<bool>& taken_;
  };

  // For as long as what it returns lives; throws a Failure with MOEFLUX_BUSY.
  [[nodiscard]] Use begin(const char* name) {
    if (taken_.exchange(true))
      throw Failure(MOEFLUX_BUSY, fmt::format("another call is at work with this {}", name));
    return Use(taken_);
  }

 private:
  std::atomic<bool> taken_ = false;
};

}  // namespace moeflux::api
