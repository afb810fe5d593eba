#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "text/unicode_data.h"

namespace moeflux {
namespace {

template <size_t N>
CodePointSet set_of(const CodePointRange (&ranges)[N]) {
  return CodePointSet(std::vector<CodePointRange>(std::begin(ranges), std::end(ranges)));
}

// The categories whose names start with `prefix`.
CodePointSet categories(std::string_view prefix) {
  std::vector<CodePointRange> ranges;
  uint32_t start = 0;
  for (const uint32_t run : unicode_data::kCategoryRuns) {
    const uint32_t length = run / 32;
    if (std::string_view(unicode_data::kCategoryNames[run % 32]).starts_with(prefix))
      ranges.push_back({start, start + length - 1});
    start += length;
  }
  return CodePointSet(std::move(ranges));
}

CodePointSet alphabetic_characters() {
  CodePointSet set = categories("L");
  set.add(set_of(unicode_data::kAlphabeticBeyondLetters));
  return set;
}

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  for (const CodePointRange& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    else
      ranges_.push_back(range);
  }
}

void CodePointSet::add(const CodePointSet& other) {
  std::vector<CodePointRange> all = std::move(ranges_);
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  *this = CodePointSet(std::move(all));
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) result.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) result.ranges_.push_back({next, kMaxCodePoint});
  return result;
}

CodePointSet CodePointSet::intersection(const CodePointSet& other) const {
  CodePointSet outside = complement();
  outside.add(other.complement());
  return outside.complement();
}

CharacterTest::CharacterTest(const CodePointSet& set) : index_((kMaxCodePoint >> 8) + 1) {
  std::vector<Block> bits(index_.size());
  for (const CodePointRange& range : set.ranges())
    for (uint32_t point = range.first; point <= range.last;) {
      const bool whole_word = point % 64 == 0 && range.last - point >= 63;
      uint64_t& word = bits[point >> 8][point >> 6 & 3];
      word |= whole_word ? ~uint64_t{0} : uint64_t{1} << (point & 63);
      point += whole_word ? 64 : 1;
    }
  std::map<Block, uint16_t> known;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (i > 0 && bits[i] == bits[i - 1]) {  // most of them; spares the look-up
      index_[i] = index_[i - 1];
      continue;
    }
    const auto [found, is_new] = known.try_emplace(bits[i], static_cast<uint16_t>(blocks_.size()));
    if (is_new) blocks_.push_back(bits[i]);
    index_[i] = found->second;
  }
  for (uint32_t point = 0; point < 128; ++point) ascii_[point] = (*this)(point) ? 1 : 0;
}

std::optional<CodePointSet> unicode_property(std::string_view name) {
  if (name == "Han") return set_of(unicode_data::kHan);
  if (name == "Alphabetic") return alphabetic_characters();
  if (name.empty() || name.size() > 2) return std::nullopt;
  CodePointSet set = categories(name);
  if (set.empty()) return std::nullopt;
  return set;
}

CodePointSet white_space_characters() { return set_of(unicode_data::kWhiteSpace); }

CodePointSet number_characters() { return set_of(unicode_data::kNumbers); }

CodePointSet word_characters() {
  CodePointSet set = alphabetic_characters();
  for (const char* category : {"M", "Nd", "Pc"}) set.add(categories(category));
  set.add(CodePointSet({{0x200C, 0x200D}}));
  return set;
}

}  // namespace moeflux
