#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "convert/core/enum_words.h"
#include "runtime/program.h"

namespace assay {

enum class KvType : uint8_t { kF16, kBF16, kF32 };
inline constexpr auto kKvTypeWords = enum_words<KvType>("f16", "bf16", "f32");
std::string_view kv_type_name(KvType type);
std::optional<KvType> kv_type_from_name(std::string_view name);
/// Bytes of one element.
uint64_t kv_type_bytes(KvType type);

/// What several sequences carry from token to token, on the host. Per attention layer: K then V,
/// each (n_sequences, n_kv_heads, rows, head_dim); per Gated DeltaNet layer: the state of
/// StateLayerSpec. `capacity` positions per sequence; grows never. A layer with a sliding window
/// keeps a ring of rows: position p lies in row p mod rows.
class KvCache {
 public:
  /// `chunk`: most tokens of a sequence that are written before the first of them attends; 0: any
  /// number, so that every layer keeps all positions.
  KvCache(const std::vector<CacheLayerSpec>& layers, KvType type, int n_sequences, int64_t capacity,
          const std::vector<StateLayerSpec>& states = {}, int64_t chunk = 0);

  /// Bytes that a cache of these sizes takes: what --dry-run prints.
  static uint64_t bytes(const std::vector<CacheLayerSpec>& layers, KvType type, int n_sequences,
                        int64_t capacity, int64_t chunk = 0);
  /// Rows that a layer keeps per sequence and head: capacity, or if that is less window − 1 +
  /// chunk, made whole segments of attention (128), which so never wrap around.
  static int64_t rows(const CacheLayerSpec& layer, int64_t capacity, int64_t chunk);

  /// Bytes of keys and values that this one holds.
  uint64_t bytes() const { return bytes_; }

  KvType type() const { return type_; }
  int64_t capacity() const { return capacity_; }
  int64_t length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  void set_length(int sequence, int64_t length) {
    lengths_[static_cast<size_t>(sequence)] = length;
  }
  /// Forgets a sequence: length 0, states 0. Nothing of it is read again.
  void reset(int sequence);
  /// Whether a sequence can go back to any earlier length: states are those of its last token, and
  /// a ring has let go of old positions.
  bool can_rewind() const { return states_.empty() && !has_rings_; }

  /// Bytes of the recurrent states of so many sequences.
  static uint64_t state_bytes(const std::vector<StateLayerSpec>& states, int n_sequences);
  /// (kernel − 1, channels), and (n_value_heads, value_dim, key_dim).
  float* conv_state(int layer, int sequence);
  float* matrix_state(int layer, int sequence);

  int64_t rows(int layer) const { return rows_[static_cast<size_t>(layer)]; }
  /// First element of the head's K (or V) rows; row stride is head_dim elements.
  std::byte* keys(int layer, int sequence, int kv_head);
  std::byte* values(int layer, int sequence, int kv_head);
  const std::byte* keys(int layer, int sequence, int kv_head) const;
  const std::byte* values(int layer, int sequence, int kv_head) const;

 private:
  std::vector<CacheLayerSpec> layers_;
  KvType type_;
  int n_sequences_;
  int64_t capacity_;
  std::vector<int64_t> rows_;  // per layer
  bool has_rings_ = false;
  uint64_t bytes_ = 0;
  std::vector<int64_t> lengths_;
  std::vector<StateLayerSpec> states_;
  std::vector<std::vector<float>> state_data_;  // per layer, (n_sequences, conv + matrix values)
  struct Free {
    void operator()(std::byte* data) const;
  };
  uint64_t offset(int layer, bool value, int sequence, int kv_head) const;
  std::vector<std::unique_ptr<std::byte[], Free>> data_;  // per layer
};

}  // namespace assay
