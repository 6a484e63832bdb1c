#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay::tokenization {

/// Tokens by spelling and by id. Ids may have holes.
class Vocabulary {
 public:
  /// Ids at or above this are refused: tables are as long as the highest id.
  static constexpr int64_t kIdLimit = int64_t{1} << 21;

  void reserve(size_t n_tokens, size_t n_bytes);
  /// False, and nothing changes, if the spelling or the id is taken. 0 <= id < kIdLimit.
  bool add(std::string_view token, int32_t id);

  std::optional<int32_t> find(std::string_view token) const;
  bool contains(int32_t id) const;
  /// The spelling; empty for an id without a token. Valid until the next add().
  std::string_view token(int32_t id) const;
  /// Highest id + 1.
  int32_t id_end() const { return static_cast<int32_t>(entries_.size()); }
  size_t size() const { return n_tokens_; }

 private:
  struct Entry {
    uint64_t offset = 0;
    uint32_t length = 0;
    bool present = false;
  };
  struct Slot {
    uint32_t hash = 0;  // spares a look at the spelling of most other tokens
    int32_t id = -1;    // -1: empty
  };
  void resize_slots(size_t n);
  size_t slot_of(std::string_view token, uint64_t hash) const;

  std::string characters_;      // all spellings, one after another
  std::vector<Entry> entries_;  // by id
  std::vector<Slot> slots_;     // open addressing, a power of two
  size_t n_tokens_ = 0;
};

/// A quick hash that is the same on every machine.
uint64_t hash_bytes(std::string_view bytes);

}  // namespace assay::tokenization
