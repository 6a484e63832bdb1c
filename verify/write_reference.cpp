#include "verify/write_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <span>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/new_folder.h"
#include "convert/core/sha256.h"
#include "convert/core/version.h"
#include "convert/safetensors.h"
#include "verify/hidden_states.h"
#include "verify/logits.h"
#include "verify/row_statistics.h"
#include "verify/run_model.h"
#include "verify/token_hash.h"

namespace assay {
namespace {

using Progress = std::function<void(std::string_view)>;

/// Nine significant digits: enough to get the fp32 value back, and short.
Json json_of_float(float value) {
  return std::strtod(fmt::format("{:.9g}", value).c_str(), nullptr);
}

template <typename T>
Json json_of_ids(const std::vector<T>& ids) {
  Json json = Json::array();
  for (const T id : ids) json.push(static_cast<int64_t>(id));
  return json;
}

Json json_of_floats(const std::vector<float>& values) {
  Json json = Json::array();
  for (const float value : values) json.push(json_of_float(value));
  return json;
}

template <typename T>
TensorSource source(std::string name, DType dtype, Shape shape, std::vector<T> values) {
  return {
      std::move(name), dtype, std::move(shape),
      [values = std::move(values)](const std::function<void(std::span<const std::byte>)>& sink) {
        sink(std::as_bytes(std::span(values)));
      }};
}

/// Writes the files of one bundle into a folder.
class Writer {
 public:
  Writer(Executor& executor, const WriteReferenceOptions& options, std::string folder,
         const Progress& progress)
      : executor_(executor), options_(options), folder_(std::move(folder)), progress_(progress) {}

  WrittenReference write() {
    write_prompts();
    write_logits();
    write_hidden();
    write_greedy();
    if (options_.windows) write_nll();
    return std::move(written_);
  }

 private:
  void report(const std::string& label) const {
    if (progress_) progress_(label);
  }

  /// The members that every JSON file begins with.
  Json header() const {
    Json json = Json::object();
    json.set("model", options_.model);
    json.set("arithmetic", kArithmetic);
    json.set("kv_type", kv_type_name(executor_.options().kv_type));
    return json;
  }

  std::string path_of(std::string_view name) const {
    return (std::filesystem::path(folder_) / name).string();
  }

  void note_file(const std::string& name) {
    written_.files.push_back(name);
    written_.bytes += std::filesystem::file_size(path_of(name));
  }

  void write_json(const std::string& name, const Json& json) {
    write_text_file(path_of(name), json.dump(1) + "\n");
    note_file(name);
  }

  void write_tensors(const std::string& name, std::vector<TensorSource> tensors) {
    write_safetensors(path_of(name), std::move(tensors));
    note_file(name);
  }

  const ReferencePrompt& prompt(const std::string& id) const {
    const auto& prompts = options_.prompts.prompts;
    const auto found =
        std::find_if(prompts.begin(), prompts.end(), [&](const auto& p) { return p.id == id; });
    ASSAY_CHECK(found != prompts.end());
    return *found;
  }

  /// The prompt whose positions are all kept: a bundle has one list of positions, so one prompt.
  const ReferencePrompt* all_positions_prompt() const {
    for (const ReferencePrompt& p : options_.prompts.prompts) {
      if (p.keeps_all_positions()) return &p;
    }
    return nullptr;
  }

  void write_prompts() {
    Json json = header();
    const PromptFile& file = options_.prompts;
    json.set("tokenizer_sha256",
             file.tokenizer_sha256.empty() ? Json(nullptr) : Json(file.tokenizer_sha256));
    json.set("versions", Json::object().set("assay", version()));
    json.set("device", executor_.device_name());
    json.set("bos_id", file.bos_id ? Json(int64_t{*file.bos_id}) : Json(nullptr));
    Json list = Json::array();
    for (const ReferencePrompt& p : file.prompts) list.push(p.to_json());
    json.set("prompts", std::move(list));
    write_json("prompts.json", json);
  }

  void write_logits() {
    const int64_t vocab_size = executor_.program().spec.vocab_size;
    std::vector<TensorSource> tensors;
    for (const ReferencePrompt& p : options_.prompts.prompts) {
      report(fmt::format("logits of prompt {}", p.id));
      tensors.push_back(source("final." + p.id, DType::kF32, {vocab_size},
                               logits_of_last_position(executor_, p.token_ids)));
    }
    if (const ReferencePrompt* p = all_positions_prompt()) {
      const auto n = static_cast<int64_t>(p->token_ids.size());
      tensors.push_back(source("all." + p->id, DType::kF32, {n, vocab_size},
                               logits_of_all_positions(executor_, p->token_ids)));
      tensors.push_back(positions(n));
    }
    write_tensors("logits.safetensors", std::move(tensors));
  }

  static TensorSource positions(int64_t n) {
    std::vector<int64_t> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = i;
    return source("positions", DType::kI64, {n}, std::move(values));
  }

  void write_hidden() {
    const ReferencePrompt* p = all_positions_prompt();
    if (p == nullptr) return;
    report("hidden states");
    const auto n = static_cast<int64_t>(p->token_ids.size());
    std::vector<TensorSource> tensors;
    for (auto& [name, values] : run_hidden_states(executor_, p->token_ids)) {
      const auto columns = static_cast<int64_t>(values.size()) / n;
      tensors.push_back(source(name, DType::kF32, {n, columns}, values));
    }
    tensors.push_back(positions(n));
    write_tensors("hidden.safetensors", std::move(tensors));
  }

