#include "quantizer/recipe.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "convert/cli/option_table.h"
#include "convert/core/error.h"
#include "convert/core/words.h"

namespace assay {
namespace {

using cli::ValueKind;

template <auto kMember>
constexpr RecipeValue::Access number() {
  return {[](const QuantizeOptions& options) { return Json(options.*kMember); },
          [](QuantizeOptions& options, const Json& value) {
            using Number = std::decay_t<decltype(options.*kMember)>;
            if constexpr (std::is_integral_v<Number>) {
              options.*kMember = static_cast<Number>(value.as_integer());
            } else {
              options.*kMember = value.as_number();
            }
          }};
}

template <auto kMember, const auto& kWords>
constexpr RecipeValue::Access word() {
  return {[](const QuantizeOptions& options) { return Json(kWords.name(options.*kMember)); },
          [](QuantizeOptions& options, const Json& value) {
            const auto found = kWords.find(value.as_string());
            if (!found) {
              throw FormatError("found " + value.dump(0) + ", expected " +
                                join_words(kWords.list(), " or ", in_quotes));
            }
            options.*kMember = *found;
          }};
}

std::vector<RecipeValue> make_values() {
  return {
      {.name = "target_alpha",
       .option = {.name = "target-alpha",
                  .kind = ValueKind::kNumber,
                  .value_name = "X",
                  .help = "How far each linear makes good what the linears before it changed: a "
                          "16-bit stream of activations runs beside the quantized one. 0: one "
                          "stream.",
                  .group = "Recipe",
                  .minimum = 0,
                  .maximum = 1},
       .access = number<&QuantizeOptions::target_alpha>(),
       .best = 0.75,
       .off = 0.0,
       .needs = Needs::kTwoStreams},
      {.name = "residual_alpha",
       .option = {.name = "residual-alpha",
                  .kind = ValueKind::kNumber,
                  .value_name = "X",
                  .help = "The same for what a linear's output is added to, where nothing stands "
                          "between. Needs --target-alpha above 0.",
                  .group = "Recipe",
                  .minimum = 0,
                  .maximum = 1},
       .access = number<&QuantizeOptions::residual_alpha>(),
       .best = 0.75,
       .off = 0.0,
       .needs = Needs::kTwoStreams,
       .fit =
           [](QuantizeOptions& options) {
             if (options.target_alpha == 0.0) options.residual_alpha = 0.0;
           }},
      {.name = "target_windows",
       .option = {.name = "target-windows",
                  .kind = ValueKind::kInteger,
                  .value_name = "N",
                  .help = "Calibration windows, evenly spread, that the 16-bit stream for "
                          "--target-alpha runs over. 0: all.",
                  .group = "Recipe",
                  .minimum = 0},
       .access = number<&QuantizeOptions::target_windows>(),
       .best = 64,
       .off = 0,
       .needs = Needs::kTwoStreams,
       .fit =
           [](QuantizeOptions& options) {
             if (options.target_alpha == 0.0) options.target_windows = 0;
           },
       .per_module = false},
      {.name = "act_order",
       .option = {.name = "act-order",
                  .value_name = "HOW",
                  .help = "Order in which columns are decided: by their diagonal of the Hessian "
                          "(static; groups stay as they are), or as they stand (none).",
                  .group = "Quantization",
                  .choices = kActOrderWords.list()},
       .access = word<&QuantizeOptions::act_order, kActOrderWords>(),
       .per_module = false},
      {.name = "grid",
       .option = {.name = "grid",
                  .value_name = "KIND",
                  .help = "Scales and zero points a group can have: any, or those whose codes move "
                          "into GGUF's Q4_K unchanged (q4_k; 4 bits. Linears "
                          "whose columns are no multiple of 256 keep free scales, and are named).",
                  .group = "Quantization",
                  .choices = kGridKindWords.list()},
       .access = word<&QuantizeOptions::grid, kGridKindWords>(),
       .off = "free",
       .needs = Needs::kCalibration},
      {.name = "scales",
       .option = {.name = "scales",
                  .value_name = "HOW",
                  .help = "Range of each group: min-max, or the best of 21 by its Hessian (grid).",
                  .group = "Recipe",
                  .choices = kScaleSearchWords.list()},
       .access = word<&QuantizeOptions::scale_search, kScaleSearchWords>(),
       .best = "grid",
       .off = "min-max",
       .needs = Needs::kCalibration},
      {.name = "refit_rounds",
       .option = {.name = "refit-rounds",
                  .kind = ValueKind::kInteger,
                  .value_name = "N",
                  .help = "Rounds that fit the scales again once the codes are known.",
                  .group = "Recipe",
                  .minimum = 0},
       .access = number<&QuantizeOptions::refit_rounds>(),
       .best = 3,
       .off = 0,
       .needs = Needs::kSteps},
      {.name = "descent_passes",
       .option = {.name = "descent",
                  .kind = ValueKind::kInteger,
                  .value_name = "N",
                  .help = "Passes over the codes, one at a time to its best value, in each round.",
                  .group = "Recipe",
                  .minimum = 0},
       .access = number<&QuantizeOptions::descent_passes>(),
       .best = 1,
       .off = 0,
       .needs = Needs::kSteps},
      {.name = "regrid_rounds",
       .option = {.name = "regrid-rounds",
                  .kind = ValueKind::kInteger,
                  .value_name = "N",
                  .help = "First rounds in which each group gets scale, zero point and codes anew, "
                          "given the other groups.",
                  .group = "Recipe",
                  .minimum = 0},
       .access = number<&QuantizeOptions::regrid_rounds>(),
       .best = 1,
       .off = 0,
       .needs = Needs::kSteps,
       .fit =
           [](QuantizeOptions& options) {
             options.regrid_rounds = std::min(options.regrid_rounds, options.refit_rounds);
           }},
      {.name = "sensitivity_windows",
       .option = {.name = "sensitivity-windows",
                  .kind = ValueKind::kInteger,
                  .value_name = "N",
                  .help = "Calibration windows on which derivatives of the 16-bit model's "
                          "predictions are taken, so that each row makes good what the errors of "
                          "other rows do to those. 0: rows are independent.",
                  .group = "Recipe",
                  .minimum = 0},
       .access = number<&QuantizeOptions::sensitivity_windows>(),
       .best = 8,
       .off = 0,
       .needs = Needs::kSteps,
       .per_module = false},
      {.name = "damp_percent",
       .option = {.name = "damp",
                  .kind = ValueKind::kNumber,
                  .value_name = "X",
                  .help = "Added to the Hessian's diagonal, as a part of --damp-basis.",
                  .group = "Quantization",
                  .minimum = 0},
       .access = number<&QuantizeOptions::damp_percent>(),
       .needs = Needs::kCalibration,
       .in_recipe_json = false},
  };
}

constexpr Recipe kRecipes[] = {
    {"best", "all that bring the result nearer to the model, in two to three times the time",
     &RecipeValue::best},
    {"plain", "none, and min-max scales", &RecipeValue::off},
};

/// "--algorithm gptq"
std::string algorithms_with_steps() {
  std::vector<std::string_view> names;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.takes_steps) names.push_back(algorithm.name);
  }
  return "--algorithm " + join_words(names, " or ");
}

