#include "gen/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "base/checked.h"
#include "package/safetensors.h"

namespace moeflux {
namespace {

struct GoldenTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
  uint64_t rows() const { return shape.empty() ? 1 : shape[0]; }
};

class GoldenFile {
 public:
  explicit GoldenFile(const fs::path& path) : path_(path.string()) {
    const File file = File::open_read(path);
    for (const TensorInfo& info : read_safetensors_table(file)) {
      if (info.type != DType::F32 && info.type != DType::I32)
        fail(Errc::Corrupt, "{}: tensor {} is {}, want F32 or I32", path_, info.name, to_string(info.type));
      GoldenTensor t{info.shape, std::vector<float>(info.elements())};
      file.read_at(info.begin, std::as_writable_bytes(std::span(t.values)));
      if (info.type == DType::I32)
        for (float& f : t.values) f = static_cast<float>(std::bit_cast<int32_t>(f));
      tensors_[info.name] = std::move(t);
    }
  }
  const GoldenTensor* find(const std::string& name) const {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    used_.insert(name);
    return &it->second;
  }
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& [name, _] : tensors_)
      if (!used_.contains(name)) names.push_back(name);
    return names;
  }
  std::vector<Token> tokens(const std::string& name) const {
    const GoldenTensor* t = find(name);
    if (!t) fail(Errc::Corrupt, "{}: no tensor {}", path_, name);
    if (t->values.empty()) fail(Errc::Corrupt, "{}: tensor {} has no tokens", path_, name);
    std::vector<Token> out;
    for (const float f : t->values) {
      if (f < 0) fail(Errc::Corrupt, "{}: tensor {} has the token {}", path_, name, f);
      out.push_back(static_cast<Token>(f));
    }
    return out;
  }
  std::vector<std::string> prompts() const {  // p0, p1, ...
    std::vector<std::string> names;
    for (size_t i = 0; find(fmt::format("p{}.input_ids", i)); ++i) names.push_back(fmt::format("p{}", i));
    if (names.empty()) fail(Errc::Corrupt, "{}: no p0.input_ids: not a golden file", path_);
    return names;
  }
  uint64_t longest() const {
    uint64_t most = 1;
    for (const std::string& p : prompts()) most = std::max<uint64_t>(most, tokens(p + ".input_ids").size());
    if (find("greedy.input_ids"))
      most = std::max<uint64_t>(most, tokens("greedy.input_ids").size() + tokens("greedy.output_ids").size());
    return most;
  }

 private:
  std::string path_;
  std::map<std::string, GoldenTensor> tensors_;
  mutable std::set<std::string> used_;
};

// Largest difference; NaN where any value is NaN, infinity where the sizes differ.
double largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(double{a[i]} - double{b[i]});
    if (std::isnan(d)) return d;
    most = std::max(most, d);
  }
  return most;
}

using Stages = std::map<std::pair<std::string, uint64_t>, std::vector<float>>;

Tap recorder(Stages& stages) {
  return {[&](const TapTensor& t) {
    auto& v = stages[{std::string(t.name), t.layer}];
    v.insert(v.end(), t.values.begin(), t.values.end());
    return false;
  }};
}

class GoldenCheck {
 public:
  GoldenCheck(Engine& engine, const GoldenFile& golden, double bound)
      : engine_(engine), golden_(golden), bound_(bound), vocab_(engine.config().n_vocab) {}

  std::vector<VerifyItem> run() {
    for (const std::string& p : golden_.prompts()) prompt(p);
    if (golden_.find("greedy.input_ids")) greedy();
    for (const std::string& name : golden_.unused())
      add(fmt::format("golden tensor {}", name), INFINITY, "has no counterpart in this model");
    return std::move(items_);
  }

 private:
  void add(const std::string& name, double error, std::string note = {}) {
    items_.push_back({name, error, bound_, std::move(note)});
  }

