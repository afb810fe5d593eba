// What tests of kernels share: arrays in device memory, and a reason to skip where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "base/error.h"
#include "cuda/device.h"

namespace moeflux::cuda {

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    try {
      open_device();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  void TearDown() override {
    if (!IsSkipped()) check_cuda(cudaDeviceSynchronize(), "kernels of a test");
  }
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n), buffer_(std::max<size_t>(n, 1) * sizeof(T), "an array of a test") {
    check_cuda(cudaMemset(buffer_.as(), 0xff, buffer_.size()), "poison");  // floats: NaN
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) {
    check_cuda(cudaMemcpy(buffer_.as(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
               "upload");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}
  T* get() const { return buffer_.as<T>(); }
  std::vector<T> values() const {
    std::vector<T> v(n_);
    check_cuda(cudaMemcpy(v.data(), buffer_.as(), n_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return v;
  }

 private:
  size_t n_;
  DeviceBuffer buffer_;
};

}  // namespace moeflux::cuda
