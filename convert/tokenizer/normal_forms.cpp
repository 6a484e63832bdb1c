#include "convert/tokenizer/normal_forms.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <vector>

#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

struct DecompositionRow {
  uint32_t code;
  uint16_t start;  // in kPool
  uint8_t length;
  uint8_t flags;  // 1 compatibility, 2 composes
};

struct CombiningRun {
  uint32_t first;
  uint8_t combining_class;
};

#include "convert/tokenizer/normal_forms.inc"

// Hangul syllables, by arithmetic (Unicode standard, §3.12).
constexpr uint32_t kSyllableBase = 0xAC00, kSyllables = 11172;
constexpr uint32_t kLeadBase = 0x1100, kLeads = 19;
constexpr uint32_t kVowelBase = 0x1161, kVowels = 21;
constexpr uint32_t kTrailBase = 0x11A7, kTrails = 28;  // the first stands for "no trail"

bool is_syllable(uint32_t code) { return code - kSyllableBase < kSyllables; }

/// Nothing at or above this code point has a decomposition or a combining class in Unicode 9.0.
constexpr uint32_t kTableEnd = 0x2FA20;

enum Trait : uint8_t {
  kCanonical = 1,      // has a canonical decomposition
  kCompatibility = 2,  // has a compatibility decomposition, itself or inside its canonical one
  kNotComposed = 4,    // canonical decomposition that NFC does not put together again
  kSecond = 8,         // can be the second character of a composition
  kCombines = 16,      // combining class is not 0
};

/// Traits that a character of normalized text does not have, or that need a closer look.
constexpr std::array<uint8_t, 4> kSuspicious = {
    kNotComposed | kSecond | kCombines,                   // NFC
    kCanonical | kCombines,                               // NFD
    kNotComposed | kCompatibility | kSecond | kCombines,  // NFKC
    kCanonical | kCompatibility | kCombines,              // NFKD
};

struct Tables {
  std::vector<uint8_t> traits = std::vector<uint8_t>(kTableEnd);
  std::vector<uint8_t> combining_classes = std::vector<uint8_t>(kTableEnd);
  std::unordered_map<uint64_t, uint32_t> compositions;  // first << 32 | second → composed

  Tables() {
    for (size_t i = 0; i < std::size(kCombiningRuns); ++i) {
      const bool last = i + 1 == std::size(kCombiningRuns);
      const uint32_t end = last ? kTableEnd : std::min(kCombiningRuns[i + 1].first, kTableEnd);
      for (uint32_t code = kCombiningRuns[i].first; code < end; ++code) {
        combining_classes[code] = kCombiningRuns[i].combining_class;
        if (combining_classes[code] != 0) traits[code] |= kCombines;
      }
    }
    for (const DecompositionRow& row : kDecompositions) add(row);
    for (const DecompositionRow& row : kDecompositions) {
      if ((row.flags & 1u) == 0 && reaches_compatibility(row)) traits[row.code] |= kCompatibility;
    }
    for (uint32_t code = kVowelBase; code < kVowelBase + kVowels; ++code) traits[code] |= kSecond;
    for (uint32_t code = kTrailBase + 1; code < kTrailBase + kTrails; ++code) {
      traits[code] |= kSecond;
    }
    for (uint32_t i = 0; i < kSyllables; ++i) traits[kSyllableBase + i] |= kCanonical;
  }

  static const Tables& get() {
    static const Tables tables;
    return tables;
  }

  static const DecompositionRow* find(uint32_t code) {
    const auto* row =
        std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code,
                         [](const DecompositionRow& r, uint32_t value) { return r.code < value; });
    return row != std::end(kDecompositions) && row->code == code ? row : nullptr;
  }

  uint8_t traits_of(uint32_t code) const { return code < kTableEnd ? traits[code] : uint8_t{0}; }
  uint8_t combining_class(uint32_t code) const {
    return code < kTableEnd ? combining_classes[code] : uint8_t{0};
  }

 private:
  void add(const DecompositionRow& row) {
    if (row.flags & 1u) {
      traits[row.code] |= kCompatibility;
      return;
    }
    traits[row.code] |= kCanonical;
    if (row.flags & 2u) {
      const uint32_t first = kPool[row.start], second = kPool[row.start + 1u];
      compositions.emplace(uint64_t{first} << 32 | second, row.code);
      traits[second] |= kSecond;
    } else {
      traits[row.code] |= kNotComposed;
    }
  }

  static bool reaches_compatibility(const DecompositionRow& row) {
    for (uint32_t i = 0; i < row.length; ++i) {
      const DecompositionRow* part = find(kPool[row.start + i]);
      if (part && ((part->flags & 1u) || reaches_compatibility(*part))) return true;
    }
    return false;
  }
};

struct Character {
  uint32_t code;
  uint8_t combining_class;
};

