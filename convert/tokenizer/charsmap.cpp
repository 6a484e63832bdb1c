#include "convert/tokenizer/charsmap.h"

#include <utf8proc.h>

#include <cstring>
#include <utility>

#include "convert/tokenizer/expansion.h"
#include "convert/tokenizer/sentencepiece.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

constexpr size_t kLongestCluster = 5;  // bytes; longer ones are taken apart

std::string bytes_of_base64(const Part& part) {
  const std::string& text = part.string();
  const auto digit = [](char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  std::string bytes;
  uint32_t group = 0;
  size_t n = text.size();
  if (n % 4 != 0) part.malformed("is no base64: its length is no multiple of 4");
  while (n > 0 && n + 2 > text.size() && text[n - 1] == '=') --n;
  for (size_t i = 0; i < n; ++i) {
    const int value = digit(text[i]);
    if (value < 0) part.malformed("is no base64: character " + std::to_string(i));
    group = group << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 0) continue;
    bytes += static_cast<char>(static_cast<uint8_t>(group >> (6 - 2 * (i % 4))));
  }
  return bytes;
}

// The units of the double array, as Darts-clone lays them out: 32 bits, each with the byte that
// leads to it, whether a key ends there, and by how much its children lie apart.
uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit >> 9 & 1u) * 8); }
uint32_t unit_label(uint32_t unit) { return unit & 0x800000FFu; }
bool unit_has_value(uint32_t unit) { return (unit >> 8 & 1u) != 0; }
uint32_t unit_value(uint32_t unit) { return unit & 0x7FFFFFFFu; }

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(CharacterMap map) : map_(std::move(map)) {}

  bool apply(std::string_view text, std::string& result) const override {
    std::string out;
    bool changed = false;
    const auto replace = [&](std::string_view part) {
      const std::optional<CharacterMap::Match> match = map_.shortest(part);
      if (!match) return false;
      out += match->replacement;
      changed = true;
      check_expansion(text.size(), out.size());
      return true;
    };
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = end_of_cluster(text, begin);
      const std::string_view cluster = text.substr(begin, end - begin);
      if (cluster.size() > kLongestCluster || !replace(cluster)) {
        for (size_t at = 0; at < cluster.size();) {
          const std::string_view one = cluster.substr(at, decode_character(&cluster[at]).length);
          if (!replace(one)) out += one;
          at += one.size();
        }
      }
      begin = end;
    }
    if (changed) result = std::move(out);
    return changed;
  }
  bool keeps_start(std::string_view text) const override {
    if (text.empty()) return true;
    const std::string_view cluster = text.substr(0, end_of_cluster(text, 0));
    auto match = cluster.size() > kLongestCluster ? std::nullopt : map_.shortest(cluster);
    if (!match) match = map_.shortest(cluster.substr(0, decode_character(text.data()).length));
    return !match || !match->replacement.empty();
  }

 private:
  static size_t end_of_cluster(std::string_view text, size_t begin) {
    utf8proc_int32_t state = 0;
    DecodedCharacter last = decode_character(&text[begin]);
    size_t at = begin + last.length;
    while (at < text.size()) {
      const DecodedCharacter next = decode_character(&text[at]);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                           static_cast<utf8proc_int32_t>(next.code), &state)) {
        break;
      }
      last = next;
      at += next.length;
    }
    return at;
  }

  CharacterMap map_;
};

class PieceNormalizer : public Normalizer {
 public:
  explicit PieceNormalizer(PieceNormalizerRules rules) : rules_(std::move(rules)) {}

  bool apply(std::string_view text, std::string& result) const override {
    std::string out;
    size_t at = 0;
    if (rules_.remove_extra_whitespaces) {
      for (Step step; at < text.size(); at += step.length) {
        step = step_at(text.substr(at));
        if (step.text != " ") break;
      }
    }
    if (at < text.size() && rules_.add_space_prefix) out += kMetaSpace;
    bool after_space = rules_.remove_extra_whitespaces;
    while (at < text.size()) {
      Step step = step_at(text.substr(at));
      at += step.length;
      while (after_space && step.text.starts_with(' ')) step.text.remove_prefix(1);
      for (const char c : step.text) {
        if (c == ' ') {
          out += kMetaSpace;
        } else {
          out += c;
        }
      }
      if (rules_.remove_extra_whitespaces && !step.text.empty()) {
        after_space = step.text.ends_with(' ');
      }
      check_expansion(text.size(), out.size());
    }
    const size_t n_mark = std::string_view(kMetaSpace).size();
    while (rules_.remove_extra_whitespaces && out.ends_with(kMetaSpace)) {
      out.resize(out.size() - n_mark);
    }
    if (out == text) return false;
    result = std::move(out);
    return true;
  }

