#include "base/numbers.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/text.h"

namespace moeflux {
namespace {

TEST(Numbers, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // tie, even stays
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);  // tie, odd goes up
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
}

TEST(Numbers, F16HasSubnormalsAndInfinities) {
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_TRUE(std::isinf(f16_to_float(0xfc00)));
}

TEST(Numbers, E4m3AndE8m0) {
  EXPECT_EQ(e4m3_to_float(0x01), 0.001953125f);
  EXPECT_EQ(e4m3_to_float(0x08), 0.015625f);
  EXPECT_EQ(e4m3_to_float(0x3c), 1.5f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(120), 0x1p-7f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
}

TEST(Text, BytesBothWays) {
  EXPECT_EQ(parse_bytes("6GiB"), 6ull << 30);
  EXPECT_EQ(parse_bytes("1.5G"), 3ull << 29);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  for (const char* bad : {"", "GiB", "6 giga", "-1", "1e40T", "6GiBx"})
    EXPECT_THROW(parse_bytes(bad), Error) << bad;
  EXPECT_EQ(format_bytes(576), "576 B");
  EXPECT_EQ(format_bytes(3ull << 29), "1.50 GiB");
}

}  // namespace
}  // namespace moeflux
