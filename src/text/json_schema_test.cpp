#include "text/json_schema.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace moeflux {
namespace {

void expect_documents(const std::string& schema, const std::vector<std::string>& yes,
                      const std::vector<std::string>& no) {
  const Grammar g = compile_json_schema(schema);
  for (const std::string& text : yes) EXPECT_TRUE(g.matches(text)) << schema << "\n: " << text;
  for (const std::string& text : no) EXPECT_FALSE(g.matches(text)) << schema << "\n: " << text;
}

void expect_schema_refused(const std::string& schema, const std::string& part_of_message) {
  try {
    compile_json_schema(schema);
    ADD_FAILURE() << "was accepted: " << schema;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part_of_message), std::string::npos) << e.what();
  }
}

TEST(JsonSchema, Types) {
  expect_documents(R"({"type":"null"})", {"null"}, {"nul", "0", " null"});
  expect_documents(R"({"type":"boolean"})", {"true", "false"}, {"True", "1"});
  expect_documents(R"({"type":"integer"})", {"0", "-1", "123456789012345678"},
                   {"01", "1.0", "-0", "1e3", "+1"});
  expect_documents(R"({"type":"number"})", {"0", "-0.5", "1e10", "2.5E-3", "-0"},
                   {".5", "1.", "01", "1e", "1e1000"});
  expect_documents(R"({"type":"string"})", {"\"\"", "\"a\\n\\u00e9\u00e9\"", "\"\\ud83d\\uDE00\"", "\"\\/\""},
                   {"\"", "a", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xff\""});
  expect_documents(R"({"type":"array"})", {"[]", "[ ]", "[1, \"a\",[ ]]", "[ null ]"},
                   {"[,]", "[1,]", "[\n]"});
  expect_documents(R"({"type":"object"})", {"{}", "{\"a\":1}", "{ \"a\": {\"b\":[]}, \"\": null }"},
                   {"{a:1}", "{\"a\"}", "{\"a\":1,}", "[]"});
  expect_documents(R"({"type":["string","null"]})", {"\"a\"", "null"}, {"1"});
  expect_documents("true", {"null", "[{\"a\":[1.5e1]}]", "\"x\""}, {"", "nope"});
  expect_documents("{}", {"null", "7"}, {"x"});
}

TEST(JsonSchema, PropertiesInTheirOrder) {
  const std::string schema = R"({"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"boolean"},
    "m":{"type":"null"}},"required":["z"],"additionalProperties":false})";
  expect_documents(
      schema,
      {R"({"z":1})", R"({"z":1,"a":true})", R"({"z":1, "m":null})", R"({ "z": 1, "a": true, "m": null })"},
      {"{}", R"({"a":true,"z":1})", R"({"z":1,"z":1})", R"({"z":1,"x":1})", R"({"z":1 ,"a":true})",
       R"({"z":1,"a":1})", R"({"z":1,})", "{\"z\":1,  \"a\":true}"});
}

TEST(JsonSchema, AllOptional) {
  expect_documents(
      R"({"properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"additionalProperties":false})",
      {"{}", R"({"a":1})", R"({"b":2})", R"({"c":3})", R"({"a":1,"c":3})", R"({"b":2,"c":3})"},
      {R"({,"a":1})", R"({"c":3,"a":1})", R"({"a":1 "b":2})", R"({"a":2})"});
}

