#include "verify/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/sha256.h"

namespace assay {
namespace {

std::string child(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

std::string text_member(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

int32_t read_id(const Json& json, const std::string& where) {
  const int64_t id = json.as_integer();
  if (id >= 0 && id <= INT32_MAX) return static_cast<int32_t>(id);
  throw FormatError(fmt::format("{}: token id {} is not in 0 … 2147483647", where, id));
}

/// Runs a reader of JSON members; adds file and place to what it throws.
template <typename Read>
auto with_place(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const FormatError& error) {
    const std::string message = error.what();
    if (message.starts_with(where.substr(0, where.find(':')))) throw;
    throw FormatError(fmt::format("{}: {}", where, message));
  }
}

void check_hash(const Json& json, const std::vector<int32_t>& ids, const std::string& where) {
  const std::string expected = text_member(json, "sha256");
  if (expected.empty()) return;
  const std::string found = sha256_of_token_ids(ids);
  if (found != expected) {
    throw FormatError(
        fmt::format("{}: the {} token ids hash to {}, the file says {}; an id was changed after "
                    "the file was written",
                    where, ids.size(), found, expected));
  }
}

void check_count(const Json& json, std::string_view key, size_t found, const std::string& where) {
  const Json* expected = json.find(key);
  if (expected == nullptr || expected->is_null()) return;
  if (expected->as_integer() != static_cast<int64_t>(found)) {
    throw FormatError(
        fmt::format("{}: {} is {}, found {}", where, key, expected->as_integer(), found));
  }
}

ReferencePrompt read_prompt(const Json& json, const std::string& path) {
  ReferencePrompt prompt;
  prompt.id = with_place(path, [&] { return json.at("id").as_string(); });
  const std::string where = fmt::format("{}: prompt \"{}\"", path, prompt.id);
  prompt.kind = text_member(json, "kind");
  prompt.source = text_member(json, "source");
  if (const Json* text = json.find("text"); text != nullptr && text->is_string()) {
    prompt.text = text->as_string();
  }
  prompt.token_ids = with_place(where, [&] { return read_token_ids(json.at("token_ids"), where); });
  check_count(json, "n_tokens", prompt.token_ids.size(), where);
  check_hash(json, prompt.token_ids, where);
  return prompt;
}

std::vector<ReferencePrompt> read_plain_lists(const Json& json, const std::string& path) {
  std::vector<ReferencePrompt> prompts;
  const bool nested = !json.as_array().empty() && json.as_array().front().is_array();
  const auto add = [&](const Json& list) {
    ReferencePrompt prompt;
    prompt.id = fmt::format("prompt{:03}", prompts.size());
    prompt.source = std::filesystem::path(path).filename().string();
    prompt.token_ids = read_token_ids(list, fmt::format("{}: {}", path, prompt.id));
    prompts.push_back(std::move(prompt));
  };
  if (!nested) {
    add(json);
  } else {
    for (const Json& list : json.as_array()) add(list);
  }
  return prompts;
}

void check_unique(const std::vector<ReferencePrompt>& prompts, const std::string& path) {
  std::vector<std::string_view> ids;
  for (const ReferencePrompt& prompt : prompts) {
    if (prompt.token_ids.empty()) {
      throw FormatError(fmt::format("{}: prompt \"{}\" has no token ids", path, prompt.id));
    }
    ids.push_back(prompt.id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) {
    throw FormatError(fmt::format("{}: two prompts have the id \"{}\"", path, *twice));
  }
  if (ids.empty()) throw FormatError(fmt::format("{}: no prompts", path));
}

const SafetensorsEntry& require(const SafetensorsFile& file, std::string_view name, DType dtype,
                                const Shape& shape) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) {
    throw FormatError(fmt::format("{}: tensor \"{}\" is missing", file.path(), name));
  }
  if (entry->view.dtype != dtype || entry->view.shape != shape) {
    throw FormatError(fmt::format("{}: \"{}\" is {} {}, expected {} {}", file.path(), name,
                                  dtype_name(entry->view.dtype), to_string(entry->view.shape),
                                  dtype_name(dtype), to_string(shape)));
  }
  return *entry;
}

template <typename T>
std::vector<T> copy_out(const TensorView& view) {
  std::vector<T> values(view.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), view.bytes.data(), values.size() * sizeof(T));
  return values;
}

TensorView row_of(const TensorView& view, int64_t row) {
  const size_t row_bytes = view.bytes.size() / static_cast<size_t>(view.shape[0]);
  return {view.dtype,
          {view.shape[1]},
          view.bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes)};
}

/// Values that figures are made of: with a NaN among them no comparison would find a difference.
std::vector<float> finite_values(const TensorView& view, const std::string& where) {
  std::vector<float> values = copy_out<float>(view);
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    throw FormatError(
        fmt::format("{}[{}] is {}; expected finite values, so the results of a run "
                    "that went wrong cannot be compared",
                    where, bad - values.begin(), *bad));
  }
  return values;
}

