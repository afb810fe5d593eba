#include "gen/bench.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "gen/machine.h"

namespace moeflux {
namespace {

using Clock = std::chrono::steady_clock;

// Decoding from a cache that another kind of work has filled is not the steady state yet; and with skewed
// routes some slots may never be filled.
constexpr uint64_t kLeastWarmup = 16, kMostWarmup = 128;

constexpr uint64_t kTellsMemorySpeed = 1u << 30;  // of experts: many times what caches hold

std::span<const std::byte> largest(const std::vector<std::span<std::byte>>& parts) {
  std::span<const std::byte> most;
  for (const std::span<std::byte> p : parts)
    if (p.size() > most.size()) most = p;
  return most;
}

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v.empty() ? 0 : v[v.size() / 2];
}

Rate rate_of(const std::vector<double>& v) {
  return {median(v), *std::ranges::min_element(v), *std::ranges::max_element(v)};
}

std::vector<Token> random_tokens(size_t n, uint64_t vocab, uint64_t seed) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<Token>((seed >> 33) % vocab));
  }
  return tokens;
}

// Pages of the package's files that the system still holds would make a slow drive look fast.
void forget_cached_pages(const Package& package) {
  for (const RecordFile& f : package.record_files())
    posix_fadvise(f.buffered->fd(), 0, 0, POSIX_FADV_DONTNEED);  // a hint: what it does not reach stays
}

EngineOptions sized(const BenchRequest& r) {
  EngineOptions o = r.engine;
  const uint64_t deepest = r.state == CacheState::Rotating ? r.prompt : std::ranges::max(r.depths);
  o.ctx = std::max({o.ctx, deepest + r.generate, r.prompt, uint64_t{1}});
  o.sequences = o.logit_rows = r.sequences;
  if (r.sequences > o.chunk)
    fail(Errc::InvalidArgument, "{} sequences are more than the {} tokens of a step", r.sequences, o.chunk);
  return o;
}

// The bytes of the experts that steps choose, each counted once per step and layer.
class TouchCounter {
 public:
  TouchCounter(const Manifest& manifest, uint64_t n_experts) : manifest_(manifest), last_(n_experts) {}
  uint64_t bytes() const { return bytes_; }

  Tap tap() {
    return {.call =
                [this](const TapTensor& t) {
                  count(t);
                  return false;
                },
            .only_routes = true,
            .late = true};
  }

 private:
  void count(const TapTensor& t) {
    const uint64_t record_bytes = manifest_.find_layer(t.layer)->record_bytes;
    ++call_;
    for (const float id : t.values) {
      uint64_t& last = last_[static_cast<size_t>(id)];
      if (last != call_) bytes_ += record_bytes;
      last = call_;
    }
  }

  const Manifest& manifest_;
  std::vector<uint64_t> last_;  // by expert: the call that it was last seen in
  uint64_t call_ = 0, bytes_ = 0;
};

using Sequences = std::vector<std::unique_ptr<Sequence>>;

// One engine, the routes that it is given, and what they touch.
class Subject {
 public:
  Subject(const fs::path& package, const BenchRequest& request)
      : request_(request),
        begin_(Clock::now()),
        engine_(package, sized(request)),
        touched_(engine_.package().manifest(), engine_.config().moe.n_experts) {
    if (request.state != CacheState::Cold) engine_.load_experts();
    load_s_ = seconds_since(begin_);
    new_routes(0);
  }

  // Another text: other experts are the popular ones, where the routes are drawn.
  void new_routes(uint64_t text) {
    const MoeConfig& moe = engine_.config().moe;
    routes_ = make_route_source(request_.routing, {engine_.config().n_layers(), moe.n_experts, moe.top_k},
                                request_.seed + text);
    tap_ = chain_taps(routes_ ? route_tap(*routes_) : Tap{}, touched_.tap());
  }

