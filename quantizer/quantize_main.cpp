#include <fmt/format.h>

#include <memory>

#include "convert/core/error.h"
#include "convert/core/units.h"
#include "convert/core/words.h"
#include "quantizer/commands.h"
#include "quantizer/pipeline.h"
#include "quantizer/quantize_options.h"
#include "quantizer/run_report.h"
#include "quantizer/sweep.h"

namespace assay::cli {
namespace {

Json dry_run_json(const DryRun& dry) {
  Json files = Json::array();
  for (const OutputFile& file : dry.estimate.files) {
    files.push(Json::object().set("name", file.name).set("bytes", file.bytes));
  }
  Json memory = Json::object();
  for (const LedgerItem& item : dry.estimate.memory) memory.set(item.name, item.bytes);
  Json ignore = Json::array();
  for (const std::string& module : dry.ignore) ignore.push(module);
  Json off_lattice = Json::array();
  for (const std::string& module : dry.off_lattice) off_lattice.push(module);
  Json json = Json::object();
  json.set("output_bytes", dry.estimate.output_bytes)
      .set("memory_bytes", dry.estimate.memory_bytes)
      .set("memory", memory)
      .set("state_bytes", dry.estimate.state_bytes)
      .set("spill_bytes", dry.estimate.spill_bytes)
      .set("seconds", dry.estimate.seconds)
      .set("idle_share", dry.idle_share)
      .set("n_linears", dry.n_linears)
      .set("ignore", ignore)
      .set("off_lattice", off_lattice)
      .set("n_windows", dry.n_windows)
      .set("window_length", dry.window_length)
      .set("n_tokens", dry.n_windows * dry.window_length)
      .set("files", files);
  return json;
}

std::string time_line(const DryRun& dry) {
  constexpr double kBusy = 0.85;
  const double seconds = dry.estimate.seconds;
  if (dry.idle_share > kBusy || seconds < 1.0)
    return fmt::format("time         about {:.0f} s\n", seconds);
  return fmt::format(
      "time         about {:.0f} s; {:.0f} s on an idle machine, whose other work leaves {:.0f} % "
      "of "
      "the cores now\n",
      seconds / dry.idle_share, seconds, 100.0 * dry.idle_share);
}

void print_dry_run(const DryRun& dry, Terminal& terminal) {
  if (terminal.json()) {
    terminal.print(dry_run_json(dry).dump() + "\n");
    return;
  }
  std::string text;
  text += fmt::format("linears      {} quantized, {} left in 16 bits\n", dry.n_linears,
                      dry.ignore.size());
  if (!dry.off_lattice.empty()) {
    text += fmt::format("free scales {}: columns are no multiple of 256\n",
                        join_words(dry.off_lattice));
  }
  if (dry.n_windows > 0) {
    text += fmt::format("calibration  {} windows of {} tokens, {} tokens\n", dry.n_windows,
                        dry.window_length, dry.n_windows * dry.window_length);
  }
  text += fmt::format("output       {} bytes in {} files (exact)\n", dry.estimate.output_bytes,
                      dry.estimate.files.size());
  text += fmt::format("memory       {}\n", bytes_text(dry.estimate.memory_bytes));
  for (const LedgerItem& item : dry.estimate.memory) {
    text += fmt::format("               {:<32} {:>12}\n", item.name, bytes_text(item.bytes));
  }
  text += fmt::format(
      "disk         {} = output {} + state of the run {} + spilled activations {}\n",
      bytes_text(dry.estimate.output_bytes + dry.estimate.state_bytes + dry.estimate.spill_bytes),
      bytes_text(dry.estimate.output_bytes), bytes_text(dry.estimate.state_bytes),
      bytes_text(dry.estimate.spill_bytes));
  terminal.print(text + time_line(dry));
}

// Turns the events of a run into lines and a bar.
class RunView {
 public:
  explicit RunView(Terminal& terminal) : terminal_(terminal) {}

  RunEvents events() {
    return {.on_module = [this](const ModuleReport& module) { show(module); },
            .on_progress = [this](double done, double total,
                                  std::string_view label) { advance(done, total, label); },
            .on_note = [this](std::string_view note) { terminal_.log(LogLevel::kInfo, note); },
            .stop_requested = [] { return stop_requested(); }};
  }
  void finish() { progress_.reset(); }

 private:
  void show(const ModuleReport& module) {
    if (!heading_shown_) terminal_.log(LogLevel::kInfo, table_heading());
    heading_shown_ = true;
    terminal_.log(LogLevel::kInfo, table_row(module));
  }
  void advance(double done, double total, std::string_view label) {
    if (!progress_ || total != total_) {
      progress_.reset();
      progress_ = terminal_.progress(label == "writing" ? "write" : "quantize", total);
      total_ = total;
    }
    progress_->update(done, label);
  }

