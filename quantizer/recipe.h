#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/cli/command.h"
#include "quantizer/quantize.h"

namespace assay {

/// What a run must have for a value to be more than off; each has what the ones before it have.
enum class Needs : uint8_t {
  kNothing,
  kCalibration,  // calibration data
  kSteps,        // an algorithm that takes steps
  kTwoStreams,   // the 16-bit stream of activations beside the quantized one
};

/// One value that recipes, the command line and the candidates of a sweep set (quantization.md).
/// What reads, writes, checks or explains it goes over the rows of recipe_values().
struct RecipeValue {
  struct Access {
    Json (*get)(const QuantizeOptions& options);
    void (*set)(QuantizeOptions& options, const Json& value);  // FormatError for another type
  };

  std::string_view name;  // "refit_rounds": in sweeps, reports and fingerprints
  cli::Option option;
  Access access;
  Json best = {};  // in the recipe of that name; null: recipes leave the value alone
  Json off = {};   // in "plain", and where a run lacks what the value needs; null: there is no such
  Needs needs = Needs::kNothing;
  /// Where the value was not set by name: takes it back as far as another value asks for.
  void (*fit)(QuantizeOptions& options) = nullptr;
  bool per_module = true;  // modules may have one of their own
  bool in_recipe_json = true;

  Json get(const QuantizeOptions& options) const { return access.get(options); }
  std::string text(const QuantizeOptions& options) const;  // as its option takes it
};
std::span<const RecipeValue> recipe_values();

/// A named set of values. Every one has an option of its own that goes before it.
struct Recipe {
  std::string_view name;         // "best"
  std::string_view description;  // for the help
  Json RecipeValue::*value;      // what it sets in each row
};

std::span<const Recipe> all_recipes();
/// Throws UsageError with the names that exist.
const Recipe& find_recipe(std::string_view name);

/// Sets what the recipe decides and the run can have: without calibration data scales are min-max,
/// round-to-nearest has no step after the scales, and without propagation there is one stream only.
void apply_recipe(const Recipe& recipe, bool calibrated, QuantizeOptions& options);

/// Throws UsageError where a value is out of its range, or needs what the run does not have.
void check_recipe_values(const QuantizeOptions& options, bool calibrated);

/// Sets values by the names of their rows. Without a target there is no residual target, and there
/// are no more new groups than refit rounds, unless `values` name them. Throws FormatError with
/// `source` for a value of another type.
void set_values(const Json& values, const std::string& source, QuantizeOptions& options);
/// The same for some modules. Throws FormatError for a name that is no value of a module, too.
void set_module_values(const Json& values, const std::string& source, QuantizeOptions& options);
/// Names that set_module_values() knows.
std::vector<std::string> module_value_names();

/// The values of the recipe, for fingerprint, manifest and report: name → value.
Json recipe_json(const QuantizeOptions& options);

}  // namespace assay
