#include "store/expert_store.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/checked.h"
#include "base/hash.h"
#include "base/progress.h"
#include "base/text.h"

namespace moeflux {
namespace {

using Clock = std::chrono::steady_clock;

// Of the slots, the part that may hold experts which are only passing through or only guessed.
size_t passing_slots(size_t slots) { return std::max<size_t>(1, slots / 8); }
constexpr size_t kLeastSlotsForGuesses = 16;
constexpr float kRecentHalf = 32;  // steps after which a use counts half in a snapshot

}  // namespace

struct ExpertStore::Slot {
  enum class State : uint8_t { Free, Loading, Ready, Failed };
  std::span<std::byte> bytes;
  SlotClass* cls = nullptr;
  uint64_t tag = 0;
  State state = State::Free;
  ExpertKey key{};
  ExpertId id = 0;
  int pins = 0;                   // leases, and demands that will hand one out
  bool guessed = false;           // and not asked for so far
  bool expected = false;          // guessed, and its time has not passed
  bool abandoned = false;         // whoever asked has given up; free again once its reads return
  const Demand* owner = nullptr;  // while it loads: the demand that began it, if one did and still waits
  std::optional<std::list<Slot*>::iterator>
      cold;  // where it is in the class's list, unless the policy has it
  Clock::time_point begun;
  std::optional<Hasher> hasher;  // of what has arrived; only the loader's calls use it
};

struct ExpertStore::SlotClass {
  uint64_t record_bytes = 0;
  AlignedBuffer memory;  // of all slots; pages cost nothing until a slot is used
  std::vector<Slot> slots;
  std::vector<Slot*> free;
  std::vector<Slot*> where;      // by ExpertId: the slot that holds it or will
  std::vector<Recency> recency;  // by ExpertId
  std::unique_ptr<EvictionPolicy> policy;
  std::list<Slot*> cold;  // not the policy's: passing through or guessed; newest first
};

// -- leases and demands

ExpertStore::Lease::Lease(Lease&& o) noexcept : store_(o.store_), slot_(std::exchange(o.slot_, nullptr)) {}

ExpertStore::Lease::~Lease() {
  if (!slot_) return;
  const std::lock_guard lock(store_->mutex_);
  store_->unpin(*slot_);
  store_->admit_all();
}

ExpertKey ExpertStore::Lease::key() const noexcept { return slot_->key; }
std::span<const std::byte> ExpertStore::Lease::bytes() const noexcept { return slot_->bytes; }

ExpertStore::Demand::Demand(ExpertStore& store, std::span<const ExpertKey> keys, Use use)
    : store_(store), use_(use) {
  const std::lock_guard lock(store.mutex_);
  if (!keys.empty()) ++store.layers_.at(keys.front().layer).n_steps;
  for (const ExpertKey& key : keys) store.ask(*this, key);
  std::ranges::reverse(pending_);
  store.drop_guesses();
  store.demands_.push_back(this);
  store.admit_all();
}

ExpertStore::Demand::~Demand() {
  const std::lock_guard lock(store_.mutex_);
  store_.demands_.remove(this);
  for (Slot* slot : ready_) store_.unpin(*slot);
  for (Slot* slot : loading_) {
    if (slot->owner == this) slot->owner = nullptr;
    store_.unpin(*slot);
    if (slot->pins == 0 && store_.loader_->cancel(slot->tag)) {
      store_.forget(*slot);
      store_.set_free(*slot);
    }
  }
  store_.admit_all();
}

bool ExpertStore::Demand::take(std::vector<Lease>& leases, size_t most) {
  std::unique_lock lock(store_.mutex_);
  for (;;) {
    if (error_) throw Error(*error_);
    if (!ready_.empty()) break;
    if (pending_.empty() && loading_.empty()) return false;
    store_.stall(*this, lock);
  }
  const size_t n = std::min(most, ready_.size());
  for (size_t i = 0; i < n; ++i) leases.push_back(Lease(store_, *ready_[i]));  // each takes over our pin
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(n));
  return true;
}

void ExpertStore::keep_missing(std::vector<ExpertKey>& keys) const {
  const std::lock_guard lock(mutex_);
  std::erase_if(keys, [&](const ExpertKey& key) {
    const LayerInfo& l = info(key.layer);
    return l.cls->where[l.first + key.expert] != nullptr;
  });
}

