#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "text/bpe.h"
#include "text/json_reader.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"

namespace moeflux {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr size_t kLongTextBytes = size_t{1} << 14;
constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions are 32 bits; normalisation may triple a text

std::string_view well_formed(std::string_view json, const std::string& where) {
  if (const size_t good = well_formed_bytes(json); good != json.size())
    fail(Errc::Corrupt, "{}: not UTF-8 at byte {}", where, good);
  return json;
}

const Json& decoder_field(const TokenizerFile& file, const std::string& where) {
  const Json* json = file.field("decoder");
  if (!json) fail(Errc::Unsupported, "{}: a tokenizer without a decoder is not supported", where);
  return *json;
}

Bpe make_bpe(const TokenizerFile& file, bool byte_level, const std::string& where) {
  const std::string inside = where + ": model";
  BpeOptions options = file.bpe_options(where);
  JsonReader vocabulary(file.vocabulary, inside), merges(file.merges, inside);
  return Bpe(Vocabulary(vocabulary, byte_level, inside), std::move(options), merges, inside);
}

std::vector<AddedToken> make_added_tokens(const TokenizerFile& file, const Normalizer& normalizer,
                                          const std::string& where) {
  std::vector<AddedToken> tokens = file.added_tokens(where);
  std::string buffer;
  for (AddedToken& token : tokens)
    token.pattern = token.normalized ? normalizer.apply(token.content, buffer) : token.content;
  return tokens;
}

}  // namespace

struct Tokenizer::Parts {
  Parts(const TokenizerFile& file, const std::string& where)
      : normalizer(file.field("normalizer"), where + ": normalizer"),
        pre_tokenizer(file.field("pre_tokenizer"), where + ": pre_tokenizer"),
        decoder(decoder_field(file, where), where + ": decoder"),
        bpe(make_bpe(file, pre_tokenizer.byte_level(), where)),
        added(make_added_tokens(file, normalizer, where)),
        raw_finder(added, false),
        normalized_finder(added, true),
        surroundings(parse_post_processor(file.field("post_processor"), where + ": post_processor")) {
    if (decoder.byte_level() != pre_tokenizer.byte_level())
      fail(Errc::Unsupported, "{}: only one of pre_tokenizer and decoder is ByteLevel", where);
    end_id = bpe.vocabulary().end_id();
    n_tokens = bpe.vocabulary().n_tokens();
    for (const AddedToken& token : added) index(token, where);
  }

  void index(const AddedToken& token, const std::string& where) {
    const Token same = bpe.vocabulary().find_spelling(token.content);
    const bool is_in_vocabulary = same == token.id;
    if ((same != kNoToken || bpe.vocabulary().has(token.id)) && !is_in_vocabulary)
      fail(Errc::Corrupt, "{}: the added token '{}' has the id {}, which the vocabulary gives differently",
           where, token.content, token.id);
    if (!by_id.try_emplace(token.id, &token).second)
      fail(Errc::Corrupt, "{}: two added tokens have the id {}", where, token.id);
    if (!by_content.try_emplace(token.content, token.id).second)
      fail(Errc::Corrupt, "{}: the added token '{}' stands twice", where, token.content);
    if (!is_in_vocabulary) ++n_tokens;
    end_id = std::max(end_id, token.id + 1);
  }

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  Bpe bpe;
  std::vector<AddedToken> added;
  AddedTokenFinder raw_finder, normalized_finder;
  Surroundings surroundings;
  std::unordered_map<Token, const AddedToken*> by_id;
  std::unordered_map<std::string_view, Token> by_content;
  size_t n_tokens = 0;
  Token end_id = 0;
};

// One call of encode.
struct Tokenizer::Work {
  const AddedTokenFinder::Allowed& allowed;
  bool recognised;
  std::vector<Token>& out;
  Bpe::Scratch scratch;
  std::string buffer;

  bool needs(const AddedTokenFinder& finder) const {
    return recognised ? !finder.empty() : finder.has_white_space();
  }
};

Tokenizer Tokenizer::load(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  return Tokenizer(read_text(file, kMaxFileBytes), file.string());
}

Tokenizer::Tokenizer(std::string_view json, const std::string& where)
    : parts_(std::make_unique<const Parts>(TokenizerFile(well_formed(json, where), where), where)) {}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<Token> Tokenizer::encode(std::string_view text, Markers markers) const {
  std::vector<Token> out;
  encode(text, markers, out);
  return out;
}

void Tokenizer::encode(std::string_view text, Markers markers, std::vector<Token>& out) const {
  const bool recognised = markers == Markers::Recognised;
  const auto allowed = [recognised](const AddedToken& token, size_t, size_t) {
    return recognised || token.is_white_space();
  };
  if (well_formed_bytes(text) == text.size()) return encode_raw(text, allowed, recognised, out);
  encode_raw(replace_ill_formed(text), allowed, recognised, out);
}

