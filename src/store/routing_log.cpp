#include "store/routing_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace moeflux {
namespace {

constexpr const char* kFormat = "moeflux-routes";
constexpr uint64_t kVersion = 1;
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kMostHeaderBytes = size_t{1} << 20;
constexpr uint64_t kMostLayer = uint64_t{1} << 20;  // as in a package
constexpr uint64_t kMostExperts = uint64_t{1} << 16;
constexpr uint64_t kMostAllExperts = uint64_t{1} << 24;  // readers keep tables of them
constexpr uint64_t kMostRecordBytes = uint64_t{1} << 40;
constexpr uint32_t kMostTokens = uint32_t{1} << 20;
constexpr size_t kMostDigits = 10;

std::string header_line(const RoutingShape& s) {
  return Json{{"format", kFormat},        {"version", kVersion}, {"layers", s.layers},
              {"n_experts", s.n_experts}, {"top_k", s.top_k},    {"record_bytes", s.record_bytes}}
             .dump() +
         "\n";
}

// As it can be shown to a terminal, whatever the file holds.
std::string quoted(std::string_view text) {
  const std::string shown(text.substr(0, 40));
  return Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace) + (text.size() > 40 ? "..." : "");
}

// The whole of `text` as a number of at most `most`.
std::optional<uint32_t> whole_number(std::string_view text, uint32_t most) {
  uint32_t value = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (err != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

// Takes what stands before the next space, and the space.
std::string_view take_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::vector<uint32_t> parse_layers(const JsonObject& header) {
  const Json& list = header.at("layers");
  if (!list.is_array() || list.empty()) header.wrong("layers", "a list of layers, at least one");
  std::vector<uint32_t> layers;
  for (const Json& item : list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > kMostLayer)
      header.wrong("layers", fmt::format("whole numbers from 0 to {}", kMostLayer));
    const auto layer = item.get<uint32_t>();
    if (!layers.empty() && layer <= layers.back()) header.wrong("layers", "ascending numbers");
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

RoutingLogWriter::RoutingLogWriter(const fs::path& path, RoutingShape shape)
    : shape_(std::move(shape)), file_(File::create(path)), ready_(header_line(shape_)) {
  check(!shape_.layers.empty() && shape_.top_k > 0 && shape_.top_k <= shape_.n_experts, "routes to record");
}

RoutingLogWriter::~RoutingLogWriter() {
  try {
    close();
  } catch (const std::exception& e) {
    std::fputs(fmt::format("moeflux: {}\n", e.what()).c_str(), stderr);
  }
}

void RoutingLogWriter::add(uint32_t layer, std::span<const uint32_t> ids) {
  if (layer == shape_.layers.front()) {  // whatever is left of a step that failed goes
    check(!ids.empty() && ids.size() % shape_.top_k == 0, "a choice for every token");
    n_ids_ = ids.size();
    n_layers_ = 0;
    step_ = fmt::format("step {}\n", n_ids_ / shape_.top_k);
  }
  check(n_layers_ < shape_.layers.size() && layer == shape_.layers[n_layers_] && ids.size() == n_ids_,
        "the layers of a step in order");
  fmt::format_to(std::back_inserter(step_), "{}", layer);
  for (const uint32_t id : ids) {
    check(id < shape_.n_experts, "an expert of the layer");
    fmt::format_to(std::back_inserter(step_), " {}", id);
  }
  step_ += '\n';
  if (++n_layers_ < shape_.layers.size()) return;
  ready_ += step_;
  if (ready_.size() >= kBufferBytes) flush();
}

void RoutingLogWriter::flush() {
  file_.write_at(written_, std::as_bytes(std::span(ready_)));
  written_ += ready_.size();
  ready_.clear();
}

void RoutingLogWriter::close() {
  if (std::exchange(closed_, true)) return;  // an error is reported once
  flush();
}

RoutingLogReader::RoutingLogReader(const fs::path& path)
    : file_(File::open_read(path)), size_(file_.size()), shape_(read_shape()), seen_(shape_.n_experts) {}

std::string RoutingLogReader::where() const { return fmt::format("{}: line {}", source(), n_lines_); }

std::optional<std::string_view> RoutingLogReader::line(size_t most_bytes) {
  for (size_t searched = 0;;) {
    const size_t end = buffer_.find('\n', consumed_ + searched);
    const size_t length = std::min(end, buffer_.size()) - consumed_;
    if (end == std::string::npos && length == 0 && at_ == size_) return std::nullopt;
    if (length > most_bytes)
      fail(Errc::Corrupt, "{}: line {}: longer than the {} bytes that it can need", source(), n_lines_ + 1,
           most_bytes);
    if (end != std::string::npos) {
      const std::string_view found = std::string_view(buffer_).substr(consumed_, length);
      consumed_ = end + 1;
      ++n_lines_;
      return found;
    }
    if (at_ == size_)
      fail(Errc::Corrupt, "{}: line {}: the file ends at byte {} in the middle of the line", source(),
           n_lines_ + 1, size_);
    searched = length;
    buffer_.erase(0, consumed_);
    consumed_ = 0;
    const size_t more = std::min<uint64_t>(kBufferBytes, size_ - at_);
    buffer_.resize(length + more);
    file_.read_at(at_, std::as_writable_bytes(std::span(buffer_).subspan(length)));
    at_ += more;
  }
}

RoutingShape RoutingLogReader::read_shape() {
  const std::optional<std::string_view> text = line(kMostHeaderBytes);
  if (!text) fail(Errc::Corrupt, "{}: the file is empty; a log of routes begins with a header", source());
  const Json json = parse_json(*text, where());
  const JsonObject header(json, where());
  if (header.string("format") != kFormat) header.wrong("format", fmt::format("\"{}\"", kFormat));
  if (header.at("version") != kVersion) header.wrong("version", fmt::format("{}", kVersion));
  RoutingShape s;
  s.layers = parse_layers(header);
  s.n_experts = static_cast<uint32_t>(header.count("n_experts", 1, kMostExperts));
  s.top_k = static_cast<uint32_t>(header.count("top_k", 1, s.n_experts));
  s.record_bytes = header.count("record_bytes", 1, kMostRecordBytes);
  if (s.layers.size() > kMostAllExperts / s.n_experts)
    fail(Errc::Corrupt, "{}: {} layers of {} experts are more than {} experts", where(), s.layers.size(),
         s.n_experts, kMostAllExperts);
  return s;
}

bool RoutingLogReader::next(RoutingStep& step) {
  std::optional<std::string_view> text = line(std::string_view("step ").size() + kMostDigits);
  if (!text) return false;
  std::string_view rest = *text;
  const bool is_step = take_word(rest) == "step";
  const std::optional<uint32_t> n = whole_number(rest, kMostTokens);
  if (!is_step || !n || *n == 0)
    fail(Errc::Corrupt, "{}: found {}, want \"step N\" with N from 1 to {}", where(), quoted(*text),
         kMostTokens);
  step.n_tokens = *n;
  step.ids.resize(shape_.layers.size());
  for (size_t i = 0; i < shape_.layers.size(); ++i)
    read_layer(shape_.layers[i], size_t{*n} * shape_.top_k, step.ids[i]);
  return true;
}

void RoutingLogReader::read_layer(uint32_t layer, size_t n_ids, std::vector<uint32_t>& ids) {
  const std::optional<std::string_view> text = line((n_ids + 1) * (kMostDigits + 1));
  if (!text)
    fail(Errc::Corrupt, "{}: the file ends after line {}, where layer {} of a step is wanted", source(),
         n_lines_, layer);
  std::string_view rest = *text;
  const std::string_view first = take_word(rest);
  if (whole_number(first, UINT32_MAX) != layer)
    fail(Errc::Corrupt, "{}: begins with {}, want layer {}", where(), quoted(first), layer);
  std::ranges::fill(seen_, 0);
  ids.clear();
  while (!rest.empty() && ids.size() < n_ids) {
    const std::string_view word = take_word(rest);
    const std::optional<uint32_t> id = whole_number(word, shape_.n_experts - 1);
    if (!id)
      fail(Errc::Corrupt, "{}: {} is not an expert, a number from 0 to {}", where(), quoted(word),
           shape_.n_experts - 1);
    const auto token = static_cast<uint32_t>(ids.size() / shape_.top_k + 1);
    if (std::exchange(seen_[*id], token) == token)
      fail(Errc::Corrupt, "{}: expert {} stands twice among the {} of one token", where(), *id, shape_.top_k);
    ids.push_back(*id);
  }
  if (ids.size() != n_ids || text->ends_with(' ') || !rest.empty())
    fail(Errc::Corrupt, "{}: layer {} wants exactly {} experts ({} for each of {} tokens), found {}{}",
         where(), layer, n_ids, shape_.top_k, n_ids / shape_.top_k, ids.size(),
         rest.empty() ? "" : " and more");
}

}  // namespace moeflux
