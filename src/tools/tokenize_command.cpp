#include <fmt/format.h>

#include <cstdio>

#include "base/json.h"
#include "text/tokenizer.h"
#include "tools/commands.h"
#include "tools/standard_streams.h"

namespace moeflux {
namespace {

struct TokenizeArguments {
  std::string source;
  bool special = false, jsonl = false, decode = false;
};

std::string ids_json(const std::vector<Token>& ids) { return fmt::format("[{}]", fmt::join(ids, ",")); }

std::vector<Token> parse_ids(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  if (!json.is_array()) fail(Errc::InvalidArgument, "{}: want a JSON array of ids", where);
  std::vector<Token> ids;
  for (const Json& id : json) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX)
      fail(Errc::InvalidArgument, "{}: {} is not a token id", where, id.dump());
    ids.push_back(id.get<Token>());
  }
  return ids;
}

std::string parse_text(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  if (!json.is_string()) fail(Errc::InvalidArgument, "{}: want a JSON string", where);
  return json.get<std::string>();
}

// Calls handle(line, where) for each line that is not blank.
template <class Handle>
void for_each_line(std::string_view input, Handle&& handle) {
  for (uint64_t number = 1; !input.empty(); ++number) {
    const size_t length = std::min(input.find('\n'), input.size());
    const std::string_view line = input.substr(0, length);
    input.remove_prefix(std::min(length + 1, input.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    handle(line, fmt::format("standard input: line {}", number));
  }
}

void encode(const Tokenizer& tokenizer, const TokenizeArguments& o, std::string_view input) {
  const Markers markers = o.special ? Markers::Recognised : Markers::AsText;
  if (o.jsonl) {
    for_each_line(input, [&](std::string_view line, const std::string& where) {
      write_out(ids_json(tokenizer.encode(parse_text(line, where), markers)) + "\n");
    });
    return;
  }
  if (const size_t good = well_formed_bytes(input); good != input.size())
    fmt::print(stderr, "standard input is not UTF-8 at byte {}; such bytes are read as U+FFFD\n", good);
  write_out(ids_json(tokenizer.encode(input, markers)) + "\n");
}

void decode(const Tokenizer& tokenizer, const TokenizeArguments& o, std::string_view input) {
  if (!o.jsonl) return write_out(tokenizer.decode(parse_ids(input, "standard input")));
  for_each_line(input, [&](std::string_view line, const std::string& where) {
    write_out(Json(tokenizer.decode(parse_ids(line, where))).dump() + "\n");
  });
}

void tokenize(const TokenizeArguments& o) {
  const Tokenizer tokenizer = Tokenizer::load(o.source);
  const std::string input = read_standard_input();
  o.decode ? decode(tokenizer, o, input) : encode(tokenizer, o, input);
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  CLI::App* cmd = app.add_subcommand("tokenize", "Turn text into token ids, or ids into text");
  cmd->footer(
      "Reads standard input and writes standard output. Text becomes a JSON array of ids; nothing is added "
      "for "
      "the\n"
      "beginning or the end of a text. With --jsonl, each line of input is one JSON string and each line of "
      "output its\n"
      "array. --decode goes the other way: an array, or with --jsonl an array per line, becomes text.\n\n"
      "Without --special, text that looks like a marker (<|im_start|> and the like) is encoded as the text "
      "that "
      "it is.\n\n"
      "  echo -n 'Once upon a time' | moeflux tokenize story.moe");
  auto o = std::make_shared<TokenizeArguments>();
  cmd->add_option("SRC", o->source, "Folder of a package or checkpoint, or a tokenizer.json")->required();
  cmd->add_flag("--special", o->special, "Recognise special and other added tokens in the text");
  cmd->add_flag("--jsonl", o->jsonl, "One JSON value per line");
  cmd->add_flag("--decode", o->decode, "Turn ids into text");
  cmd->callback([o] { tokenize(*o); });
}

}  // namespace moeflux
