#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "calibrate/calibration_options.h"
#include "calibrate/commands.h"
#include "calibrate/dataset.h"
#include "calibrate/measure_importance.h"
#include "convert/checkpoint.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/overwrite.h"
#include "convert/core/sha256.h"

namespace assay::cli {
namespace {

/// Runs the model on the windows and writes the importance matrix; its SHA-256.
std::string write_matrix(const std::shared_ptr<const Checkpoint>& checkpoint,
                         const TokenWindows& windows, const Arguments& arguments,
                         Terminal& terminal) {
  namespace fs = std::filesystem;
  const std::string path = arguments.text("imatrix-out");
  const std::string parent = fs::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  require_writable(folder, uint64_t{1} << 20);
  const auto progress = terminal.progress("imatrix", 1.0);
  ImportanceSource source =
      measure_importance(checkpoint, windows,
                         {.kv_type = *kv_type_from_name(arguments.text("kv-type")),
                          .activation_memory = arguments.bytes("activation-memory"),
                          .spill_folder = folder,
                          .progress = [&](double share, const std::string& label) {
                            if (stop_requested())
                              throw StoppedError("stopped; nothing was written");
                            progress->update(share, label);
                          }});
  source.dataset = fs::path(arguments.text("data")).filename().string();
  write_importance(path, source);
  return sha256_of_file(path);
}

ExitCode run_calibrate(const Arguments& arguments, Terminal& terminal) {
  const std::string model = arguments.text("MODEL");
  const std::string out = arguments.text("out");
  const std::string matrix = arguments.text("imatrix-out");
  if (out.empty() && matrix.empty()) {
    throw UsageError("--out FILE or --imatrix-out FILE is missing: there is nothing to write");
  }
  for (const std::string& path : {out, matrix}) {
    if (!path.empty()) require_free_file_name(path, arguments.flag("force"));
  }
  if (!out.empty()) require_token_file_name(out);
  const auto checkpoint = Checkpoint::open(model);
  if (checkpoint->safetensors() == nullptr) {
    throw UnsupportedError(model +
                           ": is a GGUF file, expected a model folder; assay convert --to hf makes "
                           "one of it");
  }
  const auto encoder = [&] { return make_text_encoder(model); };
  const TokenWindows windows =
      load_calibration(arguments.text("data"), read_dataset_options(arguments),
                       checkpoint->spec().vocab_size, encoder);
  if (windows.window_length > checkpoint->spec().context_length) {
    throw UsageError(fmt::format("--window-length: found {}, the model's context is {}",
                                 windows.window_length, checkpoint->spec().context_length));
  }
  Json json = Json::object();
  json.set("n_windows", windows.n_windows)
      .set("window_length", windows.window_length)
      .set("n_tokens", windows.n_tokens())
      .set("token_ids_sha256", windows.sha256())
      .set("bos_id", windows.bos_id ? Json(static_cast<int64_t>(*windows.bos_id)) : Json());
  if (!terminal.json()) {
    terminal.log(LogLevel::kInfo,
                 fmt::format("{} windows of {} tokens, {} tokens in all, SHA-256 of the ids {}",
                             windows.n_windows, windows.window_length, windows.n_tokens(),
                             windows.sha256()));
  }
  if (!out.empty()) {
    write_token_file(out, windows);
    json.set("file", out);
  }
  if (!matrix.empty()) {
    json.set("imatrix", matrix);
    json.set("imatrix_sha256", write_matrix(checkpoint, windows, arguments, terminal));
  }
  if (terminal.json()) {
    terminal.print(json.dump() + "\n");
  } else {
    for (const std::string& path : {out, matrix}) {
      if (!path.empty()) terminal.print(path + "\n");
    }
  }
  return ExitCode::kDone;
}

std::vector<Option> options() {
  std::vector<Option> all = {
      {.name = "data",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Calibration data: text, .jsonl (text, messages or input_ids per line), .npy or "
               ".safetensors with ids.",
       .group = "Input",
       .required = true},
      {.name = "out",
       .short_name = 'o',
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Token file to write: .safetensors or .npy.",
       .group = "Output",
       .writes = true,
       .file_at_end = true},
      {.name = "imatrix-out",
       .kind = ValueKind::kPath,
       .value_name = "FILE",
       .help = "Run the model on the windows and write an importance matrix (GGUF, as of "
               "llama-imatrix) for assay convert --imatrix.",
       .group = "Output",
       .writes = true,
       .file_at_end = true},
      {.name = "force",
       .kind = ValueKind::kFlag,
       .help = "Replace existing files.",
       .group = "Output"},
      {.name = "kv-type",
       .value_name = "TYPE",
       .default_value = "f32",
       .help = "Type of the key-value cache in that run.",
       .group = "Importance matrix",
       .choices = kKvTypeWords.list()},
      {.name = "activation-memory",
       .kind = ValueKind::kBytes,
       .value_name = "SIZE",
       .default_value = "1152MiB",
       .help = "Memory for activations in that run; more goes to disk beside the file. Results do "
               "not depend on it.",
       .group = "Importance matrix"},
  };
  for (Option& option : dataset_options()) all.push_back(std::move(option));
  return all;
}

}  // namespace

const Command& calibrate_command() {
  static const Command command = {
      .name = "calibrate",
      .brief = "Turn text into token windows, and into an importance matrix",
      .description =
          "Encodes documents with the model's tokenizer, puts them one after another, cuts them "
          "into windows, puts BOS at the head of each window where the tokenizer has one, and "
          "writes the ids. A run of assay quantize on that file needs neither the text nor the "
          "tokenizer, and its SHA-256 names the calibration data exactly. --imatrix-out runs the "
          "model on the windows and writes how much each input column of each linear matters.",
      .positionals = {{.name = "MODEL", .help = "Model folder: tokenizer and vocabulary size."}},
      .options = options(),
      .examples = {{"assay calibrate tests/data/llama-tiny --data README.md --window-length 256 "
                    "--out tokens.safetensors",
                    "Windows of 256 tokens from a text."},
                   {"assay calibrate tests/data/llama-tiny --data README.md --max-tokens 4096 "
                    "--out tokens.npy --json",
                    "At most 4,096 tokens; hash and counts as JSON."},
                   {"assay calibrate tests/data/llama-tiny --data README.md --windows 4 "
                    "--window-length 256 --imatrix-out llama-tiny.imatrix.gguf",
                    "An importance matrix from four windows."}},
      .run = run_calibrate,
  };
  return command;
}

}  // namespace assay::cli