bool ExpertStore::Demand::any_ready() const {
  const std::lock_guard lock(store_.mutex_);
  return !ready_.empty();
}

// -- the store

ExpertStore::ExpertStore(const Package& package, const StoreOptions& options)
    : package_(package), options_(options) {
  make_slots(options.budget_bytes);
  const ReadSettings& reads = options.reads;
  auto queue =
      make_read_queue(reads.queue, holds_all_ ? std::max(reads.depth, reads.bulk_depth) : reads.depth);
  if (options.register_memory && !holds_all_) queue->register_memory(slot_groups());
  registered_ = queue.get();
  if (options.wrap_queue) queue = options.wrap_queue(std::move(queue));
  // A record's checksum is made as its bytes arrive: there is then little left to do after the last of them.
  const auto arrived = [this](uint64_t tag, std::span<const std::byte> bytes) {
    Slot& slot = *slots_[tag];
    if (options_.check_reads && !slot.hasher) slot.hasher.emplace();
    if (slot.hasher) slot.hasher->add(bytes);
  };
  loader_ = std::make_unique<Loader>(std::move(queue), options.reads, arrived,
                                     [this](uint64_t tag, const LoadResult& r) { loaded(tag, r); });
}

ExpertStore::~ExpertStore() { check(demands_.empty(), "no demand that outlives its store"); }

void ExpertStore::make_slots(uint64_t budget) {
  const Manifest& manifest = package_.manifest();
  if (budget < least_budget(manifest))
    fail(Errc::OutOfMemory,
         "a budget of {} for experts is too small: one expert of each record size needs {}",
         format_bytes(budget), format_bytes(least_budget(manifest)));
  std::map<uint64_t, uint64_t> experts, n_layers, widest;  // by record size
  for (const ExpertLayer& l : manifest.layers) {
    experts[l.record_bytes] += l.n_experts();
    ++n_layers[l.record_bytes];
    widest[l.record_bytes] = std::max<uint64_t>(widest[l.record_bytes], l.n_experts());
  }
  // Each class gets one slot, its share of the bytes that are left, and at most one slot per expert.
  const auto rest = static_cast<double>(budget - least_budget(manifest));
  holds_all_ = true;
  for (const auto& [bytes, n] : experts) {
    const double share = static_cast<double>(bytes * n) / static_cast<double>(manifest.expert_bytes());
    const auto more = static_cast<uint64_t>(share * rest / static_cast<double>(bytes));
    auto cls = std::make_unique<SlotClass>();
    cls->record_bytes = bytes;
    cls->slots = std::vector<Slot>(std::min<uint64_t>(1 + more, n));
    cls->memory = AlignedBuffer(cls->slots.size() * bytes);
    cls->where.resize(n_layers[bytes] * widest[bytes]);
    cls->recency.resize(cls->where.size());
    cls->policy = make_policy(options_.policy, {.n_layers = static_cast<uint32_t>(n_layers[bytes]),
                                                .n_experts = static_cast<uint32_t>(widest[bytes]),
                                                .n_slots = static_cast<uint32_t>(cls->slots.size())});
    for (size_t i = 0; i < cls->slots.size(); ++i) {
      Slot& slot = cls->slots[i];
      slot.bytes = cls->memory.bytes().subspan(i * bytes, bytes);
      slot.cls = cls.get();
      slot.tag = slots_.size();
      slots_.push_back(&slot);
    }
    for (size_t i = cls->slots.size(); i-- > 0;) cls->free.push_back(&cls->slots[i]);
    holds_all_ &= cls->slots.size() == n;
    classes_[bytes] = std::move(cls);
  }
  std::map<uint64_t, ExpertId> next;
  for (const ExpertLayer& l : manifest.layers) {
    layers_[l.layer] = {&l, classes_.at(l.record_bytes).get(), next[l.record_bytes]};
    next[l.record_bytes] += static_cast<ExpertId>(widest[l.record_bytes]);
  }
}