bool has(Needs needs, const QuantizeOptions& options, bool calibrated) {
  if (needs >= Needs::kCalibration && !calibrated) return false;
  if (needs >= Needs::kSteps && !find_algorithm(options.algorithm).takes_steps) return false;
  return needs < Needs::kTwoStreams || options.propagate;
}

[[noreturn]] void refuse(const RecipeValue& value, const QuantizeOptions& options) {
  const std::string option = "--" + value.option.name;
  const std::string without =
      option + " " + (value.off.is_string() ? value.off.as_string() : value.off.dump(0));
  switch (value.needs) {
    case Needs::kTwoStreams:
      throw UsageError(option + " needs two streams of activations: use " +
                       algorithms_with_steps() +
                       " with calibration data and without --no-propagate, or " + without);
    case Needs::kSteps:
      throw UsageError(option + " needs " + algorithms_with_steps() +
                       " with calibration data; or use " + without);
    default:
      throw UsageError(option + " " + value.text(options) +
                       " needs calibration data; add --calibration FILE, or use " + without);
  }
}

void check_range(const RecipeValue& value, const QuantizeOptions& options) {
  const Json found = value.get(options);
  if (!found.is_number()) return;
  const double number = found.as_number();
  const bool above = !value.option.minimum || number >= *value.option.minimum;
  const bool below = !value.option.maximum || number <= *value.option.maximum;
  if (above && below) return;
  throw UsageError("--" + value.option.name + ": found " + found.dump(0) + ", expected " +
                   cli::expected_value(value.option));
}

}  // namespace

