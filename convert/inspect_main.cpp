#include "convert/commands.h"
#include "convert/model_summary.h"

namespace assay::cli {
namespace {

ExitCode run_inspect(const Arguments& arguments, Terminal& terminal) {
  const Json summary =
      summarize_model(arguments.list("PATH").front(), {.list_tensors = arguments.flag("tensors"),
                                                       .hashes = arguments.flag("hashes"),
                                                       .check_values = arguments.flag("check")});
  terminal.print(terminal.json() ? summary.dump() + "\n" : summary_text(summary));
  if (summary.find("unsupported") != nullptr) return ExitCode::kUnsupported;
  const bool problems = !summary.at("problems").as_array().empty();
  return problems && arguments.flag("check") ? ExitCode::kInput : ExitCode::kDone;
}

}  // namespace

const Command& inspect_command() {
  static const Command command = {
      .name = "inspect",
      .brief = "Say what a model folder or file holds",
      .description =
          "Reads headers and prints family, shapes, rope, tokenizer, types and bits per kind of "
          "weight, metadata, and what is wrong with it. Works on Hugging Face folders, quantized "
          "or not, and on GGUF and safetensors files.",
      .positionals = {{.name = "PATH", .help = "Folder or file."}},
      .options = {{.name = "tensors",
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
                   {"assay inspect model.gguf --hashes --json",
                    "Every tensor with its hash, for scripts."}},
      .run = run_inspect,
  };
  return command;
}

}  // namespace assay::cli
