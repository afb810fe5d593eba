#include "ops/ops.h"

#include <vector>

#include "base/error.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace moeflux {

extern const Ops kOps_generic;
#if defined(__x86_64__)
extern const Ops kOps_avx2, kOps_avxvnni, kOps_avx512;
#elif defined(__aarch64__)
extern const Ops kOps_neon;
#endif

std::span<const Ops* const> runnable_ops() {
  static const std::vector<const Ops*> found = [] {
    std::vector<const Ops*> ops;
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
      ops.push_back(&kOps_avx512);
    uint32_t a = 7, b = 0, c = 1, d = 0;  // leaf 7.1: AVX-VNNI has no name in this compiler's list
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (avx2 && (a >> 4 & 1)) ops.push_back(&kOps_avxvnni);
    if (avx2) ops.push_back(&kOps_avx2);
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) ops.push_back(&kOps_neon);
#endif
    ops.push_back(&kOps_generic);
    return ops;
  }();
  return found;
}

const Ops& choose_ops(const std::string& name) {
  std::string known;
  for (const Ops* ops : runnable_ops()) {
    if (name == "auto" || name == ops->name) return *ops;
    known += (known.empty() ? "" : ", ") + std::string(ops->name);
  }
  fail(Errc::Unsupported, "this processor cannot run the instruction set '{}'; it can run {}", name, known);
}

}  // namespace moeflux
