#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/core/tensor.h"
#include "convert/families/role.h"
#include "convert/formats/column_order.h"

namespace assay {

/// How a tensor's rows or values change from the Hugging Face file to GGUF.
enum class GgufTransform : uint8_t {
  kNone,
  kInterleaveRope,  // rows of each head from half-split to interleaved order (as llama.cpp
                    // rotates them)
  kAddOne,          // values w become fp32(1 + w), which is what the norm multiplies with
  kNegativeExp,     // values x become −exp(x), fp32
};

/// Blocks of rows or columns that GGUF keeps in another order: `groups` blocks that stand `repeats`
/// apart come first. From `begin` on, block p there is block (p mod groups)·repeats + p / groups of
/// the Hugging Face tensor.
struct BlockOrder {
  int64_t begin = 0;
  int64_t block = 0;  // rows or columns; 0: the order is the same
  int64_t groups = 1;
  int64_t repeats = 1;
};

/// Rows [first_row, first_row + the entry's rows) of a tensor that holds several entries of the
/// table one after the other; all dimensions but its last count as rows.
struct TensorSlice {
  std::string name;
  Shape shape;
  int64_t first_row = 0;
};

/// One tensor that a model of this spec has. Listed once; every reader and writer uses this row.
struct TensorEntry {
  Role role = Role::kTokenEmbedding;
  int layer = -1;         // −1: not in a layer
  int expert = -1;        // −1: not an expert's
  std::string hf_name;    // "model.layers.3.self_attn.q_proj.weight"
  std::string gguf_name;  // "blk.3.attn_q.weight"
  Shape shape;            // as in the Hugging Face file
  GgufTransform gguf_transform = GgufTransform::kNone;
  int n_heads = 0;                 // for kInterleaveRope
  BlockOrder gguf_rows;            // rows are the first dimension
  BlockOrder gguf_columns;         // begin 0, all columns
  bool quantizable = false;        // a linear that quantize may replace
  bool stacked_in_folder = false;  // models of this class keep it in hf_stack, others as hf_name
  /// Where a folder keeps it if there is no tensor `hf_name`.
  std::optional<TensorSlice> hf_stack = {};
  /// Where GGUF keeps it; gguf_name is the name of that tensor.
  std::optional<TensorSlice> gguf_stack = {};
  /// Rows times columns; else a vector, or the taps of a convolution.
  bool is_matrix() const { return shape.size() == 2; }
  /// "…self_attn.q_proj": hf_name without ".weight"
  std::string module_name() const;
};

/// Shape in GGUF: without dimensions of 1 between others.
Shape gguf_shape(const TensorEntry& entry);
/// Values as the ops use them, from those of the Hugging Face tensor: 1 + w, −exp(x) (fp64 function
/// of math64.h, rounded once, so that a file and a folder hold the same number), or unchanged.
void apply_transform(GgufTransform transform, std::span<float> values);

/// For each row of the tensor in GGUF the row of the Hugging Face tensor that it holds; empty where
/// the order is the same. Row 2i + j of a head is row j·(head_dim/2) + i (transformers'
/// modeling_llama.py).
std::vector<int64_t> huggingface_rows_of_gguf(const TensorEntry& entry);
/// The columns of GGUF from those of the Hugging Face tensor, and back.
ColumnOrder gguf_columns_of_huggingface(const TensorEntry& entry);
ColumnOrder huggingface_columns_of_gguf(const TensorEntry& entry);

}  // namespace assay
