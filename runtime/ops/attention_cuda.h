#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/ops/linear_cuda.h"

// RoPE, cache write and attention on CUDA: the bits of ops/rope.h and ops/attention.h.

namespace assay::cuda {

enum class CacheType : int32_t { kF16, kBF16, kF32 };

inline constexpr int kMaxHeadDim = 256;

/// One layer's attention over a batch of tokens. Cache rows of K hold dimension i at
/// (i mod 32)·(head_dim / 32) + i / 32, so that a lane's elements lie side by side; V is in order.
struct AttentionArguments {
  const float* qkv = nullptr;  // (tokens, qkv_stride): q, k, v before RoPE
  int32_t qkv_stride = 0;
  int32_t k_offset = 0;
  int32_t v_offset = 0;
  const float* rope_cos = nullptr;  // (positions, rotary_dims / 2)
  const float* rope_sin = nullptr;
  int32_t rotary_dims = 0;
  const int32_t* positions = nullptr;  // (tokens)
  const int32_t* sequences = nullptr;  // (tokens) cache rows
  int32_t tokens = 0;
  void* keys = nullptr;  // (sequences, n_kv_heads, capacity, head_dim) of the cache type
  void* values = nullptr;
  int64_t capacity = 0;
  CacheType cache_type = CacheType::kF16;
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0.0f;
  int32_t window = 0;        // 0: none
  float* out = nullptr;      // (tokens, n_heads · head_dim)
  float* partial = nullptr;  // decode: (tokens, n_heads, max_segments, head_dim + 2)
  int32_t* counters =
      nullptr;  // decode: (tokens, n_kv_heads), one token also (n_heads), zero before and after
  int32_t max_segments = 0;
  int32_t splits = 0;  // decode: thread blocks per token and KV head
  int32_t fault_op = 0;
  DeviceFault* fault = nullptr;
};

/// One token of each of several sequences: RoPE, cache write and split attention in one launch.
void launch_decode_attention(const AttentionArguments& arguments, bool dependent,
                             cudaStream_t stream);
/// Many tokens: RoPE and cache write of all, then attention per query.
void launch_prefill_attention(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace assay::cuda