  Json greedy_of(const ReferencePrompt& p, std::vector<int32_t>& all) {
    const GreedyRun run = run_greedy(executor_, p.token_ids, options_.n_new_tokens);
    all.insert(all.end(), run.token_ids.begin(), run.token_ids.end());
    Json json = Json::object();
    json.set("id", p.id);
    json.set("n_prompt_tokens", uint64_t{p.token_ids.size()});
    json.set("token_ids", json_of_ids(run.token_ids));
    json.set("sha256", run.sha256());
    json.set("margin", json_of_floats(run.margins));
    json.set("runner_up", json_of_ids(run.runner_up));
    const auto least = std::min_element(run.margins.begin(), run.margins.end());
    if (least != run.margins.end()) {
      json.set("min_margin", json_of_float(*least));
      json.set("min_margin_step", int64_t{least - run.margins.begin()});
    }
    return json;
  }

  void write_greedy() {
    if (options_.greedy_ids.empty() || options_.n_new_tokens == 0) return;
    std::vector<int32_t> all;
    Json list = Json::array();
    for (const std::string& id : options_.greedy_ids) {
      report(fmt::format("greedy tokens of prompt {}", id));
      list.push(greedy_of(prompt(id), all));
    }
    Json json = header();
    json.set("n_new_tokens", options_.n_new_tokens);
    json.set("all_sha256", sha256_of_token_ids(all));
    json.set("prompts", std::move(list));
    write_json("greedy.json", json);
  }

  void write_nll() {
    const EvaluationWindows& windows = *options_.windows;
    const auto n = static_cast<int64_t>(windows.windows.size());
    std::vector<int32_t> ids, argmaxes;
    std::vector<float> nll, margins;
    NllComparer sums;
    for (int64_t i = 0; i < n; ++i) {
      report(fmt::format("evaluation window {} of {}", i + 1, n));
      const auto& window = windows.windows[static_cast<size_t>(i)];
      if (static_cast<int64_t>(window.size()) != windows.window_length) {
        throw UsageError("a reference bundle holds windows of one length only");
      }
      PairedWindowScores scores;
      scores.a = scores.b = score_window(executor_, window);
      ids.insert(ids.end(), window.begin(), window.end());
      nll.insert(nll.end(), scores.a.nll.begin(), scores.a.nll.end());
      argmaxes.insert(argmaxes.end(), scores.a.argmax.begin(), scores.a.argmax.end());
      margins.insert(margins.end(), scores.a.margin.begin(), scores.a.margin.end());
      sums.add(scores);
    }
    write_json("nll.json", summary_of_nll(sums.finish(), ids, argmaxes, margins));
    const int64_t length = windows.window_length;
    std::vector<TensorSource> tensors;
    tensors.push_back(source("token_ids", DType::kI32, {n, length}, std::move(ids)));
    tensors.push_back(source("nll", DType::kF32, {n, length - 1}, std::move(nll)));
    tensors.push_back(source("argmax", DType::kI32, {n, length - 1}, std::move(argmaxes)));
    tensors.push_back(source("margin", DType::kF32, {n, length - 1}, std::move(margins)));
    write_tensors("nll.safetensors", std::move(tensors));
  }

  Json summary_of_nll(const NllComparison& found, const std::vector<int32_t>& ids,
                      const std::vector<int32_t>& argmaxes,
                      const std::vector<float>& margins) const {
    const EvaluationWindows& windows = *options_.windows;
    Json json = header();
    json.set("text", options_.text_name.empty() ? Json(nullptr) : Json(options_.text_name));
    json.set("text_n_tokens", windows.n_text_tokens > 0 ? Json(windows.n_text_tokens) : Json());
    json.set("text_token_ids_sha256",
             windows.text_sha256.empty() ? Json(nullptr) : Json(windows.text_sha256));
    json.set("window", windows.window_length);
    json.set("n_windows", found.n_windows);
    json.set("window_token_ids_sha256", windows.sha256());
    json.set("n_scored", found.n_scored);
    json.set("nll_sum", found.nll_sum_a);
    json.set("nll_mean", found.mean_a);
    json.set("perplexity", perplexity(found.mean_a));
    Json means = Json::object(), counts = Json::object();
    for (const NllBucket& bucket : found.buckets) {
      means.set(bucket.name(), bucket.mean_a);
      counts.set(bucket.name(), bucket.n_scored);
    }
    json.set("bucket_mean", std::move(means));
    json.set("bucket_n_scored", std::move(counts));
    Json sums = Json::array();
    for (const double sum : found.window_sum_a) sums.push(sum);
    json.set("window_sum", std::move(sums));
    json.set("argmax_sha256", sha256_of_token_ids(argmaxes));
    json.set("min_margin", json_of_float(*std::min_element(margins.begin(), margins.end())));
    json.set("top1_accuracy", accuracy(ids, argmaxes));
    return json;
  }

  /// Share of rows whose best token is the one that follows.
  double accuracy(const std::vector<int32_t>& ids, const std::vector<int32_t>& argmaxes) const {
    const auto length = static_cast<size_t>(options_.windows->window_length);
    size_t n_right = 0;
    for (size_t i = 0; i < argmaxes.size(); ++i) {
      const size_t window = i / (length - 1), row = i % (length - 1);
      n_right += ids[window * length + row + 1] == argmaxes[i] ? 1 : 0;
    }
    return static_cast<double>(n_right) / static_cast<double>(argmaxes.size());
  }

  Executor& executor_;
  const WriteReferenceOptions& options_;
  std::string folder_;
  const Progress& progress_;
  WrittenReference written_;
};

}  // namespace

WrittenReference write_reference(Executor& executor, const WriteReferenceOptions& options,
                                 const Progress& progress) {
  NewFolder folder(options.folder);
  WrittenReference written = Writer(executor, options, folder.partial(), progress).write();
  folder.publish();
  written.folder = options.folder;
  return written;
}

}  // namespace assay
