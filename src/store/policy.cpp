#include "store/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"

namespace moeflux {
namespace {

using MayLeave = std::function<bool(ExpertId)>;

uint32_t n_all(const PolicyShape& shape) { return shape.n_layers * shape.n_experts; }

// The least recently used leaves. A ring of links through one table, with its head behind the last expert.
class Lru : public EvictionPolicy {
 public:
  explicit Lru(const PolicyShape& shape)
      : head_(n_all(shape)), links_(size_t{head_} + 1, Link{kNone, kNone}) {
    links_[head_] = {head_, head_};
  }

  void insert(ExpertId id) override { link(id); }
  void use(ExpertId id) override {
    unlink(id);
    link(id);
  }
  void remove(ExpertId id) override { unlink(id); }
  std::optional<ExpertId> victim(const MayLeave& may_leave) override {
    for (ExpertId id = links_[head_].after; id != head_; id = links_[id].after)
      if (may_leave(id)) return id;
    return std::nullopt;
  }

 private:
  struct Link {
    ExpertId before, after;
  };
  static constexpr ExpertId kNone = UINT32_MAX;

  void link(ExpertId id) {  // as the most recent
    check(id < head_ && links_[id].after == kNone, "an expert that was not in memory");
    links_[id] = {links_[head_].before, head_};
    links_[links_[id].before].after = id;
    links_[head_].before = id;
  }
  void unlink(ExpertId id) {
    check(id < head_ && links_[id].after != kNone, "an expert that is in memory");
    links_[links_[id].before].after = links_[id].after;
    links_[links_[id].after].before = links_[id].before;
    links_[id] = {kNone, kNone};
  }

  const ExpertId head_;
  std::vector<Link> links_;
};

// Tells from the order of uses which layer a step is at, and how often it has come by each layer.
class Visits {
 public:
  explicit Visits(const PolicyShape& shape)
      : n_experts_(shape.n_experts), counts_(shape.n_layers), last_(n_all(shape)) {}

  // Says that an expert is used. True: with this use, a visit of its layer begins.
  bool use(ExpertId id) {
    const uint32_t layer = layer_of(id);
    // An expert is used once per visit: a model of one layer is told apart by that.
    const bool begins = layer != current_ || last_[id] == counts_[layer];
    if (begins) {
      current_ = layer;
      ++counts_[layer];
    }
    last_[id] = counts_[layer];
    return begins;
  }

  static constexpr uint32_t kNowhere = UINT32_MAX;
  uint32_t current() const { return current_; }  // layer; kNowhere before the first use
  uint32_t layer_of(ExpertId id) const { return id / n_experts_; }
  uint32_t count(uint32_t layer) const { return counts_[layer]; }  // visits, with the current one
  uint32_t last(ExpertId id) const { return last_[id]; }  // the visit that used it, from 1; 0: none yet

 private:
  const uint32_t n_experts_;
  uint32_t current_ = kNowhere;
  std::vector<uint32_t> counts_;  // by layer
  std::vector<uint32_t> last_;    // by expert
};

// The least frequently used leaves, where a use counts half as much after every 32 steps. All counts fade
// alike, so that their order only changes with a use: what is kept is the logarithm of a count as it was at
// step 0.
class Lfru : public EvictionPolicy {
 public:
  explicit Lfru(const PolicyShape& shape)
      : visits_(shape), histories_(n_all(shape), kNoUse), keys_(n_all(shape)) {}

  void insert(ExpertId id) override {
    count(id);
    place(id, histories_[id]);
  }
  void use(ExpertId id) override {
    count(id);
    auto node = order_.extract({keys_[id], id});
    check(!node.empty(), "an expert that is in memory");
    node.value().first = keys_[id] = histories_[id];
    order_.insert(std::move(node));
  }
  void remove(ExpertId id) override {
    check(order_.erase({keys_[id], id}) == 1, "an expert that is in memory");
  }
  std::optional<ExpertId> victim(const MayLeave& may_leave) override {
    for (const auto& [key, id] : order_)
      if (may_leave(id)) return id;
    return std::nullopt;
  }

 private:
  static constexpr double kHalfLife = 32;
  static constexpr double kNoUse = -1e9;  // the logarithm of nothing