std::string RecipeValue::text(const QuantizeOptions& options) const {
  const Json value = get(options);
  return value.is_string() ? value.as_string() : value.dump(0);
}

std::span<const RecipeValue> recipe_values() {
  static const std::vector<RecipeValue> values = make_values();
  return values;
}

std::span<const Recipe> all_recipes() { return kRecipes; }

const Recipe& find_recipe(std::string_view name) { return find_by_name(kRecipes, "recipe", name); }

void apply_recipe(const Recipe& recipe, bool calibrated, QuantizeOptions& options) {
  for (const RecipeValue& value : recipe_values()) {
    if (value.best.is_null()) continue;
    value.access.set(options,
                     has(value.needs, options, calibrated) ? value.*recipe.value : value.off);
  }
}

void check_recipe_values(const QuantizeOptions& options, bool calibrated) {
  for (const RecipeValue& value : recipe_values()) check_range(value, options);
  if (options.residual_alpha != 0.0 && options.target_alpha == 0.0) {
    throw UsageError("--residual-alpha needs two streams of activations, --target-alpha above 0");
  }
  if (options.regrid_rounds > options.refit_rounds) {
    throw UsageError("--regrid-rounds: found " + std::to_string(options.regrid_rounds) +
                     ", expected at most the refit rounds, " +
                     std::to_string(options.refit_rounds));
  }
  for (const RecipeValue& value : recipe_values()) {
    if (value.off.is_null() || value.get(options) == value.off) continue;
    if (!has(value.needs, options, calibrated)) refuse(value, options);
  }
}

void set_values(const Json& values, const std::string& source, QuantizeOptions& options) {
  for (const RecipeValue& value : recipe_values()) {
    const Json* given = values.find(value.name);
    if (given == nullptr) continue;
    try {
      value.access.set(options, *given);
    } catch (const FormatError& error) {
      throw FormatError(source + ": \"" + std::string(value.name) + "\": " + error.what());
    }
  }
  for (const RecipeValue& value : recipe_values()) {
    if (value.fit != nullptr && values.find(value.name) == nullptr) value.fit(options);
  }
}

void set_module_values(const Json& values, const std::string& source, QuantizeOptions& options) {
  const std::vector<std::string> known = module_value_names();
  for (const auto& [name, value] : values.as_object()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw FormatError(source + ": " + in_quotes(name) + ": unknown value, expected one of " +
                      join_words(known));
  }
  set_values(values, source, options);
}

std::vector<std::string> module_value_names() {
  std::vector<std::string> names;
  for (const RecipeValue& value : recipe_values()) {
    if (value.per_module) names.emplace_back(value.name);
  }
  return names;
}

Json recipe_json(const QuantizeOptions& options) {
  Json json = Json::object();
  for (const RecipeValue& value : recipe_values()) {
    if (value.in_recipe_json) json.set(value.name, value.get(options));
  }
  return json;
}

}  // namespace assay
