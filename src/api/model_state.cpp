#include "api/model_state.h"

#include <algorithm>

#include "base/text.h"
#include "gen/engine_report.h"

namespace moeflux::api {
namespace {

constexpr uint64_t kMostThreads = 1024, kMostSequences = 1u << 20;

std::string choice(const char* given, const char* absent, const std::vector<std::string>& known,
                   const char* name) {
  const std::string value(given ? text_argument(given, name) : absent);
  if (std::ranges::find(known, value) != known.end()) return value;
  std::string list;
  for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
  refuse("there is no {} '{}'; there is {}", name, value, list);
}

std::optional<uint64_t> some(uint64_t value) { return value ? std::optional(value) : std::nullopt; }

std::optional<KvType> kv_type(const char* given) {
  if (!given) return {};
  const std::string kv = choice(given, "", {"f32", "bf16", "q8"}, "kv");
  return kv == "f32" ? KvType::F32 : kv == "bf16" ? KvType::Bf16 : KvType::Q8;
}

uint64_t count_or(uint64_t value, uint64_t absent, uint64_t most, const char* name) {
  if (value > most) refuse("{} is {}, of at most {}", name, value, most);
  return value ? value : absent;
}

std::vector<fs::path> stripe_folders(const moeflux_open_options& o) {
  if (o.n_stripes > 1024) refuse("{} stripes are more than 1024", o.n_stripes);
  std::vector<fs::path> folders;
  for (size_t i = 0; i < o.n_stripes; ++i)
    folders.emplace_back(text_argument(required(o.stripes, "stripes") ? o.stripes[i] : nullptr, "a stripe"));
  return folders;
}

EngineOptions engine_options(const moeflux_open_options& o, Callbacks& callbacks) {
  const auto log = [&callbacks](LogLevel level, std::string_view message) { callbacks.log(level, message); };
  std::vector<std::string> backends = backend_names();
  backends.emplace_back("auto");
  std::string backend = choice(o.backend, "auto", backends, "backend");
  if (backend == "auto") backend = best_backend(log);
  if (o.vram_share != 0 && !(o.vram_share > 0 && o.vram_share <= 1))
    refuse("vram_share is {}, want a number from 0 to 1", o.vram_share);
  if (o.vram_share != 0 && o.vram_bytes) refuse("vram_bytes and vram_share are given: one is enough");
  const std::string precision = choice(o.precision, "fast", {"fast", "exact"}, "precision");
  return {.backend = backend,
          .precision = precision == "exact" ? Precision::Exact : Precision::Fast,
          .ram = some(o.ram_bytes),
          .max_memory = some(o.max_memory_bytes),
          .vram = some(o.vram_bytes),
          .vram_share = o.vram_share > 0 ? std::optional(o.vram_share) : std::nullopt,
          .ctx = o.ctx,
          .sequences = count_or(o.sequences, 1, kMostSequences, "sequences"),
          .chunk = count_or(o.chunk, kDefaultChunk, kMostChunk, "chunk"),
          .threads = static_cast<size_t>(count_or(o.threads, 0, kMostThreads, "threads")),
          .kv = kv_type(o.kv),
          .isa = choice(o.isa, "auto", isa_names(), "isa"),
          .check_reads = o.no_read_checks == 0,
          .stripes = stripe_folders(o),
          .progress = [&callbacks](const ProgressReport& report) { callbacks.progress(report); }};
}

}  // namespace

void TurnLock::lock() {
  std::unique_lock lock(mutex_);
  if (owner_ == std::this_thread::get_id())
    throw Failure(MOEFLUX_BUSY, "this is a callback of a call that is at work with the model");
  const uint64_t mine = next_++;
  changed_.wait(lock, [&] { return serving_ == mine; });
  owner_ = std::this_thread::get_id();
}

void TurnLock::unlock() {
  {
    const std::lock_guard lock(mutex_);
    owner_ = {};
    ++serving_;
  }
  changed_.notify_all();
}

bool TurnLock::is_mine() const {
  const std::lock_guard lock(mutex_);
  return owner_ == std::this_thread::get_id();
}

void Callbacks::progress(const ProgressReport& report) {
  const std::string what(report.what);
  const moeflux_progress progress{
      .size = sizeof progress,
      .what = what.c_str(),
      .done = report.done,
      .total = report.total,
      .unit = report.unit == ProgressUnit::Bytes ? MOEFLUX_UNIT_BYTES : MOEFLUX_UNIT_TOKENS,
      .ended = report.ended};
  const std::lock_guard lock(mutex_);
  if (on_progress_) on_progress_(user_, &progress);
}

void Callbacks::log(LogLevel level, std::string_view message) {
  const std::string text(message);
  const std::lock_guard lock(mutex_);
  if (on_log_)
    on_log_(user_, level == LogLevel::Warning ? MOEFLUX_LOG_WARNING : MOEFLUX_LOG_INFO, text.c_str());
}

void Callbacks::end() {
  const std::lock_guard lock(mutex_);
  on_progress_ = nullptr;
  on_log_ = nullptr;
}

ModelState::ModelState(const fs::path& package, const moeflux_open_options& options)
    : callbacks(options), engine(package, engine_options(options, callbacks)) {
  if (fs::exists(package / "tokenizer.json")) text_.emplace(package);
  const MemoryPlan& plan = engine.plan();
  callbacks.log(LogLevel::Info,
                fmt::format("{}: {} on {}, context {}, {} of {} of experts in memory; reads: {}",
                            package.string(), engine.config().family, engine.options().backend, plan.ctx,
                            format_bytes(plan.vram_slot_bytes + plan.ram_slot_bytes),
                            format_bytes(plan.expert_bytes), describe_reads(engine)));
}

const TextModel& ModelState::text() const {
  if (!text_)
    fail(Errc::NotFound, "{}: this package has no tokenizer.json: it can evaluate tokens, but has no text",
         engine.package().folder().string());
  return *text_;
}

bool ModelState::has_template() {
  if (!text_) return false;
  const std::lock_guard lock(text_mutex);
  try {
    text_->chat_template();
    return true;
  } catch (const Error& e) {
    if (e.code != Errc::NotFound) throw;
    return false;
  }
}

SequenceRoom::SequenceRoom(std::shared_ptr<ModelState> model) : model_(std::move(model)) {
  const uint64_t most = model_->engine.options().sequences;
  if (++model_->n_sequences <= most) return;
  --model_->n_sequences;
  fail(Errc::OutOfMemory,
       "the model was opened with memory for {} sequences, and all are in use: clear one, or open it with "
       "more",
       most);
}

}  // namespace moeflux::api
