// Time per token of structured output on one thread: a mask and a step, for documents that a model might
// write. Give a vocabulary with --vocabulary=tokenizer.json; without it, 150 000 tokens are made up.
//   cold      a new masker for each document: everything is worked out for the first time
//   warm      the same document again
// worst_us is the token with the slowest mask, of which the best of several times counts: others share the
// machine.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "io/file.h"
#include "text/json_schema.h"
#include "text/token_mask.h"

namespace moeflux {
namespace {

struct Case {
  const char* name;
  Grammar (*grammar)();
  std::string document;
};

Grammar of_schema(const char* schema) { return compile_json_schema(std::string_view(schema)); }

constexpr const char* kRecord = R"({"type":"object","properties":{"id":{"type":"integer","minimum":1},
  "name":{"type":"string"},"email":{"type":"string","format":"email"},"created":{"type":"string","format":"date-time"},
  "kind":{"enum":["person","company","robot"]},"score":{"type":"number","minimum":0,"maximum":1},
  "tags":{"type":"array","items":{"type":"string","maxLength":40},"maxItems":10},
  "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},"required":["city"]},
  "note":{"anyOf":[{"type":"string","maxLength":2000},{"type":"null"}]}},
  "required":["id","name","kind","tags","note"],"additionalProperties":false})";

constexpr const char* kTree = R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"label":
  {"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["label","children"],
  "additionalProperties":false}}})";

constexpr const char* kArithmetic = R"_(root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] ws term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t]*)_";

std::string record_document() {
  std::string note;
  for (int i = 0; i < 20; ++i)
    note += "The quick brown fox jumps over the lazy dog, twice. \\u00e9 \u00fc \\\"quoted\\\" ";
  return R"({"id": 48213, "name": "Ada Lovelace", "email": "ada.lovelace@example.com", "created": )"
         R"("2024-02-29T12:30:00Z", "kind": "person", "score": 0.875, "tags": ["mathematics", "computing"], )"
         R"("address": {"street": "12 St James's Square", "city": "London", "zip": "SW1"}, "note": ")" +
         note + "\"}";
}

std::string tree_document(int depth) {
  std::string children;
  for (int i = 0; i < 3 && depth > 0; ++i) children += (i ? ", " : "") + tree_document(depth - 1);
  return R"({"label": "node number )" + std::to_string(depth) + R"( of the tree", "children": [)" + children +
         "]}";
}

std::string json_document() {
  return R"({"users": [{"name": "Bob", "age": 42, "admin": false, "roles": ["dev", "ops"], "manager": null}, )"
         R"({"name": "Eve", "age": 3.7e1, "admin": true, "nested": {"a": {"b": {"c": [[1, 2], [3, [4]]]}}}}], )"
         R"("text": "It was the best of times, it was the worst of times, it was the age of wisdom"})";
}

std::vector<Case> cases() {
  return {{"record", [] { return of_schema(kRecord); }, record_document()},
          {"tree", [] { return of_schema(kTree); }, tree_document(4)},
          {"any_json", [] { return of_schema(R"({"type":"object"})"); }, json_document()},
          {"arithmetic", [] { return Grammar::parse(kArithmetic); },
           "alpha + 12 * (beta_2 - 7) / (x * (y + (z)))= 1234\nfoo_bar*2 = result\n"}};
}

// vocabularies

std::string bytes_of(const std::string& mapped, const std::vector<int>& byte_of) {
  std::string out;
  for (size_t at = 0; at < mapped.size();) {
    const uint32_t code = read_utf8(mapped, at);
    if (code >= byte_of.size() || byte_of[code] < 0) return mapped;  // an added token is plain text
    out.push_back(static_cast<char>(byte_of[code]));
  }
  return out;
}

// Byte-level vocabularies write the bytes that are no printable Latin-1 as characters from U+0100 on.
std::vector<int> byte_of_character() {
  std::vector<int> out(0x200, -1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    out[static_cast<size_t>(printable ? byte : next++)] = byte;
  }
  return out;
}

std::shared_ptr<const MaskVocabulary> read_vocabulary(const std::string& path) {
  const Json file = parse_json(read_text(path, uint64_t{1} << 30), path);
  const std::vector<int> byte_of = byte_of_character();
  std::vector<std::string> tokens;
  std::vector<uint32_t> special;
  const auto place = [&tokens](uint32_t id) -> std::string& {
    if (tokens.size() <= id) tokens.resize(id + 1);
    return tokens[id];
  };
  for (const auto& [text, id] : file.at("model").at("vocab").items()) place(id) = bytes_of(text, byte_of);
  for (const Json& added : file.at("added_tokens")) {
    place(added.at("id")) = added.at("content").get<std::string>();
    special.push_back(added.at("id"));
  }
  const std::vector<uint32_t> ends{special.at(0)};
  return std::make_shared<MaskVocabulary>(std::move(tokens), special, ends);
}

