// The sampler against plain double-precision filters that are written from the formulas, and what must hold
// whatever the formulas are: ties, odd inputs, repeatability, distributions.
#include "gen/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "gen/philox.h"

namespace moeflux {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Like a model's: a normal bulk and a few tokens above it.
std::vector<float> model_logits(size_t n, uint32_t seed, float peak = 9) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (uint32_t part = 0; part < 3; ++part)
      for (const uint32_t word : philox({static_cast<uint32_t>(i), seed, part, 1}, {5, 6}))
        sum += static_cast<float>(word) * 0x1p-32f - 0.5f;
    x[i] = 2 * sum;
  }
  for (uint32_t r = 0; r < 30; ++r)
    x[philox({r, seed, 9, 9}, {7, 8})[0] % n] = peak - 1.1f * std::log2(static_cast<float>(r + 1));
  return x;
}

// -- plain filters: chances by id, 0 for what is gone

using Chances = std::vector<double>;

struct Plain {
  std::vector<float> logits;
  Chances p;

  Plain(std::vector<float> x, double temperature) : logits(std::move(x)), p(logits.size()) {
    const double most = *std::ranges::max_element(logits);
    for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - most) / temperature);
    normalise();
  }
  void normalise() {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& v : p) v /= sum;
  }
  std::vector<size_t> ranks() const {
    std::vector<size_t> order;
    for (size_t i = 0; i < p.size(); ++i)
      if (p[i] > 0) order.push_back(i);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    return order;
  }
  void keep(const std::function<bool(size_t)>& wanted) {
    for (size_t i = 0; i < p.size(); ++i)
      if (p[i] > 0 && !wanted(i)) p[i] = 0;
    normalise();
  }
  void keep_first(const std::vector<size_t>& order, double share) {
    std::vector<bool> kept(p.size());
    double sum = 0;
    for (const size_t i : order) {
      kept[i] = true;
      if ((sum += p[i]) >= share) break;
    }
    keep([&](size_t i) { return kept[i]; });
  }

  void top_n_sigma(double n) {
    double mean = 0, square = 0, count = 0;
    for (const float x : logits)
      if (x > -kInfinity) mean += x, ++count;
    mean /= count;
    for (const float x : logits)
      if (x > -kInfinity) square += (x - mean) * (x - mean);
    const double least = *std::ranges::max_element(logits) - n * std::sqrt(square / count);
    keep([&](size_t i) { return logits[i] >= least; });
  }
  void top_k(size_t k) {
    const auto order = ranks();
    if (k >= order.size()) return;
    std::vector<bool> kept(p.size());
    for (size_t i = 0; i < k; ++i) kept[order[i]] = true;
    keep([&](size_t i) { return kept[i]; });
  }
  void typical_p(double share) {
    double entropy = 0;
    for (const double v : p)
      if (v > 0) entropy -= v * std::log(v);
    auto order = ranks();
    std::ranges::sort(order, {}, [&](size_t i) { return std::fabs(-std::log(p[i]) - entropy); });
    keep_first(order, share);
  }
  void top_p(double share) { keep_first(ranks(), share); }
  void min_p(double share) {
    const double most = *std::ranges::max_element(p);
    keep([&](size_t i) { return p[i] >= share * most; });
  }
  void xtc(double threshold) {
    std::vector<size_t> top;
    for (const size_t i : ranks())
      if (p[i] >= threshold) top.push_back(i);
    if (top.size() < 2) return;
    top.pop_back();
    keep([&](size_t i) { return std::ranges::find(top, i) == top.end(); });
  }
};

Chances chances(std::span<const Sampler::Candidate> candidates, size_t n) {
  Chances p(n);
  double sum = 0;
  for (const auto& c : candidates) sum += static_cast<double>(c.weight);
  for (const auto& c : candidates) p[token_of(c.key)] = static_cast<double>(c.weight) / sum;
  return p;
}

void expect_equal(const Chances& got, const Chances& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // Beyond a range of 2^40 a token has no chance; the plain filters keep it with next to none.
    if (want[i] > 1e-11 || got[i] > 1e-11) {
      ASSERT_EQ(got[i] > 0, want[i] > 0) << what << ", token " << i << ": " << got[i] << " or " << want[i];
    }
    ASSERT_NEAR(got[i], want[i], 1e-6 * want[i] + 1e-11) << what << ", token " << i;
  }
}

