#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calibrate/layer_plan.h"
#include "convert/checkpoint.h"
#include "convert/safetensors.h"
#include "quantizer/layouts/layout.h"
#include "quantizer/run_options.h"
#include "runtime/program.h"

namespace assay {

/// A run whose model and options were checked, before anything is computed: which linears are
/// quantized, and every tensor that the result will have.
struct RunPlan {
  std::shared_ptr<const Checkpoint> checkpoint;
  Program program;
  QuantizeOptions quantize;              // scale type as the layout wants it
  std::vector<QuantizeOptions> options;  // of each of Program::matrices: what RunOptions overrides
  std::vector<std::vector<QuantizeOptions>> beside;  // the same for each of RunOptions::beside
  const Algorithm* algorithm = nullptr;
  const CheckpointLayout* layout = nullptr;
  bool calibrated = false;          // activations are walked and Hessians made
  std::vector<char> selected;       // by Program::matrices: 1 if it is quantized
  std::vector<std::string> ignore;  // linears that stay in 16 bits
  /// Matrices that keep free scales since GridKind::kQ4K cannot hold their columns.
  std::vector<int> off_lattice;
  Json card;               // fields of the model card that say where the model comes from
  std::string card_fault;  // why those of its own card are not among them; empty: they are

  /// Whether the 16-bit stream runs beside the quantized one, for the target.
  bool two_streams() const;
  /// Windows that the 16-bit stream runs over, of so many; 0: there is none.
  int64_t n_plain_windows(int64_t n_windows) const;
  /// Whether any options for one of these matrices aim at the sum that its output goes into.
  bool wants_residual(const std::vector<int>& matrices) const;
  bool wants(int matrix) const { return selected[static_cast<size_t>(matrix)] != 0; }
  /// The same asked of a matrix of `program`. Must not outlive the plan.
  WantedMatrix wanted() const;
  bool is_off_lattice(int matrix) const;
  LinearShape shape(int matrix) const;
  LayerPlan layer(int index) const;
  /// "model.layers.0.linear_attn.out_proj (384 columns)"
  std::vector<std::string> off_lattice_names() const;
  /// Bits per weight of a quantized linear, scales and zero points included.
  double bits_per_weight(int matrix) const;
};

/// Opens the model (headers only) and checks everything that can be checked before work begins.
/// Throws UsageError with the list of all linears that do not divide into groups (case B38),
/// UnsupportedError for a model that is quantized already.
RunPlan plan_run(const RunOptions& options);

/// Tensors of the result without their bytes: TensorSource::write is empty.
std::vector<TensorSource> output_tensors(const RunPlan& plan);

}  // namespace assay