std::shared_ptr<const MaskVocabulary> made_up_vocabulary() {
  std::mt19937 random(1);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const std::string letters = "etaoinshrdlucmfwypvbgkjqxz", marks = "\"{}[],:.-_()=<>/\\'\n\t";
  while (tokens.size() < 150'000) {
    std::string token(random() % 2, ' ');
    const std::string& from = random() % 12 == 0 ? marks : letters;
    for (size_t n = 1 + random() % 8; n > 0; --n)
      token += from[std::min(random() % from.size(), random() % from.size())];
    if (random() % 20 == 0) token += marks[random() % marks.size()];
    tokens.push_back(token);
  }
  tokens.push_back("<end>");
  const std::vector<uint32_t> ends{static_cast<uint32_t>(tokens.size() - 1)};
  return std::make_shared<MaskVocabulary>(std::move(tokens), std::vector<uint32_t>{}, ends);
}

double thread_us() {  // processor time, so that other programs do not count
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Writes a document with the longest token that is allowed at each place.
class Writer {
 public:
  explicit Writer(const MaskVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  void write(TokenMasker& masker, std::string_view document) {
    std::vector<uint64_t> mask(vocabulary_.n_words());
    GrammarState state = masker.start();
    size_t place = 0;
    for (size_t at = 0; at < document.size();) {
      const double begin_us = thread_us();
      masker.fill(state, mask);
      const double took_us = thread_us() - begin_us;
      if (place == best_us.size()) best_us.push_back(took_us);
      best_us[place] = std::min(best_us[place], took_us);
      ++place;
      mask_us += took_us;
      ++n_tokens;
      const uint32_t token = longest(document.substr(at), mask);
      if (token == kNoNode || !masker.advance(state, token))
        fail(Errc::Corrupt, "the grammar does not take '{}'", document.substr(at, 30));
      at += vocabulary_.bytes(token).size();
    }
  }

  double mask_us = 0;
  std::vector<double> best_us;  // for each token of the document, over all times that it was written
  size_t n_tokens = 0;

 private:
  uint32_t longest(std::string_view text, const std::vector<uint64_t>& mask) const {
    const TokenTrie& trie = vocabulary_.trie();
    uint32_t best = kNoNode;
    uint32_t node = 0;
    for (const char c : text) {
      uint32_t next = node + 1;
      while (next < trie.nodes[node].end && trie.nodes[next].byte != static_cast<uint8_t>(c))
        next = trie.nodes[next].end;
      if (next >= trie.nodes[node].end) break;
      node = next;
      for (uint32_t t = trie.nodes[node].first_token; t < trie.nodes[node + 1].first_token; ++t)
        if ((mask[trie.tokens[t] / 64] >> (trie.tokens[t] % 64)) & 1) best = trie.tokens[t];
    }
    return best;
  }

  const MaskVocabulary& vocabulary_;
};

void report(benchmark::State& state, const Writer& writer) {
  state.counters["tokens"] = static_cast<double>(writer.n_tokens) / static_cast<double>(state.iterations());
  state.counters["mask_us"] = writer.mask_us / static_cast<double>(writer.n_tokens);
  state.counters["worst_us"] = *std::max_element(writer.best_us.begin(), writer.best_us.end());
}

void cold(benchmark::State& state, const Case& each,
          const std::shared_ptr<const MaskVocabulary>& vocabulary) {
  Writer writer(*vocabulary);
  for (auto _ : state) {
    TokenMasker masker(std::make_shared<Grammar>(each.grammar()), vocabulary);
    writer.write(masker, each.document);
  }
  report(state, writer);
}

void warm(benchmark::State& state, const Case& each,
          const std::shared_ptr<const MaskVocabulary>& vocabulary) {
  TokenMasker masker(std::make_shared<Grammar>(each.grammar()), vocabulary);
  Writer(*vocabulary).write(masker, each.document);
  Writer writer(*vocabulary);
  for (auto _ : state) writer.write(masker, each.document);
  report(state, writer);
  state.counters["cache_mib"] = static_cast<double>(masker.stats().cache_bytes) / 0x1p20;
}

void compile(benchmark::State& state, const Case& each) {
  size_t n_nodes = 0;
  for (auto _ : state) n_nodes = each.grammar().nodes().size();
  state.counters["nodes"] = static_cast<double>(n_nodes);
}

int run(int argc, char** argv) {
  std::string path;
  int n_kept = 1;
  for (int i = 1; i < argc; ++i) {
    constexpr std::string_view kOption = "--vocabulary=";
    if (std::string_view(argv[i]).rfind(kOption, 0) == 0)
      path = argv[i] + kOption.size();
    else
      argv[n_kept++] = argv[i];
  }
  benchmark::Initialize(&n_kept, argv);
  const auto vocabulary = path.empty() ? made_up_vocabulary() : read_vocabulary(path);
  static const std::vector<Case> kCases = cases();
  for (const Case& each : kCases) {
    const std::string name = each.name;
    benchmark::RegisterBenchmark((name + "/compile").c_str(), [&each](benchmark::State& s) {
      compile(s, each);
    })->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark((name + "/cold").c_str(), [&each, &vocabulary](benchmark::State& s) {
      cold(s, each, vocabulary);
    })->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((name + "/warm").c_str(), [&each, &vocabulary](benchmark::State& s) {
      warm(s, each, vocabulary);
    })->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace moeflux

int main(int argc, char** argv) { return moeflux::run(argc, argv); }