  void prompt(const std::string& p) {
    const std::vector<Token> tokens = golden_.tokens(p + ".input_ids");
    const GoldenTensor* want = golden_.find(p + ".logits");
    if (!want || want->values.size() != want->rows() * vocab_ || want->rows() > tokens.size())
      fail(Errc::Corrupt, "golden file: {}.logits does not fit {} tokens and a vocabulary of {}", p,
           tokens.size(), vocab_);
    Stages stages;
    const auto sequence = engine_.make_sequence();
    const auto prefill = engine_.eval(*sequence, tokens, want->rows(), recorder(stages));
    add(fmt::format("{} prefill logits ({} tokens)", p, tokens.size()),
        largest_difference(prefill, want->values));

    std::vector<float> single;
    const auto one = engine_.make_sequence();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto row = engine_.eval(*one, {&tokens[i], 1});
      if (i + want->rows() >= tokens.size()) single.insert(single.end(), row.begin(), row.end());
    }
    add(fmt::format("{} token by token", p), largest_difference(single, want->values));
    add(fmt::format("{} prefill = token by token", p), largest_difference(single, prefill));
    hidden(p, stages);
    routers(p, stages);
  }

  void hidden(const std::string& p, const Stages& stages) {
    const uint64_t n = engine_.config().n_layers();
    for (uint64_t l = 0; l <= n; ++l) {
      const GoldenTensor* want = golden_.find(fmt::format("{}.hidden.{}", p, l));
      if (!want) continue;
      const auto& mine = l == 0   ? stages.at({"embed", 0})
                         : l == n ? stages.at({"final_norm", n})
                                  : stages.at({"mlp", l - 1});
      add(fmt::format("{} hidden {}", p, l), largest_difference(mine, want->values));
    }
  }

  void routers(const std::string& p, const Stages& stages) {
    const size_t k = engine_.config().moe.top_k;
    for (uint64_t l = 0; l < engine_.config().n_layers(); ++l) {
      const auto item = [&](int j) { return golden_.find(fmt::format("{}.router.{}.{}", p, l, j)); };
      if (!item(0) || !item(1) || !item(2) || !stages.contains({"router_logits", l})) continue;
      add(fmt::format("{} router {} logits", p, l),
          largest_difference(stages.at({"router_logits", l}), item(0)->values));
      const auto mine = by_id(stages.at({"topk_ids", l}), stages.at({"topk_weights", l}), k);
      const auto want = by_id(item(2)->values, item(1)->values, k);
      add(fmt::format("{} router {} choices", p, l),
          largest_difference(mine.first, want.first) == 0 ? 0 : INFINITY);
      add(fmt::format("{} router {} weights", p, l), largest_difference(mine.second, want.second));
    }
  }

  // Both sorted by expert id within each token: the order of choices says nothing.
  static std::pair<std::vector<float>, std::vector<float>> by_id(std::vector<float> ids,
                                                                 std::vector<float> weights, size_t k) {
    std::vector<std::pair<float, float>> row(k);
    for (size_t at = 0; at + k <= ids.size() && at + k <= weights.size(); at += k) {
      for (size_t i = 0; i < k; ++i) row[i] = {ids[at + i], weights[at + i]};
      std::ranges::sort(row);
      for (size_t i = 0; i < k; ++i) std::tie(ids[at + i], weights[at + i]) = row[i];
    }
    return {std::move(ids), std::move(weights)};
  }

  void greedy() {
    const auto want = golden_.tokens("greedy.output_ids");
    golden_.find("greedy.margin");  // tells how clear each choice was; nothing to compare
    const auto sequence = engine_.make_sequence();
    const auto got = engine_.generate_greedy(*sequence, golden_.tokens("greedy.input_ids"), want.size());
    size_t same = 0;
    while (same < want.size() && got[same] == want[same]) ++same;
    add("greedy tokens", same == want.size() ? 0 : INFINITY,
        fmt::format("{} of {} equal", same, want.size()));
  }

  Engine& engine_;
  const GoldenFile& golden_;
  double bound_;
  size_t vocab_;
  std::vector<VerifyItem> items_;
};

struct StageError {
  double difference = 0, size = 0, worst = 0;
  uint64_t layer = 0;
};

// Compares each stage with the recorded one and puts the recorded values in its place.
class StageComparison {
 public:
  explicit StageComparison(const Stages& want) : want_(want) {}

