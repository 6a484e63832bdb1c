#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/ops/linear_cuda.h"

// Embedding, row selection, SwiGLU of separate rows and greedy choice on CUDA.

namespace assay::cuda {

/// What changes from step to step of a replayed decode graph; lives on the device.
struct DecodeState {
  int32_t* token_ids = nullptr;  // (tokens) input of the step; the choice is written back
  int32_t* positions = nullptr;  // (tokens) advanced by one
  int32_t* generated = nullptr;  // (steps, tokens)
  int32_t* step = nullptr;       // (1)
};

/// Rows of an embedding: the stored value widened to fp32. `raw` (rows, columns) of raw_type, or
/// null: then the packed matrix is decoded with its format's own arithmetic.
void launch_embed(const DeviceMatrix& table, const void* raw, ScaleType raw_type,
                  const int32_t* token_ids, float* out, int32_t columns, int32_t tokens,
                  bool dependent, cudaStream_t stream);

/// out[i] = in[rows[i]].
void launch_select_rows(const float* in, const int32_t* rows, float* out, int32_t columns,
                        int32_t n, cudaStream_t stream);

/// out = silu(gate)·up, element by element.
void launch_swiglu(const float* gate, const float* up, int32_t in_stride, float* out,
                   int32_t columns, int32_t tokens, cudaStream_t stream);

/// Lowest id of the largest logit of each row; advances the state. A logit that is not finite is a
/// fault. `partial` holds 128 (value, id) pairs per token, `counters` one zero per token.
void launch_greedy(const float* logits, int32_t vocab_size, int32_t tokens, DecodeState state,
                   float* partial, int32_t* counters, int32_t fault_op, DeviceFault* fault,
                   bool dependent, cudaStream_t stream);

/// Finite check of logits that go to the host.
void launch_check_finite(const float* values, int64_t n, int32_t fault_op, DeviceFault* fault,
                         cudaStream_t stream);

}  // namespace assay::cuda
