#include "ops/ops.h"

#include <vector>

#include "base/error.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace moeflux {

extern const Ops kOps_generic;
#if defined(__x86_64__)
extern const Ops kOps_avx2, kOps_avxvnni, kOps_avx512, kOps_avx512bf16, kOps_amx;
#elif defined(__aarch64__)
extern const Ops kOps_neon;
#endif

#if defined(__x86_64__)
// Tiles and their int8 products, which no processor has without bf16 pairs; the system must be asked for the
// registers' place in a thread's state.
static bool has_amx() {
  uint32_t a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return (d >> 24 & 1) && (d >> 25 & 1) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

#if defined(__x86_64__)
// AMD's family 25 with AVX-512. Zen 5, which is family 26, brings half as much without being asked.
static bool is_zen4() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool amd = b == 0x68747541;  // "Auth"
  a = 1, c = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const uint32_t family = (a >> 8 & 15) + (a >> 20 & 255);
  return amd && family == 25 && __builtin_cpu_supports("avx512f");
}
const size_t kMostUnaided = is_zen4() ? 2 : 0;
#else
const size_t kMostUnaided = 0;
#endif

std::span<const Ops* const> runnable_ops() {
  static const std::vector<const Ops*> found = [] {
    std::vector<const Ops*> ops;
#if defined(__x86_64__)
    bool avx512 = false;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
      avx512 = true;
    uint32_t a = 7, b = 0, c = 1, d = 0;  // leaf 7.1: AVX-VNNI has no name in this compiler's list
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    const bool bf16 = avx512 && (a >> 5 & 1);
    if (bf16 && has_amx()) ops.push_back(&kOps_amx);
    if (bf16) ops.push_back(&kOps_avx512bf16);
    if (avx512) ops.push_back(&kOps_avx512);
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
