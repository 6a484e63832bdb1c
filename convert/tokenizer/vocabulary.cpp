#include "convert/tokenizer/vocabulary.h"

#include <bit>
#include <cstring>

namespace assay::tokenization {
namespace {

constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, odd

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kMultiplier;
  return hash ^ hash >> 29;
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size();
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = mix(hash, word);
  }
  uint64_t word = 0;
  if (i < bytes.size()) std::memcpy(&word, bytes.data() + i, bytes.size() - i);
  hash = mix(hash, word);
  return mix(hash, hash >> 32);
}

void Vocabulary::reserve(size_t n_tokens, size_t n_bytes) {
  characters_.reserve(n_bytes);
  entries_.reserve(n_tokens);
  resize_slots(2 * n_tokens);
}

void Vocabulary::resize_slots(size_t n) {
  if (slots_.size() >= n) return;
  slots_.assign(std::bit_ceil(n), {});
  for (int32_t id = 0; id < id_end(); ++id) {
    if (!contains(id)) continue;
    const uint64_t hash = hash_bytes(token(id));
    slots_[slot_of(token(id), hash)] = {static_cast<uint32_t>(hash), id};
  }
}

bool Vocabulary::add(std::string_view token, int32_t id) {
  if (2 * (n_tokens_ + 1) > slots_.size()) resize_slots(4 * (n_tokens_ + 4));
  const uint64_t hash = hash_bytes(token);
  const size_t slot = slot_of(token, hash);
  if (slots_[slot].id >= 0 || contains(id)) return false;
  if (id >= id_end()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {characters_.size(), static_cast<uint32_t>(token.size()),
                                       true};
  characters_ += token;
  slots_[slot] = {static_cast<uint32_t>(hash), id};
  ++n_tokens_;
  return true;
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const int32_t id = slots_[slot_of(token, hash_bytes(token))].id;
  if (id < 0) return std::nullopt;
  return id;
}

bool Vocabulary::contains(int32_t id) const {
  return id >= 0 && id < id_end() && entries_[static_cast<size_t>(id)].present;
}

std::string_view Vocabulary::token(int32_t id) const {
  if (!contains(id)) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return std::string_view(characters_).substr(entry.offset, entry.length);
}

size_t Vocabulary::slot_of(std::string_view token, uint64_t hash) const {
  // The high bits choose the slot, the low ones are kept in it.
  size_t slot = (hash >> 32) & (slots_.size() - 1);
  while (slots_[slot].id >= 0 && (slots_[slot].hash != static_cast<uint32_t>(hash) ||
                                  this->token(slots_[slot].id) != token)) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

}  // namespace assay::tokenization
