#include "quantizer/run_plan.h"

#include <algorithm>
#include <string_view>

#include "convert/core/error.h"
#include "convert/formats/format.h"
#include "convert/model_card.h"
#include "quantizer/grid.h"
#include "quantizer/recipe.h"

namespace assay {
namespace {

constexpr size_t kMostOffenders = 12;  // listed by name
constexpr int64_t kQ4KColumns = 256;   // of a super-block

// '*' stands for any characters.
bool matches(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t i = star; i <= text.size(); ++i) {
    if (matches(rest, text.substr(i))) return true;
  }
  return false;
}

void check_q4_k(const QuantizeOptions& options) {
  if (options.bits != 4) {
    throw UsageError("--grid q4_k: found " + std::to_string(options.bits) +
                     " bits, expected 4; use --scheme W4A16_ASYM or W4A16, or --grid free");
  }
  const int64_t group = options.group_size;
  if (group < 32 || group % 32 != 0 || kQ4KColumns % group != 0) {
    throw UsageError("--grid q4_k: found group size " + std::to_string(group) +
                     ", expected 32, 64, 128 or 256, which blocks of 256 columns hold");
  }
  if (options.scale_search != ScaleSearch::kHessianGrid) {
    throw UsageError(
        "--grid q4_k searches its scales with the Hessian; leave out --scales min-max, or use "
        "--grid free");
  }
}

void check_options(const QuantizeOptions& options) {
  if (find_integer_format(options.bits, options.symmetric) == nullptr) {
    throw UsageError("bits: found " + std::to_string(options.bits) + ", expected " +
                     integer_bits_text("or"));
  }
  if (options.group_size != -1 && options.group_size < 1) {
    throw UsageError("group size: found " + std::to_string(options.group_size) +
                     ", expected a number of columns, or -1 for whole rows");
  }
  if (options.grid == GridKind::kQ4K) check_q4_k(options);
  if (options.solve_block_size < 1) {
    throw UsageError("solve block: found " + std::to_string(options.solve_block_size) +
                     ", expected at least 1 column");
  }
}

// Why a linear cannot be quantized with these options; empty if it can.
std::string fault_of(const LinearShape& linear, const RunPlan& plan) {
  const int64_t group = columns_per_group(linear.in_features, plan.quantize);
  if (linear.in_features % group != 0) {
    return std::to_string(linear.in_features) + " columns are no multiple of group size " +
           std::to_string(group);
  }
  return plan.layout->find_fault(linear, plan.quantize);
}

[[noreturn]] void refuse_offenders(const std::vector<std::string>& offenders) {
  std::string message = std::to_string(offenders.size()) +
                        (offenders.size() == 1 ? " linear does" : " linears do") +
                        " not fit the scheme:";
  for (size_t i = 0; i < std::min(offenders.size(), kMostOffenders); ++i) {
    message += "\n  " + offenders[i];
  }
  if (offenders.size() > kMostOffenders) {
    message += "\n  and " + std::to_string(offenders.size() - kMostOffenders) + " more";
  }
  throw UsageError(message +
                   "\nchoose another --group-size (32, 64, 128, or -1 for whole rows), or leave "
                   "them in 16 bits with --skip NAME");
}

void select_matrices(const RunOptions& options, RunPlan& plan) {
  std::vector<bool> used(options.skip.size());
  std::vector<std::string> offenders;
  std::string head;  // a module of class Linear even where it shares the embedding's tensor
  const auto n = static_cast<int>(plan.program.matrices.size());
  plan.selected.assign(static_cast<size_t>(n), 0);
  for (int i = 0; i < n; ++i) {
    const MatrixSlot& slot = plan.program.matrices[static_cast<size_t>(i)];
    if (slot.role == Role::kHead) {
      head = plan.checkpoint->spec().tied_head ? "lm_head" : slot.module;
    }
    if (!slot.quantizable) {
      // Gates of few outputs and the like. The head is named below.
      const bool is_linear = slot.layer >= 0 || slot.role == Role::kPerLayerModelProj;
      if (is_linear) plan.ignore.push_back(slot.module);
      continue;
    }
    bool skipped = false;
    for (size_t s = 0; s < options.skip.size(); ++s) {
      if (!matches(options.skip[s], slot.module)) continue;
      skipped = true;
      used[s] = true;
    }
    if (skipped) {
      plan.ignore.push_back(slot.module);
      continue;
    }
    const std::string fault = fault_of(plan.shape(i), plan);
    if (!fault.empty()) {
      offenders.push_back(slot.module + " (" + std::to_string(slot.out_features) + " × " +
                          std::to_string(slot.in_features) + "): " + fault);
    }
    plan.selected[static_cast<size_t>(i)] = 1;
  }
  for (size_t s = 0; s < used.size(); ++s) {
    if (used[s]) continue;
    const auto& slots = plan.program.matrices;
    const auto first = std::find_if(slots.begin(), slots.end(),
                                    [](const MatrixSlot& slot) { return slot.layer >= 0; });
    throw UsageError("--skip " + options.skip[s] + ": no linear of this model has that name" +
                     (first == slots.end() ? "" : "; they are named like " + first->module) +
                     ", and * stands for any characters");
  }
  if (!offenders.empty()) refuse_offenders(offenders);
  if (std::find(plan.selected.begin(), plan.selected.end(), 1) == plan.selected.end()) {
    throw UsageError(options.model + ": no linear is left to be quantized");
  }
  // Stock loaders look for quantized weights in every module of class Linear that is not named.
  constexpr std::string_view kWeight = ".weight";
  for (const std::string& name : plan.checkpoint->left_out()) {
    const bool is_matrix = plan.checkpoint->safetensors()->find(name)->view.shape.size() == 2 &&
                           name.ends_with(kWeight);
    if (is_matrix) plan.ignore.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  if (!head.empty()) plan.ignore.push_back(head);
}

// Super-blocks of 256 columns hold whole rows only. Other linears keep free scales of the same
// group size, as llama-quantize gives such tensors another type; a model that has no others is
// refused.
void free_other_columns(RunPlan& plan) {
  bool any_on_lattice = false;
  for (size_t i = 0; i < plan.options.size(); ++i) {
    if (plan.selected[i] == 0) continue;
    const bool fits = plan.program.matrices[i].in_features % kQ4KColumns == 0;
    for (std::vector<QuantizeOptions>& options : plan.beside) {
      if (!fits) options[i].grid = GridKind::kFree;
    }
    if (plan.options[i].grid != GridKind::kQ4K) continue;
    any_on_lattice = any_on_lattice || fits;
    if (fits) continue;
    plan.options[i].grid = GridKind::kFree;
    plan.off_lattice.push_back(static_cast<int>(i));
  }
  if (any_on_lattice || plan.off_lattice.empty()) return;
  throw UsageError("--grid q4_k: no linear has a multiple of " + std::to_string(kQ4KColumns) +
                   " columns, found " + plan.off_lattice_names().front() + "; use --grid free");
}

// The run's options with what is overridden, for every linear that is quantized.
std::vector<QuantizeOptions> overridden(const std::vector<ModuleValues>& overrides,
                                        const RunPlan& plan) {
  std::vector<QuantizeOptions> options(plan.program.matrices.size(), plan.quantize);
  for (const ModuleValues& change : overrides) {
    bool used = false;
    for (size_t i = 0; i < options.size(); ++i) {
      if (plan.selected[i] == 0) continue;
      const std::string& module = plan.program.matrices[i].module;
      const bool named = change.modules.empty() ||
                         std::any_of(change.modules.begin(), change.modules.end(),
                                     [&](const auto& pattern) { return matches(pattern, module); });
      if (!named) continue;
      used = true;
      set_module_values(change.values, "values of " + module, options[i]);
      check_options(options[i]);
      check_recipe_values(options[i], plan.calibrated);
    }
    if (used) continue;
    throw UsageError("modules \"" + change.modules.front() +
                     "\": no quantized linear of this model has that name");
  }
  return options;
}

void check_held_out(const RunOptions& options, const RunPlan& plan) {
  if (options.per_module && options.held_out_windows == 0) {
    throw UsageError("--per-module chooses on held-out windows: use --held-out N");
  }
  if (!options.beside.empty() && (options.held_out_windows == 0 || options.per_module)) {
    throw UsageError(
        "other values are tried beside a run on held-out windows, without a choice "
        "per module");
  }
  if (options.held_out_windows == 0) return;
  if (plan.calibrated && plan.quantize.propagate &&
      options.capture == CaptureMode::kTrueSequential) {
    return;
  }
  throw UsageError(
      "--held-out needs calibration data, the quantized stream (no --no-propagate) and --capture "
      "sequential");
}

/// Where the model comes from; what the user says wins.
Json card_fields(const CardSource& source, const RunOptions& options,
                 const Checkpoint& checkpoint) {
  Json card = Json::object();
  if (!source.hub_id.empty()) card.set("base_model", source.hub_id);
  if (checkpoint.left_out().empty()) card.set("pipeline_tag", "text-generation");
  for (const char* name : {"license", "license_name", "license_link", "pipeline_tag"}) {
    if (const Json* value = source.fields.find(name)) card.set(name, *value);
  }
  for (const auto& [name, value] : options.card.as_object()) card.set(name, value);
  return card;
}

}  // namespace

bool RunPlan::two_streams() const {
  const auto any_target = [](const std::vector<QuantizeOptions>& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const QuantizeOptions& each) { return each.target_alpha != 0.0; });
  };
  return calibrated &&
         (any_target(options) || std::any_of(beside.begin(), beside.end(), any_target));
}