TEST(JsonSchema, AdditionalAndPatternProperties) {
  expect_documents(
      R"({"type":"object","properties":{"name":{"type":"string"}},"additionalProperties":{"type":"integer"}})",
      {"{}", R"({"name":"x"})", R"({"name":"x","n":1,"nam":2,"names":3})", R"({"n":1})"},
      {R"({"n":"x"})", R"({"name":1})", R"({"n":1,"name":"x"})", R"({"\u006eame":1})"});
  expect_documents(R"({"type":"object","patternProperties":{"^n_":{"type":"integer"},"_s$":{"maximum":5}},
    "additionalProperties":{"type":"string"}})",
                   {R"({"n_a":10})", R"({"n_s":5,"x":"y"})", R"({"a_s":1.5})"},
                   {R"({"n_s":6})", R"({"n_s":1.5})", R"({"x":1})", R"({"n_a":"s"})"});
  expect_documents(
      R"({"type":"object","propertyNames":{"pattern":"^[a-z]{1,3}$"},"additionalProperties":{"const":0}})",
      {R"({"a":0,"abc":0})"}, {R"({"A":0})", R"({"abcd":0})", R"({"":0})"});
  expect_documents(R"({"type":"object","required":["q"],"additionalProperties":{"type":"null"}})",
                   {R"({"q":null})", R"({"q":null,"r":null})"}, {"{}", R"({"r":null})", R"({"q":1})"});
  expect_documents(R"({"type":"object","properties":{"a":false,"b":true},"additionalProperties":false})",
                   {"{}", R"({"b":[1]})"}, {R"({"a":1})"});
}

TEST(JsonSchema, CountsOfProperties) {
  expect_documents(
      R"({"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"const":1}})",
      {R"({"a":1})", R"({"a":1,"b":1})"}, {"{}", R"({"a":1,"b":1,"c":1})"});
  expect_documents(
      R"({"properties":{"a":{"const":1},"b":{"const":1},"c":{"const":1}},"additionalProperties":false,
    "minProperties":2,"maxProperties":2})",
      {R"({"a":1,"b":1})", R"({"b":1,"c":1})", R"({"a":1,"c":1})"},
      {"{}", R"({"a":1})", R"({"a":1,"b":1,"c":1})"});
}

TEST(JsonSchema, Arrays) {
  expect_documents(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
                   {"[1,2]", "[1, 2, 3]", "[ 1,2 ]"}, {"[]", "[1]", "[1,2,3,4]", "[1,\"2\"]"});
  expect_documents(R"({"prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"maxItems":4})",
                   {"[]", "[1]", "[1,2]", "[1,2,3]", "[1,2,3,3]"}, {"[2]", "[1,3]", "[1,2,3,3,3]"});
  expect_documents(R"({"prefixItems":[{"const":1},{"const":2}],"items":false,"minItems":1})",
                   {"[1]", "[1,2]"}, {"[]", "[1,2,3]"});
  expect_documents(R"({"items":[{"const":1}],"additionalItems":{"const":2},"minItems":2})",
                   {"[1,2]", "[1,2,2]"}, {"[1]", "[2,2]"});
  expect_documents(R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"});
  expect_documents(R"({"type":"array","items":{"const":1},"maxItems":1,"uniqueItems":true})", {"[]", "[1]"},
                   {"[1,1]"});
}

TEST(JsonSchema, EnumAndConst) {
  expect_documents(R"({"enum":["a","b\"",1,null,true,[1,{"k":"v"}]]})",
                   {"\"a\"", "\"b\\\"\"", "1", "null", "true", "[1, {\"k\": \"v\"}]", "[1,{\"k\":\"v\"}]"},
                   {"\"b\"", "2", "false", "[1]"});
  expect_documents(R"({"type":"string","enum":["a","bb",1],"minLength":2})", {"\"bb\""}, {"\"a\"", "1"});
  expect_documents(R"({"enum":[1,5,9,2.5],"minimum":2,"type":"integer"})", {"5", "9"}, {"1", "2.5"});
  expect_documents(R"({"enum":["ab","cd"],"pattern":"^a"})", {"\"ab\""}, {"\"cd\""});
  expect_documents(R"({"const":{"b":1,"a":[]}})", {R"({"b":1,"a":[]})", R"({ "b": 1, "a": [] })"},
                   {R"({"a":[],"b":1})"});
  expect_schema_refused(R"({"type":"string","enum":[1]})", "no text can match");
}

