#include "convert/synth.h"

#include <gtest/gtest.h>

#include "base/numbers.h"

namespace moeflux {
namespace {

const struct {
  const char* name;
  std::vector<uint64_t> shape;
  bool zero_centred;
  std::vector<float> first, last;
} kKnown[] = {
    // seed 17
    {"model.embed_tokens.weight",
     {512, 128},
     false,
     {-0.310546875f, 0.08154296875f, -0.2138671875f, 0.236328125f, 0.220703125f, 0.2314453125f},
     {0.10888671875f, -0.84375f}},
    {"model.layers.0.mlp.gate.weight",
     {16, 128},
     false,
     {0.412109375f, -0.1337890625f, -0.06298828125f, -0.390625f, -0.2294921875f, 0.1396484375f},
     {0.1748046875f, 0.103515625f}},
    {"model.layers.0.input_layernorm.weight",
     {128},
     false,
     {1.0390625f, 1.2734375f, 0.859375f, 0.96875f, 0.96484375f, 0.8359375f},
     {0.890625f, 0.9765625f}},
    {"model.layers.0.linear_attn.A_log",
     {4},
     true,
     {1.296875f, 2.34375f, 2.5625f, 1.96875f},
     {2.5625f, 1.96875f}},
    {"model.layers.1.mlp.experts.gate_up_proj",
     {8, 128, 256},
     false,
     {0.08740234375f, 0.01336669921875f, -0.03076171875f, 0.1513671875f, 0.1611328125f, -0.07080078125f},
     {-0.06591796875f, -0.08251953125f}},
    {"model.layers.0.self_attn.q_proj.weight",
     {256, 128},
     false,
     {-0.23046875f, -0.103515625f, 0.0103759765625f, -0.023681640625f, 0.11474609375f, 0.08203125f},
     {-0.1552734375f, 0.061279296875f}},
};

TEST(Synth, ValuesFollowTheRule) {
  for (const auto& t : kKnown) {
    uint64_t n = 1;
    for (const uint64_t d : t.shape) n *= d;
    std::vector<uint16_t> bits(n), tail(t.last.size());
    const SyntheticRule rule{17, t.zero_centred, false};
    rule.fill(t.name, t.shape, 0, bits);
    rule.fill(t.name, t.shape, n - tail.size(), tail);  // the same values wherever a piece begins
    for (size_t i = 0; i < t.first.size(); ++i) EXPECT_EQ(bf16_to_float(bits[i]), t.first[i]) << t.name;
    for (size_t i = 0; i < t.last.size(); ++i) EXPECT_EQ(bf16_to_float(tail[i]), t.last[i]) << t.name;
  }
}

}  // namespace
}  // namespace moeflux
