#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/hessian.h"
#include "convert/core/dtype.h"
#include "convert/core/enum_words.h"
#include "convert/core/json.h"

namespace assay {

enum class DampBasis : uint8_t { kMeanDiagonal, kMaxDiagonal };
inline constexpr auto kDampBasisWords = enum_words<DampBasis>("mean", "max");
enum class ActOrder : uint8_t { kNone, kStatic };
inline constexpr auto kActOrderWords = enum_words<ActOrder>("none", "static");
enum class ScaleSearch : uint8_t { kMinMax, kHessianGrid };
inline constexpr auto kScaleSearchWords = enum_words<ScaleSearch>("min-max", "grid");
/// Which scales and zero points a group can have: any, or those that leave the super-blocks of
/// GGUF's Q4_K unchanged when codes are moved there (q4_k_grid.h).
enum class GridKind : uint8_t { kFree, kQ4K };
inline constexpr auto kGridKindWords = enum_words<GridKind>("free", "q4_k");

/// What a user chooses; stands in the manifest as it is.
struct QuantizeOptions {
  std::string algorithm = "gptq";  // a name of algorithms/registry.cpp
  int bits = 4;                    // 3, 4 or 8
  int64_t group_size = 128;        // columns per scale; −1: whole row
  bool symmetric = false;
  DType scale_dtype = DType::kBF16;  // type that scales are rounded to, and stored as
  /// F16 scales that bf16 holds as well: a reader that works in bf16 casts them without a change.
  bool scales_fit_bf16 = false;
  double damp_percent = 0.01;
  DampBasis damp_basis = DampBasis::kMeanDiagonal;
  std::vector<double> damp_retries =
      {};  // tried in order after a failed factorisation; all reported
  ActOrder act_order = ActOrder::kStatic;
  ScaleSearch scale_search = ScaleSearch::kHessianGrid;
  GridKind grid = GridKind::kFree;
  int64_t solve_block_size = 128;  // columns per lazy block; changes speed only
  bool propagate = true;           // false: inputs come from the 16-bit stream

  // Beyond the column loop (quantization.md); all of them off is the plain recipe.
  double target_alpha = 0.0;    // part of the two streams' difference that the target makes good
  double residual_alpha = 0.0;  // the same of the sum that the output goes into
  int64_t target_windows = 0;   // of the 16-bit stream for that, evenly spread; 0: all
  int refit_rounds = 0;         // rounds of scale refit, each followed by
  int descent_passes = 0;       // so many passes of coordinate descent over the codes
  int regrid_rounds = 0;        // first rounds in which each group is quantized anew, too
  /// Calibration windows on which the sensitivities of the outputs are measured; 0: rows of a
  /// linear are independent.
  int64_t sensitivity_windows = 0;

  bool measure_plain = false;  // also report what the plain recipe would lose; changes no result

  friend bool operator==(const QuantizeOptions&, const QuantizeOptions&) = default;
};

/// The damped factor of one Hessian, shared by the linears that read the same input.
/// permute(H + λI) = R·R^T, R upper triangular (arithmetic.md §9).
struct HessianFactor {
  int64_t n = 0;
  std::vector<int64_t> order;  // order[i]: original column at solve position i
  std::vector<float> ratios;   // (n, n) T_ij = fp32(R_ij / R_jj), i < j, row-major
  std::vector<double> pivots;  // (n) R_ii
  double lambda = 0.0;
  double damp_percent = 0.0;  // the one that succeeded
  int64_t n_dead = 0;
  std::vector<double> damping;  // (n) what was added to H_jj, by original column
  /// (n + 3, stride) U with U^T·U = H + λI in reversed solve order: U_ab = R_ij with i = n − 1 − b,
  /// j = n − 1 − a. Kept where QuantizeOptions::target_alpha asks for it, else empty.
  std::vector<double> upper;
  int64_t upper_stride = 0;
};

/// One linear to be quantized.
struct LayerProblem {
  std::string_view module;
  int64_t out_features = 0;
  int64_t in_features = 0;
  std::span<const float> weights;         // (out_features, in_features)
  const Hessian* hessian = nullptr;       // never null for algorithms that need calibration
  const HessianFactor* factor = nullptr;  // likewise
  /// D = (X − X̃)^T X̃ (in_features, in_features): X the 16-bit stream, X̃ the quantized one, whose
  /// Hessian is above. Null: the target is W itself.
  const CrossProduct* drift = nullptr;
  /// How the errors of its outputs act together on the predictions: G of the chains of its rows,
  /// one after another (calibrate/sensitivity.h). Empty: rows are independent.
  std::span<const float> sensitivity = {};
  /// E = (S − S̃)^T X̃ (out_features, in_features), S and S̃ what the output is added to in the two
  /// streams. Null: nothing, or something between.
  const CrossProduct* residual_drift = nullptr;
};

/// (W* − Ŵ)(H + λI)(W* − Ŵ)^T, summed over rows: what the algorithm left and the steps after it
/// brought. A new step is a member and a row of kStepGains.
struct StepLosses {
  double column_loop = 0.0;
  double refit = 0.0;    // the sum of what all refits took away
  double descent = 0.0;  // likewise
  double regrid = 0.0;   // likewise