// Options and the same in plain filters.
struct Case {
  std::string name;
  SamplerOptions options;
  std::function<void(Plain&)> plain;
};

std::vector<Case> single_filters() {
  std::vector<Case> cases;
  for (const double t : {0.3, 0.7, 1.0, 1.7, 5.0})
    cases.push_back({fmt::format("temperature {}", t), {.temperature = t}, [](Plain&) {}});
  for (const uint64_t k : {1, 2, 20, 63, 64, 500})
    cases.push_back({fmt::format("top-k {}", k), {.top_k = k}, [k](Plain& p) { p.top_k(k); }});
  for (const double s : {0.0, 0.01, 0.3, 0.8, 0.95, 0.999, 0.999999})
    cases.push_back({fmt::format("top-p {}", s), {.top_p = s}, [s](Plain& p) { p.top_p(s); }});
  for (const double s : {1.0, 0.5, 0.1, 0.02, 1e-3, 1e-6})
    cases.push_back({fmt::format("min-p {}", s), {.min_p = s}, [s](Plain& p) { p.min_p(s); }});
  for (const double s : {0.1, 0.5, 0.95})
    cases.push_back({fmt::format("typical-p {}", s), {.typical_p = s}, [s](Plain& p) { p.typical_p(s); }});
  for (const double n : {0.5, 1.0, 2.0, 4.0})
    cases.push_back({fmt::format("sigma {}", n), {.top_n_sigma = n}, [n](Plain& p) { p.top_n_sigma(n); }});
  for (const double s : {0.05, 0.1, 0.4})
    cases.push_back(
        {fmt::format("xtc {}", s), {.xtc_probability = 1, .xtc_threshold = s}, [s](Plain& p) { p.xtc(s); }});
  return cases;
}

TEST(Sampler, EachFilterIsItsFormula) {
  for (const size_t n : {1, 5, 64, 65, 1000, 5003})
    for (uint32_t seed = 0; seed < 3; ++seed)
      for (const Case& c : single_filters()) {
        const auto logits = model_logits(n, seed);
        Plain plain(logits, c.options.temperature);
        c.plain(plain);
        Sampler sampler(c.options, n);
        expect_equal(chances(sampler.candidates(logits, 0), n), plain.p,
                     fmt::format("{}, {} tokens, seed {}", c.name, n, seed));
      }
}

// Whether a choice from a list exists; if so, it is the one from all logits.
bool chooses_from_list(const SamplerOptions& options, const std::vector<float>& logits,
                       const Allowed& allowed, const std::string& what) {
  Sampler sampler(options, logits.size());
  const std::optional<ShortlistWish> wish = sampler.wish(allowed);
  if (!wish) return false;
  Shortlist list;
  shortlist_ref(logits, *wish, list);
  bool all = true;
  for (size_t position = 0; position < 20; ++position) {
    const std::optional<Sample> few = sampler.sample(list, position, allowed);
    all &= few.has_value();
    if (few) {
      EXPECT_EQ(few->token, sampler.sample(logits, position, allowed).token) << what;
    }
  }
  return all;
}

TEST(Sampler, AShortListGivesTheSameChoice) {
  std::vector<Case> cases = single_filters();
  cases.push_back({"greedy", {.temperature = 0, .top_k = 5}, {}});
  cases.push_back({"a usual one", {.temperature = 0.6, .top_k = 20, .top_p = 0.95}, {}});
  cases.push_back({"without top-k", {.temperature = 0.6, .top_p = 0.8, .min_p = 0.01}, {}});
  cases.push_back({"with xtc", {.top_k = 40, .xtc_probability = 0.5, .xtc_threshold = 0.02}, {}});
  const std::vector<Token> banned = {3, 17, 1 << 20};
  std::map<std::string, int> from_list;
  for (const size_t n : {1, 5, 300, 5003})
    for (uint32_t seed = 0; seed < 3; ++seed)
      for (const Case& c : cases) {
        std::vector<float> logits = model_logits(n, seed);
        if (seed == 2) logits[n / 2] = logits[n / 3] = 20;  // a tie of the best
        const std::string what = fmt::format("{}, {} tokens, seed {}", c.name, n, seed);
        const bool few = chooses_from_list(c.options, logits, {}, what);
        from_list[c.name] += n == 5003 && few;
        if (n > 5) chooses_from_list(c.options, logits, {.banned = banned}, what + ", some banned");
      }
  for (const char* name : {"greedy", "a usual one", "without top-k", "with xtc", "top-k 1", "top-k 64",
                           "top-p 0.3", "min-p 0.1"})
    EXPECT_EQ(from_list.at(name), 3) << name;
  for (const char* name : {"temperature 1", "top-k 500", "typical-p 0.5", "sigma 2", "top-p 1"})
    EXPECT_EQ(from_list[name], 0) << name;
}

