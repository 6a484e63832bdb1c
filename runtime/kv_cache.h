#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/program.h"

namespace assay {

enum class KvType : uint8_t { kF16, kBF16, kF32 };
std::string_view kv_type_name(KvType type);
std::optional<KvType> kv_type_from_name(std::string_view name);
/// Bytes of one element.
uint64_t kv_type_bytes(KvType type);

/// Keys and values of several sequences on the host. Per layer: K then V, each
/// (n_sequences, n_kv_heads, capacity, head_dim). `capacity` positions per sequence; grows never.
class KvCache {
 public:
  KvCache(const std::vector<CacheLayerSpec>& layers, KvType type, int n_sequences,
          int64_t capacity);

  /// Bytes that a cache of these sizes takes: what --dry-run prints.
  static uint64_t bytes(const std::vector<CacheLayerSpec>& layers, KvType type, int n_sequences,
                        int64_t capacity);

  KvType type() const { return type_; }
  int64_t capacity() const { return capacity_; }
  int64_t length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  void set_length(int sequence, int64_t length) {
    lengths_[static_cast<size_t>(sequence)] = length;
  }
  /// Forgets a sequence: length 0. Nothing of it is read again.
  void reset(int sequence) { set_length(sequence, 0); }

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
  std::vector<int64_t> lengths_;
  struct Free {
    void operator()(std::byte* data) const;
  };
  uint64_t offset(int layer, bool value, int sequence, int kv_head) const;
  std::vector<std::unique_ptr<std::byte[], Free>> data_;  // per layer
};

}  // namespace assay