std::string place_of(const SafetensorsFile& file, std::string_view name) {
  return fmt::format("{}: \"{}\"", file.path(), name);
}

std::shared_ptr<const SafetensorsFile> open_tensors(const std::string& path) {
  return std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
}

std::vector<float> read_floats(const Json& json, std::string_view key) {
  std::vector<float> values;
  const Json* list = json.find(key);
  if (list == nullptr || list->is_null()) return values;
  for (const Json& item : list->as_array()) values.push_back(static_cast<float>(item.as_number()));
  return values;
}

ReferenceGreedy read_greedy_run(const Json& json, const std::string& path) {
  ReferenceGreedy greedy;
  greedy.id = with_place(path, [&] { return json.at("id").as_string(); });
  const std::string where = fmt::format("{}: prompt \"{}\"", path, greedy.id);
  return with_place(where, [&] {
    greedy.n_prompt_tokens = json.at("n_prompt_tokens").as_integer();
    greedy.run.token_ids = read_token_ids(json.at("token_ids"), where);
    check_hash(json, greedy.run.token_ids, where);
    greedy.run.margins = read_floats(json, "margin");
    if (const Json* ids = json.find("runner_up"); ids != nullptr && !ids->is_null()) {
      greedy.run.runner_up = read_token_ids(*ids, where);
    }
    if (!greedy.run.margins.empty() && greedy.run.margins.size() != greedy.run.token_ids.size()) {
      throw FormatError(fmt::format("{} margins for {} token ids", greedy.run.margins.size(),
                                    greedy.run.token_ids.size()));
    }
    return greedy;
  });
}

}  // namespace

std::vector<int32_t> read_token_ids(const Json& json, const std::string& where) {
  std::vector<int32_t> ids;
  ids.reserve(json.as_array().size());
  for (const Json& item : json.as_array()) {
    ids.push_back(read_id(item, fmt::format("{}: index {}", where, ids.size())));
  }
  return ids;
}

Json ReferencePrompt::to_json() const {
  Json json = Json::object();
  json.set("id", id);
  json.set("kind", kind);
  json.set("source", source);
  json.set("n_tokens", uint64_t{token_ids.size()});
  json.set("text", text ? Json(*text) : Json(nullptr));
  Json ids = Json::array();
  for (const int32_t token : token_ids) ids.push(int64_t{token});
  json.set("token_ids", std::move(ids));
  json.set("sha256", sha256_of_token_ids(token_ids));
  return json;
}

PromptFile read_prompts(const std::string& path) {
  const Json json = read_json_file(path);
  PromptFile file;
  if (json.is_array()) {
    file.prompts = with_place(path, [&] { return read_plain_lists(json, path); });
  } else {
    with_place(path, [&] {
      file.model = text_member(json, "model");
      file.tokenizer_sha256 = text_member(json, "tokenizer_sha256");
      file.arithmetic = text_member(json, "arithmetic");
      file.kv_type = text_member(json, "kv_type");
      if (const Json* bos = json.find("bos_id"); bos != nullptr && !bos->is_null()) {
        file.bos_id = read_id(*bos, path + ": bos_id");
      }
      if (const Json* versions = json.find("versions")) file.versions = *versions;
      for (const Json& item : json.at("prompts").as_array()) {
        file.prompts.push_back(read_prompt(item, path));
      }
      return 0;
    });
  }
  check_unique(file.prompts, path);
  return file;
}

bool ReferenceBundle::is_bundle(const std::string& path) {
  return std::filesystem::is_directory(path) && file_exists(child(path, "prompts.json"));
}

ReferenceBundle ReferenceBundle::open(const std::string& folder) {
  ReferenceBundle bundle;
  bundle.path_ = folder;
  bundle.header_ = read_prompts(child(folder, "prompts.json"));
  bundle.read_logits();
  if (const std::string path = child(folder, "hidden.safetensors"); file_exists(path)) {
    bundle.hidden_ = open_tensors(path);
    bundle.require_known_states();
  }
  if (file_exists(child(folder, "greedy.json"))) bundle.read_greedy();
  if (file_exists(child(folder, "nll.safetensors"))) bundle.read_nll();
  if (const std::string path = child(folder, "noise.json"); file_exists(path)) {
    bundle.noise_ = read_json_file(path);
  }
  return bundle;
}

const ReferencePrompt* ReferenceBundle::find_prompt(std::string_view id) const {
  for (const ReferencePrompt& prompt : prompts()) {
    if (prompt.id == id) return &prompt;
  }
  return nullptr;
}