  // What is known of it, with one more use now.
  double with_use(ExpertId id) const {
    const double now = visits_.count(visits_.layer_of(id)) / kHalfLife;
    return now + std::log2(1 + std::exp2(histories_[id] - now));
  }
  void count(ExpertId id) {
    visits_.use(id);
    histories_[id] = with_use(id);
  }
  void place(ExpertId id, double key) {
    keys_[id] = key;
    check(order_.emplace(key, id).second, "an expert that was not in memory");
  }

  Visits visits_;
  std::vector<double> histories_;  // of all experts; log2 of the faded count
  std::vector<double> keys_;       // of those in memory: their place in the order
  std::set<std::pair<double, ExpertId>> order_;
};

// The one that is expected to be used latest leaves.
//
// How probable a use at the layer's next visit is, is estimated from fading counts with several half-lives,
// from "chosen last time" to "popular all along". How much each of them counts is learnt from what is used:
// each use raises the weights of those that had expected it (the mixture's weights by expectation
// maximisation, one use at a time). From a probability p follows the expected number of visits to wait, 1 /
// p, less what has passed of the round through the layers: the experts of the layer just computed are the
// farthest away.
//
// Estimates of a layer change only when it is visited. They are computed for those in memory, and put into a
// heap, when a victim is wanted after that: O(n_slots) per step, a few microseconds per layer, and nothing
// where all are hits.
class Forecast : public EvictionPolicy {
 public:
  explicit Forecast(const PolicyShape& shape)
      : shape_(shape), visits_(shape), experts_(n_all(shape)), layers_(shape.n_layers) {
    for (size_t age = 0; age < kAges; ++age)
      for (size_t k = 0; k < kScales; ++k)
        fading_[age][k] = static_cast<float>(std::exp2(-static_cast<double>(age) / kHalfLives[k]));
    weights_.fill(1.0f / kScales);
  }

  void insert(ExpertId id) override {
    enter(id);
    count(id);
  }
  void use(ExpertId id) override {
    check(experts_[id].present, "an expert that is in memory");
    count(id);
  }
  void remove(ExpertId id) override {
    check(experts_[id].present, "an expert that is in memory");
    experts_[id].present = experts_[id].listed = false;
  }

  std::optional<ExpertId> victim(const MayLeave& may_leave) override {
    if (const auto found = latest(may_leave)) return found;
    for (uint32_t l = 0; l < shape_.n_layers; ++l) list(l);  // those of the current visit as well
    return latest(may_leave);
  }

 private:
  static constexpr size_t kScales = 4;
  static constexpr std::array<double, kScales> kHalfLives = {0.5, 16, 64, 512};  // visits
  static constexpr size_t kAges = 4096;  // what is older counts as this old
  static constexpr float kLearningRate = 1 / 512.0f;
  static constexpr float kLeastWeight = 0.002f;  // none is given up for good
  static constexpr float kLeastChance = 1e-6f, kMostChance = 0.98f;
  using Scales = std::array<float, kScales>;

  struct Expert {
    Scales counts = {};  // faded up to its last use
    bool present = false, listed = false;
  };
  struct Candidate {
    float wait;  // visits, from the layer's next one on
    ExpertId id;
    bool operator<(const Candidate& o) const { return wait < o.wait; }
  };
  struct Layer {
    std::vector<Candidate> heap;  // the longest wait first; those that have left since are no longer `listed`
    bool outdated = false;
  };

  void enter(ExpertId id) {
    check(id < experts_.size() && !experts_[id].present, "an expert that was not in memory");
    experts_[id].present = true;
  }

  // Counts over so many visits, as shares of them; one that has just begun is not diluted by what was before
  // it.
  Scales shares(uint32_t n_visits) const {
    const Scales& faded = fading_[std::min<size_t>(n_visits, kAges - 1)];
    Scales s;
    for (size_t k = 0; k < kScales; ++k) s[k] = weights_[k] * (1 - fading_[1][k]) / (1 - faded[k]);
    return s;
  }

  void count(ExpertId id) {
    const uint32_t layer = visits_.layer_of(id), last = visits_.last(id), left = visits_.current();
    if (visits_.use(id)) layers_[left == Visits::kNowhere ? layer : left].outdated = true;
    Expert& e = experts_[id];
    if (last != 0) {
      const uint32_t now = visits_.count(layer);
      learn(e, shares(now - 1), now - last);
      const Scales& faded = fading_[std::min<size_t>(now - last, kAges - 1)];
      for (size_t k = 0; k < kScales; ++k) e.counts[k] *= faded[k];
    }
    for (float& c : e.counts) c += 1;
  }

