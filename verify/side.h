#pragma once

#include <memory>
#include <optional>
#include <string>

#include "convert/checkpoint.h"
#include "convert/core/json.h"
#include "convert/tokenizer.h"
#include "runtime/executor.h"
#include "verify/reference.h"

namespace assay {

/// One of the two things that are compared: a model on disk (with an executor once it is loaded) or
/// the results that a program wrote.
class Side {
 public:
  /// A reference bundle where the folder has a prompts.json and no config.json, else a checkpoint.
  static Side open(const std::string& path);
  /// An executor without files, for tests and for callers that made one.
  static Side from_executor(std::string name, std::unique_ptr<Executor> executor);
  static Side from_bundle(ReferenceBundle bundle);

  const std::string& path() const { return path_; }
  /// "reference bundle", "Hugging Face folder", …
  std::string kind_name() const;
  bool is_bundle() const { return bundle_.has_value(); }
  const ReferenceBundle& bundle() const { return *bundle_; }
  /// Null for bundles and bare executors.
  const std::shared_ptr<const Checkpoint>& checkpoint() const { return checkpoint_; }
  /// Whether the model on disk brings a tokenizer.
  bool has_tokenizer() const;
  /// That tokenizer, read now; empty if there is none. Throws what its readers throw.
  std::optional<Tokenizer> tokenizer() const;
  int64_t vocab_size() const;
  std::optional<int32_t> bos_id() const;

  /// Loads the checkpoint on a device; nothing happens for bundles and bare executors.
  void load(Device& device, const ExecutorOptions& options);
  bool has_executor() const { return executor_ != nullptr; }
  Executor& executor() { return *executor_; }
  int64_t executor_context() const { return executor_->options().context; }

  /// Logits at the prompt's last position: read from the bundle, or run. Empty if the bundle has
  /// none.
  std::optional<std::vector<float>> final_logits(const ReferencePrompt& prompt);
  /// Logits at `positions` of the prompt, (positions, vocab_size).
  std::optional<std::vector<float>> logits_at(const ReferencePrompt& prompt,
                                              const std::vector<int64_t>& positions);
  /// Greedy continuation: the bundle's own, cut to n, or run.
  std::optional<GreedyRun> greedy(const ReferencePrompt& prompt, int64_t n_new_tokens);

  Json to_json() const;

 private:
  Side() = default;
  std::string path_;
  std::optional<ReferenceBundle> bundle_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace assay