int64_t RunPlan::n_plain_windows(int64_t n_windows) const {
  if (!two_streams()) return 0;
  const int64_t wanted = quantize.target_windows;
  return wanted == 0 ? n_windows : std::min(wanted, n_windows);
}

bool RunPlan::wants_residual(const std::vector<int>& matrices) const {
  return std::any_of(matrices.begin(), matrices.end(), [this](int matrix) {
    const auto wants = [matrix](const std::vector<QuantizeOptions>& list) {
      return list[static_cast<size_t>(matrix)].residual_alpha != 0.0;
    };
    return wants(options) || std::any_of(beside.begin(), beside.end(), wants);
  });
}

bool RunPlan::is_off_lattice(int matrix) const {
  return std::binary_search(off_lattice.begin(), off_lattice.end(), matrix);
}

std::vector<std::string> RunPlan::off_lattice_names() const {
  std::vector<std::string> names;
  for (const int matrix : off_lattice) {
    const LinearShape linear = shape(matrix);
    names.push_back(std::string(linear.module) + " (" + std::to_string(linear.in_features) +
                    " columns)");
  }
  return names;
}

LinearShape RunPlan::shape(int matrix) const {
  const MatrixSlot& slot = program.matrices[static_cast<size_t>(matrix)];
  return {slot.module, slot.out_features, slot.in_features};
}

