#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/executor.h"
#include "verify/nll.h"
#include "verify/reference.h"

namespace assay {

struct WriteReferenceOptions {
  std::string folder;                   // must not exist yet
  std::string model;                    // name that the files carry
  PromptFile prompts;                   // ids, texts, tokenizer hash and BOS as they are handed on
  std::vector<std::string> greedy_ids;  // prompts that are continued
  int64_t n_new_tokens = 128;
  std::optional<EvaluationWindows> windows;  // empty: no nll files
  std::string text_name;                     // of the evaluation text; may be empty
};

struct WrittenReference {
  std::string folder;
  std::vector<std::string> files;
  uint64_t bytes = 0;
};

/// Writes what the executor computes in the layout of a reference bundle: prompts.json,
/// logits.safetensors, hidden.safetensors (of the first all-positions prompt), greedy.json,
/// nll.json and nll.safetensors. Every JSON file states arithmetic and KV type. Files are made in
/// `<folder>.partial`, which gets its final name when all of them are complete (NewFolder).
WrittenReference write_reference(Executor& executor, const WriteReferenceOptions& options,
                                 const std::function<void(std::string_view label)>& progress = {});

}  // namespace assay
