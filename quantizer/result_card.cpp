#include "quantizer/result_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "convert/core/units.h"
#include "convert/core/version.h"
#include "convert/model_card.h"
#include "quantizer/recipe.h"
#include "runtime/kv_cache.h"

namespace assay {
namespace {

/// "W4A16_ASYM", as --scheme takes it.
std::string scheme_of(const QuantizeOptions& options) {
  return fmt::format("W{}A16{}", options.bits, options.symmetric ? "" : "_ASYM");
}

std::string groups_of(const QuantizeOptions& options) {
  return options.group_size < 0 ? "one scale per row"
                                : fmt::format("groups of {} columns", options.group_size);
}

/// A word of a command line, in quotes where a shell would take it apart.
std::string shell_word(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == '/' || c == '=';
  });
  if (plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

/// What the table of the recipe says.
std::string recipe_rows(const RunPlan& plan, const OutputContents& contents) {
  std::string rows;
  const auto row = [&](std::string_view name, const std::string& value) {
    rows += fmt::format("| {} | {} |\n", name, value);
  };
  double bits = 0.0, values = 0.0;
  for (size_t i = 0; i < plan.selected.size(); ++i) {
    if (plan.selected[i] == 0) continue;
    const LinearShape linear = plan.shape(static_cast<int>(i));
    const auto n =
        static_cast<double>(linear.out_features) * static_cast<double>(linear.in_features);
    bits += n * plan.bits_per_weight(static_cast<int>(i));
    values += n;
  }
  row("program", fmt::format("Assay {}, arithmetic {}", version(), kArithmetic));
  row("model family", plan.checkpoint->spec().family);
  row("linears",
      fmt::format("{} quantized, {} left as they were",
                  std::count(plan.selected.begin(), plan.selected.end(), 1), plan.ignore.size()));
  row("weights",
      fmt::format("{} bits{}, {}", plan.quantize.bits,
                  plan.quantize.symmetric ? "" : " with zero points", groups_of(plan.quantize)));
  row("bits per weight of these linears", fmt::format("{:.3f}", values > 0.0 ? bits / values : 0));
  row("layout", std::string(plan.layout->name));
  row("algorithm", plan.quantize.algorithm);
  if (plan.calibrated) {
    const Json recipe = recipe_json(plan.quantize);
    for (const auto& [name, value] : recipe.as_object()) {
      row(name, value.is_string() ? value.as_string() : value.dump(0));
    }
    row("damping", Json(plan.quantize.damp_percent).dump(0));
  }
  if (contents.calibration.is_null()) {
    row("calibration", "none");
  } else {
    row("calibration",
        fmt::format("{} windows of {} tokens", contents.calibration.at("n_windows").as_integer(),
                    contents.calibration.at("window_length").as_integer()));
    row("SHA-256 of the calibration ids", contents.calibration.at("token_ids_sha256").as_string());
  }
  row("random numbers", "none");
  return rows;
}

std::string with_interval(const Json& interval) {
  const Json& half = interval.at("half_width_95");
  return card_figure(interval.at("mean").as_number()) +
         (half.is_number() ? " ± " + card_figure(half.as_number()) : "");
}

std::string figures(const RunPlan& plan, const OutputContents& contents, uint64_t weight_bytes) {
  const std::string size = grouped_digits(static_cast<int64_t>(weight_bytes));
  if (contents.held_out.is_null()) {
    return fmt::format(
        "The weight files take {} bytes. This run did not compare the result with the original; "
        "`assay verify-equivalence MODEL FOLDER --text FILE` does.\n",
        size);
  }
  const Json& found = contents.held_out;
  return fmt::format(
      "Against the original, on {} tokens at the end of the calibration data that no step of the "
      "quantization used (nats per token, ± half of the 95 % interval over windows):\n\n"
      "| scheme | bytes of weight files | KLD | delta_nll | same best token |\n"
      "|---|---|---|---|---|\n"
      "| {} | {} | {} | {} | {:.4f} |\n",
      found.at("n_scored").as_integer(), scheme_of(plan.quantize), size,
      with_interval(found.at("kld_windows")), with_interval(found.at("delta_nll_windows")),
      found.at("top1_agreement").as_number());
}

std::string usage(const RunPlan& plan) {
  return fmt::format(
      "```sh\n"
      "vllm serve FOLDER\n"
      "```\n\n"
      "```python\n"
      "# needs the package {}\n"
      "from transformers import AutoModelForCausalLM\n"
      "model = AutoModelForCausalLM.from_pretrained(\"FOLDER\")\n"
      "```\n\n"
      "For llama.cpp, the codes as they are in GGUF blocks:\n\n"
      "```sh\n"
      "assay convert FOLDER --to gguf --out model.gguf\n"
      "```\n",
      plan.layout->python_package);
}

Json metric(std::string_view type, std::string_view name, const Json& value) {
  return Json::object().set("type", type).set("name", name).set("value", value);
}

/// `model-index`: what was measured in this run; null: nothing was.
Json model_index(const RunPlan& plan, const OutputContents& contents) {
  if (contents.held_out.is_null()) return nullptr;
  const auto mean = [&](const char* name) { return contents.held_out.at(name).at("mean"); };
  Json result = Json::object();
  result.set("task", Json::object().set("type", "text-generation"))
      .set("dataset",
           Json::object().set("name", "held-out calibration windows").set("type", "held-out"))
      .set("metrics",
           Json::array()
               .push(metric("kld", "KLD to the original, nats per token", mean("kld_windows")))
               .push(metric("delta_nll", "NLL less that of the original, nats per token",
                            mean("delta_nll_windows"))));
  return Json::array().push(Json::object()
                                .set("name", scheme_of(plan.quantize))
                                .set("results", Json::array().push(std::move(result))));
}

Json head(const RunPlan& plan, const OutputContents& contents) {
  std::string scheme = fmt::format("w{}a16", plan.quantize.bits);
  Json json = plan.card;
  if (json.find("base_model") != nullptr) json.set("base_model_relation", "quantized");
  json.set("library_name", "transformers")
      .set("tags", Json::array().push(plan.layout->name).push(std::move(scheme)))
      .set("model-index", model_index(plan, contents));
  return json;
}

std::string overrides_text(const OutputContents& contents) {
  if (contents.overrides.is_null()) return {};
  return fmt::format(
      "Modules with values of their own, as a candidate of `--sweep` says them:\n\n"
      "```json\n{}\n```\n\n",
      contents.overrides.dump(2));
}

}  // namespace

std::string command_of(const RunOptions& options, int64_t n_windows, int64_t window_length) {
  const QuantizeOptions& q = options.quantize;
  const RunOptions defaults;
  std::string text = "assay quantize MODEL";
  const auto add = [&](std::string_view name, const auto& value) {
    text += fmt::format(" --{} {}", name, value);
  };
  // Words go first.
  const auto add_values = [&](bool words, bool need_calibration) {
    for (const RecipeValue& value : recipe_values()) {
      const bool needs_it = value.needs != Needs::kNothing;
      if (needs_it != need_calibration || value.get(q).is_string() != words) continue;
      add(value.option.name, value.text(q));
    }
  };
  const bool calibrated = n_windows > 0;
  if (calibrated) {
    add("calibration", "DATA");
    add("windows", n_windows);
    add("window-length", window_length);
    if (options.held_out_windows > 0) add("held-out", options.held_out_windows);
  }
  add("scheme", scheme_of(q));
  add("group-size", q.group_size);
  add("format", options.layout);
  add("algorithm", q.algorithm);
  if (calibrated) {
    add_values(true, true);
    add_values(false, true);
    if (q.damp_basis != defaults.quantize.damp_basis) {
      add("damp-basis", kDampBasisWords.name(q.damp_basis));
    }
    for (const double damp : q.damp_retries) add("damp-retry", Json(damp).dump(0));
    if (!q.propagate) text += " --no-propagate";
    if (options.capture != defaults.capture) {
      add("capture", kCaptureModeWords.name(options.capture));
    }
    if (options.kv_type != defaults.kv_type) add("kv-type", kv_type_name(options.kv_type));
    if (options.per_module) add("per-module", kPerModuleWords.name(*options.per_module));
    if (options.min_expert_tokens != defaults.min_expert_tokens) {
      add("min-expert-tokens", options.min_expert_tokens);
    }
  }
  add_values(true, false);
  for (const std::string& pattern : options.skip) add("skip", shell_word(pattern));
  if (options.max_shard_bytes != defaults.max_shard_bytes) {
    add("shard-size", options.max_shard_bytes);
  }
  for (const auto& [name, value] : options.card.as_object()) {
    if (value.is_string()) {
      add("card", shell_word(name + "=" + value.as_string()));
    } else {
      for (const Json& item : value.as_array()) {
        add("card", shell_word(name + "=" + item.as_string()));
      }
    }
  }
  return text + " --out FOLDER";
}

std::string result_card(const RunPlan& plan, const OutputContents& contents,
                        const std::vector<WrittenFile>& weights) {
  uint64_t weight_bytes = 0;
  std::string hashes;
  for (const WrittenFile& file : weights) {
    weight_bytes += file.bytes;
    hashes += fmt::format("| {} | {} |\n", file.name, file.sha256);
  }
  const Json* base = plan.card.find("base_model");
  const std::string body = fmt::format(
      "# {}, {}\n\n"
      "The linears of the decoder layers are quantized; embedding, norms and head are those of the "
      "original.\n\n"
      "## What was done\n\n"
      "| | |\n|---|---|\n{}\n"
      "{}"
      "## Figures\n\n{}\n"
      "## Use\n\n{}\n"
      "## The same again\n\n"
      "```sh\n{}\n```\n\n"
      "MODEL is the folder of the original{}. Every machine, number of threads and interruption "
      "gives the same bytes; `assay inspect --check FOLDER` compares them with "
      "`assay_manifest.json`.\n\n"
      "| file | SHA-256 |\n|---|---|\n{}\n"
      "## Limits\n\n"
      "Quantized weights answer differently from the original in places. What the original must "
      "not be used for, this model must not be used for either.\n",
      base != nullptr && base->is_string() ? base->as_string() : "Quantized model",
      scheme_of(plan.quantize), recipe_rows(plan, contents), overrides_text(contents),
      figures(plan, contents, weight_bytes), usage(plan), contents.command,
      plan.calibrated ? ", DATA the calibration data whose ids have the hash above" : "", hashes);
  return model_card_text(head(plan, contents), body);
}

}  // namespace assay