  void eval(Sequence& sequence, std::span<const Token> tokens) { engine_.eval(sequence, tokens, 1, tap_); }
  // As many steps as there are tokens for each sequence; a step's tokens lie side by side.
  void decode(const Sequences& sequences, std::span<const Token> tokens) {
    const size_t n = sequences.size();
    std::vector<Slice> slices;
    std::vector<uint32_t> rows;
    for (size_t i = 0; i < n; ++i) {
      slices.push_back({sequences[i].get(), i, 1});
      rows.push_back(static_cast<uint32_t>(i));
    }
    // As in greedy decoding, where a backend with memory of its own keeps the logits.
    const bool lists = engine_.keeps_logits();
    const std::vector<ShortlistWish> wishes(lists ? n : 0);
    std::vector<Shortlist> shortlists(wishes.size());
    std::vector<float> logits(lists ? 0 : n * engine_.config().n_vocab);
    for (size_t at = 0; at < tokens.size(); at += n)
      engine_.step({.tokens = tokens.subspan(at, n),
                    .slices = slices,
                    .logit_rows = rows,
                    .wishes = wishes,
                    .shortlists = shortlists},
                   logits, tap_);
  }
  std::vector<Token> text(size_t n, uint64_t number) const {
    return random_tokens(n, engine_.config().n_vocab, request_.seed + number);
  }
  std::unique_ptr<Sequence> make_sequence() { return engine_.make_sequence(); }
  Sequences make_sequences() {
    Sequences all;
    while (all.size() < request_.sequences) all.push_back(make_sequence());
    return all;
  }

  // As many slots as there are have been written once. What a class of slots cannot use of its share, less
  // than one record, stays empty.
  bool slots_filled() const {
    const uint64_t slack = ExpertStore::least_budget(engine_.package().manifest());
    return engine_.store_stats().bytes_read + slack >= engine_.plan().ram_slot_bytes;
  }

  const Engine& engine() const { return engine_; }
  uint64_t touched_bytes() const { return touched_.bytes(); }
  double load_s() const { return load_s_; }

 private:
  const BenchRequest& request_;
  const Clock::time_point begin_;
  Engine engine_;
  double load_s_ = 0;
  TouchCounter touched_;
  std::unique_ptr<RouteSource> routes_;
  Tap tap_;
};

// Adds up repetitions of one kind of work.
class Meter {
 public:
  Meter(uint64_t depth, uint64_t length, uint64_t sequences = 1) {
    sum_.depth = depth;
    sum_.length = length;
    sum_.sequences = sequences;
  }

  template <class Work>
  void measure(const Subject& subject, uint64_t tokens, Work work) {
    const StoreStats before = subject.engine().store_stats();
    const uint64_t touched = subject.touched_bytes();
    const auto begin = Clock::now();
    work();
    const double seconds = seconds_since(begin);
    sum_.store = sum_.store + (subject.engine().store_stats() - before);
    sum_.touched_expert_bytes += subject.touched_bytes() - touched;
    sum_.tokens += tokens;
    sum_.seconds += seconds;
    rates_.push_back(static_cast<double>(tokens) / seconds);
  }

  // The memory's speed right before and after the last repetition.
  void add_memory(double before, double after) {
    speeds_.push_back((before + after) / 2);
    per_byte_.push_back(rates_.back() / speeds_.back());
  }

  Measured result() const {
    Measured m = sum_;
    m.rate = rate_of(rates_);
    m.memory_bytes_per_s = median(speeds_);
    m.tokens_per_byte = median(per_byte_);
    return m;
  }

 private:
  Measured sum_;
  std::vector<double> rates_, speeds_, per_byte_;
};

class Bench {
 public:
  Bench(const fs::path& package, const BenchRequest& request) : package_(package), request_(request) {}

  BenchResult run() {
    result_.peak_is_own = reset_peak_memory();
    switch (request_.state) {
      case CacheState::Cold:
        cold();
        break;
      case CacheState::Warm:
        warm();
        break;
      case CacheState::Rotating:
        rotating();
        break;
    }
    result_.peak_bytes = peak_memory();
    return std::move(result_);
  }

