#include "text/answer_parser.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"

namespace moeflux {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>", kSpace = " \t\r\n";
constexpr std::string_view kFunction = "<function=";
constexpr size_t kMaxHeaderBytes = 512;

bool is_blank(std::string_view text) { return text.find_first_not_of(kSpace) == text.npos; }

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// Length of the longest end of `text` that may grow into `marker`.
size_t partial_length(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n)
    if (text.ends_with(marker.substr(0, n))) return n;
  return 0;
}

std::optional<OrderedJson> parse_json_or_nothing(std::string_view text) {
  try {
    return parse_ordered_json(trimmed(text), "an answer");
  } catch (const Error&) {
    return {};
  }
}

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// JSON as the model wrote it, if it is an object.
std::optional<std::string> object_text(std::string_view text) {
  const std::optional<OrderedJson> json = parse_json_or_nothing(text);
  if (!json || !json->is_object()) return {};
  return std::string(trimmed(text));
}

// The text between `open` and `close`, from `at` on, which moves behind it.
std::optional<std::string_view> between(std::string_view text, size_t& at, std::string_view open,
                                        std::string_view close) {
  const size_t begin = text.find(open, at);
  if (begin == text.npos) return {};
  const size_t end = text.find(close, begin + open.size());
  if (end == text.npos) return {};
  at = end + close.size();
  return text.substr(begin + open.size(), end - begin - open.size());
}

std::string_view without_outer_newlines(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::string_view without_namespace(std::string_view name) {
  constexpr std::string_view kFunctions = "functions.";
  return name.starts_with(kFunctions) ? name.substr(kFunctions.size()) : name;
}

constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|return|>", "<|call|>"};

// Where strings of JSON may come in what a call holds, looked for from `from` on.
size_t find_json(AnswerFormat format, std::string_view body, size_t from) {
  if (format == AnswerFormat::DeepSeek) return body.find(kDeepSeekTags.separator, from);
  if (format == AnswerFormat::Kimi) return body.find(kKimiTags.separator, from);
  const size_t begin = body.find_first_not_of(kSpace);
  return begin != body.npos && body[begin] == '{' ? begin : body.npos;
}
constexpr size_t kMaxSeparatorBytes = std::max(kDeepSeekTags.separator.size(), kKimiTags.separator.size());

// ---- Types of arguments

const OrderedJson* member(const OrderedJson* object, const char* key) {
  if (!object || !object->is_object()) return nullptr;
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &*found;
}

const OrderedJson* find_function(const OrderedJson& tools, const std::string& name) {
  if (!tools.is_array()) return nullptr;
  for (const OrderedJson& tool : tools) {
    const OrderedJson* function = member(&tool, "function");
    if (!function) function = &tool;
    const OrderedJson* known = member(function, "name");
    if (known && known->is_string() && known->get_ref<const std::string&>() == name) return function;
  }
  return nullptr;
}

// The declared types of a parameter; none where nothing is declared.
std::vector<std::string> types_of(const OrderedJson& tools, const std::string& function,
                                  const std::string& key) {
  const OrderedJson* properties = member(member(find_function(tools, function), "parameters"), "properties");
  const OrderedJson* type = member(member(properties, key.c_str()), "type");
  if (!type) return {};
  if (type->is_string()) return {type->get<std::string>()};
  std::vector<std::string> types;
  if (type->is_array())
    for (const OrderedJson& one : *type)
      if (one.is_string()) types.push_back(one.get<std::string>());
  return types;
}

bool is_of_type(const OrderedJson& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  return type == "null" && value.is_null();
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower,
                            [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; });
}

// A tag that a call begins with, or one around several calls.
struct KnownMarker {
  AnswerFormat format;
  std::string_view text, closer;
  bool is_section;
};
constexpr KnownMarker kMarkers[] = {
    {AnswerFormat::Tagged, "<tool_call>", "</tool_call>", false},
    {AnswerFormat::Tagged, "<function=", "</function>", false},  // some models leave the outer tag out
    {AnswerFormat::DeepSeek, kDeepSeekTags.section, kDeepSeekTags.section_end, true},
    {AnswerFormat::DeepSeek, kDeepSeekTags.call, kDeepSeekTags.call_end, false},
    {AnswerFormat::Kimi, kKimiTags.section, kKimiTags.section_end, true},
    {AnswerFormat::Kimi, kKimiTags.call, kKimiTags.call_end, false},
    {AnswerFormat::MiniMax, "<minimax:tool_call>", "</minimax:tool_call>", true},
    {AnswerFormat::MiniMax, "<invoke name=", "</invoke>", false}};

}  // namespace