// The memory of all slots, of records of one size in the order in which it is filled. Reads make the pages
// that they need, but one at a time, in the thread that asks for them: where the system is slow to give
// memory, that takes longer than reading.
std::vector<std::span<std::byte>> ExpertStore::page_pieces() const {
  constexpr size_t kPiece = 16u << 20;
  std::vector<std::span<std::byte>> pieces;
  for (const std::span<std::byte> all : memory())
    for (size_t at = 0; at < all.size(); at += kPiece)
      pieces.push_back(all.subspan(at, std::min(kPiece, all.size() - at)));
  return pieces;
}

// Slots that lie side by side, in few enough groups for a queue to keep count of.
std::vector<std::span<std::byte>> ExpertStore::slot_groups() const {
  constexpr size_t kMostGroups = 8192;
  const size_t together = (slots_.size() + kMostGroups - 1) / kMostGroups;
  std::vector<std::span<std::byte>> groups;
  for (const auto& [bytes, cls] : classes_)
    for (size_t i = 0; i < cls->slots.size(); i += together)
      groups.push_back(
          cls->memory.bytes().subspan(i * bytes, std::min(together, cls->slots.size() - i) * bytes));
  return groups;
}

uint64_t ExpertStore::least_budget(const Manifest& manifest) {
  std::map<uint64_t, bool> sizes;
  for (const ExpertLayer& l : manifest.layers) sizes[l.record_bytes] = true;
  uint64_t sum = 0;
  for (const auto& [bytes, _] : sizes) sum += bytes;
  return sum;
}

const ExpertStore::LayerInfo& ExpertStore::info(uint64_t layer) const {
  const auto it = layers_.find(layer);
  check(it != layers_.end(), "a layer with experts");
  return it->second;
}

const ExpertLayer& ExpertStore::layer(uint64_t layer) const { return *info(layer).layer; }
size_t ExpertStore::slots_for(uint64_t layer) const { return info(layer).cls->slots.size(); }

uint64_t ExpertStore::slot_bytes() const {
  uint64_t sum = 0;
  for (const auto& [bytes, cls] : classes_) sum += bytes * cls->slots.size();
  return sum;
}

std::vector<std::span<std::byte>> ExpertStore::memory() const {
  std::vector<std::span<std::byte>> all;
  for (const auto& [bytes, cls] : classes_) all.push_back(cls->memory.bytes());
  return all;
}

StoreStats ExpertStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

float ExpertStore::Recency::at(uint64_t now) const {
  return sum == 0 ? 0 : sum * std::exp2(-static_cast<float>(now - step) / kRecentHalf);
}

StoreSnapshot ExpertStore::snapshot() const {
  const std::lock_guard lock(mutex_);
  StoreSnapshot out;
  const float weight = 1 - std::exp2(-1 / kRecentHalf);  // of one step: all that ever were add up to one
  for (const auto& [index, l] : layers_) {
    StoreSnapshot::Layer layer{.layer = index, .held = {}, .used = {}};
    for (uint64_t e = 0; e < l.layer->n_experts(); ++e) {
      const Slot* slot = l.cls->where[l.first + e];
      layer.held.push_back(!slot                               ? StoreSnapshot::Held::No
                           : slot->state == Slot::State::Ready ? StoreSnapshot::Held::Yes
                                                               : StoreSnapshot::Held::Loading);
      layer.used.push_back(std::min(1.0f, weight * l.cls->recency[l.first + e].at(l.n_steps)));
    }
    out.layers.push_back(std::move(layer));
  }
  return out;
}

ExpertStore::Lease ExpertStore::lease(ExpertKey key) {
  Demand demand(*this, {&key, 1}, Use::Decode);
  std::vector<Lease> one;
  check(demand.take(one), "the expert that was asked for");
  return std::move(one.front());
}

std::optional<ExpertStore::Lease> ExpertStore::lease_if_here(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  Slot* slot = where(key);
  if (!slot || slot->state != Slot::State::Ready) return std::nullopt;
  ++stats_.hits;
  if (slot->guessed) ++stats_.prefetch_useful;
  slot->guessed = slot->expected = false;
  ++slot->pins;
  return Lease(*this, *slot);
}

