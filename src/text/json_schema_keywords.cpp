#include "text/json_schema_keywords.h"

namespace moeflux {
namespace {

constexpr Keyword kKeywords[] = {
    {"$schema", Keyword::Use::Annotation},
    {"$id", Keyword::Use::Annotation},
    {"id", Keyword::Use::Annotation},
    {"$anchor", Keyword::Use::Annotation},
    {"$comment", Keyword::Use::Annotation},
    {"$defs", Keyword::Use::Annotation},
    {"definitions", Keyword::Use::Annotation},
    {"title", Keyword::Use::Annotation},
    {"description", Keyword::Use::Annotation},
    {"default", Keyword::Use::Annotation},
    {"example", Keyword::Use::Annotation},
    {"examples", Keyword::Use::Annotation},
    {"deprecated", Keyword::Use::Annotation},
    {"readOnly", Keyword::Use::Annotation},
    {"writeOnly", Keyword::Use::Annotation},
    {"contentEncoding", Keyword::Use::Annotation},
    {"contentMediaType", Keyword::Use::Annotation},
    {"contentSchema", Keyword::Use::Annotation},
    {"discriminator", Keyword::Use::Annotation},
    {"$ref", Keyword::Use::General},
    {"type", Keyword::Use::General},
    {"enum", Keyword::Use::General},
    {"const", Keyword::Use::General},
    {"allOf", Keyword::Use::General},
    {"anyOf", Keyword::Use::General},
    {"oneOf", Keyword::Use::General},
    {"minimum", Keyword::Use::OfNumbers},
    {"maximum", Keyword::Use::OfNumbers},
    {"exclusiveMinimum", Keyword::Use::OfNumbers},
    {"exclusiveMaximum", Keyword::Use::OfNumbers},
    {"multipleOf", Keyword::Use::OfNumbers},
    {"minLength", Keyword::Use::OfStrings},
    {"maxLength", Keyword::Use::OfStrings},
    {"pattern", Keyword::Use::OfStrings},
    {"format", Keyword::Use::OfStrings},
    {"items", Keyword::Use::OfArrays},
    {"prefixItems", Keyword::Use::OfArrays},
    {"additionalItems", Keyword::Use::OfArrays},
    {"minItems", Keyword::Use::OfArrays},
    {"maxItems", Keyword::Use::OfArrays},
    {"uniqueItems", Keyword::Use::OfArrays},
    {"properties", Keyword::Use::OfObjects},
    {"required", Keyword::Use::OfObjects},
    {"additionalProperties", Keyword::Use::OfObjects},
    {"patternProperties", Keyword::Use::OfObjects},
    {"propertyNames", Keyword::Use::OfObjects},
    {"minProperties", Keyword::Use::OfObjects},
    {"maxProperties", Keyword::Use::OfObjects},
    {"not", Keyword::Use::Refused},
    {"if", Keyword::Use::Refused},
    {"then", Keyword::Use::Refused},
    {"else", Keyword::Use::Refused},
    {"contains", Keyword::Use::Refused},
    {"minContains", Keyword::Use::Refused},
    {"maxContains", Keyword::Use::Refused},
    {"dependencies", Keyword::Use::Refused},
    {"dependentRequired", Keyword::Use::Refused},
    {"dependentSchemas", Keyword::Use::Refused},
    {"unevaluatedItems", Keyword::Use::Refused},
    {"unevaluatedProperties", Keyword::Use::Refused},
    {"$dynamicRef", Keyword::Use::Refused},
    {"$dynamicAnchor", Keyword::Use::Refused},
    {"$recursiveRef", Keyword::Use::Refused},
    {"$recursiveAnchor", Keyword::Use::Refused},
};

constexpr NumberFormat kNumberFormats[] = {
    {"int8", "-128", "127"},
    {"int16", "-32768", "32767"},
    {"int32", "-2147483648", "2147483647"},
    {"int64", "-9223372036854775808", "9223372036854775807"},
    {"uint8", "0", "255"},
    {"uint16", "0", "65535"},
    {"uint32", "0", "4294967295"},
    {"uint64", "0", "18446744073709551615"},
    {"uint", "0", "18446744073709551615"},
    {"float", nullptr, nullptr},
    {"double", nullptr, nullptr},
};

}  // namespace

const Keyword* find_keyword(std::string_view name) {
  for (const Keyword& keyword : kKeywords)
    if (name == keyword.name) return &keyword;
  return nullptr;
}

const NumberFormat* find_number_format(std::string_view name) {
  for (const NumberFormat& format : kNumberFormats)
    if (name == format.name) return &format;
  return nullptr;
}

}  // namespace moeflux
