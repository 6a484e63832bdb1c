#include <fmt/core.h>

#include <atomic>
#include <memory>

#include "convert/commands.h"
#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/core/read_progress.h"
#include "convert/core/words.h"
#include "convert/model_diff.h"
#include "convert/model_summary.h"

namespace assay::cli {
namespace {

/// Shows what is read, and ends where the user asks for it.
ReadProgress watched(Terminal& terminal) {
  const std::shared_ptr<Progress> shown = terminal.progress("inspect", 0.0);
  return [shown, n = std::make_shared<std::atomic<int64_t>>(0)](std::string_view what) {
    if (stop_requested()) throw StoppedError(fmt::format("stopped at {}", in_quotes(what)));
    shown->update(static_cast<double>(n->fetch_add(1)), what);
  };
}

ExitCode run_diff(const std::vector<std::string>& paths, const Arguments& arguments,
                  Terminal& terminal) {
  if (paths.size() != 2) {
    throw UsageError("--diff compares two models; name both: assay inspect --diff A B");
  }
  for (const char* name : {"tensors", "hashes", "check"}) {
    if (arguments.given(name)) throw UsageError(std::string("--diff goes without --") + name);
  }
  const Json diff = diff_models(paths[0], paths[1], watched(terminal));
  terminal.print(terminal.json() ? diff.dump() + "\n" : printable(diff_text(diff)));
  return diff.at("equal").as_bool() ? ExitCode::kDone : ExitCode::kDifference;
}

ExitCode run_inspect(const Arguments& arguments, Terminal& terminal) {
  const std::vector<std::string> paths = arguments.list("PATH");
  if (arguments.flag("diff")) return run_diff(paths, arguments, terminal);
  if (paths.size() != 1) throw UsageError("one PATH is inspected at a time; two go with --diff");
  const bool hashes = arguments.flag("hashes"), check = arguments.flag("check");
  const Json summary = summarize_model(
      paths.front(), {.list_tensors = arguments.flag("tensors"),
                      .hashes = hashes,
                      .check_values = check,
                      .progress = hashes || check ? watched(terminal) : ReadProgress()});
  terminal.print(terminal.json() ? summary.dump() + "\n" : printable(summary_text(summary)));
  if (summary.find("unsupported") != nullptr) return ExitCode::kUnsupported;
  if (summary.find("readable") != nullptr) return ExitCode::kInput;
  const bool problems = !summary.at("problems").as_array().empty();
  return problems && check ? ExitCode::kInput : ExitCode::kDone;
}

}  // namespace

const Command& inspect_command() {
  static const Command command = {
      .name = "inspect",
      .brief = "Say what a model folder or file holds",
      .description =
          "Reads headers and prints family, shapes, rope, tokenizer, chat template, bits per part "
          "of "
          "the model, types and bits per kind of weight, engines that load it, metadata, and what "
          "is wrong with it. Works on "
          "Hugging Face folders, quantized or not, and on GGUF and safetensors files.",
      .positionals = {{.name = "PATH",
                       .help = "Folder or file; two with --diff.",
                       .repeatable = true}},
      .options = {{.name = "diff",
                   .kind = ValueKind::kFlag,
                   .help = "Compare two models: keys, tensors, and for each tensor how many values "
                           "differ, the largest difference and its root mean square. Ends with 0 "
                           "if all is equal, else with 1.",
                   .group = "Output"},
                  {.name = "tensors",
                   .kind = ValueKind::kFlag,
                   .help = "List every tensor of the files.",
                   .group = "Output"},
                  {.name = "hashes",
                   .kind = ValueKind::kFlag,
                   .help = "List every tensor and file with its SHA-256.",
                   .group = "Output"},
                  {.name = "check",
                   .kind = ValueKind::kFlag,
                   .help = "Read every value and scale: NaN, infinity and negative scales are "
                           "problems, and so is what differs from the folder's manifest. Ends "
                           "with 3 if there are any.",
                   .group = "Output"}},
      .examples = {{"assay inspect model", "One page about a model."},
                   {"assay inspect --diff model model.gguf",
                    "What a conversion changed, tensor by tensor."},
                   {"assay inspect model.gguf --hashes --json",
                    "Every tensor with its hash, for scripts."}},
      .run = run_inspect,
  };
  return command;
}

}  // namespace assay::cli