void decompose(const Tables& tables, uint32_t code, bool compatibility,
               std::vector<Character>& out) {
  if (is_syllable(code)) {
    const uint32_t index = code - kSyllableBase;
    out.push_back({kLeadBase + index / (kVowels * kTrails), 0});
    out.push_back({kVowelBase + index / kTrails % kVowels, 0});
    if (index % kTrails != 0) out.push_back({kTrailBase + index % kTrails, 0});
    return;
  }
  const uint8_t traits = tables.traits_of(code);
  if (traits & (compatibility ? kCanonical | kCompatibility : kCanonical)) {
    const DecompositionRow& row = *Tables::find(code);
    // Mappings are one step each, at most a few deep, and never circular.
    for (uint32_t i = 0; i < row.length; ++i) {
      decompose(tables, kPool[row.start + i], compatibility, out);
    }
    return;
  }
  out.push_back({code, tables.combining_class(code)});
}

/// Sorts each run of characters with a combining class by that class, stably. A counting sort, so
/// that a text of nothing but marks takes linear time.
void order_marks(std::vector<Character>& text) {
  std::vector<Character> copy;
  for (size_t begin = 0; begin < text.size();) {
    if (text[begin].combining_class == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    bool ordered = true;
    for (; end < text.size() && text[end].combining_class != 0; ++end) {
      ordered &= text[end - 1].combining_class <= text[end].combining_class;
    }
    if (!ordered) {
      std::array<size_t, 257> starts{};
      for (size_t i = begin; i < end; ++i) ++starts[text[i].combining_class + 1u];
      for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
      copy.assign(text.begin() + static_cast<ptrdiff_t>(begin),
                  text.begin() + static_cast<ptrdiff_t>(end));
      for (const Character& c : copy) text[begin + starts[c.combining_class]++] = c;
    }
    begin = end;
  }
}

std::optional<uint32_t> composition(const Tables& tables, uint32_t first, uint32_t second) {
  if (first - kLeadBase < kLeads && second - kVowelBase < kVowels) {
    return kSyllableBase + ((first - kLeadBase) * kVowels + (second - kVowelBase)) * kTrails;
  }
  if (is_syllable(first) && (first - kSyllableBase) % kTrails == 0 &&
      second - (kTrailBase + 1) < kTrails - 1) {
    return first + (second - kTrailBase);
  }
  const auto found = tables.compositions.find(uint64_t{first} << 32 | second);
  if (found == tables.compositions.end()) return std::nullopt;
  return found->second;
}

/// Puts each character into the last starter before it unless a character in between blocks it
/// (Unicode standard, D115 to D117).
void compose(const Tables& tables, std::vector<Character>& text) {
  std::optional<size_t> starter;
  size_t kept = 0;
  for (const Character c : text) {
    if (starter) {
      const bool adjacent = kept == *starter + 1;
      const bool blocked = !adjacent && (c.combining_class == 0 ||
                                         text[kept - 1].combining_class >= c.combining_class);
      if (!blocked) {
        if (const auto composed = composition(tables, text[*starter].code, c.code)) {
          text[*starter].code = *composed;
          continue;
        }
      }
    }
    text[kept] = c;
    if (c.combining_class == 0) starter = kept;
    ++kept;
  }
  text.resize(kept);
}

}  // namespace

bool to_normal_form(NormalForm form, std::string_view text, std::string& result) {
  const size_t ascii = ascii_prefix(text);
  if (ascii == text.size()) return false;
  const Tables& tables = Tables::get();
  const uint8_t suspicious = kSuspicious[static_cast<size_t>(form)];
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;

  std::string out;
  std::vector<Character> segment;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* copied = begin;  // everything before is in `out`
  const char* at = begin + ascii;
  while (at < end) {
    const DecodedCharacter c = decode_character(at);
    if ((tables.traits_of(c.code) & suspicious) == 0) {
      at += c.length;
      continue;
    }
    // The segment to work on reaches from the character before (it may take this one in) to the
    // next one without a suspicious trait, which nothing before it can reach.
    const char* first = at > copied ? previous_character(at) : at;
    const char* last = at;
    while (last < end) {
      const DecodedCharacter next = decode_character(last);
      if ((tables.traits_of(next.code) & suspicious) == 0) break;
      last += next.length;
    }
    segment.clear();
    for (const char* p = first; p < last;) {
      const DecodedCharacter next = decode_character(p);
      decompose(tables, next.code, compatibility, segment);
      p += next.length;
    }
    order_marks(segment);
    if (composed) compose(tables, segment);
    out.append(copied, first);
    for (const Character& next : segment) append_utf8(out, next.code);
    copied = at = last;
  }
  if (copied == begin) return false;
  out.append(copied, end);
  if (out == text) return false;
  result = std::move(out);
  return true;
}

}  // namespace assay::tokenization