WantedMatrix RunPlan::wanted() const {
  return [this](const MatrixSlot& slot) {
    return wants(static_cast<int>(&slot - program.matrices.data()));
  };
}

LayerPlan RunPlan::layer(int index) const { return plan_layer(program, index, wanted()); }

double RunPlan::bits_per_weight(int matrix) const {
  const LinearShape linear = shape(matrix);
  uint64_t bits = 0;
  for (const TensorSpec& tensor : layout->tensors(linear, quantize)) bits += 8 * tensor.bytes();
  return static_cast<double>(bits) / static_cast<double>(linear.out_features * linear.in_features);
}

RunPlan plan_run(const RunOptions& options) {
  check_options(options.quantize);
  RunPlan plan;
  plan.layout = &find_layout(options.layout);
  plan.quantize = options.quantize;
  plan.algorithm = &find_algorithm(options.quantize.algorithm);
  plan.layout->check(options.quantize);
  plan.calibrated = !options.calibration.empty();
  if (!plan.calibrated && plan.algorithm->needs_calibration) {
    throw UsageError("algorithm " + options.quantize.algorithm +
                     " needs calibration data; add --calibration FILE (text, .jsonl, .npy or "
                     ".safetensors)");
  }
  check_recipe_values(options.quantize, plan.calibrated);
  plan.checkpoint = Checkpoint::open(options.model);
  if (plan.checkpoint->kind() != CheckpointKind::kHuggingFace) {
    throw UnsupportedError(options.model + ": found a " +
                           std::string(plan.checkpoint->format().name) +
                           " model, expected a Hugging Face folder with 16- or 32-bit weights");
  }
  plan.program = build_program(plan.checkpoint->spec(), plan.checkpoint->tensors());
  const DType source = plan.checkpoint->spec().source_dtype;
  plan.quantize.scale_dtype = plan.layout->scale_dtype(source);
  plan.quantize.scales_fit_bf16 =
      plan.quantize.scale_dtype == DType::kF16 && source == DType::kBF16;
  select_matrices(options, plan);
  plan.options = overridden(options.overrides, plan);
  for (const auto& overrides : options.beside) plan.beside.push_back(overridden(overrides, plan));
  free_other_columns(plan);
  check_held_out(options, plan);
  const CardSource origin = read_card_source(options.model);
  plan.card = card_fields(origin, options, *plan.checkpoint);
  plan.card_fault = origin.fault;
  return plan;
}

namespace {

/// The tensor of the folder that holds a matrix: its own, or that of all experts.
const std::string& stored_name(const RunPlan& plan, size_t matrix) {
  const MatrixSlot& slot = plan.program.matrices[matrix];
  return plan.checkpoint->stored(slot.role, slot.layer, slot.expert).parts.front();
}

}  // namespace

std::vector<TensorSource> output_tensors(const RunPlan& plan) {
  std::vector<TensorSource> out;
  std::vector<std::string> replaced;
  for (size_t i = 0; i < plan.selected.size(); ++i) {
    if (plan.selected[i] == 0) continue;
    const LinearShape linear = plan.shape(static_cast<int>(i));
    replaced.push_back(stored_name(plan, i));
    for (TensorSpec& tensor : plan.layout->tensors(linear, plan.quantize)) {
      out.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), nullptr});
    }
  }
  std::sort(replaced.begin(), replaced.end());
  // Experts that stay in 16 bits, where a tensor of all experts is replaced.
  for (size_t i = 0; i < plan.selected.size(); ++i) {
    const MatrixSlot& slot = plan.program.matrices[i];
    if (plan.selected[i] != 0 || slot.expert < 0) continue;
    const TensorEntry& entry = plan.checkpoint->entry(slot.role, slot.layer, slot.expert);
    const std::string name = stored_name(plan, i);
    if (name == entry.hf_name || !std::binary_search(replaced.begin(), replaced.end(), name)) {
      continue;
    }
    out.push_back({entry.hf_name, plan.checkpoint->safetensors()->find(name)->view.dtype,
                   entry.shape, nullptr});
  }
  for (const std::string& name : plan.checkpoint->safetensors()->names()) {
    if (std::binary_search(replaced.begin(), replaced.end(), name)) continue;
    const TensorView& view = plan.checkpoint->safetensors()->find(name)->view;
    out.push_back({name, view.dtype, view.shape, nullptr});
  }
  return out;
}

}  // namespace assay
