#include "runtime/kv_cache.h"

#include <algorithm>
#include <cstdlib>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "runtime/ops/attention.h"

namespace assay {
namespace {

/// Bytes of K and V of one layer.
uint64_t layer_bytes(const CacheLayerSpec& layer, KvType type, int n_sequences, int64_t rows) {
  const auto heads = static_cast<uint64_t>(layer.n_kv_heads);
  const auto width = static_cast<uint64_t>(layer.head_dim) * kv_type_bytes(type);
  uint64_t bytes = checked_multiply(heads, width, "kv cache");
  bytes = checked_multiply(bytes, static_cast<uint64_t>(n_sequences), "kv cache");
  bytes = checked_multiply(bytes, static_cast<uint64_t>(rows), "kv cache");
  return checked_multiply(bytes, 2, "kv cache");
}

}  // namespace

std::string_view kv_type_name(KvType type) { return kKvTypeWords.name(type); }

std::optional<KvType> kv_type_from_name(std::string_view name) { return kKvTypeWords.find(name); }

uint64_t kv_type_bytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

int64_t KvCache::rows(const CacheLayerSpec& layer, int64_t capacity, int64_t chunk) {
  if (chunk == 0 || !layer.sliding_window || *layer.sliding_window >= capacity) return capacity;
  const int64_t needed = *layer.sliding_window - 1 + std::min(chunk, capacity);
  return std::min(capacity,
                  (needed + kAttentionSegment - 1) / kAttentionSegment * kAttentionSegment);
}

KvCache::KvCache(const std::vector<CacheLayerSpec>& layers, KvType type, int n_sequences,
                 int64_t capacity, const std::vector<StateLayerSpec>& states, int64_t chunk)
    : layers_(layers),
      type_(type),
      n_sequences_(n_sequences),
      capacity_(capacity),
      lengths_(static_cast<size_t>(n_sequences), 0),
      states_(states) {
  for (const StateLayerSpec& state : states) {
    const int64_t values = (state.conv_values() + state.matrix_values()) * n_sequences;
    state_data_.emplace_back(static_cast<size_t>(values));
  }
  data_.reserve(layers.size());
  for (const CacheLayerSpec& layer : layers) {
    rows_.push_back(rows(layer, capacity, chunk));
    has_rings_ = has_rings_ || rows_.back() < capacity;
    const uint64_t bytes = layer_bytes(layer, type, n_sequences, rows_.back());
    bytes_ += bytes;
    // calloc takes fresh pages from the system that cost nothing until they are written.
    auto* data = static_cast<std::byte*>(std::calloc(bytes == 0 ? 1 : bytes, 1));
    if (data == nullptr) {
      throw ResourceError("kv cache: no memory for " + std::to_string(bytes) +
                          " bytes of one layer; try a smaller context or a 16-bit KV type");
    }
    data_.emplace_back(data);
  }
}

void KvCache::reset(int sequence) {
  set_length(sequence, 0);
  for (size_t layer = 0; layer < states_.size(); ++layer) {
    const int64_t values = states_[layer].conv_values() + states_[layer].matrix_values();
    std::fill_n(state_data_[layer].begin() + sequence * values, values, 0.0f);
  }
}

uint64_t KvCache::state_bytes(const std::vector<StateLayerSpec>& states, int n_sequences) {
  uint64_t bytes = 0;
  for (const StateLayerSpec& state : states) {
    bytes += static_cast<uint64_t>(state.conv_values() + state.matrix_values()) * sizeof(float);
  }
  return checked_multiply(bytes, static_cast<uint64_t>(n_sequences), "recurrent state");
}

float* KvCache::conv_state(int layer, int sequence) {
  const StateLayerSpec& state = states_[static_cast<size_t>(layer)];
  const int64_t values = state.conv_values() + state.matrix_values();
  return state_data_[static_cast<size_t>(layer)].data() + sequence * values;
}

float* KvCache::matrix_state(int layer, int sequence) {
  return conv_state(layer, sequence) + states_[static_cast<size_t>(layer)].conv_values();
}

void KvCache::Free::operator()(std::byte* data) const { std::free(data); }

uint64_t KvCache::bytes(const std::vector<CacheLayerSpec>& layers, KvType type, int n_sequences,
                        int64_t capacity, int64_t chunk) {
  uint64_t total = 0;
  for (const CacheLayerSpec& layer : layers) {
    const int64_t kept = rows(layer, capacity, chunk);
    total = checked_add(total, layer_bytes(layer, type, n_sequences, kept), "kv cache");
  }
  return total;
}

uint64_t KvCache::offset(int layer, bool value, int sequence, int kv_head) const {
  const CacheLayerSpec& spec = layers_[static_cast<size_t>(layer)];
  const auto heads = static_cast<uint64_t>(spec.n_kv_heads);
  const uint64_t plane = value ? static_cast<uint64_t>(n_sequences_) * heads : 0;
  const uint64_t head =
      plane + static_cast<uint64_t>(sequence) * heads + static_cast<uint64_t>(kv_head);
  return head * static_cast<uint64_t>(rows(layer)) * static_cast<uint64_t>(spec.head_dim) *
         kv_type_bytes(type_);
}

std::byte* KvCache::keys(int layer, int sequence, int kv_head) {
  return data_[static_cast<size_t>(layer)].get() + offset(layer, false, sequence, kv_head);
}
std::byte* KvCache::values(int layer, int sequence, int kv_head) {
  return data_[static_cast<size_t>(layer)].get() + offset(layer, true, sequence, kv_head);
}
const std::byte* KvCache::keys(int layer, int sequence, int kv_head) const {
  return data_[static_cast<size_t>(layer)].get() + offset(layer, false, sequence, kv_head);
}
const std::byte* KvCache::values(int layer, int sequence, int kv_head) const {
  return data_[static_cast<size_t>(layer)].get() + offset(layer, true, sequence, kv_head);
}

}  // namespace assay
