#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace assay::tokenization {

/// Ids of words seen lately. Bounded: a fixed number of slots, each for one short word, where a new
/// word displaces the old one. Results do not depend on what it holds. For one thread.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 23, kMaxIds = 9;

  struct Key {
    std::array<uint64_t, 3> words{};  // the bytes, zero-padded; the length in the last byte
    size_t slot = 0;
  };

  /// word.size() <= kMaxBytes.
  static Key key_of(std::string_view word) {
    Key key;
    for (size_t i = 0; i * 8 < word.size(); ++i) {
      key.words[i] = load(word.data() + i * 8, word.size() - i * 8);
    }
    key.words[2] |= uint64_t{word.size()} << 56;
    uint64_t hash = key.words[0] * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ key.words[1]) * 0xC2B2AE3D27D4EB4Fu;
    hash = (hash ^ hash >> 32 ^ key.words[2]) * 0x9E3779B97F4A7C15u;
    key.slot = hash >> (64 - kSlotBits);
    return key;
  }

  /// The ids, or an empty span if the word is not here.
  std::span<const int32_t> find(const Key& key) const {
    const Slot& slot = slots_[key.slot];
    if (((slot.words[0] ^ key.words[0]) | (slot.words[1] ^ key.words[1]) |
         (slot.words[2] ^ key.words[2])) != 0) {
      return {};
    }
    return {slot.ids.data(), slot.n_ids};
  }

  /// Keeps at most kMaxIds ids, and at least one.
  void put(const Key& key, std::span<const int32_t> ids) {
    if (ids.empty() || ids.size() > kMaxIds) return;
    Slot& slot = slots_[key.slot];
    slot.words = key.words;
    slot.n_ids = static_cast<uint32_t>(ids.size());
    std::memcpy(slot.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  /// The first min(n, 8) bytes, zero-padded, without a call of memcpy. n > 0.
  static uint64_t load(const char* at, size_t n) {
    const auto load_4 = [](const char* p) {
      uint32_t word;
      std::memcpy(&word, p, 4);
      return uint64_t{word};
    };
    if (n >= 8) return load_4(at) | load_4(at + 4) << 32;
    if (n >= 4) return load_4(at) | load_4(at + n - 4) << (8 * (n - 4));
    const auto byte = [at](size_t i) { return uint64_t{static_cast<uint8_t>(at[i])} << (8 * i); };
    return byte(0) | byte(n / 2) | byte(n - 1);
  }

  static constexpr int kSlotBits = 15;
  struct alignas(64) Slot {
    std::array<uint64_t, 3> words{};  // no word has length 0, so zeros match nothing
    uint32_t n_ids = 0;
    std::array<int32_t, kMaxIds> ids{};
  };
  static_assert(sizeof(Slot) == 64);

  std::unique_ptr<Slot[]> slots_ = std::make_unique<Slot[]>(size_t{1} << kSlotBits);
};

}  // namespace assay::tokenization
