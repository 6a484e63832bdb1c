#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/dataset.h"
#include "convert/core/enum_words.h"
#include "quantizer/quantize.h"
#include "quantizer/report.h"
#include "runtime/kv_cache.h"

namespace assay {

/// Where the inputs of a layer's linears come from, once the layers before it are quantized
/// (QuantizeOptions::propagate).
enum class CaptureMode : uint8_t {
  kTrueSequential,  // the linears of the layer that come before are quantized, too
  kLayer,           // the layer's own 16-bit weights; each linear runs twice
};
inline constexpr auto kCaptureModeWords = enum_words<CaptureMode>("sequential", "layer");

/// Values that some modules have instead of the run's.
struct ModuleValues {
  std::vector<std::string> modules;  // '*' stands for any characters; empty: all
  Json values;                       // as set_module_values() of recipe.h takes them
};

/// What is chosen for each linear on the held-out windows, by the distance to the 16-bit output.
enum class PerModule : uint8_t { kAlpha, kDamp };
inline constexpr auto kPerModuleWords = enum_words<PerModule>("alpha", "damp");

/// What becomes of experts that the router sent too few calibration tokens to.
enum class StarvedExperts : uint8_t {
  kRoundToNearest,  // without calibration; listed in the report
  kError,           // the run ends
};
inline constexpr auto kStarvedExpertsWords = enum_words<StarvedExperts>("rtn", "error");

/// One run of `assay quantize`.
struct RunOptions {
  std::string model;
  std::string out;
  QuantizeOptions quantize = {};  // scale_dtype is set by the layout
  std::string layout = "compressed-tensors";
  std::vector<std::string> skip =
      {};  // modules that stay in 16 bits; '*' stands for any characters

  std::vector<ModuleValues> overrides = {};  // later ones go before earlier ones
  std::optional<PerModule> per_module = {};
  /// Other overrides that are tried on the way, each on the held-out windows, with the Gram
  /// matrices of this run's own streams (RunResult::beside). They change no file; no run with them
  /// goes on from a state.
  std::vector<std::vector<ModuleValues>> beside = {};

  std::string calibration = {};  // file; may be empty for algorithms that need none
  DatasetOptions dataset = {};
  /// Windows at the end of the data that no Hessian sees. The model is compared with the original
  /// on them. Needs true-sequential capture with propagation.
  int64_t held_out_windows = 0;
  CaptureMode capture = CaptureMode::kTrueSequential;
  KvType kv_type = KvType::kF16;
  int64_t min_expert_tokens = 64;  // fewer are too few
  StarvedExperts starved_experts = StarvedExperts::kRoundToNearest;
  Json card = Json::object();  // parse_card_fields of model_card.h

  // Nothing below changes the result.
  uint64_t activation_memory = uint64_t{1152} << 20;  // bytes; more goes to spill_folder
  std::string spill_folder = {};                      // empty: the state folder
  int64_t batch_tokens = 1024;
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string report = {};  // JSON file (run_report.h); empty: none
  bool resume = false;
  bool force = false;  // replaces `out`, or an interrupted run, instead of refusing
};

/// One of RunOptions::beside on the held-out windows.
struct BesideResult {
  Json held_out;         // NllComparison::to_json
  double seconds = 0.0;  // that it took beside the run
};

/// What a run tells while it goes on. All members may be empty.
struct RunEvents {
  std::function<void(const ModuleReport& module)> on_module = nullptr;
  /// Seconds of predicted work done and in all.
  std::function<void(double done, double total, std::string_view label)> on_progress = nullptr;
  std::function<void(std::string_view message)> on_note = nullptr;
  std::function<bool()> stop_requested = nullptr;
};

}  // namespace assay