std::vector<Token> Tokenizer::encode_chat(std::string_view text, std::span<const TextRange> ranges) const {
  if (const size_t good = well_formed_bytes(text); good != text.size())
    fail(Errc::InvalidArgument, "the text is not UTF-8 at byte {}", good);
  const auto allowed = [ranges](const AddedToken& token, size_t begin, size_t end) {
    const auto after = std::partition_point(ranges.begin(), ranges.end(),
                                            [begin](const TextRange& range) { return range.end <= begin; });
    return after == ranges.end() || after->begin >= end || token.is_white_space();
  };
  std::vector<Token> out;
  encode_raw(text, allowed, true, out);
  return out;
}

void Tokenizer::encode_raw(std::string_view text, const AddedTokenFinder::Allowed& allowed, bool recognised,
                           std::vector<Token>& out) const {
  if (text.size() > kMaxTextBytes)
    fail(Errc::InvalidArgument, "a text of {} bytes; at most {} can be encoded at once", text.size(),
         kMaxTextBytes);
  Work work{allowed, recognised, out, {}, {}};
  if (text.size() >= kLongTextBytes) Bpe::remember_pieces(work.scratch);
  if (!work.needs(parts_->raw_finder)) return encode_segment(text, 0, work);
  parts_->raw_finder.split(
      text, allowed,
      {[&](size_t begin, size_t end) { encode_segment(text.substr(begin, end - begin), begin, work); },
       [&](Token id) { out.push_back(id); }});
}

// A segment between added tokens, which starts at byte `offset` of the text.
void Tokenizer::encode_segment(std::string_view text, size_t offset, Work& work) const {
  const std::string_view normalized = parts_->normalizer.apply(text, work.buffer);
  const auto encode_piece = [&](std::string_view piece) {
    parts_->bpe.encode(piece, work.scratch, work.out);
  };
  const auto encode_text = [&](size_t begin, size_t end) {
    parts_->pre_tokenizer.split(normalized.substr(begin, end - begin), offset == 0 && begin == 0,
                                encode_piece);
  };
  if (!work.needs(parts_->normalized_finder)) return encode_text(0, normalized.size());
  // Where normalisation moved bytes, a match may be anywhere in the segment.
  const bool moved = normalized.data() != text.data();
  const auto allowed = [&](const AddedToken& token, size_t begin, size_t end) {
    return moved ? work.allowed(token, offset, offset + text.size())
                 : work.allowed(token, offset + begin, offset + end);
  };
  parts_->normalized_finder.split(normalized, allowed,
                                  {encode_text, [&](Token id) { work.out.push_back(id); }});
}

void Tokenizer::append_bytes(Token id, bool skip_special, Decoder::Place& place, std::string& out) const {
  if (const AddedToken* added = added_token(id)) {
    if (skip_special && added->special) return;
    // What normalisation put into a token's pattern, a space before it perhaps, is taken out as from other
    // tokens.
    if (added->pattern != added->content) return parts_->decoder.append(added->pattern, place, out);
    parts_->decoder.append_literal(added->content, place, out);
  } else if (parts_->bpe.vocabulary().has(id)) {
    parts_->decoder.append(parts_->bpe.vocabulary().bytes(id), place, out);
  }
}

std::string Tokenizer::decode(std::span<const Token> ids, bool skip_special) const {
  std::string bytes;
  Decoder::Place place = parts_->decoder.start();
  for (const Token id : ids) append_bytes(id, skip_special, place, bytes);
  return well_formed_bytes(bytes) == bytes.size() ? bytes : replace_ill_formed(bytes);
}

std::string Tokenizer::token_bytes(Token id) const {
  std::string bytes;
  Decoder::Place inside{false, 0};
  append_bytes(id, false, inside, bytes);
  return bytes;
}

std::optional<Token> Tokenizer::find(std::string_view spelling) const {
  if (const auto added = parts_->by_content.find(spelling); added != parts_->by_content.end())
    return added->second;
  const Token id = parts_->bpe.vocabulary().find_spelling(spelling);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return parts_->added; }

const AddedToken* Tokenizer::added_token(Token id) const {
  const auto found = parts_->by_id.find(id);
  return found == parts_->by_id.end() ? nullptr : found->second;
}

size_t Tokenizer::n_tokens() const { return parts_->n_tokens; }
Token Tokenizer::end_id() const { return parts_->end_id; }
const std::vector<Token>& Tokenizer::leading_ids() const { return parts_->surroundings.before; }
const std::vector<Token>& Tokenizer::trailing_ids() const { return parts_->surroundings.after; }

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special), place_(tokenizer.parts_->decoder.start()) {}

std::string TextStream::push(Token id) {
  std::string text;
  bytes_.clear();
  tokenizer_.append_bytes(id, skip_special_, place_, bytes_);
  assembler_.push(bytes_, text);
  return text;
}

std::string TextStream::finish() {
  std::string text;
  assembler_.finish(text);
  place_ = tokenizer_.parts_->decoder.start();
  return text;
}

}  // namespace moeflux