void ReferenceBundle::require_positions(const SafetensorsEntry& entry) const {
  const std::vector<int64_t> positions = copy_out<int64_t>(entry.view);
  const bool ascending = std::adjacent_find(positions.begin(), positions.end(),
                                            std::greater_equal<>()) == positions.end();
  if (positions.empty() || !ascending) {
    throw FormatError(
        fmt::format("{}: \"positions\" has {} entries; expected ascending ones, at "
                    "least one",
                    logits_->path(), positions.size()));
  }
}

void ReferenceBundle::read_logits() {
  logits_ = open_tensors(child(path_, "logits.safetensors"));
  for (const SafetensorsEntry& entry : logits_->tensors()) {
    if (entry.name == "positions") continue;
    if (!entry.name.starts_with("final.") && !entry.name.starts_with("all.")) {
      throw FormatError(
          fmt::format("{}: unexpected tensor \"{}\"; known are final.<prompt>, all.<prompt> and "
                      "positions",
                      logits_->path(), entry.name));
    }
    const std::string id = entry.name.substr(entry.name.find('.') + 1);
    if (find_prompt(id) == nullptr) {
      throw FormatError(fmt::format("{}: \"{}\" belongs to no prompt of prompts.json",
                                    logits_->path(), entry.name));
    }
    if (entry.view.shape.empty()) {
      throw FormatError(fmt::format("{}: \"{}\" has no dimensions", logits_->path(), entry.name));
    }
    if (vocab_size_ == 0) vocab_size_ = entry.view.shape.back();
    const bool all = entry.name.starts_with("all.");
    const int64_t rows = all ? entry.view.shape.front() : 1;
    require(*logits_, entry.name, DType::kF32, all ? Shape{rows, vocab_size_} : Shape{vocab_size_});
    if (all) require_positions(require(*logits_, "positions", DType::kI64, {rows}));
  }
  for (const ReferencePrompt& prompt : prompts()) {
    if (logits_->find("final." + prompt.id) == nullptr &&
        logits_->find("all." + prompt.id) == nullptr) {
      throw FormatError(
          fmt::format("{0}: prompt \"{1}\" of prompts.json has neither \"final.{1}\" nor "
                      "\"all.{1}\"; every prompt of a bundle has logits",
                      logits_->path(), prompt.id));
    }
    for (size_t i = 0; i < prompt.token_ids.size(); ++i) {
      if (vocab_size_ > 0 && prompt.token_ids[i] >= vocab_size_) {
        throw FormatError(fmt::format(
            "{}: prompt \"{}\" has token id {} at index {}, the logits "
            "have {} columns",
            child(path_, "prompts.json"), prompt.id, prompt.token_ids[i], i, vocab_size_));
      }
    }
  }
}

std::optional<std::vector<float>> ReferenceBundle::final_logits(std::string_view prompt_id) const {
  const SafetensorsEntry* entry = logits_->find(fmt::format("final.{}", prompt_id));
  if (entry == nullptr) return std::nullopt;
  return finite_values(entry->view, place_of(*logits_, entry->name));
}

std::optional<ReferenceRows> ReferenceBundle::all_logits(std::string_view prompt_id) const {
  const SafetensorsEntry* entry = logits_->find(fmt::format("all.{}", prompt_id));
  if (entry == nullptr) return std::nullopt;
  const auto n_tokens = static_cast<int64_t>(find_prompt(prompt_id)->token_ids.size());
  ReferenceRows rows{copy_out<int64_t>(logits_->find("positions")->view),
                     finite_values(entry->view, place_of(*logits_, entry->name))};
  for (const int64_t position : rows.positions) {
    if (position < 0 || position >= n_tokens) {
      throw FormatError(fmt::format("{}: position {} of \"{}\" is outside its {} tokens",
                                    logits_->path(), position, entry->name, n_tokens));
    }
  }
  return rows;
}

std::vector<std::string> ReferenceBundle::hidden_names() const {
  std::vector<std::string> names;
  if (hidden_ == nullptr) return names;
  if (hidden_->find("embeddings") != nullptr) names.emplace_back("embeddings");
  for (int layer = 0;; ++layer) {
    std::string name = fmt::format("layer.{}.output", layer);
    if (hidden_->find(name) == nullptr) break;
    names.push_back(std::move(name));
  }
  if (hidden_->find("final_norm") != nullptr) names.emplace_back("final_norm");
  return names;
}

void ReferenceBundle::require_known_states() const {
  const std::vector<std::string> known = hidden_names();
  for (const SafetensorsEntry& entry : hidden_->tensors()) {
    if (entry.name == "positions" ||
        std::find(known.begin(), known.end(), entry.name) != known.end()) {
      continue;
    }
    throw FormatError(
        fmt::format("{}: unexpected tensor \"{}\"; known are embeddings, layer.<i>.output from 0 "
                    "on without a gap, and final_norm",
                    hidden_->path(), entry.name));
  }
}