 private:
  struct Step {
    size_t length = 0;      // bytes read
    std::string_view text;  // what they become
  };
  Step step_at(std::string_view text) const {
    if (const std::optional<CharacterMap::Match> match = rules_.map.longest(text)) {
      return {match->length, match->replacement};
    }
    const size_t length = decode_character(text.data()).length;
    return {length, text.substr(0, length)};
  }

  PieceNormalizerRules rules_;
};

}  // namespace

std::optional<CharacterMap::Match> CharacterMap::find(std::string_view text, bool shortest) const {
  std::optional<Match> found;
  if (units_.empty()) return found;
  uint32_t node = unit_offset(units_[0]);
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte == 0) break;
    node ^= byte;
    const uint32_t unit = units_[node];
    if (unit_label(unit) != byte) break;
    node ^= unit_offset(unit);
    if (!unit_has_value(unit)) continue;
    found =
        Match{at + 1, replacements_.data() + unit_value(units_[node])};  // a zero byte ends each
    if (shortest) break;
  }
  return found;
}

template <class Use>
bool CharacterMap::for_each_value(const Use& use) const {
  if (units_.empty()) return false;
  std::vector<bool> seen(units_.size());
  std::vector<uint32_t> bases = {unit_offset(units_[0])};
  while (!bases.empty()) {
    const uint32_t base = bases.back();
    bases.pop_back();
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t node = base ^ byte;
      if (node >= units_.size()) return false;
      const uint32_t unit = units_[node];
      if (unit_label(unit) != byte || seen[node]) continue;
      seen[node] = true;
      const uint32_t next = node ^ unit_offset(unit);
      if (unit_has_value(unit)) {
        if (next >= units_.size()) return false;
        use(unit_value(units_[next]));
      }
      bases.push_back(next);
    }
  }
  return true;
}

std::optional<std::string> CharacterMap::read(std::string_view bytes, CharacterMap& map) {
  uint32_t n_bytes = 0;
  if (bytes.size() >= sizeof n_bytes) std::memcpy(&n_bytes, bytes.data(), sizeof n_bytes);
  if (bytes.size() < sizeof n_bytes || n_bytes % sizeof(uint32_t) != 0 ||
      n_bytes > bytes.size() - sizeof n_bytes) {
    return "holds " + std::to_string(bytes.size()) + " bytes, its trie would take " +
           std::to_string(n_bytes);
  }
  map.units_.resize(n_bytes / sizeof(uint32_t));
  if (n_bytes > 0) std::memcpy(map.units_.data(), bytes.data() + sizeof n_bytes, n_bytes);
  map.replacements_ = bytes.substr(sizeof n_bytes + n_bytes);
  const std::string& replacements = map.replacements_;
  if (valid_utf8_prefix(replacements) != replacements.size()) {
    return "has replacements that are not valid UTF-8";
  }
  bool inside = true;
  const bool sound = map.for_each_value([&](uint32_t at) {
    const bool begins = at < replacements.size() && (replacements[at] & 0xC0) != 0x80;
    inside = inside && begins;
  });
  if (!sound || !inside) return "leads outside of itself; the file is damaged";
  return std::nullopt;
}

std::unique_ptr<Normalizer> make_precompiled(const Part& part) {
  const Part map = part.member("precompiled_charsmap");
  const std::string bytes = bytes_of_base64(map);
  CharacterMap characters;
  if (const auto fault = CharacterMap::read(bytes, characters)) map.malformed(*fault);
  return std::make_unique<Precompiled>(std::move(characters));
}

std::unique_ptr<Normalizer> make_piece_normalizer(PieceNormalizerRules rules) {
  return std::make_unique<PieceNormalizer>(std::move(rules));
}

}  // namespace assay::tokenization