TEST(JsonSchema, Combinations) {
  expect_documents(R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":2}]})", {"5", "\"ab\""},
                   {"\"abc\"", "null"});
  expect_documents(R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"5", "\"ab\""}, {"null"});
  expect_documents(
      R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"],"type":"object"},
    {"properties":{"k":{"const":"b"}},"required":["k"],"type":"object","additionalProperties":false}]})",
      {R"({"k":"a","x":1})", R"({"k":"b"})"}, {R"({"k":"b","x":1})", R"({"k":"a"})"});
  expect_documents(R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
    {"properties":{"a":{"minimum":3},"b":{"type":"null"}},"required":["b"]}],"additionalProperties":true})",
                   {R"({"a":3,"b":null})", R"({"a":30,"b":null,"c":1})"},
                   {R"({"a":2,"b":null})", R"({"a":3})"});
  expect_documents(
      R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"additionalProperties":false,
    "anyOf":[{"required":["a"]},{"required":["b"]}]})",
      {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"}, {"{}"});
  expect_documents(R"({"allOf":[{"type":"string","maxLength":4},{"pattern":"^a"},{"pattern":"z$"}]})",
                   {"\"az\"", "\"abcz\""}, {"\"abccz\"", "\"bz\"", "\"ab\""});
  expect_documents(
      R"({"type":["integer","string"],"oneOf":[{"maximum":3,"type":"integer"},{"minimum":5,"type":"integer"}]})",
      {"3", "5", "-7"}, {"4", "\"a\""});
}

