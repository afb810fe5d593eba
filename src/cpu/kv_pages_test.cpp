#include "cpu/kv_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace moeflux {
namespace {

constexpr size_t kBytes = 100'000;

bool all_zero(const KvPage& page) {
  return std::all_of(page.data(), page.data() + kBytes, [](std::byte b) { return b == std::byte{}; });
}

TEST(KvPages, ComeZeroFilledAlsoWhenTheyWereUsedBefore) {
  KvPagePool pool(kBytes);
  const std::byte* where = nullptr;
  {
    const KvPage page = pool.take();
    EXPECT_TRUE(all_zero(page));
    where = page.data();
    std::memset(page.data(), 0xff, kBytes);
  }
  const KvPage again = pool.take();
  EXPECT_EQ(again.data(), where);
  EXPECT_TRUE(all_zero(again));
}

TEST(KvPages, LiveAsLongAsSomethingRefersToThem) {
  KvPagePool pool(kBytes);
  KvPage a = pool.take();
  EXPECT_FALSE(a.shared());
  {
    const KvPage b = a;
    EXPECT_TRUE(a.shared());
    EXPECT_EQ(b.data(), a.data());
    EXPECT_EQ(pool.n_used(), 1u);
    a = pool.take();
    EXPECT_FALSE(b.shared());
    EXPECT_NE(b.data(), a.data());
    EXPECT_EQ(pool.n_used(), 2u);
  }
  EXPECT_EQ(pool.n_used(), 1u);
  a = {};
  EXPECT_EQ(pool.n_used(), 0u);
}

TEST(KvPages, MemoryIsUsedAgainAndGivenBack) {
  KvPagePool pool(kBytes);
  pool.take();
  const uint64_t one = pool.reserved_bytes();
  for (int round = 0; round < 5; ++round) {
    std::vector<KvPage> pages;
    for (int i = 0; i < 2000; ++i) pages.push_back(pool.take());
    EXPECT_GE(pool.reserved_bytes(), 2000 * kBytes);
    EXPECT_LE(pool.reserved_bytes(), 2000 * kBytes + 2 * one);
    for (size_t i = 0; i < pages.size(); i += 2) pages[i] = {};  // no slab is free as a whole
    std::vector<KvPage> more;
    for (int i = 0; i < 1000; ++i) more.push_back(pool.take());
    EXPECT_LE(pool.reserved_bytes(), 2000 * kBytes + 2 * one);
    pages.clear(), more.clear();
    EXPECT_EQ(pool.n_used(), 0u);
    EXPECT_EQ(pool.reserved_bytes(), one);
  }
}

}  // namespace
}  // namespace moeflux