TEST(Sampler, AsksForAllLogitsWhereAListCannotDecide) {
  const std::vector<float> flat(3000, 2.5f);
  Sampler sampler(SamplerOptions{.top_p = 0.5}, flat.size());
  Shortlist list;
  shortlist_ref(flat, *sampler.wish(), list);
  EXPECT_FALSE(sampler.sample(list, 0));  // half of the tokens are more than it has
  Sampler best_five(SamplerOptions{.top_k = 5}, flat.size());
  shortlist_ref(flat, *best_five.wish(), list);
  EXPECT_TRUE(best_five.sample(list, 0));
  list.n = kMostListed + 1;  // too many of the same rank
  EXPECT_FALSE(best_five.sample(list, 0));
  const auto wish = [](const SamplerOptions& o, const Allowed& allowed = {}) {
    return Sampler(o, 100).wish(allowed).has_value();
  };
  const std::vector<uint64_t> mask = {1, 0};
  const std::vector<Token> one = {7};
  EXPECT_TRUE(wish({.top_k = 5}, {.banned = one}));
  EXPECT_FALSE(wish({.top_p = 0.5}, {.banned = one}));
  EXPECT_FALSE(wish({.top_k = 5}, {.mask = mask}));
  EXPECT_FALSE(wish({.top_k = 5, .penalties = {.repetition = 1.1}}));
  EXPECT_FALSE(wish({.top_k = 5, .logit_bias = {{3, 1.0}}}));
  EXPECT_FALSE(wish({.top_k = 5, .banned = {3}}));
  EXPECT_FALSE(wish({.temperature = 0, .logprobs = 2}));
  EXPECT_FALSE(wish({.mirostat = {.on = true}}));
  EXPECT_FALSE(wish({.xtc_probability = 0.5, .xtc_threshold = 0.02}));
}

TEST(Sampler, FiltersComeInTheStatedOrder) {
  const SamplerOptions all{.temperature = 0.8,
                           .top_k = 40,
                           .top_p = 0.9,
                           .min_p = 0.03,
                           .typical_p = 0.97,
                           .top_n_sigma = 3,
                           .xtc_probability = 1,
                           .xtc_threshold = 0.15};
  // Each with one filter left out too, so that neighbours meet in other pairs.
  for (int without = -1; without < 6; ++without)
    for (uint32_t seed = 0; seed < 20; ++seed) {
      SamplerOptions o = all;
      const auto logits = model_logits(2000, seed, 5);
      Plain plain(logits, o.temperature);
      without == 0 ? void(o.top_n_sigma = 0) : plain.top_n_sigma(o.top_n_sigma);
      without == 1 ? void(o.top_k = 0) : plain.top_k(o.top_k);
      without == 2 ? void(o.typical_p = 1) : plain.typical_p(o.typical_p);
      without == 3 ? void(o.top_p = 1) : plain.top_p(o.top_p);
      without == 4 ? void(o.min_p = 0) : plain.min_p(o.min_p);
      without == 5 ? void(o.xtc_probability = 0) : plain.xtc(o.xtc_threshold);
      Sampler sampler(o, logits.size());
      expect_equal(chances(sampler.candidates(logits, 0), logits.size()), plain.p,
                   fmt::format("without {}, seed {}", without, seed));
    }
}