std::vector<float> ReferenceBundle::hidden(std::string_view name) const {
  const SafetensorsEntry* entry = hidden_ == nullptr ? nullptr : hidden_->find(name);
  if (entry == nullptr) {
    throw FormatError(
        fmt::format("{}: tensor \"{}\" is missing", child(path_, "hidden.safetensors"), name));
  }
  require(*hidden_, name, DType::kF32, entry->view.shape);
  return finite_values(entry->view, place_of(*hidden_, name));
}

void ReferenceBundle::read_greedy() {
  const std::string path = child(path_, "greedy.json");
  const Json json = read_json_file(path);
  const Json& list = with_place(path, [&]() -> const Json& { return json.at("prompts"); });
  std::vector<int32_t> all;
  for (const Json& item : list.as_array()) {
    greedy_.push_back(read_greedy_run(item, path));
    const ReferenceGreedy& greedy = greedy_.back();
    if (std::count_if(greedy_.begin(), greedy_.end(),
                      [&](const auto& other) { return other.id == greedy.id; }) > 1) {
      throw FormatError(fmt::format("{}: two runs have the id \"{}\"", path, greedy.id));
    }
    const ReferencePrompt* prompt = find_prompt(greedy.id);
    if (prompt == nullptr) {
      throw FormatError(fmt::format("{}: prompt \"{}\" is not in prompts.json", path, greedy.id));
    }
    if (greedy.n_prompt_tokens != static_cast<int64_t>(prompt->token_ids.size())) {
      throw FormatError(fmt::format("{}: prompt \"{}\": n_prompt_tokens is {}, prompts.json has {}",
                                    path, greedy.id, greedy.n_prompt_tokens,
                                    prompt->token_ids.size()));
    }
    all.insert(all.end(), greedy.run.token_ids.begin(), greedy.run.token_ids.end());
  }
  const std::string expected = text_member(json, "all_sha256");
  if (!expected.empty() && expected != sha256_of_token_ids(all)) {
    throw FormatError(fmt::format("{}: all new ids hash to {}, all_sha256 is {}", path,
                                  sha256_of_token_ids(all), expected));
  }
}

void ReferenceBundle::read_nll() {
  nll_ = open_tensors(child(path_, "nll.safetensors"));
  const SafetensorsEntry* ids = nll_->find("token_ids");
  if (ids == nullptr || ids->view.shape.size() != 2 || ids->view.shape[0] < 1 ||
      ids->view.shape[1] < 2) {
    throw FormatError(
        fmt::format("{}: expected \"token_ids\" of shape [windows ≥ 1, length ≥ 2]", nll_->path()));
  }
  const int64_t n = ids->view.shape[0], length = ids->view.shape[1];
  require(*nll_, "token_ids", DType::kI32, {n, length});
  require(*nll_, "nll", DType::kF32, {n, length - 1});
  require(*nll_, "argmax", DType::kI32, {n, length - 1});
  require(*nll_, "margin", DType::kF32, {n, length - 1});

  EvaluationWindows windows;
  windows.window_length = length;
  windows.bos_id = header_.bos_id;
  for (int64_t i = 0; i < n; ++i) {
    windows.windows.push_back(copy_out<int32_t>(row_of(ids->view, i)));
    for (const int32_t id : windows.windows.back()) {
      if (id < 0 || (vocab_size_ > 0 && id >= vocab_size_)) {
        throw FormatError(fmt::format("{}: window {} has token id {}, the logits have {} columns",
                                      nll_->path(), i, id, vocab_size_));
      }
    }
  }
  if (const std::string path = child(path_, "nll.json"); file_exists(path)) {
    const Json json = read_json_file(path);
    const std::string expected = text_member(json, "window_token_ids_sha256");
    if (!expected.empty() && expected != windows.sha256()) {
      throw FormatError(
          fmt::format("{}: window_token_ids_sha256 is {}, the ids of "
                      "nll.safetensors hash to {}",
                      path, expected, windows.sha256()));
    }
    windows.text_sha256 = text_member(json, "text_token_ids_sha256");
    if (const Json* count = json.find("text_n_tokens"); count != nullptr && count->is_integer()) {
      windows.n_text_tokens = count->as_integer();
      windows.n_unused_tokens = windows.n_text_tokens - n * length;
    }
  }
  windows_ = std::move(windows);
}

WindowScores ReferenceBundle::window_scores(int64_t window) const {
  ASSAY_CHECK(nll_ != nullptr && window >= 0 &&
              window < static_cast<int64_t>(windows_->windows.size()));
  const auto values = [&](std::string_view name) {
    return finite_values(row_of(nll_->find(name)->view, window),
                         fmt::format("{}, window {}", place_of(*nll_, name), window));
  };
  return {values("nll"), copy_out<int32_t>(row_of(nll_->find("argmax")->view, window)),
          values("margin")};
}

}  // namespace assay
