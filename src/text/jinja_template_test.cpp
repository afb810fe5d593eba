// The language against recorded values: tests/data/templates/language.json holds what jinja2 3.1.6 (on
// Python 3.11, in the environment that chat templates are rendered in) made of each template, or that it
// refused it.
#include "text/jinja_template.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/json.h"
#include "io/file.h"

namespace moeflux::jinja {
namespace {

std::string render(std::string_view source, const OrderedJson& variables = OrderedJson::object(),
                   const Limits& limits = {}) {
  return Template(source, "test").render(variables, parse_local_time("2026-01-02T03:04:05"), limits);
}

// The message of the refusal, or the text where there was none.
std::string refusal(std::string_view source, const Limits& limits = {}) {
  try {
    return "rendered: " + render(source, OrderedJson::object(), limits);
  } catch (const TemplateError& e) {
    return e.what();
  }
}

TEST(JinjaTemplate, GivesWhatJinja2Gives) {
  const fs::path path = fs::path(MOEFLUX_TEST_DATA) / "templates" / "language.json";
  const OrderedJson recorded = parse_ordered_json(read_text(path, 1 << 24), path.string());
  ASSERT_GT(recorded["cases"].size(), 200u);
  for (const OrderedJson& one : recorded["cases"]) {
    const auto source = one["template"].get<std::string>();
    if (one.contains("error"))
      EXPECT_THROW(render(source, recorded["variables"]), TemplateError) << source;
    else
      EXPECT_EQ(render(source, recorded["variables"]), one["text"].get<std::string>()) << source;
  }
}

TEST(JinjaTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(refusal("a\nb\n{{ undef.x }}\n"), "test, line 3: 'undef' is undefined");
  EXPECT_EQ(refusal("a\n{% if x %}\n\n{{ 1 + }}"), "test, line 4: unexpected '}}'");
  EXPECT_EQ(refusal("{% macro m() %}\n{{ raise_exception('no') }}\n{% endmacro %}\n\n{{ m() }}"),
            "test, line 2: no");
  EXPECT_EQ(refusal("{% macro m() %}\n{% endmacro %}\n{{ m() }}{{ 1 + '' }}"),
            "test, line 3: '+' cannot be applied to int and str");
}

TEST(JinjaTemplate, KeepsTheOrderOfMembersAndAll64BitNumbers) {
  const OrderedJson variables = OrderedJson::parse(
      R"({"d": {"z": 1, "a": 2, "m": [18446744073709551615, -9223372036854775808, 1.0]}})");
  EXPECT_EQ(render("{{ d|tojson }}", variables),
            R"({"z": 1, "a": 2, "m": [18446744073709551615, -9223372036854775808, 1.0]})");
}

TEST(JinjaTemplate, RefusesIntegersBeyondItsRange) {
  EXPECT_EQ(render("{{ 2**126 + (2**126 - 1) }}"), "170141183460469231731687303715884105727");
  EXPECT_NE(refusal("{{ 2**127 }}").find("too large"), std::string::npos);
  EXPECT_NE(refusal("{{ 10**38 * 10 }}").find("too large"), std::string::npos);
  EXPECT_NE(refusal("{{ 999999999999999999999999999999999999999999 }}").find("too large"), std::string::npos);
}

TEST(JinjaTemplate, RefusesSourceThatIsNotText) {
  EXPECT_THROW(render("a\xff"), TemplateError);
  EXPECT_THROW(render("a\xed\xa0\x80"), TemplateError);  // a surrogate
  EXPECT_THROW(render("{{ '\\ud800' }}"), TemplateError);
  EXPECT_EQ(render(std::string_view("a\0{{ '\0' }}", 11)), std::string_view("a\0\0", 3));
}

TEST(JinjaTemplate, DoesNotRunForever) {
  Limits limits;
  limits.steps = 100'000;
  const char* const endless[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set s = 'a' * 100000 %}{% for a in range(99999) %}{% if s.find('b') > 0 %}{% endif %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x == "
      "ns.x|list }}{{ ns.x }}",
      "{% set ns = namespace(x=(1,)) %}{% for i in range(99) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ "
      "{ns.x: 1} "
      "}}",
      "{{ range(99999)|map('string')|map('upper')|list|sort|join }}"};
  for (const char* source : endless)
    EXPECT_NE(refusal(source, limits).find("more than 100000 steps"), std::string::npos) << source;
}

TEST(JinjaTemplate, DoesNotEatMemory) {
  Limits limits;
  limits.memory_bytes = 1 << 20;
  const char* const greedy[] = {
      "{{ 'x' * 10**12 }}",
      "{{ [1, 2] * 10**12 }}",
      "{{ 'abc' * 400000 }}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{{ 'a'.center(10**15) }}",
      "{{ ('a,' * 100000).split(',')|length }}",
      "{{ ('a' * 10000)|replace('a', 'b' * 10000)|length }}",
      "{{ [1]|batch(10**12, 'x')|list }}",
      "{% for a in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
      "{% set ns = namespace() %}{% for a in range(99999) %}{% set ns.x = namespace(y=ns.x) %}{% endfor %}"};
  for (const char* source : greedy)
    EXPECT_NE(refusal(source, limits).find("bytes of memory"), std::string::npos) << source;
  Limits output;
  output.output_bytes = 1000;
  EXPECT_NE(
      refusal("{% for a in range(99) %}{{ 'x' * 100 }}{% endfor %}", output).find("longer than 1000 bytes"),
      std::string::npos);
}

TEST(JinjaTemplate, GivesMemoryBackWhileItRenders) {
  Limits limits;
  limits.memory_bytes = 1 << 20;
  // Far more than the limit in all, never much at once.
  EXPECT_EQ(render("{% for i in range(1000) %}{% set s = 'x' * 100000 %}{% endfor %}ok",
                   OrderedJson::object(), limits),
            "ok");
}

std::string repeated(std::string_view piece, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += piece;
  return text;
}

TEST(JinjaTemplate, NestingIsBounded) {
  const size_t n = 20000;
  const std::string deep[] = {
      "{{ " + repeated("(", n) + "1" + repeated(")", n) + " }}",
      "{{ " + repeated("[", n) + repeated("]", n) + " }}",
      "{{ " + repeated("not ", n) + "1 }}",
      "{{ " + repeated("-", n) + "1 }}",
      "{{ 1" + repeated("+1", n) + " }}",
      "{{ a" + repeated(".b", n) + " }}",
      "{{ a" + repeated("|upper", n) + " }}",
      "{{ " + repeated("1 if 0 else ", n) + "2 }}",
      repeated("{% if 1 %}", n) + repeated("{% endif %}", n),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"};
  for (const std::string& source : deep)
    EXPECT_NE(refusal(source).find("nested"), std::string::npos) << source.substr(0, 60) << refusal(source);
}

TEST(JinjaTemplate, ValuesThatContainThemselvesAreFreed) {  // what the leak checker looks at
  EXPECT_EQ(
      render(
          "{% set ns = namespace() %}{% set ns.me = [ns, {'ns': ns}] %}"
          "{% for i in range(3) %}{% macro m() %}{{ i }}{% endmacro %}{% set ns.m = m %}{% set ns.l = loop %}"
          "{{ loop.changed(loop) }}{% endfor %}{{ ns.m() }}"),
      "TrueFalseFalse2");
  // A chain of objects that is longer than a stack is deep.
  EXPECT_EQ(
      render("{% set ns = namespace(at=namespace()) %}{% for i in range(50000) %}{% set c = namespace() %}"
             "{% set p = ns.at %}{% set p.x = c %}{% set ns.at = c %}{% endfor %}ok"),
      "ok");
}

TEST(JinjaTemplate, IsRenderedByManyThreadsAtOnce) {
  const Template shared("{% for a in l %}{{ 'x' ~ a }}{{ loop.index }}{% endfor %}", "test");
  const OrderedJson variables = OrderedJson::parse(R"({"l": ["a", "b"]})");
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (std::string& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) result = shared.render(variables, {});
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& result : results) EXPECT_EQ(result, "xa1xb2");
}

TEST(JinjaTemplate, TimesAreChecked) {
  EXPECT_EQ(parse_local_time("2026-01-02").hour, 0);
  EXPECT_EQ(parse_local_time("2026-01-02 23:59").minute, 59);
  for (const char* wrong : {"", "2026", "2026-13-01", "2026-02-30", "2026-01-02T24:00:00",
                            "2026-01-02T03:04:05Z", "2026-01-02T3:04:05", "-026-01-02"})
    EXPECT_THROW(parse_local_time(wrong), Error) << wrong;
}

}  // namespace
}  // namespace moeflux::jinja