TEST(Sampler, FlatLogitsAreCutByIdToo) {
  const std::vector<float> logits(3000, 2.5f);
  const auto kept = [&](const SamplerOptions& o) {
    Sampler sampler(o, logits.size());
    std::vector<Token> ids;
    for (const auto& c : sampler.candidates(logits, 0)) ids.push_back(token_of(c.key));
    return ids;
  };
  std::vector<Token> first(375);
  std::iota(first.begin(), first.end(), 0);
  EXPECT_EQ(kept({.top_k = 375}), first);
  EXPECT_EQ(kept({.top_p = 0.125}), first);
  EXPECT_EQ(kept({.typical_p = 0.125}), first);
  EXPECT_EQ(kept({.min_p = 1}).size(), 3000u);
  EXPECT_EQ(kept({.top_n_sigma = 1}).size(), 3000u);
  // The last in rank order of those above the threshold stays.
  EXPECT_EQ(kept({.top_k = 4, .xtc_probability = 1, .xtc_threshold = 0.2}), std::vector<Token>{3});
}

TEST(Sampler, NegativeZeroTiesWithZero) {
  const std::vector<float> logits = {-1, -0.0f, 0.0f, -0.0f};
  Sampler top(SamplerOptions{.top_k = 2}, 4), greedy(SamplerOptions{.temperature = 0}, 4);
  EXPECT_EQ(greedy.sample(logits, 0).token, 1u);
  const auto c = top.candidates(logits, 0);
  ASSERT_EQ(c.size(), 2u);
  EXPECT_EQ(token_of(c[0].key), 1u);
  EXPECT_EQ(token_of(c[1].key), 2u);
}

TEST(Sampler, TemperatureZeroTakesTheLowestIdOfTheLargest) {
  for (const size_t n : {1, 64, 130, 5000}) {
    std::vector<float> logits = model_logits(n, 4);
    const auto best = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
    logits[n - 1] = logits[best];
    Sampler sampler(SamplerOptions{.temperature = 0, .top_k = 5, .min_p = 0.1}, n);
    EXPECT_EQ(sampler.sample(logits, 3).token, best);
    ASSERT_EQ(sampler.candidates(logits, 3).size(), 1u);
  }
}

// -- draws

// The draw by its definition: a running sum over the candidates by id.
Token plain_draw(std::span<const Sampler::Candidate> candidates, uint64_t seed, size_t position) {
  uint64_t sum = 0, running = 0;
  for (const auto& c : candidates) sum += c.weight;
  const uint64_t target = random_below(draw_at(seed, position).token, sum);
  for (const auto& c : candidates)
    if ((running += c.weight) > target) return token_of(c.key);
  return 0;
}

TEST(Sampler, DrawsFromItsCandidatesWhateverThePath) {
  for (const Case& c : single_filters())
    for (const size_t n : {1, 65, 3000}) {
      const auto logits = model_logits(n, 3);
      SamplerOptions o = c.options;
      o.seed = 99;
      Sampler sampler(o, n);
      for (size_t position = 0; position < 20; ++position) {
        const Token got = sampler.sample(logits, position).token;
        ASSERT_EQ(got, plain_draw(sampler.candidates(logits, position), o.seed, position)) << c.name;
      }
    }
}

double chi_square(const std::vector<size_t>& counts, const Chances& p, size_t draws) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double want = p[i] * static_cast<double>(draws), d = static_cast<double>(counts[i]) - want;
    EXPECT_TRUE(p[i] > 0 || counts[i] == 0);
    if (p[i] > 0) sum += d * d / want;
  }
  return sum;
}

TEST(Sampler, DrawsFollowTheChances) {
  constexpr size_t kTokens = 24, kDraws = 40000;
  std::vector<float> logits(kTokens);
  for (size_t i = 0; i < kTokens; ++i) logits[i] = static_cast<float>(i * 7 % 24) * 0.15f;
  for (const SamplerOptions& base :
       {SamplerOptions{}, SamplerOptions{.temperature = 0.6, .top_k = 12},
        SamplerOptions{.temperature = 1.5, .top_p = 0.8, .min_p = 0.1}, SamplerOptions{.typical_p = 0.7}})
    for (const uint64_t seed : {0ull, 1ull, 0x123456789abcdefull}) {
      SamplerOptions o = base;
      o.seed = seed;
      Sampler sampler(o, kTokens);
      std::vector<size_t> counts(kTokens);
      for (size_t i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits, i).token];
      const Chances p = chances(sampler.candidates(logits, 0), kTokens);
      // At most 23 degrees of freedom: 60 is exceeded by chance less than once in 20000 times.
      EXPECT_LT(chi_square(counts, p, kDraws), 60) << "seed " << seed;
    }
}