bool is_call_tag(std::string_view text) {
  return std::ranges::any_of(std::array{kDeepSeekTags, kKimiTags}, [&](const CallTags& t) {
    return text == t.section || text == t.section_end || text == t.call || text == t.separator ||
           text == t.call_end;
  });
}

std::vector<std::string_view> call_openers(AnswerFormat format) {
  std::vector<std::string_view> openers;
  for (const KnownMarker& marker : kMarkers)
    if (marker.format == format) openers.push_back(marker.text);
  return openers;
}

AnswerFormat answer_format_of(std::string_view source) {
  static constexpr std::pair<std::string_view, AnswerFormat> kSigns[] = {
      {"<|channel|>", AnswerFormat::Harmony},
      {"<minimax:tool_call>", AnswerFormat::MiniMax},
      {kKimiTags.section, AnswerFormat::Kimi},
      {kDeepSeekTags.call, AnswerFormat::DeepSeek},
      {"<tool_call>", AnswerFormat::Tagged}};
  for (const auto& [sign, format] : kSigns)
    if (source.find(sign) != source.npos) return format;
  return AnswerFormat::Plain;
}

bool ends_in_thought(std::string_view prompt) { return trimmed(prompt).ends_with(kThink); }

AnswerParser::AnswerParser(AnswerOptions options)
    : options_(std::move(options)),
      state_(options_.format == AnswerFormat::Harmony ? State::Header
             : options_.starts_in_thought             ? State::Reasoning
                                                      : State::Start) {}

std::vector<AnswerEvent> AnswerParser::feed(std::string_view piece) {
  buffer_ += piece;
  run(false);
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::finish() {
  run(true);
  if (!(has_calls_ && is_blank(held_))) emit(AnswerEvent::Kind::Text, held_);
  held_.clear();
  return std::exchange(events_, {});
}

void AnswerParser::run(bool at_end) {
  while (advance(at_end)) continue;
}

bool AnswerParser::advance(bool at_end) {
  switch (state_) {
    case State::Start:
      return advance_start(at_end);
    case State::Reasoning:
      return advance_reasoning(at_end);
    case State::AfterReasoning:
      return advance_after_reasoning(at_end);
    case State::Content:
      return advance_content(at_end);
    case State::Call:
      return advance_call(at_end);
    case State::Arguments:
      return advance_arguments(at_end);
    case State::AfterArguments:
      return advance_after_arguments(at_end);
    case State::Header:
      return advance_header(at_end);
    case State::Body:
      return advance_body(at_end);
  }
  return false;
}

// ---- Events

void AnswerParser::emit(AnswerEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind && kind <= AnswerEvent::Kind::Reasoning)
    events_.back().text += text;
  else
    events_.push_back({kind, std::string(text), ""});
}

void AnswerParser::emit_text(std::string_view text) {
  emit(AnswerEvent::Kind::Text, held_);
  held_.clear();
  held_section_closer_.clear();
  section_closer_.clear();
  emit(AnswerEvent::Kind::Text, text);
}