  Terminal& terminal_;
  std::unique_ptr<Progress> progress_;
  double total_ = 0.0;
  bool heading_shown_ = false;
};

std::string held_out_line(const Json& found) {
  const auto mean = [&](const char* name) {
    const Json& interval = found.at(name);
    const Json* half = interval.find("half_width_95");
    return fmt::format("{:.5f}", interval.at("mean").as_number()) +
           (half != nullptr && half->is_number() ? fmt::format(" ± {:.5f}", half->as_number())
                                                 : "");
  };
  return fmt::format("held-out: KLD {}, delta_nll {}, top-1 agreement {:.4f} ({} tokens)",
                     mean("kld_windows"), mean("delta_nll_windows"),
                     found.at("top1_agreement").as_number(), found.at("n_scored").as_integer());
}

void tell_result(const RunOptions& options, const RunResult& result, Terminal& terminal) {
  if (result.was_complete) {
    terminal.log(LogLevel::kInfo, options.out + " is complete already");
    return;
  }
  const std::vector<std::string> not_better = modules_not_better_than_rtn(result.layers);
  const bool calibrated = find_algorithm(options.quantize.algorithm).needs_calibration;
  if (calibrated && !not_better.empty()) {
    terminal.log(LogLevel::kWarning,
                 fmt::format("{} of the linears do no better than round-to-nearest: {}",
                             not_better.size(), join_words(not_better)));
  }
  const std::vector<std::string> away = modules_away_from_their_weights(result.layers);
  if (!away.empty()) {
    terminal.log(LogLevel::kInfo,
                 fmt::format("{} of the linears are further from their own weights than "
                             "round-to-nearest, but nearer to what the recipe aims at, the 16-bit "
                             "output (--target-alpha, --residual-alpha) or the predictions "
                             "(--sensitivity-windows): {}",
                             away.size(), join_words(away)));
  }
  if (result.n_windows > 0) {
    terminal.log(LogLevel::kInfo,
                 fmt::format("calibrated with {} tokens ({} windows of {}), SHA-256 {}",
                             result.n_windows * result.window_length, result.n_windows,
                             result.window_length, result.calibration_sha256));
  }
  if (!result.layers.empty() && !result.layers.back().held_out.is_null()) {
    terminal.log(LogLevel::kInfo, held_out_line(result.layers.back().held_out));
  }
  terminal.log(LogLevel::kInfo,
               fmt::format("{} in {} files, {:.1f} s", bytes_text(result.output_bytes),
                           result.files.size(), result.seconds));
}

ExitCode run_quantize(const Arguments& arguments, Terminal& terminal) {
  const RunOptions options = read_run_options(arguments);
  std::vector<SweepCandidate> candidates;
  if (arguments.given("sweep")) candidates = read_sweep(arguments.text("sweep"));
  const auto inputs = *kSweepInputsWords.find(arguments.text("sweep-inputs"));
  const bool shared = !candidates.empty() && shares_inputs(options, candidates, inputs);
  if (arguments.flag("dry-run")) {
    print_dry_run(dry_run(shared ? shared_run(options, candidates) : options), terminal);
    return ExitCode::kDone;
  }
  RunView view(terminal);
  if (!candidates.empty()) {
    if (options.resume)
      throw UsageError("--sweep cannot go on with an interrupted run; use --force");
    const SweepResult sweep = run_sweep(options, candidates, inputs, view.events());
    view.finish();
    terminal.log(LogLevel::kInfo, sweep_table(sweep.ranking));
    tell_result(sweep.options, sweep.winner, terminal);
    if (!terminal.json()) {
      terminal.print(options.out + "\n");
      return ExitCode::kDone;
    }
    Json report = run_report(sweep.options, sweep.winner);
    Json ranking = Json::array();
    for (const SweepEntry& entry : sweep.ranking) ranking.push(to_json(entry));
    terminal.print(report.set("sweep", ranking).dump() + "\n");
    return ExitCode::kDone;
  }
  const RunResult result = run_quantization(options, view.events());
  view.finish();
  tell_result(options, result, terminal);
  terminal.print(terminal.json() ? run_report(options, result).dump() + "\n" : options.out + "\n");
  return ExitCode::kDone;
}

}  // namespace

const Command& quantize_command() {
  static const Command command = {
      .name = "quantize",
      .brief = "Quantize the linears of a model to 3, 4 or 8 bits",
      .description =
          "Reads a Hugging Face folder, quantizes the linears of its decoder layers one layer at a "
          "time with GPTQ or round-to-nearest, and writes a folder that other engines load. The "
          "same input gives the same bytes on every machine, with any number of threads, and after "
          "any interruption. Ctrl-C ends the layer at work and keeps what is done (exit code 75); "
          "--resume goes on.",
      .positionals = {{.name = "MODEL", .help = "Model folder with 16- or 32-bit weights."}},
      .options = quantize_command_options(),
      .examples =
          {{"assay quantize tests/data/llama-tiny --calibration README.md --window-length 256 "
            "--out llama-tiny-W4A16",
            "GPTQ, 4 bits, groups of 128 with zero points."},
           {"assay quantize tests/data/llama-tiny --algorithm rtn --scheme W8A16 --out tiny-W8A16",
            "Round to nearest: no data needed."},
           {"assay quantize tests/data/llama-tiny --calibration README.md --window-length 256 "
            "--grid q4_k --out tiny-q4_k",
            "A folder that assay convert --to gguf moves into Q4_K blocks as it is."},
           {"assay quantize tests/data/llama-tiny --calibration README.md --window-length 256 "
            "--out tiny --dry-run",
            "What it would take."}},
      .run = run_quantize,
  };
  return command;
}

}  // namespace assay::cli
