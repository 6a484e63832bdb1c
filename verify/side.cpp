#include "verify/side.h"

#include <algorithm>
#include <filesystem>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/version.h"
#include "convert/gguf.h"
#include "verify/run_model.h"

namespace assay {
Side Side::open(const std::string& path) {
  const bool has_config = file_exists((std::filesystem::path(path) / "config.json").string());
  if (!has_config && ReferenceBundle::is_bundle(path)) {
    return from_bundle(ReferenceBundle::open(path));
  }
  Side side;
  side.path_ = path;
  side.checkpoint_ = Checkpoint::open(path);
  return side;
}

Side Side::from_executor(std::string name, std::unique_ptr<Executor> executor) {
  Side side;
  side.path_ = std::move(name);
  side.executor_ = std::move(executor);
  return side;
}

Side Side::from_bundle(ReferenceBundle bundle) {
  Side side;
  side.path_ = bundle.path();
  side.bundle_ = std::move(bundle);
  return side;
}

std::string Side::kind_name() const {
  if (bundle_) return "reference bundle";
  if (!checkpoint_) return "executor";
  const CheckpointFormat& format = checkpoint_->format();
  return std::string(format.name) + " " + std::string(format.container());
}

bool Side::has_tokenizer() const {
  if (!checkpoint_) return false;
  if (const GgufFile* gguf = checkpoint_->gguf()) {
    return gguf->metadata().find("tokenizer.ggml.tokens") != nullptr;
  }
  return file_exists(path_ + "/tokenizer.json") || file_exists(path_ + "/tokenizer.model");
}

std::optional<Tokenizer> Side::tokenizer() const {
  if (!has_tokenizer()) return std::nullopt;
  const GgufFile* gguf = checkpoint_->gguf();
  return gguf != nullptr ? Tokenizer::from_gguf(gguf->metadata(), path_)
                         : Tokenizer::from_folder(path_);
}

int64_t Side::vocab_size() const {
  if (bundle_) return bundle_->vocab_size();
  return checkpoint_ ? checkpoint_->spec().vocab_size : executor_->program().spec.vocab_size;
}

std::optional<int32_t> Side::bos_id() const {
  if (bundle_) return bundle_->header().bos_id;
  return checkpoint_ ? checkpoint_->spec().bos_id : executor_->program().spec.bos_id;
}

void Side::load(Device& device, const ExecutorOptions& options) {
  if (checkpoint_ && !executor_) executor_ = device.load(checkpoint_, options);
}

std::optional<std::vector<float>> Side::final_logits(const ReferencePrompt& prompt) {
  if (bundle_) return bundle_->final_logits(prompt.id);
  return logits_of_last_position(*executor_, prompt.token_ids);
}

std::optional<std::vector<float>> Side::logits_at(const ReferencePrompt& prompt,
                                                  const std::vector<int64_t>& positions) {
  std::vector<float> values;
  const auto columns = static_cast<size_t>(vocab_size());
  const auto take = [&](std::span<const float> all, int64_t row) {
    const auto logits = all.subspan(static_cast<size_t>(row) * columns, columns);
    values.insert(values.end(), logits.begin(), logits.end());
  };
  if (bundle_) {
    const auto rows = bundle_->all_logits(prompt.id);
    if (!rows) return std::nullopt;
    for (const int64_t position : positions) {
      const auto at = std::find(rows->positions.begin(), rows->positions.end(), position);
      if (at == rows->positions.end()) return std::nullopt;
      take(rows->values, at - rows->positions.begin());
    }
    return values;
  }
  const std::vector<float> all = logits_of_all_positions(*executor_, prompt.token_ids);
  for (const int64_t position : positions) take(all, position);
  return values;
}

std::optional<GreedyRun> Side::greedy(const ReferencePrompt& prompt, int64_t n_new_tokens) {
  if (!bundle_) return run_greedy(*executor_, prompt.token_ids, n_new_tokens);
  for (const ReferenceGreedy& greedy : bundle_->greedy()) {
    if (greedy.id != prompt.id) continue;
    GreedyRun run = greedy.run;
    const auto n = std::min(run.token_ids.size(), static_cast<size_t>(n_new_tokens));
    run.token_ids.resize(n);
    run.margins.resize(std::min(run.margins.size(), n));
    run.runner_up.resize(std::min(run.runner_up.size(), n));
    return run;
  }
  return std::nullopt;
}

Json Side::to_json() const {
  Json json = Json::object();
  json.set("path", path_);
  json.set("kind", kind_name());
  if (bundle_) {
    const PromptFile& header = bundle_->header();
    json.set("model", header.model);
    json.set("arithmetic", header.arithmetic.empty() ? "not stated" : header.arithmetic);
    json.set("kv_type", header.kv_type.empty() ? "not stated" : header.kv_type);
  } else {
    json.set("arithmetic", kArithmetic);
    if (executor_) {
      json.set("kv_type", kv_type_name(executor_->options().kv_type));
      json.set("device", executor_->device_name());
    }
  }
  return json;
}

}  // namespace assay