// White space at the ends of a thought is no part of it; whether it is at the end shows later.
void AnswerParser::emit_reasoning(std::string_view text) {
  if (!has_reasoning_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  if (text.empty()) return;
  has_reasoning_ = true;
  const size_t end = text.find_last_not_of('\n') + 1;
  if (end > 0) {
    emit(AnswerEvent::Kind::Reasoning, held_newlines_);
    held_newlines_.clear();
  }
  emit(AnswerEvent::Kind::Reasoning, text.substr(0, end));
  held_newlines_ += text.substr(end);
}

bool AnswerParser::emit_call(const std::optional<Call>& call) {
  if (!call || call->name.empty()) return false;
  held_.clear();
  has_calls_ = true;
  events_.push_back({AnswerEvent::Kind::CallBegin, call->name, call->id});
  events_.push_back({AnswerEvent::Kind::CallArguments, call->arguments, ""});
  events_.push_back({AnswerEvent::Kind::CallEnd, "", ""});
  return true;
}

// ---- Thoughts

bool AnswerParser::advance_start(bool at_end) {
  const size_t begin = buffer_.find_first_not_of(kSpace);
  if (begin == std::string::npos && !at_end) return false;
  const std::string_view rest =
      begin == std::string::npos ? std::string_view() : std::string_view(buffer_).substr(begin);
  if (rest.starts_with(kThink)) {
    take(begin + kThink.size());
    state_ = State::Reasoning;
    return true;
  }
  if (!at_end && kThink.starts_with(rest)) return false;
  state_ = State::Content;
  return true;
}

bool AnswerParser::advance_reasoning(bool at_end) {
  const size_t end = buffer_.find(kEndThink);
  if (end != std::string::npos) {
    emit_reasoning(std::string_view(buffer_).substr(0, end));
    held_newlines_.clear();
    take(end + kEndThink.size());
    state_ = State::AfterReasoning;
    return true;
  }
  const size_t n = at_end ? buffer_.size() : buffer_.size() - partial_length(buffer_, kEndThink);
  emit_reasoning(std::string_view(buffer_).substr(0, n));
  take(n);
  if (at_end) emit(AnswerEvent::Kind::Reasoning, std::exchange(held_newlines_, {}));
  return false;
}

// A blank line between thought and answer belongs to neither.
bool AnswerParser::advance_after_reasoning(bool at_end) {
  const size_t n = std::min(std::min(buffer_.find_first_not_of('\n'), buffer_.size()), size_t{2});
  if (n == buffer_.size() && n < 2 && !at_end) return false;
  take(n);
  state_ = State::Content;
  return true;
}

// ---- Text and calls

// The tag that ends a section of calls leaves no trace, if nothing stands before it.
std::optional<bool> AnswerParser::skip_section_end(bool at_end) {
  if (section_closer_.empty()) return {};
  const size_t begin = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  const std::string_view rest = std::string_view(buffer_).substr(begin);
  if (rest.starts_with(section_closer_)) {
    take(begin + section_closer_.size());
    section_closer_.clear();
    return true;
  }
  if (!at_end && std::string_view(section_closer_).starts_with(rest)) return false;
  return {};
}

bool AnswerParser::advance_content(bool at_end) {
  if (const std::optional<bool> skipped = skip_section_end(at_end)) return *skipped;
  size_t found = std::string::npos, n_partial = 0;
  const KnownMarker* marker = nullptr;
  for (const KnownMarker& m : kMarkers) {
    if (m.format != options_.format) continue;
    n_partial = std::max(n_partial, partial_length(buffer_, m.text));
    if (const size_t at = buffer_.find(m.text); at < found) found = at, marker = &m;
  }
  const size_t stop = std::min(found, at_end ? buffer_.size() : buffer_.size() - n_partial);

  // White space is held: it goes where a call follows.
  const std::string_view text = std::string_view(buffer_).substr(0, stop);
  const size_t text_end = text.find_last_not_of(kSpace) + 1;
  if (text_end > 0) emit_text(text.substr(0, text_end));
  held_ += text.substr(text_end);
  take(stop);
  if (!marker || stop != found) return false;
  begin_call(marker->text, marker->closer, marker->is_section);
  return true;
}

void AnswerParser::begin_call(std::string_view opener, std::string_view closer, bool is_section) {
  take(opener.size());
  if (is_section) {
    held_ += opener;
    held_section_closer_ = closer;
    return;
  }
  opener_ = opener;
  closer_ = closer;
  scanned_ = 0;
  is_json_ = false;
  in_string_ = false;
  may_tell_ = options_.stream_arguments;
  state_ = State::Call;
}

// Where the block that has begun ends; inside a string of JSON its closing tag is no tag. Looks at each byte
// once, however often it is called.
size_t AnswerParser::find_block_end() {
  const std::string_view body = buffer_;
  if (!is_json_) {
    const size_t end = body.find(closer_, scanned_), json = find_json(options_.format, body, scanned_);
    is_json_ = json < end;
    if (!is_json_) {
      scanned_ = body.size() - std::min(body.size(), std::max(closer_.size(), kMaxSeparatorBytes));
      return end;
    }
    scanned_ = json;
  }
  for (; scanned_ < body.size(); ++scanned_) {
    const char c = body[scanned_];
    if (in_string_ && c == '\\') {
      if (scanned_ + 1 == body.size()) break;
      ++scanned_;
    } else if (c == '"') {
      in_string_ = !in_string_;
    } else if (!in_string_ && c == closer_[0]) {
      if (body.substr(scanned_).starts_with(closer_)) return scanned_;
      if (std::string_view(closer_).starts_with(body.substr(scanned_))) break;
    }
  }
  return body.npos;
}

bool AnswerParser::advance_call(bool at_end) {
  if (may_tell_ && begin_arguments()) return true;
  const size_t end = find_block_end();
  if (end == std::string::npos && !at_end) return false;
  state_ = State::Content;
  if (!emit_call(parse_call(std::string_view(buffer_).substr(0, end)))) {
    emit_text(opener_);  // no call after all; what is inside may still hold one
    return true;
  }
  take(end == std::string::npos ? buffer_.size() : end + closer_.size());
  if (!held_section_closer_.empty()) section_closer_ = std::exchange(held_section_closer_, {});
  if (opener_ == kFunction) section_closer_ = "</tool_call>";  // its own opening tag was left out
  return true;
}

// ---- Arguments told while they come

// Reads text that may not have come in full, past white space.
class AnswerParser::PrefixReader {
 public:
  explicit PrefixReader(std::string_view text) : text_(text) {}
  bool take(std::string_view literal) {
    const std::string_view rest = here();
    is_cut_ = rest.size() < literal.size() && literal.starts_with(rest);
    if (!rest.starts_with(literal)) return false;
    at_ = text_.size() - rest.size() + literal.size();
    return true;
  }
  // Up to `end`, which is taken, too.
  std::optional<std::string_view> take_until(std::string_view end) {
    const std::string_view rest = here();
    const size_t n = rest.find(end);
    is_cut_ = n == rest.npos;
    if (is_cut_) return {};
    at_ = text_.size() - rest.size() + n + end.size();
    return rest.substr(0, n);
  }
  bool is_before(char c) {
    const std::string_view rest = here();
    is_cut_ = rest.empty();
    return rest.starts_with(c);
  }
  bool is_cut() const { return is_cut_; }  // what was looked for last may yet come
  size_t at() const { return at_; }        // behind what was taken

 private:
  std::string_view here() const {
    const std::string_view rest = text_.substr(at_);
    return rest.substr(std::min(rest.find_first_not_of(kSpace), rest.size()));
  }

  std::string_view text_;
  size_t at_ = 0;
  bool is_cut_ = false;
};

std::optional<AnswerParser::Call> AnswerParser::read_call_head(PrefixReader& reader) const {
  std::optional<std::string_view> name;
  switch (options_.format) {
    case AnswerFormat::Tagged:
      if (opener_ == kFunction || !reader.take("{") || !reader.take("\"name\"") || !reader.take(":") ||
          !reader.take("\"") || !(name = reader.take_until("\"")) || !reader.take(",") ||
          !reader.take("\"arguments\"") || !reader.take(":"))
        return {};
      break;
    case AnswerFormat::Kimi:
      if (!(name = reader.take_until(kKimiTags.separator)) || name->find(closer_) != name->npos) return {};
      return kimi_call(*name, "");
    case AnswerFormat::DeepSeek:
      if (!(name = reader.take_until(kDeepSeekTags.separator)) || name->find(closer_) != name->npos ||
          trimmed(*name) == "function")
        return {};
      break;
    case AnswerFormat::Harmony:
      return Call{std::string(without_namespace(recipient_)), "", ""};
    default:
      return {};
  }
  if (name->find('\\') != name->npos) return {};
  return Call{std::string(trimmed(*name)), "", ""};
}

// A call can be told once its name is known and an object begins.
bool AnswerParser::begin_arguments() {
  PrefixReader reader(std::string_view(buffer_).substr(0, kMaxHeaderBytes));
  const std::optional<Call> call = read_call_head(reader);
  const bool is_there = call && !call->name.empty() && reader.is_before('{');
  if (!is_there) {
    may_tell_ = reader.is_cut() && buffer_.size() < kMaxHeaderBytes;
    return false;
  }
  take(buffer_.find('{', reader.at()));
  held_.clear();
  has_calls_ = true;
  events_.push_back({AnswerEvent::Kind::CallBegin, call->name, call->id});
  depth_ = 0;
  in_string_ = false;
  state_ = State::Arguments;
  return true;
}

bool AnswerParser::advance_arguments(bool at_end) {
  size_t n = 0;
  bool is_over = false;
  for (; n < buffer_.size() && !is_over; ++n) {
    const char c = buffer_[n];
    if (in_string_ && c == '\\') {
      if (n + 1 == buffer_.size()) break;
      ++n;
    } else if (c == '"') {
      in_string_ = !in_string_;
    } else if (!in_string_ && (c == '{' || c == '[')) {
      ++depth_;
    } else if (!in_string_ && (c == '}' || c == ']')) {
      is_over = --depth_ == 0;
    }
  }
  if (at_end && !is_over) n = buffer_.size();
  if (n > 0) events_.push_back({AnswerEvent::Kind::CallArguments, buffer_.substr(0, n), ""});
  take(n);
  if (!is_over && !at_end) return false;
  events_.push_back({AnswerEvent::Kind::CallEnd, "", ""});
  state_ = State::AfterArguments;
  return true;
}

// The end of the call leaves no trace.
bool AnswerParser::advance_after_arguments(bool at_end) {
  const bool is_harmony = options_.format == AnswerFormat::Harmony;
  const std::string_view own_closer[] = {closer_};
  using Closers = std::span<const std::string_view>;
  const Closers closers = is_harmony ? Closers(kMessageEnds) : Closers(own_closer);
  PrefixReader reader(buffer_);
  bool may_come = false;
  const auto comes = [&](std::string_view literal) {
    const bool taken = reader.take(literal);
    may_come |= reader.is_cut();
    return taken;
  };
  const bool is_closed =
      (options_.format != AnswerFormat::Tagged || comes("}")) && std::ranges::any_of(closers, comes);
  if (!is_closed && may_come && !at_end) return false;
  if (is_closed || at_end) take(reader.at());
  if (!held_section_closer_.empty()) section_closer_ = std::exchange(held_section_closer_, {});
  state_ = is_harmony ? State::Header : State::Content;
  return true;
}

std::optional<AnswerParser::Call> AnswerParser::parse_call(std::string_view body) const {
  switch (options_.format) {
    case AnswerFormat::Tagged:
      return opener_ == kFunction ? parse_function(body) : parse_tagged(body);
    case AnswerFormat::MiniMax:
      return parse_invoke(body);
    case AnswerFormat::Kimi:
      return parse_kimi(body);
    case AnswerFormat::DeepSeek:
      return parse_deepseek(body);
    default:
      return {};
  }
}

// Kimi names a call by the function and the call's place: functions.NAME:INDEX.
AnswerParser::Call AnswerParser::kimi_call(std::string_view written, std::string arguments) {
  const std::string_view id = trimmed(written);
  return {std::string(without_namespace(id.substr(0, id.rfind(':')))), std::string(id), std::move(arguments)};
}

std::optional<AnswerParser::Call> AnswerParser::parse_kimi(std::string_view body) {
  const size_t at = body.find(kKimiTags.separator);
  if (at == body.npos) return {};
  const std::optional<std::string> arguments = object_text(body.substr(at + kKimiTags.separator.size()));
  if (!arguments) return {};
  return kimi_call(body.substr(0, at), *arguments);
}

std::optional<AnswerParser::Call> AnswerParser::parse_deepseek(std::string_view body) {
  constexpr std::string_view kFence = "```json", kEndFence = "```";
  const size_t at = body.find(kDeepSeekTags.separator);
  if (at == body.npos) return {};
  std::string_view name = trimmed(body.substr(0, at)),
                   arguments = body.substr(at + kDeepSeekTags.separator.size());
  if (const size_t fence = arguments.find(kFence); fence != arguments.npos && name == "function") {
    name = trimmed(arguments.substr(0, fence));
    arguments = trimmed(arguments.substr(fence + kFence.size()));
    if (arguments.ends_with(kEndFence)) arguments.remove_suffix(kEndFence.size());
  }
  const std::optional<std::string> object = object_text(arguments);
  if (!object) return {};
  return Call{std::string(name), "", *object};
}

std::optional<AnswerParser::Call> AnswerParser::parse_tagged(std::string_view body) const {
  const std::string_view text = trimmed(body);
  if (text.starts_with(kFunction)) {
    const size_t end = text.rfind("</function>");
    return parse_function(
        text.substr(kFunction.size(), end == text.npos ? text.npos : end - kFunction.size()));
  }
  if (!text.starts_with('{')) return parse_pairs(text);
  const std::optional<OrderedJson> json = parse_json_or_nothing(text);
  if (!json) return {};
  const OrderedJson* name = member(&*json, "name");
  const OrderedJson* arguments = member(&*json, "arguments");
  if (!name || !name->is_string()) return {};
  if (!arguments || arguments->is_null()) return Call{name->get<std::string>(), "", "{}"};
  if (arguments->is_object()) return Call{name->get<std::string>(), "", dump(*arguments)};
  if (!arguments->is_string()) return {};
  const std::optional<std::string> object = object_text(arguments->get_ref<const std::string&>());
  if (!object) return {};
  return Call{name->get<std::string>(), "", *object};
}

// NAME>, then <parameter=KEY>VALUE</parameter> any number of times.
std::optional<AnswerParser::Call> AnswerParser::parse_function(std::string_view body) const {
  size_t at = body.find('>');
  if (at == body.npos) return {};
  Call call{std::string(trimmed(body.substr(0, at))), "", ""};
  ++at;
  OrderedJson arguments = OrderedJson::object();
  while (const std::optional<std::string_view> parameter = between(body, at, "<parameter=", "</parameter>")) {
    const size_t end = parameter->find('>');
    if (end == parameter->npos) return {};
    const std::string key(trimmed(parameter->substr(0, end)));
    arguments[key] =
        argument(call.name, key, std::string(without_outer_newlines(parameter->substr(end + 1))), false);
  }
  if (!is_blank(body.substr(at))) return {};
  call.arguments = dump(arguments);
  return call;
}

// NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> any number of times.
std::optional<AnswerParser::Call> AnswerParser::parse_pairs(std::string_view body) const {
  size_t at = std::min(body.find("<arg_key>"), body.size());
  Call call{std::string(trimmed(body.substr(0, at))), "", ""};
  if (call.name.find_first_of(" \n<>{}[](),\"") != std::string::npos) return {};
  OrderedJson arguments = OrderedJson::object();
  while (const std::optional<std::string_view> key_text = between(body, at, "<arg_key>", "</arg_key>")) {
    const std::optional<std::string_view> value = between(body, at, "<arg_value>", "</arg_value>");
    if (!value) return {};
    const std::string key(trimmed(*key_text));
    arguments[key] = argument(call.name, key, std::string(*value), true);
  }
  if (!is_blank(body.substr(at))) return {};
  call.arguments = dump(arguments);
  return call;
}

// "NAME">, then <parameter name="KEY">VALUE</parameter> any number of times.
std::optional<AnswerParser::Call> AnswerParser::parse_invoke(std::string_view body) const {
  size_t at = 0;
  const std::optional<std::string_view> name = between(body, at, "\"", "\">");
  if (!name) return {};
  Call call{std::string(*name), "", ""};
  OrderedJson arguments = OrderedJson::object();
  while (const std::optional<std::string_view> parameter =
             between(body, at, "<parameter name=\"", "</parameter>")) {
    const size_t end = parameter->find("\">");
    if (end == parameter->npos) return {};
    const std::string key(parameter->substr(0, end));
    arguments[key] = argument(call.name, key, std::string(parameter->substr(end + 2)), false);
  }
  if (!is_blank(body.substr(at))) return {};
  call.arguments = dump(arguments);
  return call;
}

// Text to the value that the tool's schema declares. Where nothing is declared it stays text, or is what it
// looks like if `guess`; what does not fit its type stays text too.
OrderedJson AnswerParser::argument(const std::string& function, const std::string& key, std::string value,
                                   bool guess) const {
  const std::vector<std::string> types = types_of(options_.tools, function, key);
  if (std::ranges::find(types, "string") != types.end()) return value;
  if (types.empty() && !guess) return value;
  if (!types.empty() && equals_ignoring_case(trimmed(value), "null")) return nullptr;
  std::string text(trimmed(value));
  if (equals_ignoring_case(text, "true") || equals_ignoring_case(text, "false"))
    text = equals_ignoring_case(text, "true") ? "true" : "false";  // as Python writes them
  const std::optional<OrderedJson> json = parse_json_or_nothing(text);
  if (!json) return value;
  const auto fits = [&](const std::string& type) { return is_of_type(*json, type); };
  return types.empty() || std::ranges::any_of(types, fits) ? *json : OrderedJson(value);
}

// ---- Channels: a header up to <|message|>, then its content

namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>";

std::string word_after(std::string_view text, std::string_view sign) {
  const size_t at = text.find(sign);
  if (at == text.npos) return "";
  const std::string_view rest = text.substr(at + sign.size());
  return std::string(rest.substr(0, std::min(rest.find_first_of(" \n<"), rest.size())));
}

}  // namespace

