#include "calibrate/calibration_options.h"

namespace assay {

std::vector<cli::Option> dataset_options() {
  return {
      {.name = "windows",
       .kind = cli::ValueKind::kInteger,
       .value_name = "N",
       .default_value = "128",
       .help = "Most windows that are used.",
       .group = "Calibration",
       .minimum = 1},
      {.name = "window-length",
       .kind = cli::ValueKind::kInteger,
       .value_name = "N",
       .help = "Tokens per window, at most the model's context. Default: the row length of a file "
               "of ids, else 1024.",
       .group = "Calibration",
       .minimum = 2},
      {.name = "max-tokens",
       .kind = cli::ValueKind::kInteger,
       .value_name = "N",
       .help = "Most tokens over all windows; windows become shorter if one alone is longer. Holds "
               "for files of ids, too.",
       .group = "Calibration",
       .minimum = 2},
  };
}

DatasetOptions read_dataset_options(const cli::Arguments& arguments) {
  DatasetOptions options;
  options.n_windows = arguments.integer("windows");
  if (arguments.given("window-length")) {
    options.window_length = arguments.integer("window-length");
  }
  if (arguments.given("max-tokens")) options.max_tokens = arguments.integer("max-tokens");
  return options;
}

}  // namespace assay
