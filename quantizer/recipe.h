#pragma once

#include <span>
#include <string>
#include <string_view>

#include "quantizer/quantize.h"

namespace assay {

/// A named set of steps (quantization.md). Every step has a switch of its own that goes before it.
struct Recipe {
  std::string_view name;         // "best"
  std::string_view description;  // for the help
  ScaleSearch scale_search = ScaleSearch::kMinMax;
  double target_alpha = 0.0;
  double residual_alpha = 0.0;
  int refit_rounds = 0;
  int descent_passes = 0;
  int regrid_rounds = 0;
};

std::span<const Recipe> all_recipes();
/// Throws UsageError with the names that exist.
const Recipe& find_recipe(std::string_view name);

/// Sets what the recipe decides and the run can have: without calibration data scales are min-max,
/// round-to-nearest has no step after the scales, and without propagation there is one stream only.
void apply_recipe(const Recipe& recipe, bool calibrated, QuantizeOptions& options);

/// Throws UsageError where options ask for a step that the run cannot have.
void check_steps(const QuantizeOptions& options, bool calibrated);

/// Sets the members of a JSON object by their names in recipe_json(), and damp_percent. Without a
/// target there is no residual target, and no more new groups than refit rounds, unless `values`
/// name them. Throws FormatError with `source` for other names, and for values of another type.
void apply_values(const Json& values, const std::string& source, QuantizeOptions& options);

/// The values of all steps, for fingerprint, manifest and report: name → value.
Json recipe_json(const QuantizeOptions& options);

}  // namespace assay
