#pragma once

#include "convert/checkpoint.h"
#include "convert/core/json.h"

namespace assay {

/// config.json of a GGUF model, from its spec: keys in order, read back by the family to the same
/// GGUF keys (checked: FormatError if not). `dtype` is the one that the tensors get. Throws
/// UnsupportedError for what config.json cannot say.
Json config_of_gguf(const Checkpoint& checkpoint, DType dtype);

/// generation_config.json: BOS and the stop ids.
Json generation_config_of_gguf(const Checkpoint& checkpoint);

}  // namespace assay