  void learn(const Expert& e, const Scales& share, uint32_t age) {
    const Scales& faded = fading_[std::min<size_t>(age - 1, kAges - 1)];
    Scales expected;
    float sum = 0;
    for (size_t k = 0; k < kScales; ++k) sum += expected[k] = share[k] * e.counts[k] * faded[k];
    if (sum < kLeastChance) return;
    for (size_t k = 0; k < kScales; ++k) {
      const float w = weights_[k] + kLearningRate * (expected[k] / sum - weights_[k]);
      weights_[k] = std::max(w, kLeastWeight);
    }
  }

  float wait_of(ExpertId id, const Scales& share, uint32_t n_visits) const {
    const Expert& e = experts_[id];
    const uint32_t last = visits_.last(id);
    float chance = 0;
    if (last != 0) {
      const Scales& faded = fading_[std::min<size_t>(n_visits - last, kAges - 1)];
      for (size_t k = 0; k < kScales; ++k) chance += share[k] * e.counts[k] * faded[k];
    }
    return 1 / std::clamp(chance, kLeastChance, kMostChance);
  }

  // Makes the layer's heap anew.
  void list(uint32_t layer) {
    Layer& l = layers_[layer];
    l.outdated = false;
    l.heap.clear();
    const uint32_t n_visits = visits_.count(layer);
    const Scales share = shares(std::max(n_visits, 1u));
    for (ExpertId id = layer * shape_.n_experts; id < (layer + 1) * shape_.n_experts; ++id) {
      Expert& e = experts_[id];
      e.listed = e.present;
      if (e.listed) l.heap.push_back({wait_of(id, share, n_visits), id});
    }
    std::make_heap(l.heap.begin(), l.heap.end());
  }

  // The layer's candidate with the longest wait that may leave.
  std::optional<Candidate> longest(Layer& l, const MayLeave& may_leave) {
    std::optional<Candidate> found;
    pinned_.clear();
    while (!l.heap.empty()) {
      const Candidate first = l.heap.front();
      const bool listed = experts_[first.id].listed;
      if (listed && may_leave(first.id)) {
        found = first;
        break;
      }
      std::pop_heap(l.heap.begin(), l.heap.end());
      l.heap.pop_back();
      if (listed) pinned_.push_back(first);
    }
    for (const Candidate& c : pinned_) {
      l.heap.push_back(c);
      std::push_heap(l.heap.begin(), l.heap.end());
    }
    return found;
  }

  std::optional<ExpertId> latest(const MayLeave& may_leave) {
    std::optional<ExpertId> found;
    float most = 0;
    const uint32_t now = visits_.current() == Visits::kNowhere ? 0 : visits_.current();
    for (uint32_t l = 0; l < shape_.n_layers; ++l) {
      if (layers_[l].outdated) list(l);
      const auto candidate = longest(layers_[l], may_leave);
      if (!candidate) continue;
      const uint32_t ahead = (l > now ? l : l + shape_.n_layers) - now;  // layers to go: 1..n_layers
      const float wait = candidate->wait + static_cast<float>(ahead) / static_cast<float>(shape_.n_layers);
      if (!found || wait > most) found = candidate->id, most = wait;
    }
    return found;
  }

  const PolicyShape shape_;
  Visits visits_;
  std::vector<Expert> experts_;
  std::vector<Layer> layers_;
  std::array<Scales, kAges> fading_;  // by visits ago
  Scales weights_;
  std::vector<Candidate> pinned_;  // room for longest()
};

template <class Policy>
std::unique_ptr<EvictionPolicy> make(const PolicyShape& shape) {
  return std::make_unique<Policy>(shape);
}

struct Maker {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)(const PolicyShape&);
};
constexpr Maker kMakers[] = {{"forecast", make<Forecast>}, {"lfru", make<Lfru>}, {"lru", make<Lru>}};

}  // namespace

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Maker& m : kMakers) names.emplace_back(m.name);
  return names;
}

std::unique_ptr<EvictionPolicy> make_policy(std::string_view name, const PolicyShape& shape) {
  check(shape.n_layers > 0 && shape.n_experts > 0, "experts to choose from");
  std::string known;
  for (const Maker& m : kMakers) {
    if (name == m.name) return m.make(shape);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", m.name);
  }
  fail(Errc::Unsupported, "there is no eviction policy '{}'; there is {}", name, known);
}

}  // namespace moeflux