void ExpertStore::load_all() {
  if (!holds_all_) return;
  std::vector<ExpertKey> keys;
  uint64_t bytes = 0;
  for (const auto& [index, l] : layers_)
    for (uint64_t e = 0; e < l.layer->n_experts(); ++e, bytes += l.layer->record_bytes)
      keys.push_back({index, e});
  Progress progress("loading experts", bytes, options_.progress);
  const std::vector<std::span<std::byte>> pieces = page_pieces();
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> makers;  // stay ahead of the reads
  for (size_t t = 0; t < options_.threads; ++t) try {
      makers.emplace_back([&](const std::stop_token& stop) {
        for (size_t i; !stop.stop_requested() && (i = next++) < pieces.size();) make_pages(pieces[i]);
      });
    } catch (const std::system_error&) {
      break;  // reads make the pages that nobody has made
    }
  Demand demand(*this, keys, Use::Fill);
  std::vector<Lease> leases;
  while (demand.take(leases)) {
    for (const Lease& l : leases) progress.add(l.bytes().size());
    leases.clear();
  }
}

// -- with mutex_ held

ExpertStore::Slot*& ExpertStore::where(ExpertKey key) {
  const LayerInfo& l = info(key.layer);
  check(key.expert < l.layer->n_experts(), "an expert of the layer");
  return l.cls->where[l.first + key.expert];
}

void ExpertStore::ask(Demand& demand, ExpertKey key) {
  Slot* slot = where(key);
  const bool ready = slot && slot->state == Slot::State::Ready;
  ++(ready ? stats_.hits : stats_.misses);
  const LayerInfo& l = info(key.layer);
  Recency& recency = l.cls->recency[l.first + key.expert];
  recency = {recency.at(l.n_steps) + 1, l.n_steps};
  if (!slot) {
    demand.pending_.push_back(key);
    return;
  }
  if (slot->guessed) ++(ready ? stats_.prefetch_useful : stats_.prefetch_late);
  slot->guessed = slot->expected = false;
  ++slot->pins;
  touch(*slot, demand.use_);
  if (!ready) loader_->promote(slot->tag);
  (ready ? demand.ready_ : demand.loading_).push_back(slot);
}

// An expert that is here is used: by decoding it becomes the policy's, a sweep changes nothing. Nobody asks
// the policy where nothing has to go.
void ExpertStore::touch(Slot& slot, Use use) {
  if (use == Use::Sweep || holds_all_) return;
  if (!slot.cold) return slot.cls->policy->use(slot.id);
  slot.cls->cold.erase(*slot.cold);
  slot.cold.reset();
  slot.cls->policy->insert(slot.id);
}

// Gives slots to those who wait for one: demands in the order of asking, then guesses.
void ExpertStore::admit_all() {
  bool waiting = false;
  for (Demand* demand : demands_) {
    while (!demand->pending_.empty() && admit(*demand)) {
    }
    waiting |= !demand->pending_.empty();
  }
  if (!waiting)
    while (!guesses_.empty() && admit_guess(guesses_.back(), guess_use_)) guesses_.pop_back();
  loader_->go();
}

bool ExpertStore::admit(Demand& demand) {
  const ExpertKey key = demand.pending_.back();
  Slot* slot = where(key);
  if (slot) {  // another demand has begun to load it since
    ++slot->pins;
    slot->guessed = slot->expected = false;
    touch(*slot, demand.use_);
    loader_->promote(slot->tag);
    (slot->state == Slot::State::Ready ? demand.ready_ : demand.loading_).push_back(slot);
    if (slot->state == Slot::State::Ready) changed_.notify_all();
  } else {
    slot = find_room(*info(key.layer).cls, demand.use_, false);
    if (!slot) return false;
    begin_load(*slot, key, demand.use_, false);
    slot->owner = &demand;
    ++slot->pins;
    demand.loading_.push_back(slot);
  }
  demand.pending_.pop_back();
  return true;
}

bool ExpertStore::admit_guess(ExpertKey key, Use use) {
  if (where(key)) return true;
  SlotClass& cls = *info(key.layer).cls;
  // With few slots every guess would stand in the way of a demand.
  if (cls.slots.size() < kLeastSlotsForGuesses || expected_.size() >= passing_slots(cls.slots.size()))
    return false;
  Slot* slot = find_room(cls, use, true);
  if (!slot) return false;
  begin_load(*slot, key, use, true);
  slot->guessed = slot->expected = true;
  expected_.push_back(slot);
  ++stats_.prefetched;
  return true;
}