bool AnswerParser::advance_header(bool at_end) {
  // The recipient comes first only where the prompt has begun the header.
  constexpr std::string_view kAllSigns[] = {kStart, kChannel, "to="};
  const std::span<const std::string_view> signs(kAllSigns, is_beginning_ ? 3 : 2);
  const size_t begin = std::min(buffer_.find_first_not_of(kSpace), buffer_.size());
  const std::string_view text = std::string_view(buffer_).substr(begin);
  const auto found =
      std::ranges::find_if(signs, [&](std::string_view sign) { return text.starts_with(sign); });
  if (found == signs.end()) {
    if (!at_end && std::ranges::any_of(signs, [&](std::string_view sign) { return sign.starts_with(text); }))
      return false;
    return advance_without_header(at_end);
  }
  const size_t end = text.find(kMessage);
  if (end <= kMaxHeaderBytes) {
    if (!is_beginning_) emit(AnswerEvent::Kind::Text, std::string_view(buffer_).substr(0, begin));
    begin_body(std::string(text.substr(0, end)));
    take(begin + end + kMessage.size());
    return true;
  }
  if (!at_end && text.size() < kMaxHeaderBytes + kMessage.size()) return false;
  const size_t n = begin + found->size();  // a header that does not end is text
  is_beginning_ = false;
  emit(AnswerEvent::Kind::Text, std::string_view(buffer_).substr(0, n));
  take(n);
  return true;
}

