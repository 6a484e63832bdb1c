#include "convert/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "convert/core/error.h"
#include "convert/tokenizer/byte_level.h"
#include "convert/tokenizer/unicode.h"
#include "convert/tokenizer/unigram.h"

namespace assay::tokenization {
namespace {

/// Up to this many symbols the lowest rank is found by looking at all of them.
constexpr size_t kShortWord = 48;
/// From this many on, the merges of one rank are done together.
constexpr size_t kVeryLongWord = 1024;
constexpr uint32_t kNone = 0xFFFFFFFFu;  // no neighbour

}  // namespace

void MergeTable::reserve(size_t n) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * n, 2));
  if (size <= slots_.size()) return;
  std::vector<Slot> old(size);
  old.swap(slots_);
  mask_ = size - 1;
  shift_ = static_cast<uint32_t>(64 - std::countr_zero(size));
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) {
      set(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key & 0xFFFFFFFFu),
          slot.merge);
    }
  }
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  if (2 * (used_ + 1) > slots_.size()) reserve(slots_.size());
  const uint64_t key = pack(left, right);
  size_t slot = slot_of(key);
  while (slots_[slot].key != key && slots_[slot].key != kEmpty) slot = (slot + 1) & mask_;
  if (slots_[slot].key == kEmpty) ++used_;
  slots_[slot] = {key, merge};
}

Bpe::Bpe(Vocabulary vocabulary, std::vector<std::pair<int32_t, int32_t>> merges,
         const std::vector<uint32_t>& ranks, BpeOptions options, const std::string& source)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      options_(std::move(options)),
      source_(source) {
  table_.reserve(merges_.size());
  std::string merged;
  for (size_t i = 0; i < merges_.size(); ++i) {
    const auto [left, right] = merges_[i];
    const auto rank = ranks.empty() ? static_cast<uint32_t>(i) : ranks[i];
    // The prefix of continuing subwords stands once, before the whole.
    const std::string_view tail = vocabulary_.token(right);
    merged = vocabulary_.token(left);
    merged += tail.substr(std::min(options_.continuing_subword_prefix.size(), tail.size()));
    const std::optional<int32_t> id = vocabulary_.find(merged);
    if (!id) {
      throw FormatError(source + ": merge " + std::to_string(i) + ": \"" + merged +
                        "\" is not in the vocabulary");
    }
    table_.set(left, right, {rank, *id});
  }
  ranks_only_rise_ = ranks_only_rise();
  if (options_.unk_token) unk_id_ = vocabulary_.find(*options_.unk_token);
  all_bytes_known_ = true;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(spelling, byte_to_character(static_cast<uint8_t>(byte)));
    byte_ids_[byte] = vocabulary_.find(spelling).value_or(-1);
    all_bytes_known_ &= byte_ids_[byte] >= 0;
  }
  fallback_ids_ = byte_fallback_ids(vocabulary_);
  if (options_.ignore_merges && options_.byte_level) {
    words_.emplace();
    words_->reserve(vocabulary_.size(), 0);
    for (int32_t id = 0; id < vocabulary_.id_end(); ++id) {
      if (!vocabulary_.contains(id)) continue;
      if (const auto bytes = from_byte_level(vocabulary_.token(id))) words_->add(*bytes, id);
    }
  }
}

std::optional<int32_t> Bpe::find_word(std::string_view word) const {
  return (words_ ? *words_ : vocabulary_).find(word);
}

void Bpe::to_symbols(std::string_view word, Scratch& scratch) const {
  scratch.ids.clear();
  const bool plain =
      options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  if (options_.byte_level && plain && all_bytes_known_) {
    scratch.ids.resize(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
      scratch.ids[i] = byte_ids_[static_cast<uint8_t>(word[i])];
    }
    return;
  }
  to_symbols_slowly(word, scratch);
}

void Bpe::to_symbols_slowly(std::string_view word, Scratch& scratch) const {
  std::string mapped;
  if (options_.byte_level) {
    append_byte_level(mapped, word);
    word = mapped;
  }
  bool unknown = false;  // an unknown token that more characters may join
  const auto flush_unknown = [&] {
    if (unknown) scratch.ids.push_back(*unk_id_);
    unknown = false;
  };
  std::string& spelling = scratch.spelling;
  for (size_t at = 0; at < word.size();) {
    const size_t length = decode_character(word.data() + at).length;
    spelling.clear();
    if (at > 0) spelling += options_.continuing_subword_prefix;
    spelling += word.substr(at, length);
    if (at + length == word.size()) spelling += options_.end_of_word_suffix;
    at += length;
    if (const std::optional<int32_t> id = vocabulary_.find(spelling)) {
      flush_unknown();
      scratch.ids.push_back(*id);
      continue;
    }
    // Bytes go before an unknown token that is still open: the order of the reference.
    if (options_.byte_fallback && fall_back_to_bytes(spelling, scratch.ids)) continue;
    if (!options_.unk_token) continue;
    if (!unk_id_) {
      throw FormatError(source_ + ": model.unk_token: \"" + *options_.unk_token +
                        "\" is not in the vocabulary, and \"" + spelling + "\" needs it");
    }
    if (unknown && !options_.fuse_unk) flush_unknown();
    unknown = true;
  }
  flush_unknown();
}

bool Bpe::fall_back_to_bytes(std::string_view spelling, std::vector<int32_t>& ids) const {
  for (const char c : spelling) {
    if (fallback_ids_[static_cast<uint8_t>(c)] < 0) return false;
  }
  for (const char c : spelling) ids.push_back(fallback_ids_[static_cast<uint8_t>(c)]);
  return true;
}