ExpertStore::Slot* ExpertStore::find_room(SlotClass& cls, Use use, bool guess) {
  if (!cls.free.empty()) {
    Slot* slot = cls.free.back();
    cls.free.pop_back();
    return slot;
  }
  const auto idle = [](const Slot* s) { return s->pins == 0 && s->state == Slot::State::Ready; };
  // The newest of what passes through: the oldest, from the first layers, is what the next sweep wants first.
  Slot* slot = nullptr;
  for (Slot* s : cls.cold)
    if (idle(s) && !s->expected) {
      slot = s;
      break;
    }
  const bool may_take = use != Use::Sweep || cls.cold.size() < passing_slots(cls.slots.size());
  if (!slot && may_take) {
    const auto id = cls.policy->victim([&](ExpertId i) { return idle(cls.where[i]); });
    if (id) slot = cls.where[*id];
  }
  if (!slot && !guess)  // rather lose a guess than wait
    for (Slot* s : cls.cold)
      if (idle(s)) {
        slot = s;
        break;
      }
  if (slot) forget(*slot);
  return slot;
}

void ExpertStore::begin_load(Slot& slot, ExpertKey key, Use use, bool guess) {
  const LayerInfo& l = info(key.layer);
  slot.key = key;
  slot.id = l.first + static_cast<ExpertId>(key.expert);
  slot.state = Slot::State::Loading;
  slot.owner = nullptr;
  slot.begun = Clock::now();
  slot.cls->where[slot.id] = &slot;
  if (guess || use == Use::Sweep)
    keep_cold(slot);
  else
    slot.cls->policy->insert(slot.id);
  const Package::RecordPlace place = package_.place(*l.layer, key.expert);
  const File* file = options_.reads.direct && place.direct ? place.direct : place.buffered;
  const Urgency urgency = guess ? Urgency::Guess : use == Use::Fill ? Urgency::Bulk : Urgency::Demand;
  loader_->start(slot.tag, {file, place.offset, slot.bytes}, urgency);
}

void ExpertStore::keep_cold(Slot& slot) {
  slot.cls->cold.push_front(&slot);
  slot.cold = slot.cls->cold.begin();
}

void ExpertStore::forget(Slot& slot) {
  if (slot.guessed) ++stats_.prefetch_wasted;
  slot.guessed = slot.expected = false;
  if (slot.cold)
    slot.cls->cold.erase(*slot.cold);
  else
    slot.cls->policy->remove(slot.id);
  slot.cold.reset();
  slot.cls->where[slot.id] = nullptr;
}

void ExpertStore::set_free(Slot& slot) {
  slot.state = Slot::State::Free;
  slot.abandoned = false;
  slot.cls->free.push_back(&slot);
}

void ExpertStore::unpin(Slot& slot) {
  --slot.pins;
  if (slot.pins == 0 && slot.state == Slot::State::Failed) set_free(slot);
  changed_.notify_all();
}

void ExpertStore::expect(std::span<const ExpertKey> keys, Use use) {
  if (holds_all_) return;
  const std::lock_guard lock(mutex_);
  drop_guesses();
  guesses_.assign(keys.rbegin(), keys.rend());
  guess_use_ = use;
  admit_all();
}

// What was guessed and has not been begun is dropped; the rest is no longer protected.
void ExpertStore::drop_guesses() {
  guesses_.clear();
  for (Slot* slot : expected_) {
    if (!slot->expected) continue;
    slot->expected = false;
    if (slot->state != Slot::State::Loading || !loader_->cancel(slot->tag)) continue;
    --stats_.prefetched;
    slot->guessed = false;
    forget(*slot);
    set_free(*slot);
  }
  expected_.clear();
}

// -- loads that end