 private:
  std::unique_ptr<Subject> make_subject() {
    forget_cached_pages(Package(package_, request_.engine.stripes));
    auto subject = std::make_unique<Subject>(package_, request_);
    result_.plan = subject->engine().plan();
    result_.threads = subject->engine().threads();
    result_.reads = subject->engine().drive().settings;
    result_.load_s = subject->load_s();
    result_.in_memory = request_.state != CacheState::Cold && result_.plan.ssd_only_bytes == 0;
    return subject;
  }

  void cold() {
    if (!request_.prompt && !request_.generate) make_subject();  // for the plan
    if (request_.prompt) {
      Meter meter(0, request_.prompt);
      for (uint64_t r = 0; r < request_.repeat; ++r) prefill(*make_subject(), r, meter);
      result_.prefill = meter.result();
    }
    for (const uint64_t depth : decode_depths()) {
      Meter meter(depth, request_.generate, request_.sequences);
      for (uint64_t r = 0; r < request_.repeat; ++r) {
        const auto subject = make_subject();
        const Sequences sequences = sequences_at(*subject, depth);
        decode(*subject, sequences, new_text(*subject, 9 + r), meter);
      }
      result_.decode.push_back(meter.result());
    }
  }

  void warm() {
    const auto subject = make_subject();
    if (request_.prompt) {
      Meter warm_up(0, 0), meter(0, request_.prompt);
      prefill(*subject, 0, warm_up);
      for (uint64_t r = 1; r <= request_.repeat; ++r) prefill(*subject, r, meter);
      result_.prefill = meter.result();
    }
    if (request_.generate) fill_slots(*subject);
    WorkerPool readers(result_.threads);
    const Ops& ops = choose_ops(request_.engine.isa);
    const std::span<const std::byte> weights = largest(subject->engine().store().memory());
    const bool tell = result_.in_memory && !result_.plan.device_bytes && weights.size() >= kTellsMemorySpeed;
    MemoryReader reader(ops, readers, weights);
    const auto memory_speed = [&] { return tell ? reader.bytes_per_s() : 0; };
    for (const uint64_t depth : decode_depths()) {
      Meter meter(depth, request_.generate, request_.sequences);
      const Sequences sequences = sequences_at(*subject, depth);
      const std::vector<Token> tokens = new_text(*subject, 9);
      const uint64_t steps = request_.generate, n = request_.sequences,
                     parts = std::min(request_.repeat, std::max<uint64_t>(1, steps / 4));
      double before = memory_speed();
      for (uint64_t part = 0; part < parts; ++part) {
        const uint64_t from = part * steps / parts, to = (part + 1) * steps / parts;
        decode(*subject, sequences, std::span(tokens).subspan(from * n, (to - from) * n), meter);
        if (tell) {
          const double after = memory_speed();
          meter.add_memory(std::exchange(before, after), after);
        }
      }
      result_.decode.push_back(meter.result());
    }
    result_.device = subject->engine().device_tier();
  }

  void rotating() {
    const auto subject = make_subject();
    Meter warm_up(0, 0), prefills(0, request_.prompt),
        decodes(request_.prompt, request_.generate, request_.sequences);
    for (uint64_t r = 0; r <= request_.repeat; ++r) {  // the first one leaves something in the slots
      subject->new_routes(r);
      if (r == 1) result_.slots_filled = subject->slots_filled();
      const Sequences sequences = subject->make_sequences();
      for (uint64_t i = 0; request_.prompt && i < sequences.size(); ++i) {
        const std::vector<Token> prompt = subject->text(request_.prompt, r + 100 * i);
        (r ? prefills : warm_up).measure(*subject, prompt.size(), [&] {
          subject->eval(*sequences[i], prompt);
        });
      }
      if (request_.generate) decode(*subject, sequences, new_text(*subject, 1000 + r), r ? decodes : warm_up);
    }
    if (request_.prompt) result_.prefill = prefills.result();
    if (request_.generate) result_.decode.push_back(decodes.result());
  }