  bool operator()(const TapTensor& t) {
    const std::string name(t.name);
    const auto& all = want_.at({name, t.layer});
    size_t& at = position_[{name, t.layer}];
    const auto part = std::span(all).subspan(at, t.values.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < part.size(); ++i) {
      const double d = double{t.values[i]} - double{part[i]};
      const double added = double{part[i]} - (residual(name) ? double{before_[i]} : 0.0);
      difference += d * d;
      size += added * added;
    }
    const double relative = std::sqrt(difference / std::max(size, 1e-60));
    if (name != "topk_ids") {
      StageError& e = errors_[name];
      if (!(relative <= e.worst)) e.worst = relative, e.layer = t.layer;
    } else {
      choices_ += part.size();
      different_ += count_different_picks(t.values, part, t.cols);
    }
    std::ranges::copy(part, t.values.begin());
    if (name == "embed" || residual(name)) before_.assign(part.begin(), part.end());
    at += part.size();
    return true;
  }

  std::vector<VerifyItem> items(double bound) const {
    std::vector<VerifyItem> out;
    for (const auto& [name, e] : errors_)
      out.push_back(
          {fmt::format("stage {}", name), e.worst, bound, fmt::format("largest in layer {}", e.layer)});
    if (choices_)
      out.push_back({"router choices that differ",
                     static_cast<double>(different_) / static_cast<double>(choices_), bound,
                     fmt::format("{} of {}", different_, choices_)});
    return out;
  }

 private:
  static bool residual(const std::string& name) { return name == "attention" || name == "mlp"; }

  const Stages& want_;
  std::map<std::pair<std::string, uint64_t>, size_t> position_;
  std::map<std::string, StageError> errors_;
  std::vector<float> before_;
  uint64_t choices_ = 0, different_ = 0;
};

}  // namespace

uint64_t count_different_picks(std::span<const float> a, std::span<const float> b, size_t top_k) {
  check(a.size() == b.size() && a.size() % top_k == 0, "picks of the same tokens");
  uint64_t n = 0;
  for (size_t row = 0; row < a.size(); row += top_k)
    for (const float pick : a.subspan(row, top_k))
      n += std::ranges::find(b.subspan(row, top_k), pick) == b.subspan(row, top_k).end();
  return n;
}

std::vector<VerifyItem> verify_golden(const fs::path& package, const EngineOptions& options,
                                      const fs::path& golden, double bound) {
  const GoldenFile file(golden);
  if (options.precision == Precision::Fast) {
    // Small errors flip routes, so fast precision is judged stage by stage on exact inputs, not end to end.
    EngineOptions exact = on_backend(options, "cpu-ref");
    exact.kv.reset();
    exact.precision = Precision::Exact;
    return verify_against(package, options, exact, golden, bound);
  }
  EngineOptions o = options;
  o.ctx = file.longest();
  Engine engine(package, o);
  if (bound == 0) bound = engine.config().has(Mixer::DeltaNet) ? 1e-3 : 1e-4;
  return GoldenCheck(engine, file, bound).run();
}

std::vector<VerifyItem> verify_against(const fs::path& package, const EngineOptions& options,
                                       const EngineOptions& reference, const fs::path& golden, double bound) {
  std::vector<std::vector<Token>> prompts;
  uint64_t longest = 0;
  EngineOptions a = reference, b = options;
  if (!golden.empty()) {
    const GoldenFile file(golden);
    for (const std::string& p : file.prompts()) prompts.push_back(file.tokens(p + ".input_ids"));
  }
  for (const auto& p : prompts) longest = std::max<uint64_t>(longest, p.size());
  a.ctx = b.ctx = std::max<uint64_t>(longest, 64);
  Engine first(package, a), second(package, b);
  if (prompts.empty()) {  // 64 tokens spread over the vocabulary
    prompts.emplace_back();
    for (uint64_t i = 0; i < 64; ++i)
      prompts[0].push_back(static_cast<Token>(i * 2654435761u % first.config().n_vocab));
  }
  if (bound == 0)
    bound = a.precision == Precision::Exact && b.precision == Precision::Exact ? 1e-3 : kFastBound;
  std::vector<VerifyItem> items;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Stages stages;
    const auto s1 = first.make_sequence(), s2 = second.make_sequence();
    first.eval(*s1, prompts[i], 1, recorder(stages));
    StageComparison comparison(stages);
    second.eval(*s2, prompts[i], 1, {std::ref(comparison)});
    for (VerifyItem& item : comparison.items(bound)) {
      item.name = fmt::format("p{} {}", i, item.name);
      items.push_back(std::move(item));
    }
  }
  return items;
}

}  // namespace moeflux
