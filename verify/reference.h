#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/safetensors.h"
#include "verify/nll.h"
#include "verify/token_hash.h"

namespace assay {

/// One prompt of a bundle.
struct ReferencePrompt {
  std::string id;      // "len0032"
  std::string kind;    // "length", "all_positions": logits of every position are kept
  std::string source;  // where it was cut from; may be empty
  std::optional<std::string> text;
  std::vector<int32_t> token_ids;  // as fed, BOS included

  bool keeps_all_positions() const { return kind == "all_positions"; }
  Json to_json() const;
};

/// A greedy continuation of one prompt.
struct ReferenceGreedy {
  std::string id;
  int64_t n_prompt_tokens = 0;
  GreedyRun run;
};

/// Logits of every position of a prompt. values (positions.size(), vocab_size)
struct ReferenceRows {
  std::vector<int64_t> positions;
  std::vector<float> values;
};

/// The token ids of a JSON list. `where` begins messages. Throws FormatError for one that is none.
std::vector<int32_t> read_token_ids(const Json& json, const std::string& where);

/// Prompts from a prompts.json, a list of ids ([1, 2, 3]) or a list of lists. Checks each prompt's
/// count and hash where the file has them: FormatError with file and prompt id.
struct PromptFile {
  std::vector<ReferencePrompt> prompts;
  std::string model, tokenizer_sha256, arithmetic, kv_type;  // empty: the file does not say
  std::optional<int32_t> bos_id;
  Json versions;
};
PromptFile read_prompts(const std::string& path);

/// Results of one model, written by any program: a folder with prompts.json, logits.safetensors,
/// hidden.safetensors, greedy.json, nll.json, nll.safetensors, noise.json. Only prompts.json and
/// logits.safetensors must be there, with logits of every prompt. Every hash, count and shape is
/// checked at open (FormatError with file, place, found, expected); tensors are read when asked
/// for, and must then hold finite values (FormatError).
class ReferenceBundle {
 public:
  /// Whether `path` is a folder with a prompts.json.
  static bool is_bundle(const std::string& path);
  static ReferenceBundle open(const std::string& folder);

  const std::string& path() const { return path_; }
  const PromptFile& header() const { return header_; }
  const std::vector<ReferencePrompt>& prompts() const { return header_.prompts; }
  const ReferencePrompt* find_prompt(std::string_view id) const;
  int64_t vocab_size() const { return vocab_size_; }

  /// Logits at the last position, (vocab_size); empty if the bundle has none for this prompt.
  std::optional<std::vector<float>> final_logits(std::string_view prompt_id) const;
  std::optional<ReferenceRows> all_logits(std::string_view prompt_id) const;
  /// Names of hidden.safetensors in order of depth: embeddings, layer.0.output, …, final_norm.
  std::vector<std::string> hidden_names() const;
  /// (n_rows, hidden_size) of the all-positions prompt; throws FormatError for an unknown name.
  std::vector<float> hidden(std::string_view name) const;

  const std::vector<ReferenceGreedy>& greedy() const { return greedy_; }
  const std::optional<EvaluationWindows>& windows() const { return windows_; }
  /// Scores of one window; only where windows() is not empty.
  WindowScores window_scores(int64_t window) const;
  /// noise.json, or null.
  const Json& noise() const { return noise_; }

 private:
  ReferenceBundle() = default;
  void read_logits();
  void require_positions(const SafetensorsEntry& entry) const;
  void require_known_states() const;
  void read_greedy();
  void read_nll();

  std::string path_;
  PromptFile header_;
  int64_t vocab_size_ = 0;
  std::shared_ptr<const SafetensorsFile> logits_, hidden_, nll_;
  std::vector<ReferenceGreedy> greedy_;
  std::optional<EvaluationWindows> windows_;
  Json noise_;
};

}  // namespace assay
