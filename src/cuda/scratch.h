// Device memory that grows to what is asked of it and stays: the token loop allocates nothing.
#pragma once

#include "cuda/device.h"
#include "cuda/linear.h"

namespace moeflux::cuda {

// Counts how often scratch memory has moved: a recorded graph is good only as long as none has.
struct Moves {
  uint64_t count = 0;
};

template <class T>
class Scratch {
 public:
  Scratch(Moves& moves, const char* what) : moves_(moves), what_(what) {}
  T* get(size_t n) {
    if (n * sizeof(T) > buffer_.size()) {
      buffer_ = DeviceBuffer();  // what it held is not needed any more
      buffer_ = DeviceBuffer(n * sizeof(T), what_);
      ++moves_.count;
    }
    return buffer_.template as<T>();
  }

 private:
  Moves& moves_;
  const char* what_;
  DeviceBuffer buffer_;
};

// Vectors on their way into products: floats and, where asked for, their int8 form.
class VectorScratch {
 public:
  VectorScratch(Moves& moves, const char* what) : floats_(moves, what), q_(moves, what), span_(moves, what) {}
  Vectors make(size_t n, size_t cols, bool quantised) {
    Vectors v{.n = n, .cols = cols, .f = floats_.get(n * cols), .stride = cols};
    if (quantised) {
      v.q = q_.get(n * span_count(cols) * 64);
      v.span = span_.get(n * span_count(cols));
    }
    return v;
  }

 private:
  Scratch<float> floats_;
  Scratch<int8_t> q_;
  Scratch<QuantSpan> span_;
};

}  // namespace moeflux::cuda
