#include "convert/tokenizer/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "convert/core/error.h"

namespace assay::tokenization {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

struct ClassRun {
  uint32_t first;
  uint8_t classes;
};
constexpr ClassRun kClassRuns[] = {
#include "convert/tokenizer/character_classes.inc"
};

struct LowerCaseRun {
  uint32_t first, last, step;
  int32_t distance;
};
constexpr LowerCaseRun kLowerCaseRuns[] = {
#include "convert/tokenizer/lower_case.inc"
};

/// Length of the well-formed character at the start, or 0 and in `ill_formed` the length of the
/// maximal part that could begin one (at least 1). `text` is not empty.
size_t well_formed_length(std::string_view text, size_t& ill_formed) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  // Table 3-7 of the Unicode standard: the second byte's range depends on the first byte.
  uint8_t low = 0x80, high = 0xBF;
  size_t length = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    ill_formed = 1;
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) {
      ill_formed = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

const uint8_t* character_classes() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> classes(kCodePoints);
    for (size_t i = 0; i < std::size(kClassRuns); ++i) {
      const uint32_t end = i + 1 < std::size(kClassRuns) ? kClassRuns[i + 1].first : kCodePoints;
      std::memset(&classes[kClassRuns[i].first], kClassRuns[i].classes, end - kClassRuns[i].first);
    }
    return classes;
  }();
  return table.data();
}

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  if (code < 0x800) {
    text += static_cast<char>(0xC0u | code >> 6);
  } else {
    if (code < 0x10000) {
      text += static_cast<char>(0xE0u | code >> 12);
    } else {
      text += static_cast<char>(0xF0u | code >> 18);
      text += static_cast<char>(0x80u | (code >> 12 & 0x3Fu));
    }
    text += static_cast<char>(0x80u | (code >> 6 & 0x3Fu));
  }
  text += static_cast<char>(0x80u | (code & 0x3Fu));
}

size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0, ill_formed = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      at += ascii_prefix(text.substr(at));
      continue;
    }
    const size_t length = well_formed_length(text.substr(at), ill_formed);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

void require_utf8(std::string_view text, std::string_view source) {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return;
  throw FormatError(
      fmt::format("{}: byte {} is not valid UTF-8; expected a text in UTF-8", source, valid));
}

void append_lossy_utf8(std::string& text, std::string_view bytes) {
  for (;;) {
    const size_t valid = valid_utf8_prefix(bytes);
    text.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    size_t ill_formed = 1;
    well_formed_length(bytes, ill_formed);
    text += "\xEF\xBF\xBD";
    bytes.remove_prefix(ill_formed);
  }
}

size_t incomplete_utf8_suffix(std::string_view bytes) {
  for (size_t n = 1; n <= 3 && n <= bytes.size(); ++n) {
    const std::string_view tail = bytes.substr(bytes.size() - n);
    const uint8_t first = static_cast<uint8_t>(tail[0]);
    if ((first & 0xC0u) == 0x80u) continue;
    size_t ill_formed = 0;
    // Incomplete: the maximal part that could begin a character is the whole rest of the text.
    const bool incomplete = first >= 0xC2 && first <= 0xF4 &&
                            well_formed_length(tail, ill_formed) == 0 && ill_formed == n;
    return incomplete ? n : 0;
  }
  return 0;
}

void append_lower_case(std::string& text, uint32_t code) {
  if (code == 0x130) {
    text += "i\xCC\x87";
    return;
  }
  const auto* run = std::upper_bound(
      std::begin(kLowerCaseRuns), std::end(kLowerCaseRuns), code,
      [](uint32_t value, const LowerCaseRun& candidate) { return value < candidate.first; });
  if (run != std::begin(kLowerCaseRuns)) {
    --run;
    if (code <= run->last && (code - run->first) % run->step == 0) {
      code = static_cast<uint32_t>(static_cast<int32_t>(code) + run->distance);
    }
  }
  append_utf8(text, code);
}

}  // namespace assay::tokenization