  StepLosses& operator+=(const StepLosses& other);
};

struct StepGain {
  std::string_view name;
  double StepLosses::*gain;
};
inline constexpr StepGain kStepGains[] = {
    {"refit", &StepLosses::refit},
    {"descent", &StepLosses::descent},
    {"regrid", &StepLosses::regrid},
};

inline StepLosses& StepLosses::operator+=(const StepLosses& other) {
  column_loop += other.column_loop;
  for (const StepGain& step : kStepGains) this->*step.gain += other.*step.gain;
  return *this;
}

/// Grid and codes of a quantized linear: w = scale · (code − zero).
struct LayerResult {
  std::vector<uint8_t>
      codes;  // (out_features, in_features), one code per byte, original column order
  std::vector<float> scales;  // (out_features, n_groups), values of scale_dtype
  std::vector<uint8_t>
      zero_points;           // (out_features, n_groups), unsigned domain (symmetric: 2^(bits−1))
  double loss = 0.0;         // (W − Ŵ) H (W − Ŵ)^T summed over rows
  double rtn_loss = 0.0;     // the same of round-to-nearest with min-max scales
  double weight_norm = 0.0;  // W H W^T summed over rows
  double clipped_share = 0.0;  // of codes at the ends of the grid whose value lies beyond it
  /// Σ‖(S + X W^T) − (S̃ + X̃ Ŵ^T)‖² less what no Ŵ can change; only with a drift.
  std::optional<double> output_distance = std::nullopt;
  std::optional<double> rtn_output_distance = std::nullopt;  // the same of round-to-nearest
  /// What `loss`, or with a drift `output_distance`, is where outputs count by their sensitivity:
  /// the aim of a linear that has one.
  std::optional<double> coupled_loss = std::nullopt;
  std::optional<double> rtn_coupled_loss = std::nullopt;
  std::optional<StepLosses> steps = std::nullopt;   // only where something follows the column loop
  std::optional<double> plain_loss = std::nullopt;  // of the plain recipe; where options ask for it
};

struct Grid;  // quantizer/grid.h

/// One algorithm: a pure function from weights and a grid to codes. What stands around it (target,
/// grid, the steps that follow, figures) is quantize_linear() of quantize_linear.h. A new one is a
/// file in algorithms/ and one row in registry.cpp.
struct Algorithm {
  std::string_view name;          // "gptq"
  std::string_view description;   // one line for the help
  bool needs_calibration = true;  // a problem has hessian and factor
  /// The recipe may aim it at another target and improve its codes (recipe.h); both take the
  /// factor.
  bool takes_steps = true;
  /// Codes (out_features, in_features) of problem.weights on this grid. Returns how many were cut
  /// to the grid's ends.
  int64_t (*codes)(const LayerProblem& problem, const QuantizeOptions& options, const Grid& grid,
                   std::span<uint8_t> codes) = nullptr;
  /// What codes() works in, per thread; null: nothing to speak of.
  uint64_t (*bytes_per_thread)(int64_t in_features) = nullptr;
};

std::span<const Algorithm> all_algorithms();
/// Throws UsageError with the names that exist.
const Algorithm& find_algorithm(std::string_view name);

}  // namespace assay
