#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "convert/checkpoint.h"
#include "convert/cli/command.h"
#include "runtime/executor.h"

namespace assay::cli {

/// Options that commands share which run a model: device, kv-type, context, batch.
std::vector<Option> model_run_options();

/// Opens a model and logs its warnings.
std::shared_ptr<const Checkpoint> open_checkpoint(const std::string& path, Terminal& terminal);

/// Loads a model as the options of model_run_options() say, one sequence. Without --context it gets
/// room for n_prompt + n_new tokens. Throws UsageError before anything is allocated if they do not
/// fit into --context or the model's own context (case B67).
std::unique_ptr<Executor> load_model(const Arguments& arguments,
                                     std::shared_ptr<const Checkpoint> checkpoint, int64_t n_prompt,
                                     int64_t n_new, Terminal& terminal);

/// Ids separated by commas, spaces or line ends. Throws UsageError naming the first word that is
/// not a number of 31 bits.
std::vector<int32_t> parse_token_ids(std::string_view text);

}  // namespace assay::cli
