#include "quantizer/recipe.h"

#include <algorithm>
#include <string>
#include <vector>

#include "convert/core/error.h"
#include "convert/core/words.h"

namespace assay {
namespace {

constexpr Recipe kRecipes[] = {
    {.name = "best",
     .description = "all that bring the result nearer to the model, in about three times the time",
     .scale_search = ScaleSearch::kHessianGrid,
     .target_alpha = 0.75,
     .residual_alpha = 0.75,
     .refit_rounds = 3,
     .descent_passes = 1,
     .regrid_rounds = 1},
    {.name = "plain", .description = "none, and min-max scales"},
};

/// "--algorithm gptq"
std::string algorithms_with_steps() {
  std::vector<std::string_view> names;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.takes_steps) names.push_back(algorithm.name);
  }
  return "--algorithm " + join_words(names, " or ");
}

void check_alpha(const std::string& name, double alpha) {
  if (alpha >= 0.0 && alpha <= 1.0) return;
  throw UsageError(name + ": found " + Json(alpha).dump(0) + ", expected a number from 0 to 1");
}

}  // namespace

std::span<const Recipe> all_recipes() { return kRecipes; }

const Recipe& find_recipe(std::string_view name) { return find_by_name(kRecipes, "recipe", name); }

void apply_recipe(const Recipe& recipe, bool calibrated, QuantizeOptions& options) {
  options.scale_search = calibrated ? recipe.scale_search : ScaleSearch::kMinMax;
  const bool has_steps = calibrated && find_algorithm(options.algorithm).takes_steps;
  options.target_alpha = has_steps && options.propagate ? recipe.target_alpha : 0.0;
  options.residual_alpha = options.target_alpha != 0.0 ? recipe.residual_alpha : 0.0;
  options.refit_rounds = has_steps ? recipe.refit_rounds : 0;
  options.descent_passes = has_steps ? recipe.descent_passes : 0;
  options.regrid_rounds = has_steps ? recipe.regrid_rounds : 0;
}

void check_steps(const QuantizeOptions& options, bool calibrated) {
  if (!(options.damp_percent >= 0.0)) {
    throw UsageError("damping: found " + Json(options.damp_percent).dump(0) +
                     ", expected a number from 0 on");
  }
  for (const int rounds : {options.refit_rounds, options.descent_passes, options.regrid_rounds}) {
    if (rounds >= 0) continue;
    throw UsageError("rounds: found " + std::to_string(rounds) + ", expected 0 or more");
  }
  check_alpha("target alpha", options.target_alpha);
  check_alpha("residual alpha", options.residual_alpha);
  if (options.residual_alpha != 0.0 && options.target_alpha == 0.0) {
    throw UsageError("--residual-alpha needs two streams of activations, --target-alpha above 0");
  }
  if (options.regrid_rounds > options.refit_rounds) {
    throw UsageError("regrid rounds: found " + std::to_string(options.regrid_rounds) +
                     ", expected at most the refit rounds, " +
                     std::to_string(options.refit_rounds));
  }
  const bool has_steps = calibrated && find_algorithm(options.algorithm).takes_steps;
  if (options.target_alpha != 0.0 && !(has_steps && options.propagate)) {
    throw UsageError("--target-alpha needs two streams of activations: use " +
                     algorithms_with_steps() +
                     " with calibration data and without --no-propagate, or --target-alpha 0");
  }
  if (options.refit_rounds > 0 && !has_steps) {
    throw UsageError("--refit-rounds needs " + algorithms_with_steps() +
                     " with calibration data; or use --refit-rounds 0");
  }
}

void apply_values(const Json& values, const std::string& source, QuantizeOptions& options) {
  const auto word = [&](const Json& value, const auto& words) {
    if (const auto found = words.find(value.as_string())) return *found;
    throw FormatError("found " + value.dump(0) + ", expected " +
                      join_words(words.list(), " or ", in_quotes));
  };
  for (const auto& [name, value] : values.as_object()) {
    try {
      if (name == "target_alpha") {
        options.target_alpha = value.as_number();
      } else if (name == "residual_alpha") {
        options.residual_alpha = value.as_number();
      } else if (name == "damp_percent") {
        options.damp_percent = value.as_number();
      } else if (name == "grid") {
        options.grid = word(value, kGridKindWords);
      } else if (name == "scales") {
        options.scale_search = word(value, kScaleSearchWords);
      } else if (name == "refit_rounds") {
        options.refit_rounds = static_cast<int>(value.as_integer());
      } else if (name == "descent_passes") {
        options.descent_passes = static_cast<int>(value.as_integer());
      } else if (name == "regrid_rounds") {
        options.regrid_rounds = static_cast<int>(value.as_integer());
      } else {
        throw FormatError(
            "unknown value, expected target_alpha, residual_alpha, damp_percent, grid, scales, "
            "refit_rounds, descent_passes or regrid_rounds");
      }
    } catch (const FormatError& error) {
      throw FormatError(source + ": \"" + name + "\": " + error.what());
    }
  }
  // What depends on a value that was taken away goes with it.
  if (options.target_alpha == 0.0 && values.find("residual_alpha") == nullptr) {
    options.residual_alpha = 0.0;
  }
  if (values.find("regrid_rounds") == nullptr) {
    options.regrid_rounds = std::min(options.regrid_rounds, options.refit_rounds);
  }
}

Json recipe_json(const QuantizeOptions& options) {
  Json json = Json::object();
  json.set("target_alpha", options.target_alpha)
      .set("residual_alpha", options.residual_alpha)
      .set("act_order", kActOrderWords.name(options.act_order))
      .set("grid", kGridKindWords.name(options.grid))
      .set("scales", kScaleSearchWords.name(options.scale_search))
      .set("refit_rounds", options.refit_rounds)
      .set("descent_passes", options.descent_passes)
      .set("regrid_rounds", options.regrid_rounds);
  return json;
}

}  // namespace assay
