#pragma once

#include <optional>
#include <string_view>

#include "convert/core/json.h"

namespace assay::tokenization {

/// What tokenizer.ggml.pre stands for, in the words of tokenizer.json.
struct GgufPre {
  std::string_view name;
  Json normalizer, pre_tokenizer;  // null: none
  bool ignore_merges;
  bool add_bos;  // when the file has no tokenizer.ggml.add_bos_token
};

/// The row of this name, or nothing.
std::optional<GgufPre> find_gguf_pre(std::string_view name);

/// The name under which GGUF knows exactly this normalizer, split rule and handling of merges.
std::optional<std::string_view> gguf_pre_of(const Json& normalizer, const Json& pre_tokenizer,
                                            bool ignore_merges);

/// The known names, for messages.
std::string gguf_pre_names();

}  // namespace assay::tokenization