TEST(JsonSchema, References) {
  expect_documents(
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
    "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}})",
      {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"}, {R"({"v":1})"});
  expect_documents(R"({"definitions":{"a/b c":{"const":1}},"$ref":"#/definitions/a~1b%20c"})", {"1"}, {"2"});
  expect_documents(R"({"type":"object","properties":{"child":{"$ref":"#"}},"additionalProperties":false})",
                   {"{}", R"({"child":{"child":{}}})"}, {R"({"child":1})"});
  expect_documents(R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  expect_documents(R"({"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string"}}})", {"\"ab\""},
                   {"\"abc\""});
}

TEST(JsonSchema, StringLengthsCountCharacters) {
  expect_documents(
      R"({"type":"string","minLength":2,"maxLength":3})",
      {"\"ab\"", "\"\u00e9\u20ac\U0001F600\"", "\"\\n\\\"\"", "\"\\ud83d\\ude00a\"", "\"\\u00e9a\""},
      {"\"a\"", "\"abcd\"", "\"\\n\"", "\"\u00e9\""});
  expect_documents(R"({"type":"string","maxLength":0})", {"\"\""}, {"\"a\""});
}

TEST(JsonSchema, Patterns) {
  expect_documents(R"({"type":"string","pattern":"^[a-c]+\\d{2}$"})", {"\"ab12\""},
                   {"\"ab1\"", "\"12\"", "\"ab123\""});
  expect_documents(R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\"", "\"\\nb\\n\""},
                   {"\"\"", "\"ac\""});
  expect_documents(R"({"type":"string","pattern":"^a|b$"})", {"\"ax\"", "\"xb\"", "\"a\""},
                   {"\"xa\"", "\"bx\""});
  expect_documents(R"({"type":"string","pattern":"^(?:x|\"q\"|\\\\)*$"})",
                   {"\"\"", "\"x\\\"q\\\"\"", "\"\\\\\""}, {"\"q\""});
  expect_documents(R"({"type":"string","pattern":"^[^a-z\\s]{1,3}?$"})", {"\"A1\u00e9\""},
                   {"\"a\"", "\" \"", "\"\""});
  expect_documents(R"({"type":"string","pattern":"^.{2}$"})", {"\"ab\"", "\"\\t\u20ac\""},
                   {"\"a\\n\"", "\"abc\""});
  expect_documents(R"({"type":"string","pattern":"^\\w+@\\w+\\.com$","maxLength":9})", {"\"a@b.com\""},
                   {"\"abc@bcd.com\"", "\"a@b,com\""});
  expect_documents(R"({"type":"string","pattern":"^(a(^b|c$))?$"})", {"\"\"", "\"ac\""}, {"\"ab\"", "\"a\""});
  expect_documents(R"({"type":"string","pattern":"^[\\u0041-C\\]\\-]{2}a{b$"})",
                   {"\"AB"
                    "a{b\"",
                    "\"]-a{b\""},
                   {"\"DDa{b\""});
  expect_documents(R"_({"type":"string","pattern":"^(?!\\.)(?!.*\\.\\.)(?=.*@)[a-z.@]{2,}$"})_",
                   {"\"a.b@c\"", "\"@.\""}, {"\".a@b\"", "\"a..b@\"", "\"ab\"", "\"@\""});
  expect_documents(R"_({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})_",
                   {"\"1.5\"", "\"-.5\""}, {"\"\"", "\"-.\"", "\"+\""});
  for (const char* pattern : {"(?=a)", "x(?!a)", "^(?!a)b|c", "(?<!a)", "\\\\1", "\\\\bx", "\\\\p{L}"})
    expect_schema_refused(std::string(R"({"type":"string","pattern":")") + pattern + "\"}",
                          "#/pattern: pattern");
  for (const char* pattern : {"(a", "a)", "[a", "*a", "a**", "[z-a]", "\\\\q", "a{3,2}"})
    expect_schema_refused(std::string(R"({"type":"string","pattern":")") + pattern + "\"}", "offset");
}

TEST(JsonSchema, Formats) {
  const auto format = [](const std::string& name, const std::vector<std::string>& yes,
                         const std::vector<std::string>& no) {
    const Grammar g = compile_json_schema(R"({"type":"string","format":")" + name + "\"}");
    for (const std::string& text : yes) EXPECT_TRUE(g.matches("\"" + text + "\"")) << name << " " << text;
    for (const std::string& text : no) EXPECT_FALSE(g.matches("\"" + text + "\"")) << name << " " << text;
  };
  format("date", {"2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"},
         {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-1-1", "2023-00-10"});
  format("time", {"23:59:59Z", "00:00:00.123+05:30"}, {"24:00:00Z", "12:00:00", "12:60:00Z"});
  format("date-time", {"2024-02-29T12:00:00Z", "2023-01-01T00:00:00.5-08:00"},
         {"2024-02-29 12:00:00Z", "2024-02-29T12:00"});
  format("duration", {"P1Y2M3D", "PT5M", "P2W", "P1DT12H"}, {"P", "PT", "1D", "P1H"});
  format("uuid", {"123e4567-e89b-12d3-a456-426614174000"},
         {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"});
  format("email", {"a.b@example.com", "x+y@a-b.co"}, {"a@b", "@b.com", "a b@c.de", "a..b@c.de"});
  format("hostname", {"a", "a-b.c"}, {"-a", "a-", "a..b", ""});
  format("ipv4", {"0.0.0.0", "255.10.1.99"}, {"256.1.1.1", "1.1.1", "01.1.1.1"});
  format("ipv6", {"::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"},
         {"1:2", ":::", "1::2::3", "1:2:3:4:5:6:7:8:9", "::1:2:3:4:5:6:7:8"});
  format("base64", {"", "YQ==", "YWI=", "YWJj"}, {"Y", "YQ=", "YQ==YQ=="});
  format("uri", {"https://example.com/a?b=c#d", "mailto:a@b.c", "http://a:80", "urn:x:y"},
         {"example.com", "http://a b", "//x", "http:"});
  expect_schema_refused(R"({"type":"string","format":"colour"})",
                        "#/format: 'colour' is not supported; known are date");
  expect_schema_refused(R"({"type":"integer","format":"date"})", "not a known format of this type");
  expect_documents(R"({"type":"integer","format":"uint8"})", {"0", "255"}, {"256", "-1"});
  expect_documents(R"({"type":"string","format":"date","pattern":"^2024"})", {"\"2024-01-01\""},
                   {"\"2023-01-01\""});
}

TEST(JsonSchema, IntegerBoundsAreExact) {
  for (const auto& [low, high] : std::vector<std::pair<int, int>>{{0, 0},
                                                                  {-1, 1},
                                                                  {5, 37},
                                                                  {-37, -5},
                                                                  {99, 101},
                                                                  {-1000, 999},
                                                                  {10, 99},
                                                                  {123, 124},
                                                                  {-120, 7},
                                                                  {7, 1203}}) {
    const Grammar g =
        compile_json_schema(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", low, high));
    for (int i = -1300; i <= 1300; ++i)
      ASSERT_EQ(g.matches(std::to_string(i)), low <= i && i <= high) << low << ".." << high << ": " << i;
  }
  expect_documents(R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":5})", {"4"}, {"3", "5"});
  expect_documents(R"({"type":"integer","minimum":-2.5,"maximum":2.5})", {"-2", "2", "0"}, {"-3", "3"});
  expect_documents(R"({"type":"integer","minimum":18446744073709551610})",
                   {"18446744073709551610", "18446744073709551615"}, {"18446744073709551609", "5"});
  expect_documents(R"({"type":"integer","maximum":1e300,"minimum":-1e300})", {"999999999999999999"},
                   {"1e300"});
  expect_documents(R"({"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991})",
                   {"9007199254740991", "-9007199254740991"}, {"9007199254740992", "-9007199254740992"});
  expect_schema_refused(R"({"type":"integer","minimum":5,"maximum":4})", "no text can match");
}

TEST(JsonSchema, Multiples) {
  const Grammar g = compile_json_schema(R"({"type":"integer","multipleOf":7,"minimum":-100,"maximum":1000})");
  for (int i = -200; i <= 1100; ++i)
    ASSERT_EQ(g.matches(std::to_string(i)), i % 7 == 0 && i >= -100 && i <= 1000) << i;
  expect_documents(R"({"type":"number","multipleOf":0.01,"minimum":0})", {"1.25", "0.5", "3"},
                   {"1.255", "-1"});
  expect_documents(R"({"type":"number","multipleOf":1})", {"3", "-4"}, {"3.5"});
  expect_documents(R"({"type":"integer","multipleOf":0.5})", {"3"}, {"3.5"});
  expect_schema_refused(R"({"type":"number","multipleOf":0.3})", "only multiples of 0.1");
  expect_schema_refused(R"({"type":"integer","multipleOf":123456789})", "above 10000");
  expect_schema_refused(R"({"type":"integer","multipleOf":0})", "above 0");
}

TEST(JsonSchema, NumberBoundsComparedAsDecimals) {
  const std::vector<std::string> texts = {
      "0",    "-0",   "0.0",  "1",     "-1",    "0.1",   "0.10",  "0.09",   "0.11", "0.099",
      "1.5",  "1.50", "1.49", "1.501", "-1.5",  "-1.49", "-1.51", "-0.1",   "10",   "9.99",
      "10.0", "10.1", "2",    "-2",    "12345", "0.5",   "-0.5",  "1.4999", "1e1",  "-10"};
  for (const std::string low : {"-1.5", "0", "0.1", "1", "-10", "1.5"})
    for (const std::string high : {"1.5", "10", "0.1", "0", "-0.1"})
      for (const bool excluded : {false, true}) {
        const std::string prefix = excluded ? "exclusiveM" : "m";
        std::optional<Grammar> g;
        try {
          g = compile_json_schema(
              fmt::format(R"({{"type":"number","{0}inimum":{1},"{0}aximum":{2}}})", prefix, low, high));
        } catch (const Error&) {
          EXPECT_GE(std::stod(low), std::stod(high) - (excluded ? 0 : 1e-9)) << low << " " << high;
          continue;
        }
        for (const std::string& text : texts) {
          if (text == "-0" && low == "0") continue;  // in bounds, but not written
          if (text.find('e') != std::string::npos) continue;
          const double v = std::stod(text), a = std::stod(low), b = std::stod(high);
          const bool in = excluded ? a < v && v < b : a <= v && v <= b;
          EXPECT_EQ(g->matches(text), in) << low << ".." << high << (excluded ? " excluded " : " ") << text;
        }
      }
  expect_documents(R"({"type":"number","minimum":0.5})", {"0.5", "0.50", "7"}, {"0.49", "-1", "1e5"});
}

TEST(JsonSchema, SpacesCanBeForbidden) {
  const Grammar g = compile_json_schema(R"({"type":"array"})", {JsonSchemaOptions::Spaces::None});
  EXPECT_TRUE(g.matches("[1,{\"a\":2}]"));
  EXPECT_FALSE(g.matches("[1, 2]"));
}

TEST(JsonSchema, WhatCannotBeExpressedIsRefusedWithItsPlace) {
  for (const char* keyword : {"not", "if", "contains", "dependentRequired", "dependentSchemas",
                              "unevaluatedProperties", "$dynamicRef"})
    expect_schema_refused(fmt::format(R"({{"properties":{{"p":{{"{}":{{}}}}}}}})", keyword),
                          fmt::format("#/properties/p/{}", keyword));
  expect_schema_refused(R"({"minLenght":3})", "#/minLenght: unknown keyword");
  expect_schema_refused(R"({"type":"array","uniqueItems":true})", "#/uniqueItems");
  expect_schema_refused(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "#/oneOf: branches 0 and 1");
  expect_schema_refused(R"({"type":"object","minProperties":3})", "#/minProperties");
  expect_schema_refused(R"({"$ref":"http://x/y"})", "#/$ref: 'http://x/y' is not in this document");
  expect_schema_refused(R"({"$ref":"#/nowhere"})", "#/$ref");
  expect_schema_refused(R"({"$ref":"#"})", "refers to itself");
  expect_schema_refused(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "refers to itself");
  expect_schema_refused(R"({"anyOf":[{"oneOf":[{"allOf":[{"$ref":"#"}]},{"const":1}]},{"type":"null"}]})",
                        "refers to itself");
  expect_schema_refused(R"({"type":"strin"})", "#/type: must be");
  expect_schema_refused(R"({"type":"string","maxLength":-1})", "#/maxLength: must be");
  expect_schema_refused(R"({"type":"string","minLength":5000000})", "#/minLength: counts above");
  expect_schema_refused(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
                        "no text can match");
  expect_schema_refused("false", "no text can match");
  expect_schema_refused("3", "must be an object");
  expect_schema_refused("{", "not valid JSON");
  expect_schema_refused(R"({"anyOf":[]})", "#/anyOf: must be");
  expect_documents(
      R"({"title":"t","description":"d","default":1,"examples":[1],"$schema":"s","$id":"i","$comment":"c",
    "deprecated":true,"readOnly":false,"x-order":1,"type":"null"})",
      {"null"}, {});
}

TEST(JsonSchema, HostileSchemasAreRefused) {
  expect_schema_refused(
      R"({"type":"object","patternProperties":{"a.{0,40}b":{},"c.{0,40}d":{},"e.{0,40}f":{}}})",
      "too complex");
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)", wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 300; ++i) chain += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  expect_schema_refused(chain + R"("d300":{"type":"null"}}})", "references in a row");
  for (int i = 0; i < 2001; ++i) wide += fmt::format(R"({}"p{}":true)", i == 0 ? "" : ",", i);
  expect_schema_refused(wide + "}}", "#/properties: more than 2000 properties");
  expect_schema_refused(std::string(70, '[') + std::string(70, ']'), "nested deeper");
}

}  // namespace
}  // namespace moeflux