  void prefill(Subject& subject, uint64_t number, Meter& meter) {
    const auto sequence = subject.make_sequence();
    const std::vector<Token> tokens = subject.text(request_.prompt, number);
    meter.measure(subject, tokens.size(), [&] { subject.eval(*sequence, tokens); });
  }

  static void decode(Subject& subject, const Sequences& sequences, std::span<const Token> tokens,
                     Meter& meter) {
    meter.measure(subject, tokens.size(), [&] { subject.decode(sequences, tokens); });
  }

  // For all sequences, step by step.
  std::vector<Token> new_text(const Subject& subject, uint64_t number) const {
    return subject.text(request_.generate * request_.sequences, number);
  }

  std::vector<uint64_t> decode_depths() const {
    return request_.generate ? request_.depths : std::vector<uint64_t>{};
  }

  static Sequences sequences_at(Subject& subject, uint64_t depth) {
    Sequences all = subject.make_sequences();
    for (size_t i = 0; depth && i < all.size(); ++i) subject.eval(*all[i], subject.text(depth, 7 + 100 * i));
    return all;
  }

  // One sequence at a time, as the plan has it.
  void fill_slots(Subject& subject) {
    const std::vector<Token> tokens = subject.text(kMostWarmup, 5);
    std::unique_ptr<Sequence> sequence;
    uint64_t& n = result_.warmup_tokens;
    for (; !result_.in_memory && n < kMostWarmup && (n < kLeastWarmup || !subject.slots_filled()); ++n) {
      if (!sequence || sequence->position() == sequence->capacity()) {
        sequence.reset();
        sequence = subject.make_sequence();
      }
      subject.eval(*sequence, {&tokens[n], 1});
    }
    result_.slots_filled = subject.slots_filled();
  }

  const fs::path& package_;
  const BenchRequest& request_;
  BenchResult result_;
};

}  // namespace

double Measured::missed_bytes() const {
  const auto read = static_cast<double>(store.bytes_read);
  if (store.reads == 0) return read;
  return read *
         (1 - std::min(1.0, static_cast<double>(store.prefetch_wasted) / static_cast<double>(store.reads)));
}

double BenchResult::token_bytes(const Measured& decoded) const {
  const auto n = static_cast<double>(decoded.sequences);
  const double touched = static_cast<double>(plan.token_resident_bytes) / n +
                         decoded.per_token(static_cast<double>(decoded.touched_expert_bytes)) +
                         static_cast<double>(plan.token_state_bytes);
  if (!decoded.depth) return touched;
  // Attention reads the keys and values of all positions so far.
  const double positions = static_cast<double>(decoded.depth) + static_cast<double>(decoded.length) / 2;
  return touched + static_cast<double>(plan.text_kv_bytes - plan.text_state_bytes) * positions /
                       (static_cast<double>(plan.ctx) * n);
}

bool BenchResult::read_experts() const {
  const auto any = [](const Measured& m) { return m.store.bytes_read > 0; };
  return (prefill && any(*prefill)) || std::ranges::any_of(decode, any);
}

BenchResult bench_package(const fs::path& package, const BenchRequest& request) {
  return Bench(package, request).run();
}

double decode_limit(double missed_bytes, double touched_bytes, double drive_bytes_per_s,
                    double memory_bytes_per_s) {
  double seconds = touched_bytes / memory_bytes_per_s;
  if (missed_bytes > 0) seconds += missed_bytes / drive_bytes_per_s;
  return 1 / seconds;
}

double drive_bytes_per_s(const Package& package, const ReadSettings& settings) {
  constexpr uint64_t kBytes = 2u << 30;  // about a second
  const std::vector<RecordFile> files = package.record_files();
  check(!files.empty(), "a package with experts");
  return measure_drive(files, settings, std::min(kBytes, 4 * package.manifest().expert_bytes()));
}

}  // namespace moeflux