TEST(Sampler, XtcActsAsOftenAsAsked) {
  const std::vector<float> logits = {1, 1, 1, 1};
  Sampler sampler(SamplerOptions{.xtc_probability = 0.25, .xtc_threshold = 0.1, .seed = 4}, 4);
  size_t acted = 0;
  for (size_t i = 0; i < 4000; ++i) acted += sampler.candidates(logits, i).size() == 1;
  EXPECT_NEAR(static_cast<double>(acted), 1000, 100);
}

TEST(Sampler, TheSameSeedGivesTheSameIdsOnEveryInstructionSet) {
  const size_t n = 5003;
  for (const SamplerOptions& base :
       {SamplerOptions{}, SamplerOptions{.temperature = 0.6, .top_k = 20, .top_p = 0.95},
        SamplerOptions{.temperature = 1.3, .top_p = 0.97}, SamplerOptions{.typical_p = 0.9},
        SamplerOptions{.mirostat = {.on = true, .target = 4}}}) {
    const auto run = [&](const Ops& ops, uint64_t seed) {
      SamplerOptions o = base;
      o.seed = seed;
      o.logprobs = 3;
      Sampler sampler(o, n, ops);
      std::vector<std::pair<Token, double>> out;
      for (uint32_t i = 0; i < 40; ++i) {
        const Sample s = sampler.sample(model_logits(n, i, 7), i);
        sampler.accept(s.token);
        out.emplace_back(s.token, s.logprobs->chosen);
      }
      return out;
    };
    const auto want = run(*runnable_ops().front(), 7);
    for (const Ops* ops : runnable_ops()) EXPECT_EQ(run(*ops, 7), want) << ops->name;
    EXPECT_NE(run(*runnable_ops().front(), 8), want);
  }
}

// The choice is fixed in the source too, so that another compiler or machine cannot drift unnoticed.
TEST(Sampler, ChoicesDoNotDrift) {
  Sampler sampler(SamplerOptions{.temperature = 0.9, .top_k = 100, .top_p = 0.98, .seed = 42}, 5003);
  std::vector<Token> got;
  for (uint32_t i = 0; i < 12; ++i) got.push_back(sampler.sample(model_logits(5003, i, 6), i).token);
  EXPECT_EQ(got, (std::vector<Token>{3218, 2403, 3424, 2956, 4105, 1483, 3670, 1828, 526, 2635, 2962, 2506}));
}

TEST(Sampler, APositionDoesNotDependOnThoseBefore) {
  const auto logits = model_logits(1000, 1, 3);
  Sampler fresh(SamplerOptions{.seed = 3}, 1000), used(SamplerOptions{.seed = 3}, 1000);
  for (size_t i = 0; i < 17; ++i) used.sample(logits, i);
  EXPECT_EQ(fresh.sample(logits, 17).token, used.sample(logits, 17).token);
}

// -- odd logits

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
}

TEST(Sampler, DamagedLogitsAreRefusedWithTheirPlace) {
  for (const size_t n : {3, 64, 200})
    for (const float bad : {NAN, -NAN, kInfinity})
      for (const size_t at : {size_t{0}, n / 2, n - 1})
        for (const double temperature : {0.0, 1.0}) {
          std::vector<float> logits(n, 1);
          logits[at] = bad;
          Sampler sampler(SamplerOptions{.temperature = temperature}, n);
          expect_words(refusal([&] { sampler.sample(logits, 17); }),
                       {"position 17", fmt::format("token {} is", at).c_str()});
        }
}

TEST(Sampler, OneTokenLeftIsTaken) {
  for (const size_t n : {1, 64, 1000}) {
    std::vector<float> logits(n, -kInfinity);
    logits[n / 2] = -1e30f;
    for (const Case& c : single_filters()) {
      Sampler sampler(c.options, n);
      EXPECT_EQ(sampler.sample(logits, 0).token, n / 2) << c.name;
    }
    Sampler mirostat(SamplerOptions{.mirostat = {.on = true}}, n);
    EXPECT_EQ(mirostat.sample(logits, 0).token, n / 2);
    logits[n / 2] = -kInfinity;
    expect_words(refusal([&] { mirostat.sample(logits, 5); }), {"position 5", "no token"});
  }
}