void ExpertStore::loaded(uint64_t tag, const LoadResult& result) {
  Slot& slot = *slots_[tag];  // its key and bytes do not change while it loads
  std::optional<Error> error;
  if (!result.ok())
    error = load_error(slot, result);
  else if (slot.hasher)
    error = package_.wrong_checksum(layer(slot.key.layer), slot.key.expert, slot.hasher->digest());
  slot.hasher.reset();
  const uint64_t bytes = slot.bytes.size();
  if (!options_.reads.direct) {  // what the slot holds the page cache need not hold as well
    const Package::RecordPlace place = package_.place(layer(slot.key.layer), slot.key.expert);
    posix_fadvise(place.buffered->fd(), static_cast<off_t>(place.offset), static_cast<off_t>(bytes),
                  POSIX_FADV_DONTNEED);
  }
  const std::lock_guard lock(mutex_);
  if (options_.trace)
    options_.trace->async_span("read", error ? "failed" : "expert", slot.begun, Clock::now(),
                               static_cast<int64_t>(slot.key.layer), static_cast<int64_t>(slot.key.expert),
                               bytes);
  ++stats_.reads;
  if (result.ok()) stats_.bytes_read += bytes;
  settle(slot, std::move(error));
  admit_all();
  changed_.notify_all();
}

void ExpertStore::settle(Slot& slot, std::optional<Error> error) {
  if (slot.abandoned) return set_free(slot);
  if (!error) {
    slot.state = Slot::State::Ready;
  } else {
    ++stats_.failed;
    forget(slot);
    slot.state = Slot::State::Failed;
    if (slot.pins == 0) set_free(slot);
  }
  for (Demand* demand : demands_) {
    if (!std::erase(demand->loading_, &slot)) continue;
    if (!error) {
      demand->ready_.push_back(&slot);
      continue;
    }
    // A load that was begun for someone else, or on a guess, may have met a fault that is over by now.
    if (slot.owner == demand)
      demand->error_ = error;
    else
      demand->pending_.push_back(slot.key);
    unpin(slot);
  }
}

Error ExpertStore::load_error(const Slot& slot, const LoadResult& result) const {
  const ExpertLayer& l = layer(slot.key.layer);
  const Package::RecordPlace place = package_.place(l, slot.key.expert);
  const std::string what = fmt::format("{}: expert {} (bytes {}..{})", place.buffered->path().string(),
                                       slot.key.expert, place.offset, place.offset + l.record_bytes);
  if (result.end)
    return {Errc::Io, fmt::format("{} cannot be read: the file now ends at {}", what, *result.end)};
  return {Errc::Io, fmt::format("{} cannot be read: {}", what, std::strerror(result.err))};
}

// -- waiting

void ExpertStore::stall(Demand& demand, std::unique_lock<std::mutex>& lock) {
  const auto begin = Clock::now();
  const uint64_t arrived = loader_->bytes_arrived();
  const auto limit = begin + options_.read_timeout;
  changed_.wait_until(lock, limit, [&] {
    return demand.error_ || !demand.ready_.empty() || (demand.pending_.empty() && demand.loading_.empty());
  });
  const auto end = Clock::now();
  stats_.stall_s += std::chrono::duration<double>(end - begin).count();
  stats_.stall_bytes += loader_->bytes_arrived() - arrived;
  if (options_.trace) options_.trace->span("stall", "wait for experts", begin, end);
  if (!demand.error_ && demand.ready_.empty() && end >= limit) give_up_on(demand);
}

// Nothing has arrived for so long that nothing will: the slots stay out of use until their reads return.
void ExpertStore::give_up_on(Demand& demand) {
  const double seconds = std::chrono::duration<double>(options_.read_timeout).count();
  if (demand.loading_.empty()) {
    demand.error_ = Error(Errc::Io, fmt::format("no slot for an expert became free in {:.3g} s", seconds));
    return;
  }
  const Slot& first = *demand.loading_.front();
  const ExpertLayer& l = layer(first.key.layer);
  const Error error(
      Errc::Io,
      fmt::format("{}: expert {} (bytes {}..{}): the read has not returned in {:.3g} s",
                  package_.place(l, first.key.expert).buffered->path().string(), first.key.expert,
                  first.key.expert * l.record_bytes, (first.key.expert + 1) * l.record_bytes, seconds));
  for (Slot* slot : std::vector<Slot*>(demand.loading_)) {
    forget(*slot);
    slot->abandoned = true;
    ++stats_.failed;
    loader_->abandon(slot->tag);
    for (Demand* other : demands_)
      if (std::erase(other->loading_, slot)) {
        other->error_ = error;
        unpin(*slot);
      }
  }
}

}  // namespace moeflux