bool AnswerParser::advance_without_header(bool at_end) {
  const size_t next = std::min(buffer_.find(kChannel), buffer_.find(kStart));
  const size_t n_partial =
      at_end ? 0 : std::max(partial_length(buffer_, kChannel), partial_length(buffer_, kStart));
  const size_t n = std::min(next, buffer_.size() - n_partial);
  if (n == 0) return false;
  is_beginning_ = false;
  emit(AnswerEvent::Kind::Text, std::string_view(buffer_).substr(0, n));
  take(n);
  return next != std::string::npos;
}

void AnswerParser::begin_body(std::string header) {
  is_beginning_ = false;
  recipient_ = word_after(header, "to=");
  is_thought_ = word_after(header, kChannel) == "analysis" && recipient_.empty();
  header_ = std::move(header);
  scanned_ = 0;
  may_tell_ = options_.stream_arguments && !recipient_.empty();
  state_ = State::Body;
}

bool AnswerParser::advance_body(bool at_end) {
  if (may_tell_ && begin_arguments()) return true;
  size_t end = std::string::npos, n_partial = 0;
  std::string_view end_tag;
  const auto consider = [&](std::string_view tag) {
    n_partial = std::max(n_partial, partial_length(buffer_, tag));
    if (const size_t at = buffer_.find(tag, scanned_); at < end) end = at, end_tag = tag;
  };
  for (const std::string_view tag : kMessageEnds) consider(tag);
  consider(kStart);  // a message that was not closed
  const bool is_over = end != std::string::npos || at_end;
  if (!recipient_.empty() && !is_over) {
    scanned_ = buffer_.size() - n_partial;
    return false;
  }
  scanned_ = 0;
  const size_t n = end != std::string::npos ? end : at_end ? buffer_.size() : buffer_.size() - n_partial;
  const std::string content = buffer_.substr(0, n);
  take(n);
  if (!recipient_.empty())
    end_body(content, end_tag);
  else
    emit(is_thought_ ? AnswerEvent::Kind::Reasoning : AnswerEvent::Kind::Text, content);
  if (end == std::string::npos) {
    if (at_end) state_ = State::Header;
    return false;
  }
  if (end_tag != kStart) take(end_tag.size());
  state_ = State::Header;
  return true;
}

void AnswerParser::end_body(std::string_view content, std::string_view end) {
  const std::optional<std::string> arguments = object_text(content);
  if (arguments && emit_call(Call{std::string(without_namespace(recipient_)), "", *arguments})) return;
  std::string raw = header_ + std::string(kMessage) + std::string(content);
  if (end != kStart) raw += end;
  emit(AnswerEvent::Kind::Text, raw);
}

}  // namespace moeflux
