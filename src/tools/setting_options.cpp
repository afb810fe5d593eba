#include "tools/setting_options.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"

namespace moeflux {
namespace {

using Kind = Setting::Kind;

template <class Number>
Number parse_number(const std::string& text, Number least, Number most) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [at, err] = std::from_chars(text.data(), end, value);
  if (err != std::errc() || at != end || !(value >= least && value <= most))
    fail(Errc::InvalidArgument, "'{}' is not a number from {} to {}", text, least, most);
  return value;
}

// What cannot be typed in a line: \n, \t, and \\ for the backslash itself.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    out += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += escape;
  }
  return out;
}

std::string quoted(const std::vector<std::string>& strings) {
  std::string out;
  for (const std::string& string : strings) {
    out += out.empty() ? "\"" : ", \"";
    for (const char c : string)
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : std::string(1, c);
    out += '"';
  }
  return out.empty() ? "none" : out;
}

template <class Place>
Setting number(std::string name, double least, double most, std::string help, Place place) {
  return {
      .name = std::move(name),
      .type = "NUMBER",
      .help = std::move(help),
      .set = [=](TextSettings& s, const std::string& text) { place(s) = parse_number(text, least, most); },
      .show = [=](const TextSettings& s) { return fmt::format("{}", place(s)); }};
}

template <class Place>
Setting count(std::string name, std::string help, Place place) {
  return {.name = std::move(name),
          .type = "N",
          .help = std::move(help),
          .set = [=](TextSettings& s,
                     const std::string& text) { place(s) = parse_number<uint64_t>(text, 0, kWholeText); },
          .show =
              [=](const TextSettings& s) {
                return place(s) == kWholeText ? "all" : fmt::format("{}", place(s));
              }};
}

template <class Place>
Setting flag(std::string name, std::string help, Place place) {
  return {.kind = Kind::Flag,
          .name = std::move(name),
          .type = "",
          .help = std::move(help),
          .set =
              [=](TextSettings& s, const std::string& text) {
                if (text != "on" && text != "off")
                  fail(Errc::InvalidArgument, "'{}' is neither on nor off", text);
                place(s) = text == "on";
              },
          .show = [=](const TextSettings& s) { return std::string(place(s) ? "on" : "off"); }};
}

template <class Place>
Setting strings(std::string name, std::string help, Place place) {
  return {.kind = Kind::List,
          .name = std::move(name),
          .type = "TEXT",
          .help = std::move(help),
          .set =
              [=](TextSettings& s, const std::string& text) {
                text.empty() ? place(s).clear() : place(s).push_back(unescape(text));
              },
          .show = [=](const TextSettings& s) { return quoted(place(s)); }};
}

// A value that may be absent; the word for that takes it away.
template <class Place>
Setting optional_count(std::string name, uint64_t least, std::string absent, std::string help, Place place) {
  return {.name = std::move(name),
          .type = "N",
          .help = std::move(help),
          .set =
              [=](TextSettings& s, const std::string& text) {
                if (text == absent)
                  place(s).reset();
                else
                  place(s) = parse_number(text, least, std::numeric_limits<uint64_t>::max());
              },
          .show = [=](const TextSettings& s) { return place(s) ? fmt::format("{}", *place(s)) : absent; }};
}

Setting bias_setting() {
  return {.kind = Kind::List,
          .name = "logit-bias",
          .type = "TOKEN=N",
          .help = "Add N to the logit of a token, given by its id or text; repeatable",
          .set =
              [](TextSettings& s, const std::string& text) {
                if (text.empty()) return s.logit_bias.clear();
                const size_t at = text.rfind('=');
                if (at == 0 || at == text.npos)
                  fail(Errc::InvalidArgument, "'{}' is not of the form TOKEN=N", text);
                s.logit_bias.push_back(
                    {unescape(text.substr(0, at)), parse_number(text.substr(at + 1), -1e6, 1e6)});
              },
          .show =
              [](const TextSettings& s) {
                std::vector<std::string> list;
                for (const auto& [token, bias] : s.logit_bias)
                  list.push_back(fmt::format("{}={}", token, bias));
                return quoted(list);
              }};
}

Setting draft_source_setting() {
  static const std::map<std::string, DraftSource> kNames = {
      {"auto", DraftSource::Auto}, {"ngram", DraftSource::Ngram}, {"mtp", DraftSource::Mtp}};
  return {.name = "draft-from",
          .type = "auto|ngram|mtp",
          .help =
              "... from where the text repeats itself, or from the model's multi-token-prediction layer "
              "(default: auto, the latter where the package has it)",
          .set =
              [](TextSettings& s, const std::string& text) {
                const auto it = kNames.find(text);
                if (it == kNames.end())
                  fail(Errc::InvalidArgument, "'{}' is none of auto, ngram and mtp", text);
                s.draft_from = it->second;
              },
          .show =
              [](const TextSettings& s) {
                return std::ranges::find(kNames, s.draft_from, [](const auto& n) { return n.second; })->first;
              }};
}

// `auto&&` gives each function both its reading and its writing form.
#define PLACE(member) \
  [](auto&& s) -> auto& { return s.member; }