void Bpe::encode_by_merges(std::string_view word, Scratch& scratch,
                           std::vector<int32_t>& ids) const {
  to_symbols(word, scratch);
  if (scratch.ids.size() > kShortWord) {
    merge_long(scratch);
  } else if (scratch.ids.size() > 1) {
    merge_short(scratch);
  }
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::encode_unmerged(std::string_view word, Scratch& scratch,
                          std::vector<int32_t>& ids) const {
  to_symbols(word, scratch);
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::merge_short(Scratch& scratch) const {
  int32_t* const ids = scratch.ids.data();
  size_t n = scratch.ids.size();
  std::array<MergeTable::Merge, kShortWord> merges;  // of symbol i with symbol i + 1
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = table_.find(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNoMerge) break;
    ids[best] = merges[best].id;
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    if (best + 2 < n) {
      std::copy(merges.begin() + best + 2, merges.begin() + n - 1, merges.begin() + best + 1);
    }
    --n;
    if (best > 0) merges[best - 1] = table_.find(ids[best - 1], ids[best]);
    if (best + 1 < n) merges[best] = table_.find(ids[best], ids[best + 1]);
  }
  scratch.ids.resize(n);
}

void Bpe::merge_long(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<Symbol>& symbols = scratch.symbols;
  const size_t n = ids.size();
  if (n >= kNone) {
    throw UnsupportedError(source_ + ": a word of " + std::to_string(n) +
                           " bytes; words of 4 GiB or more are not implemented");
  }
  symbols.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    symbols[i] = {ids[i], last ? MergeTable::kNoMerge : table_.find(ids[i], ids[i + 1]).rank,
                  last ? kNone : i + 1, i == 0 ? kNone : i - 1};
  }
  if (ranks_only_rise_ && n > kVeryLongWord) {
    merge_by_bucket(scratch);
  } else {
    merge_by_heap(scratch);
  }
  ids.clear();
  for (uint32_t at = 0; at != kNone; at = symbols[at].next) ids.push_back(symbols[at].id);
}

namespace {

/// Joins the symbol at `at` with the next one and calls add(position) for each of the two merges
/// that are new.
template <class Add>
void join(const MergeTable& table, std::vector<Bpe::Symbol>& symbols, uint32_t at, const Add& add) {
  Bpe::Symbol& symbol = symbols[at];
  Bpe::Symbol& right = symbols[symbol.next];
  symbol.id = table.find(symbol.id, right.id).id;
  right.rank = MergeTable::kNoMerge;
  symbol.next = right.next;
  symbol.rank = MergeTable::kNoMerge;
  if (symbol.next != kNone) {
    symbols[symbol.next].previous = at;
    symbol.rank = table.find(symbol.id, symbols[symbol.next].id).rank;
    if (symbol.rank != MergeTable::kNoMerge) add(at, symbol.rank);
  }
  if (symbol.previous != kNone) {
    Bpe::Symbol& left = symbols[symbol.previous];
    left.rank = table.find(left.id, symbol.id).rank;
    if (left.rank != MergeTable::kNoMerge) add(symbol.previous, left.rank);
  }
}

}  // namespace

/// The next merge comes from a heap of rank << 32 | position: n log n steps for any merges.
void Bpe::merge_by_heap(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;
  heap.clear();
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].rank != MergeTable::kNoMerge)
      heap.push_back(uint64_t{symbols[i].rank} << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto at = static_cast<uint32_t>(heap.back() & 0xFFFFFFFFu);
    heap.pop_back();
    if (symbols[at].rank != rank) continue;  // changed since
    join(table_, symbols, at, [&](uint32_t position, uint32_t new_rank) {
      heap.push_back(uint64_t{new_rank} << 32 | position);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    });
  }
}

/// Where a merge never makes one of lower rank possible, all merges of one rank can be done in one
/// pass over their positions: a linear number of steps, and memory is read in order.
void Bpe::merge_by_bucket(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<std::vector<uint32_t>>& buckets = scratch.buckets;
  std::vector<uint32_t>& open = scratch.open_ranks;  // heap of the ranks whose bucket is not empty
  buckets.resize(merges_.size());
  open.clear();
  const auto add = [&](uint32_t at, uint32_t rank) {
    if (buckets[rank].empty()) {
      open.push_back(rank);
      std::push_heap(open.begin(), open.end(), std::greater<>());
    }
    buckets[rank].push_back(at);
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].rank != MergeTable::kNoMerge) add(i, symbols[i].rank);
  }
  while (!open.empty()) {
    std::pop_heap(open.begin(), open.end(), std::greater<>());
    const uint32_t rank = open.back();
    open.pop_back();
    std::vector<uint32_t> positions = std::move(buckets[rank]);
    buckets[rank].clear();
    // Each earlier rank has added its positions in order; there are few of them.
    if (!std::is_sorted(positions.begin(), positions.end())) {
      std::sort(positions.begin(), positions.end());
    }
    for (const uint32_t at : positions) {
      if (symbols[at].rank == rank) join(table_, symbols, at, add);
    }
  }
}

/// Whether every merge has a higher rank than all merges that make one of its two tokens.
bool Bpe::ranks_only_rise() const {
  std::vector<uint32_t> highest(static_cast<size_t>(vocabulary_.id_end()));  // rank + 1
  for (const auto& [left, right] : merges_) {
    const MergeTable::Merge merge = table_.find(left, right);
    highest[static_cast<size_t>(merge.id)] =
        std::max(highest[static_cast<size_t>(merge.id)], merge.rank + 1);
  }
  for (const auto& [left, right] : merges_) {
    const uint32_t own = table_.find(left, right).rank + 1;
    if (highest[static_cast<size_t>(left)] >= own || highest[static_cast<size_t>(right)] >= own) {
      return false;
    }
  }
  return true;
}

}  // namespace assay::tokenization
