#include "quantizer/quantize_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "calibrate/calibration_options.h"
#include "convert/core/paths.h"
#include "convert/core/words.h"
#include "convert/formats/format.h"
#include "convert/model_card.h"
#include "quantizer/layouts/layout.h"
#include "quantizer/recipe.h"
#include "quantizer/sweep.h"
#include "verify/report/run_data.h"

namespace assay::cli {
namespace {

struct Scheme {
  std::string name;
  int bits;
  bool symmetric;
};

/// One for each format that quantized linears can have: "W4A16_ASYM".
std::vector<Scheme> schemes() {
  std::vector<Scheme> all;
  for (const WeightFormat* format : all_formats()) {
    const int bits = format->code_bits();
    const bool symmetric = !format->has_zero_points();
    if (find_integer_format(bits, symmetric) != format) continue;
    all.push_back({"W" + std::to_string(bits) + (symmetric ? "A16" : "A16_ASYM"), bits, symmetric});
  }
  return all;
}

constexpr int64_t kSweepWindows = 16;  // held out where nothing else is said

/// `best: all that …. plain: none, …`: what the rows of a list say of themselves.
template <typename List>
std::string described(const List& list) {
  return join_words(
      list, " ", [](const auto& row) { return fmt::format("{}: {}.", row.name, row.description); });
}

QuantizeOptions read_quantize_options(const Arguments& arguments, bool calibrated) {
  QuantizeOptions options;
  const std::string scheme = arguments.text("scheme");
  for (const Scheme& known : schemes()) {
    if (known.name != scheme) continue;
    options.bits = known.bits;
    options.symmetric = known.symmetric;
  }
  options.algorithm = arguments.text("algorithm");
  options.damp_basis = *kDampBasisWords.find(arguments.text("damp-basis"));
  for (const std::string& damp : arguments.list("damp-retry")) {
    options.damp_retries.push_back(parse_json(damp, "--damp-retry").as_number());
  }
  options.solve_block_size = arguments.integer("solve-block");
  options.propagate = !arguments.flag("no-propagate");
  apply_recipe(find_recipe(arguments.text("recipe")), calibrated, options);
  Json given = Json::object();
  for (const RecipeValue& value : recipe_values()) {
    const std::string& option = value.option.name;
    if (arguments.given(option)) given.set(value.name, arguments.value_to_json(option));
  }
  set_values(given, "command line", options);
  if (options.grid == GridKind::kQ4K && !arguments.given("scales")) {
    options.scale_search = ScaleSearch::kHessianGrid;
  }
  options.group_size = options.grid == GridKind::kQ4K && !arguments.given("group-size")
                           ? 32
                           : arguments.integer("group-size");
  options.measure_plain = arguments.flag("measure-plain");
  return options;
}

}  // namespace

std::vector<Option> quantize_command_options() {
  std::vector<Option> all = {
      {.name = "calibration",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Calibration data: text, .jsonl (text, messages or input_ids per line), or ids as "
               ".npy or .safetensors.",
       .group = "Input"},
      {.name = "held-out",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "0",
       .help = "Keep the last N windows of the data from the calibration, and compare the result "
               "with the model on them. --sweep: 16 unless given.",
       .group = "Input",
       .minimum = 0},
      {.name = "out",
       .short_name = 'o',
       .kind = ValueKind::kPath,
       .value_name = "DIR",
       .help = "Folder to write. It appears under this name when it is complete.",
       .group = "Output",
       .required = true,
       .writes = true},
      {.name = "format",
       .value_name = "NAME",
       .default_value = "compressed-tensors",
       .help = "Layout of the folder. " + described(all_layouts()),
       .group = "Output",
       .choices = names_of(all_layouts())},
      {.name = "shard-size",
       .kind = ValueKind::kBytes,
       .value_name = "SIZE",
       .default_value = "5GB",
       .help = "Most tensor bytes per file.",
       .group = "Output",
       .expert = true,
       .minimum = 1},
      {.name = "card",
       .value_name = "NAME=VALUE",
       .help = fmt::format("Field of the model card's head: {}. The licence is taken from the "
                           "model's own card unless it is given.",
                           fmt::join(card_field_names(), ", ")),
       .group = "Output",
       .repeatable = true},
      {.name = "report",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Report as JSON: loss per module, times. Default: <out>.report.json.",
       .group = "Output",
       .writes = true},
      {.name = "force",
       .kind = ValueKind::kFlag,
       .help = "Replace a folder or an interrupted run that is there.",
       .group = "Output"},
      {.name = "scheme",
       .value_name = "NAME",
       .default_value = "W4A16_ASYM",
       .help = "Bits of the weights, and whether groups have a zero point (ASYM).",
       .group = "Quantization",
       .choices = names_of(schemes())},
      {.name = "group-size",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "128",
       .help = "Columns that share a scale; -1: whole rows. --grid q4_k: 32 unless given.",
       .group = "Quantization",
       .minimum = -1},
      {.name = "algorithm",
       .value_name = "NAME",
       .default_value = "gptq",
       .help = "How codes are found. " + described(all_algorithms()),
       .group = "Quantization",
       .choices = names_of(all_algorithms())},
      {.name = "recipe",
       .value_name = "NAME",
       .default_value = "best",
       .help = "Steps around the algorithm. " + described(all_recipes()) +
               " The options below change single steps.",
       .group = "Recipe",
       .choices = names_of(all_recipes())},
      {.name = "per-module",
       .value_name = "WHAT",
       .help = "Choose target-alpha (0.25 to 1) or damp (0.1 to 10 times) for each linear, by the "
               "distance to the 16-bit output on the held-out windows. Needs --held-out.",
       .group = "Recipe",
       .choices = kPerModuleWords.list()},
      {.name = "sweep",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help =
           "Quantize with each candidate of a JSON file, rank them by their divergence from "
           "the model on the held-out windows, and write the best. {\"candidates\": [{\"name\": "
           "\"a\", \"modules\": [\"*down_proj\"], \"damp_percent\": 0.03}, ...]}; values: " +
           join_words(module_value_names()) + ".",
       .group = "Recipe"},
      {.name = "sweep-inputs",
       .value_name = "HOW",
       .default_value = "auto",
       .help = "Calibration inputs of the candidates: where none has a --target-alpha, those of "
               "the first one's run, in one pass, and the winner once more by itself (auto); or a "
               "whole run each (own).",
       .group = "Recipe",
       .choices = kSweepInputsWords.list()},
      {.name = "measure-plain",
       .kind = ValueKind::kFlag,
       .help = "Report the loss of the plain recipe beside each linear's own.",
       .group = "Recipe",
       .expert = true},
      {.name = "damp-basis",
       .value_name = "WHAT",
       .default_value = "mean",
       .help = "Mean or largest diagonal element.",
       .group = "Quantization",
       .expert = true,
       .choices = kDampBasisWords.list()},
      {.name = "damp-retry",
       .kind = ValueKind::kNumber,
       .value_name = "X",
       .help = "Damping to try if the one before fails. Without it a failure ends the run.",
       .group = "Quantization",
       .repeatable = true,
       .expert = true,
       .minimum = 0},
      {.name = "skip",
       .value_name = "NAME",
       .help = "Linear that stays in 16 bits; * stands for any characters.",
       .group = "Quantization",
       .repeatable = true},
      {.name = "min-expert-tokens",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "64",
       .help = "An expert that the router sends fewer calibration tokens to counts as starved.",
       .group = "Calibration",
       .expert = true,
       .minimum = 1},
      {.name = "starved-experts",
       .value_name = "HOW",
       .default_value = "rtn",
       .help = "What becomes of them: rounded to nearest and listed (rtn), or the end of the run "
               "(error).",
       .group = "Calibration",
       .expert = true,
       .choices = kStarvedExpertsWords.list()},
      {.name = "no-propagate",
       .kind = ValueKind::kFlag,
       .help = "Take all inputs from the 16-bit model instead of the quantized layers before.",
       .group = "Calibration"},
      {.name = "capture",
       .value_name = "HOW",
       .default_value = "sequential",
       .help = "Inputs within a layer: from its quantized linears (sequential), or from its 16-bit "
               "weights (layer; each linear runs twice).",
       .group = "Calibration",
       .expert = true,
       .choices = kCaptureModeWords.list()},
      {.name = "kv-type",
       .value_name = "TYPE",
       .default_value = "f16",
       .help = "Type of keys and values in the forward pass.",
       .group = "Calibration",
       .expert = true,
       .choices = kKvTypeWords.list()},
      {.name = "resume",
       .kind = ValueKind::kFlag,
       .help = "Go on with an interrupted run; begins a new one if there is none.",
       .group = "Run"},
      {.name = "dry-run",
       .kind = ValueKind::kFlag,
       .help = "Check everything and print size, memory, disk and time; compute nothing.",
       .group = "Run"},
      {.name = "activation-memory",
       .kind = ValueKind::kBytes,
       .value_name = "SIZE",
       .default_value = "1152MiB",
       .help = "Memory for activations of the calibration tokens; more goes to disk. Results do "
               "not depend on it.",
       .group = "Run"},
      {.name = "spill-dir",
       .kind = ValueKind::kPath,
       .value_name = "DIR",
       .help = "Folder for activations beyond that. Default: beside the output.",
       .group = "Run",
       .expert = true,
       .scratch = true},
      {.name = "batch-tokens",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "1024",
       .help = "Tokens that run together. Results do not depend on it.",
       .group = "Run",
       .expert = true,
       .minimum = 1},
      {.name = "solve-block",
       .kind = ValueKind::kInteger,
       .value_name = "N",
       .default_value = "128",
       .help = "Columns per block of the column loop. Results do not depend on it.",
       .group = "Run",
       .expert = true,
       .minimum = 1},
  };
  auto place = std::find_if(all.begin(), all.end(),
                            [](const Option& option) { return option.name == "recipe"; });
  for (const RecipeValue& value : recipe_values()) {
    place = all.insert(place + 1, value.option);
    if (value.best.is_null()) place->default_value = value.text(QuantizeOptions());
  }
  for (Option& option : dataset_options()) all.push_back(std::move(option));
  return all;
}

RunOptions read_run_options(const Arguments& arguments) {
  RunOptions options;
  options.model = without_trailing_slashes(arguments.text("MODEL"));
  options.out = without_trailing_slashes(arguments.text("out"));
  options.calibration = arguments.text("calibration");
  options.quantize = read_quantize_options(arguments, !options.calibration.empty());
  options.layout = arguments.text("format");
  options.skip = arguments.list("skip");
  options.dataset = read_dataset_options(arguments);
  options.held_out_windows = arguments.given("sweep") && !arguments.given("held-out")
                                 ? kSweepWindows
                                 : arguments.integer("held-out");
  if (const auto what = arguments.optional_text("per-module")) {
    options.per_module = kPerModuleWords.find(*what);
  }
  options.capture = *kCaptureModeWords.find(arguments.text("capture"));
  options.kv_type = *kv_type_from_name(arguments.text("kv-type"));
  options.min_expert_tokens = arguments.integer("min-expert-tokens");
  options.starved_experts = *kStarvedExpertsWords.find(arguments.text("starved-experts"));
  options.activation_memory = arguments.bytes("activation-memory");
  options.spill_folder = arguments.text("spill-dir");
  options.batch_tokens = arguments.integer("batch-tokens");
  options.max_shard_bytes = arguments.bytes("shard-size");
  options.card = parse_card_fields(arguments.list("card"));
  options.report = arguments.optional_text("report").value_or(report::report_path(options.out));
  options.resume = arguments.flag("resume");
  options.force = arguments.flag("force");
  return options;
}

}  // namespace assay::cli