TEST(Sampler, HugeLogitsAreLogits) {
  const float most = std::numeric_limits<float>::max();
  const std::vector<float> logits = {-most, most, 0, most, 1e30f};
  for (const Case& c : single_filters()) {
    if (c.options.top_n_sigma > 0) continue;  // there the deviation is as huge
    Sampler sampler(c.options, logits.size());
    const auto candidates = sampler.candidates(logits, 0);
    for (const auto& k : candidates) EXPECT_TRUE(token_of(k.key) == 1 || token_of(k.key) == 3) << c.name;
    EXPECT_FALSE(candidates.empty());
  }
  Sampler sigma(SamplerOptions{.top_n_sigma = 2}, logits.size());
  EXPECT_EQ(sigma.sample(logits, 0).token % 2, 1u);
}

TEST(Sampler, TinyTemperaturesSeparateAllButEqualLogits) {
  for (const double t : {1e-5, 1e-20, 1e-300}) {
    Sampler sampler(SamplerOptions{.temperature = t}, 4);
    const auto c = sampler.candidates(std::vector<float>{1, 2, 2, 1.99f}, 0);
    ASSERT_EQ(c.size(), 2u);
    EXPECT_EQ(c[0].weight, c[1].weight);
  }
}

// -- what may be chosen

TEST(Sampler, MasksAndBansLeaveTheRest) {
  const size_t n = 200;
  const auto logits = model_logits(n, 2);
  std::vector<uint64_t> mask(4);
  for (const Token t : {3u, 70u, 128u, 199u}) mask[t / 64] |= uint64_t{1} << t % 64;
  const std::vector<Token> later = {70, 5000};  // beyond the vocabulary: nothing to ban
  SamplerOptions o;
  o.banned = {199};
  Sampler sampler(o, n);
  std::map<Token, double> kept;
  for (const auto& c : sampler.candidates(logits, 0, {mask, later})) kept[token_of(c.key)];
  EXPECT_EQ(kept.size(), 2u);
  EXPECT_TRUE(kept.contains(3) && kept.contains(128));
  Plain plain({logits[3], logits[128]}, 1);
  const Chances p = chances(sampler.candidates(logits, 0, {mask, later}), n);
  EXPECT_NEAR(p[3], plain.p[0], 1e-6);
  // The next call without them knows nothing of them.
  EXPECT_EQ(sampler.candidates(logits, 0).size(), n - 1);
  const std::vector<uint64_t> none(4);
  expect_words(refusal([&] { sampler.sample(logits, 8, {none, {}}); }), {"position 8"});
}

TEST(Sampler, BiasIsAddedToTheLogit) {
  const size_t n = 100;
  auto logits = model_logits(n, 2);
  SamplerOptions o;
  o.logit_bias = {{7, 2.5}, {9, -100}};
  Sampler biased(o, n);
  const Chances got = chances(biased.candidates(logits, 0), n);
  logits[7] += 2.5f;
  logits[9] -= 100;
  expect_equal(got, Plain(logits, 1).p, "bias");
}

// -- logprobs

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const size_t n = 3000;
  const auto logits = model_logits(n, 6);
  SamplerOptions o{.temperature = 0.3, .top_k = 3, .penalties = {.repetition = 1.5}, .logprobs = 20};
  o.logit_bias = {{11, 50}};
  Sampler sampler(o, n);
  sampler.read(std::vector<Token>{1, 2, 3});
  const Sample s = sampler.sample(logits, 0);
  EXPECT_EQ(s.token, 11u);  // by its bias, which the logprobs do not know
  const Plain plain(logits, 1);
  EXPECT_NEAR(s.logprobs->chosen, std::log(plain.p[11]), 1e-6);
  const auto order = plain.ranks();
  ASSERT_EQ(s.logprobs->top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(s.logprobs->top[i].token, order[i]);
    EXPECT_NEAR(s.logprobs->top[i].logprob, std::log(plain.p[order[i]]), 1e-6);
  }
}

