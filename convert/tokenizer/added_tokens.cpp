#include "convert/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "convert/core/error.h"
#include "convert/tokenizer/unicode.h"

namespace assay::tokenization {
namespace {

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const uint8_t* const classes = character_classes();
  const auto is_word = [&](const char* at) {
    return (classes[decode_character(at).code] & kWord) != 0;
  };
  if (begin > 0 && is_word(previous_character(text.data() + begin))) return false;
  return end == text.size() || !is_word(text.data() + end);
}

/// Where the white space that ends at `at` begins, no further left than `limit`.
size_t spaces_before(std::string_view text, size_t at, size_t limit) {
  const uint8_t* const classes = character_classes();
  while (at > limit) {
    const char* previous = previous_character(text.data() + at);
    if (!(classes[decode_character(previous).code] & kSpace)) break;
    at = static_cast<size_t>(previous - text.data());
  }
  return at;
}

size_t spaces_after(std::string_view text, size_t at) {
  const uint8_t* const classes = character_classes();
  while (at < text.size()) {
    const DecodedCharacter c = decode_character(text.data() + at);
    if (!(classes[c.code] & kSpace)) break;
    at += c.length;
  }
  return at;
}

}  // namespace

StringMatcher::StringMatcher(const std::vector<std::string>& strings) {
  for (size_t i = 0; i < strings.size(); ++i) {
    ASSAY_CHECK(!strings[i].empty());
    starts_[static_cast<uint8_t>(strings[i][0])] = true;
    const uint32_t node = strings_.add(strings[i]);
    if (strings_.number(node) == ByteTrie::kNoNumber) {
      strings_.set_number(node, static_cast<int32_t>(i));
    }
  }
}

std::optional<StringMatcher::Match> StringMatcher::find(
    std::string_view text, size_t from, FunctionRef<bool(const Match&)> accepts) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = strings_.child(node, text[end++]);
      if (node == ByteTrie::kRoot) break;
      const int32_t index = strings_.number(node);
      if (index == ByteTrie::kNoNumber) continue;
      const Match match{begin, end, static_cast<size_t>(index)};
      if (accepts(match)) longest = match;
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokenSplitter::AddedTokenSplitter(std::vector<AddedToken> tokens,
                                       const std::vector<std::string>& contents)
    : tokens_(std::move(tokens)), matcher_(contents) {
  has_special_ = std::any_of(tokens_.begin(), tokens_.end(),
                             [](const AddedToken& token) { return token.special; });
}

namespace {

/// Whether a token at [begin, end) is wholly outside of plain text, or wholly inside and not
/// special.
bool may_stand(size_t begin, size_t end, bool special, std::span<const ByteRange> plain_text) {
  const auto range = std::partition_point(plain_text.begin(), plain_text.end(),
                                          [&](const ByteRange& r) { return r.end <= begin; });
  if (range == plain_text.end()) return true;
  if (range->begin > begin) return end <= range->begin;
  return end <= range->end && !special;
}

}  // namespace

void AddedTokenSplitter::split(std::string_view text, bool parse_special,
                               std::span<const ByteRange> plain_text, Sink sink) const {
  const auto accepts = [&](const StringMatcher::Match& match) {
    return plain_text.empty() ||
           may_stand(match.begin, match.end, tokens_[match.index].special, plain_text);
  };
  size_t done = 0;  // may lie beyond the next match if rstrip took in what begins it
  size_t from = 0;
  while (!tokens_.empty()) {
    const std::optional<StringMatcher::Match> match = matcher_.find(text, from, accepts);
    if (!match) break;
    // A match that the flags refuse is not searched again for a shorter token inside.
    from = match->end;
    const AddedToken& token = tokens_[match->index];
    if (token.special && !parse_special) continue;
    if (token.single_word && !stands_alone(text, match->begin, match->end)) continue;
    size_t begin = match->begin, end = match->end;
    if (token.lstrip) begin = std::max(spaces_before(text, begin, 0), done);
    if (token.rstrip) end = spaces_after(text, end);
    if (begin >= end) continue;  // the token before took all of it in
    if (done < begin) sink(done, begin, nullptr);
    sink(begin, end, &token);
    done = end;
  }
  if (done < text.size()) sink(done, text.size(), nullptr);
}

}  // namespace assay::tokenization
