#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/tokenizer.h"
#include "verify/nll.h"
#include "verify/reference.h"
#include "verify/side.h"

namespace assay {

/// Where the token ids of a comparison come from. Empty names: not given.
struct TokenPlanOptions {
  std::string prompts_file;          // prompts.json, or lists of ids
  std::string token_ids_file;        // evaluation ids: a list (a text), or lists (windows as fed)
  std::string text_file;             // evaluation text
  std::string tokenizer;             // tokenizer.json, a folder that has one, or a GGUF file
  std::optional<int64_t> n_windows;  // 0: all; default: all of a bundle, 16 of a text
  int64_t window_length = 1024;
};

/// The ids that both sides are fed.
struct TokenPlan {
  std::vector<ReferencePrompt> prompts;
  std::string prompts_source;           // "prompts of <bundle>", "cut from <text>", "generated"
  std::vector<std::string> greedy_ids;  // prompts that are continued
  std::optional<EvaluationWindows> windows;
  std::string windows_source;
  std::vector<std::string> notes;  // what was left out, and why

  const ReferencePrompt* find_prompt(const std::string& id) const;
};

/// Collects the ids. Prompts and windows of a reference bundle go first; two bundles must agree on
/// every id that both have. A text is encoded by the tokenizers of both sides where both have one:
/// FormatError if their ids differ, because figures over other tokens cannot be compared (case
/// B79). Without any source prompts are made from counters, so that a pair of models can always be
/// compared. Prompts longer than `most_positions` are left out with a note.
TokenPlan plan_tokens(const Side& a, const Side& b, const TokenPlanOptions& options,
                      int64_t most_positions);

/// Evaluation ids of a file: JSON list (cut into windows; BOS stays the rule if the list begins
/// with `bos_id`), JSON list of lists, or safetensors with I32 "token_ids" of shape [n, length].
EvaluationWindows read_windows(const std::string& path, int64_t window_length, int64_t n_windows,
                               std::optional<int32_t> bos_id);

/// The text of a file. Throws FormatError if it is no UTF-8.
std::string read_evaluation_text(const std::string& path);

/// Encodes a text and cuts it: the post-processor's first special id is the BOS of every window.
EvaluationWindows windows_of_text(const Tokenizer& tokenizer, const std::string& text,
                                  int64_t window_length, int64_t n_windows);

}  // namespace assay