TEST(Sampler, LogprobsOfFewTokens) {
  const std::vector<float> logits = {0, -kInfinity, 0};
  Sampler sampler(SamplerOptions{.temperature = 0, .logit_bias = {}, .logprobs = 20}, 3);
  const Sample s = sampler.sample(logits, 0);
  EXPECT_NEAR(s.logprobs->chosen, -std::log(2), 1e-12);
  ASSERT_EQ(s.logprobs->top.size(), 2u);  // what the model rules out is not listed
  Sampler chosen_only(SamplerOptions{.logprobs = 0}, 3);
  EXPECT_TRUE(chosen_only.sample(logits, 0).logprobs->top.empty());
  Sampler none(SamplerOptions{}, 3);
  EXPECT_FALSE(none.sample(logits, 0).logprobs);
}

// -- mirostat

TEST(Sampler, MirostatKeepsWhatIsNotTooSurprising) {
  const size_t n = 2000;
  SamplerOptions o{.temperature = 0.9, .mirostat = {.on = true, .target = 3, .rate = 0.2}, .seed = 5};
  Sampler sampler(o, n);
  double limit = 6;
  for (uint32_t i = 0; i < 200; ++i) {
    const auto logits = model_logits(n, i, 6);
    Plain plain(logits, o.temperature);
    const auto order = plain.ranks();
    const Chances all = plain.p;
    plain.keep([&](size_t t) { return t == order[0] || -std::log2(all[t]) <= limit; });
    expect_equal(chances(sampler.candidates(logits, i), n), plain.p, fmt::format("step {}", i));
    const Token token = sampler.sample(logits, i).token;
    limit -= o.mirostat.rate * (-std::log2(plain.p[token]) - o.mirostat.target);
  }
}

// -- options

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  const auto why = [](const std::function<void(SamplerOptions&)>& change) {
    SamplerOptions o;
    change(o);
    return refusal([&] { Sampler(o, 100); });
  };
  expect_words(why([](auto& o) { o.temperature = -1; }), {"temperature is -1", "from 0"});
  expect_words(why([](auto& o) { o.temperature = NAN; }), {"temperature is nan"});
  expect_words(why([](auto& o) { o.top_p = 1.5; }), {"top_p is 1.5", "from 0 to 1"});
  expect_words(why([](auto& o) { o.min_p = -0.1; }), {"min_p"});
  expect_words(why([](auto& o) { o.typical_p = 2; }), {"typical_p"});
  expect_words(why([](auto& o) { o.top_n_sigma = -1; }), {"top_n_sigma"});
  expect_words(why([](auto& o) { o.xtc_probability = 2; }), {"xtc_probability"});
  expect_words(why([](auto& o) { o.xtc_threshold = 2; }), {"xtc_threshold"});
  expect_words(why([](auto& o) { o.penalties.repetition = 0; }), {"repetition_penalty is 0"});
  expect_words(why([](auto& o) { o.penalties.frequency = kInfinity; }), {"frequency_penalty"});
  expect_words(why([](auto& o) { o.penalties.presence = -1e9; }), {"presence_penalty"});
  expect_words(why([](auto& o) { o.penalties.dry.multiplier = -1; }), {"dry_multiplier"});
  expect_words(why([](auto& o) { o.penalties.dry.base = 0.5; }), {"dry_base"});
  expect_words(why([](auto& o) { o.penalties.dry.breakers = {100}; }), {"dry_sequence_breakers", "100"});
  expect_words(why([](auto& o) { o.mirostat.target = -1; }), {"mirostat_tau"});
  expect_words(why([](auto& o) { o.mirostat.rate = 2; }), {"mirostat_eta"});
  expect_words(why([](auto& o) { o.logit_bias = {{100, 1}}; }), {"logit_bias", "token 100"});
  expect_words(why([](auto& o) { o.logit_bias = {{1, kInfinity}}; }), {"logit_bias"});
  expect_words(why([](auto& o) { o.banned = {4000000000}; }), {"banned", "4000000000"});
  EXPECT_EQ(why([](auto&) {}), "");
}

}  // namespace
}  // namespace moeflux
