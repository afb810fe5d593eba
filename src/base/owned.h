// One owner for every handle that must be released. T names the handle type, its null value and its release.
#pragma once

#include <unistd.h>

#include <utility>

namespace moeflux {

template <class T>
class Owned {
 public:
  using Handle = typename T::Handle;
  Owned() = default;
  explicit Owned(Handle h) noexcept : h_(h) {}
  Owned(Owned&& o) noexcept : h_(std::exchange(o.h_, T::null)) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(h_, o.h_);
    return *this;
  }
  ~Owned() {
    if (h_ != T::null) T::release(h_);
  }
  Handle get() const noexcept { return h_; }
  explicit operator bool() const noexcept { return h_ != T::null; }

 private:
  Handle h_ = T::null;
};

struct FdTraits {
  using Handle = int;
  static constexpr int null = -1;
  static void release(int fd) noexcept { ::close(fd); }
};
using Fd = Owned<FdTraits>;

}  // namespace moeflux