std::vector<Setting> make_settings() {
  std::vector<Setting> all = {
      optional_count("max-tokens", 1, "unlimited",
                     "New tokens at most (default: until the model ends its text or the context is full)",
                     PLACE(max_tokens)),
      count("min-tokens", "New tokens at least: the model cannot end its text before", PLACE(min_tokens)),
      flag("ignore-eos", "Never end the text, whatever the model says", PLACE(ignore_eos)),
      count("draft", "Guess up to N tokens ahead and evaluate them together; pause where that is slower",
            PLACE(draft)),
      draft_source_setting(),
      strings("stop", "End before this text (\\n is a new line); repeatable", PLACE(stop)),
      optional_count("seed", 0, "random", "Same seed, same text (default: a new one each time)", PLACE(seed)),
      number("temp", 0, 100, "Temperature; 0 takes the likeliest token", PLACE(sampler.temperature)),
      count("top-k", "Draw among the likeliest N tokens; 0: all", PLACE(sampler.top_k)),
      number("top-p", 0, 1, "... among those that have this share together; 1: all", PLACE(sampler.top_p)),
      number("min-p", 0, 1, "... among those with this share of the likeliest one's chance; 0: all",
             PLACE(sampler.min_p)),
      number("typical-p", 0, 1, "... among those about as surprising as the average; 1: all",
             PLACE(sampler.typical_p)),
      number("top-n-sigma", 0, 1000, "... among logits within so many deviations of the largest; 0: all",
             PLACE(sampler.top_n_sigma)),
      number("xtc-probability", 0, 1, "How often the likeliest choices are excluded; 0: never",
             PLACE(sampler.xtc_probability)),
      number("xtc-threshold", 0, 1, "... all but the last of those with at least this chance",
             PLACE(sampler.xtc_threshold)),
      number("repetition-penalty", 0.01, 100, "Divides logits of tokens in the text; 1: off",
             PLACE(sampler.penalties.repetition)),
      number("frequency-penalty", -100, 100, "Subtracted from a logit per use in the new text",
             PLACE(sampler.penalties.frequency)),
      number("presence-penalty", -100, 100, "Subtracted from the logits of tokens used in the new text",
             PLACE(sampler.penalties.presence)),
      count("penalty-window", "The last tokens that these three look at (default: all)",
            PLACE(sampler.penalties.window)),
      number("dry-multiplier", 0, 1000, "Penalty for going on with a repetition (DRY); 0: off",
             PLACE(sampler.penalties.dry.multiplier)),
      number("dry-base", 1, 1000, "... times this for each further token of the repetition",
             PLACE(sampler.penalties.dry.base)),
      count("dry-allowed-length", "... shorter repetitions are free",
            PLACE(sampler.penalties.dry.allowed_length)),
      count("dry-window", "... in so many of the last tokens (default: all)",
            PLACE(sampler.penalties.dry.window)),
      strings("dry-breaker",
              "... none reaches across this text; repeatable (default: \\n : \" and *; \"\" for none)",
              PLACE(dry_breakers)),
      flag("mirostat", "Aim at a surprise instead (version 2): top-k to XTC then have no effect",
           PLACE(sampler.mirostat.on)),
      number("mirostat-tau", 0, 100, "... of so many bits", PLACE(sampler.mirostat.target)),
      number("mirostat-eta", 0, 1, "... and correct by this rate", PLACE(sampler.mirostat.rate)),
      bias_setting()};
  all.front().short_name = "n";
  return all;
}

#undef PLACE

}  // namespace

const std::vector<Setting>& text_settings() {
  static const std::vector<Setting> all = make_settings();
  return all;
}

const Setting* find_setting(const std::string& name) {
  const auto& all = text_settings();
  const auto found = std::ranges::find(all, name, &Setting::name);
  return found == all.end() ? nullptr : &*found;
}

bool SettingArguments::has(const std::string& name) const {
  return std::ranges::any_of(given, [&](const auto& one) { return one.first->name == name; });
}

void SettingArguments::apply(TextSettings& settings) const {
  // Breakers that are given stand in the place of the default ones.
  if (has("dry-breaker")) settings.dry_breakers.clear();
  for (const auto& [setting, value] : given) setting->set(settings, value);
}

void add_setting_options(CLI::App& app, SettingArguments& into) {
  const std::string group = "How text is generated (defaults: the model's generation_config.json)";
  for (const Setting& setting : text_settings()) {
    const std::string name =
        (setting.short_name.empty() ? "--" : "-" + setting.short_name + ",--") + setting.name;
    if (setting.kind == Kind::Flag) {
      app.add_flag_callback(
             name, [&] { into.given.emplace_back(&setting, "on"); }, setting.help)
          ->group(group);
      continue;
    }
    const auto take = [&into, &setting](const std::string& value) {
      try {
        TextSettings scratch;
        setting.set(scratch, value);
      } catch (const Error& e) {
        throw CLI::ValidationError("--" + setting.name, e.what());
      }
      into.given.emplace_back(&setting, value);
    };
    CLI::Option* option =
        setting.kind == Kind::List
            ? app.add_option_function<std::vector<std::string>>(
                     name,
                     [take](const std::vector<std::string>& values) { std::ranges::for_each(values, take); },
                     setting.help)
                  ->allow_extra_args(false)
            : app.add_option_function<std::string>(name, take, setting.help);
    option->type_name(setting.type)->group(group);
  }
}

}  // namespace moeflux
