#include "text/normalise.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "text/unicode_data.h"

namespace moeflux {
namespace {

using unicode_data::CombiningRun;
using unicode_data::Decomposition;

// Hangul syllables are composed by arithmetic.
constexpr uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

struct Composition {
  uint32_t first, second, composed;
};

bool before(const Composition& a, const Composition& b) {
  return a.first != b.first ? a.first < b.first : a.second < b.second;
}

std::vector<Composition> make_compositions() {
  std::vector<Composition> result;
  for (const Decomposition& d : unicode_data::kDecompositions)
    if (d.composes) result.push_back({d.first, d.second, d.composed});
  std::sort(result.begin(), result.end(), before);
  return result;
}

// Characters that change, that may compose with what is before them, or that may change places.
CodePointSet make_unsettled() {
  std::vector<CodePointRange> ranges;
  for (const CombiningRun& run : unicode_data::kCombiningClasses) ranges.push_back({run.first, run.last});
  for (const Decomposition& d : unicode_data::kDecompositions) {
    const uint32_t point = d.composes ? d.second : d.composed;
    ranges.push_back({point, point});
  }
  ranges.push_back({kVowels, kVowels + kVowelCount - 1});
  ranges.push_back({kTails + 1, kTails + kTailCount - 1});
  return CodePointSet(std::move(ranges));
}

const CharacterTest& unsettled() {
  static const CharacterTest test(make_unsettled());
  return test;
}

uint8_t combining_class(uint32_t point) {
  const auto run =
      std::upper_bound(std::begin(unicode_data::kCombiningClasses), std::end(unicode_data::kCombiningClasses),
                       point, [](uint32_t p, const CombiningRun& r) { return p < r.first; });
  if (run == std::begin(unicode_data::kCombiningClasses)) return 0;
  const CombiningRun& found = *std::prev(run);
  return point <= found.last ? found.combining_class : uint8_t{0};
}

uint32_t compose(uint32_t first, uint32_t second) {  // 0: these do not compose
  static const std::vector<Composition> compositions = make_compositions();
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 && second > kTails &&
      second - kTails < kTailCount)
    return first + (second - kTails);
  const Composition wanted{first, second, 0};
  const auto found = std::lower_bound(compositions.begin(), compositions.end(), wanted, before);
  return found != compositions.end() && !before(wanted, *found) ? found->composed : 0;
}

struct Mark {
  uint32_t point;
  uint8_t combining_class;
};

void decompose(uint32_t point, std::vector<Mark>& into) {
  if (point - kSyllables < kSyllableCount) {
    const uint32_t number = point - kSyllables;
    into.push_back({kLeads + number / (kVowelCount * kTailCount), 0});
    into.push_back({kVowels + number / kTailCount % kVowelCount, 0});
    if (number % kTailCount) into.push_back({kTails + number % kTailCount, 0});
    return;
  }
  const auto found =
      std::lower_bound(std::begin(unicode_data::kDecompositions), std::end(unicode_data::kDecompositions),
                       point, [](const Decomposition& d, uint32_t p) { return d.composed < p; });
  if (found == std::end(unicode_data::kDecompositions) || found->composed != point) {
    into.push_back({point, combining_class(point)});
    return;
  }
  decompose(found->first, into);
  if (found->second) decompose(found->second, into);
}

// Marks between two starters are sorted by their class; marks of one class keep their order.
void order_marks(std::vector<Mark>& marks) {
  auto at = marks.begin();
  while (at != marks.end()) {
    const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
    const auto from = std::find_if_not(at, marks.end(), is_starter);
    at = std::find_if(from, marks.end(), is_starter);
    std::stable_sort(from, at,
                     [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
  }
}

// A mark composes with the last starter unless a mark of its own or a higher class stands between them.
void compose_marks(std::vector<Mark>& marks) {
  size_t n = 0;
  size_t starter = SIZE_MAX;
  for (const Mark mark : marks) {
    if (starter != SIZE_MAX) {
      const bool adjacent = n == starter + 1;
      const bool blocked = !adjacent && marks[n - 1].combining_class >= mark.combining_class;
      if (const uint32_t composed = blocked ? 0 : compose(marks[starter].point, mark.point)) {
        marks[starter].point = composed;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = n;
    marks[n++] = mark;
  }
  marks.resize(n);
}

// The first unsettled character at or after `at`, or the end.
const char* find_unsettled(const char* at, const char* end) {
  const CharacterTest& test = unsettled();
  while (at != end) {
    if (static_cast<unsigned char>(*at) < 0x80) {  // ASCII is settled
      ++at;
      continue;
    }
    const char* after = at;
    if (test(next_code_point(after))) return at;
    at = after;
  }
  return end;
}

}  // namespace

bool may_need_nfc(std::string_view text) {
  const char* const end = text.data() + text.size();
  return find_unsettled(text.data(), end) != end;
}

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> marks;
  const char *copied = text.data(), *const end = text.data() + text.size();
  while (true) {
    const char* from = find_unsettled(copied, end);
    if (from == end) break;
    if (from != copied) from = previous_character(from);  // it may take the marks that follow
    out.append(copied, from);
    marks.clear();
    const char* at = from;
    decompose(next_code_point(at), marks);
    copied = at;
    while (copied != end) {
      const uint32_t point = next_code_point(at);
      if (!unsettled()(point)) break;
      decompose(point, marks);
      copied = at;
    }
    order_marks(marks);
    compose_marks(marks);
    for (const Mark& mark : marks) append_utf8(out, mark.point);
  }
  out.append(copied, end);
  return out;
}

}  // namespace moeflux
