#include <fmt/core.h>

#include <memory>

#include "calibrate/calibration_options.h"
#include "calibrate/commands.h"
#include "calibrate/dataset.h"
#include "convert/checkpoint.h"
#include "convert/tokenizer.h"

namespace assay {
namespace {

ExitCode run_calibrate(const cli::Arguments& arguments, cli::Terminal& terminal) {
  const std::string model = arguments.text("MODEL");
  const std::string out = arguments.text("out");
  const auto checkpoint = Checkpoint::open(model);
  const auto encoder = [&] {
    return make_text_encoder(std::make_shared<const Tokenizer>(Tokenizer::from_folder(model)));
  };
  const TokenWindows windows =
      load_calibration(arguments.text("data"), read_dataset_options(arguments),
                       checkpoint->spec().vocab_size, encoder);
  if (windows.window_length > checkpoint->spec().context_length) {
    throw UsageError(fmt::format("--window-length: found {}, the model's context is {}",
                                 windows.window_length, checkpoint->spec().context_length));
  }
  write_token_file(out, windows);
  if (!terminal.json()) {
    terminal.log(cli::LogLevel::kInfo,
                 fmt::format("{} windows of {} tokens, {} tokens in all, SHA-256 of the ids {}",
                             windows.n_windows, windows.window_length, windows.n_tokens(),
                             windows.sha256()));
    terminal.print(out + "\n");
    return ExitCode::kDone;
  }
  Json json = Json::object();
  json.set("file", out)
      .set("n_windows", windows.n_windows)
      .set("window_length", windows.window_length)
      .set("n_tokens", windows.n_tokens())
      .set("token_ids_sha256", windows.sha256())
      .set("bos_id", windows.bos_id ? Json(static_cast<int64_t>(*windows.bos_id)) : Json());
  terminal.print(json.dump() + "\n");
  return ExitCode::kDone;
}

std::vector<cli::Option> options() {
  std::vector<cli::Option> all = {
      {.name = "data",
       .kind = cli::ValueKind::kPath,
       .value_name = "FILE",
       .help = "Calibration data: text, .jsonl (text, messages or input_ids per line), .npy or "
               ".safetensors with ids.",
       .group = "Input",
       .required = true},
      {.name = "out",
       .short_name = 'o',
       .kind = cli::ValueKind::kPath,
       .value_name = "FILE",
       .help = "Token file to write: .safetensors or .npy.",
       .group = "Output",
       .required = true},
  };
  for (cli::Option& option : dataset_options()) all.push_back(std::move(option));
  return all;
}

}  // namespace

const cli::Command& calibrate_command() {
  static const cli::Command command = {
      .name = "calibrate",
      .brief = "Turn text into the token windows that quantize reads",
      .description =
          "Encodes documents with the model's tokenizer, puts them one after another, cuts them "
          "into windows, puts BOS at the head of each window where the tokenizer has one, and "
          "writes the ids. A run of assay quantize on that file needs neither the text nor the "
          "tokenizer, and its SHA-256 names the calibration data exactly.",
      .positionals = {{.name = "MODEL", .help = "Model folder: tokenizer and vocabulary size."}},
      .options = options(),
      .examples = {{"assay calibrate tests/data/llama-tiny --data README.md --window-length 256 "
                    "--out tokens.safetensors",
                    "Windows of 256 tokens from a text."},
                   {"assay calibrate tests/data/llama-tiny --data README.md --max-tokens 4096 "
                    "--out tokens.npy --json",
                    "At most 4,096 tokens; hash and counts as JSON."}},
      .run = run_calibrate,
  };
  return command;
}

}  // namespace assay
