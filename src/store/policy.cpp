#include "store/policy.h"

#include <algorithm>

#include "base/error.h"

namespace moeflux {
namespace {

// The least recently used leaves. A ring of links through one table, with its head behind the last expert.
class Lru : public EvictionPolicy {
 public:
  explicit Lru(const PolicyShape& shape)
      : head_(shape.n_layers * shape.n_experts), links_(size_t{head_} + 1, Link{kNone, kNone}) {
    links_[head_] = {head_, head_};
  }

  void insert(ExpertId id) override { link(id); }
  void use(ExpertId id) override {
    unlink(id);
    link(id);
  }
  void remove(ExpertId id) override { unlink(id); }
  std::optional<ExpertId> victim(const std::function<bool(ExpertId)>& may_leave) override {
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

}  // namespace

std::vector<std::string> policy_names() { return {"lru"}; }

std::unique_ptr<EvictionPolicy> make_policy(std::string_view name, const PolicyShape& shape) {
  if (name == "lru") return std::make_unique<Lru>(shape);
  fail(Errc::Unsupported, "there is no policy '{}'", name);
}

}  // namespace moeflux
