#include "convert/tokenizer/charsmap.h"

#include <utf8proc.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "convert/tokenizer/expansion.h"
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

/// A trie of byte strings in a double array, as Darts-clone lays it out: 32-bit units, each with
/// the byte that leads to it, whether a key ends there, and by how much its children lie apart.
class Trie {
 public:
  explicit Trie(std::vector<uint32_t> units) : units_(std::move(units)) {}

  /// The value of the shortest key that `text` begins with.
  std::optional<uint32_t> find(std::string_view text) const {
    uint32_t node = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte == 0) break;
      node ^= byte;
      const uint32_t unit = units_[node];
      if (label(unit) != byte) break;
      node ^= offset(unit);
      if (has_value(unit)) return units_[node] & 0x7FFFFFFFu;
    }
    return std::nullopt;
  }

  /// Calls use(value) for every key. False if some step leads outside of the array; then find()
  /// must not be called.
  template <class Use>
  bool for_each_value(const Use& use) const {
    if (units_.empty()) return false;
    std::vector<bool> seen(units_.size());
    std::vector<uint32_t> bases = {offset(units_[0])};
    while (!bases.empty()) {
      const uint32_t base = bases.back();
      bases.pop_back();
      for (uint32_t byte = 1; byte < 256; ++byte) {
        const uint32_t node = base ^ byte;
        if (node >= units_.size()) return false;
        const uint32_t unit = units_[node];
        if (label(unit) != byte || seen[node]) continue;
        seen[node] = true;
        const uint32_t next = node ^ offset(unit);
        if (has_value(unit)) {
          if (next >= units_.size()) return false;
          use(units_[next] & 0x7FFFFFFFu);
        }
        bases.push_back(next);
      }
    }
    return true;
  }

 private:
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit >> 9 & 1u) * 8); }
  static uint32_t label(uint32_t unit) { return unit & 0x800000FFu; }
  static bool has_value(uint32_t unit) { return (unit >> 8 & 1u) != 0; }

  std::vector<uint32_t> units_;
};

class Precompiled : public Normalizer {
 public:
  Precompiled(Trie trie, std::string replacements)
      : trie_(std::move(trie)), replacements_(std::move(replacements)) {}

  bool apply(std::string_view text, std::string& result) const override {
    std::string out;
    bool changed = false;
    const auto replace = [&](std::string_view part) {
      const std::optional<uint32_t> at = trie_.find(part);
      if (!at) return false;
      out += replacements_.data() + *at;  // a zero byte ends each
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

  Trie trie_;
  std::string replacements_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(const Part& part) {
  const Part map = part.member("precompiled_charsmap");
  const std::string bytes = bytes_of_base64(map);
  uint32_t n_bytes = 0;
  if (bytes.size() >= sizeof n_bytes) std::memcpy(&n_bytes, bytes.data(), sizeof n_bytes);
  if (bytes.size() < sizeof n_bytes || n_bytes % sizeof(uint32_t) != 0 ||
      n_bytes > bytes.size() - sizeof n_bytes) {
    map.malformed("holds " + std::to_string(bytes.size()) + " bytes, its trie would take " +
                  std::to_string(n_bytes));
  }
  std::vector<uint32_t> units(n_bytes / sizeof(uint32_t));
  if (n_bytes > 0) std::memcpy(units.data(), bytes.data() + sizeof n_bytes, n_bytes);
  std::string replacements = bytes.substr(sizeof n_bytes + n_bytes);
  if (valid_utf8_prefix(replacements) != replacements.size()) {
    map.malformed("has replacements that are not valid UTF-8");
  }
  Trie trie(std::move(units));
  bool inside = true;
  const bool sound = trie.for_each_value([&](uint32_t at) {
    const bool begins = at < replacements.size() && (replacements[at] & 0xC0) != 0x80;
    inside = inside && begins;
  });
  if (!sound || !inside) map.malformed("leads outside of itself; the file is damaged");
  return std::make_unique<Precompiled>(std::move(trie), std::move(replacements));
}

}  // namespace assay::tokenization
