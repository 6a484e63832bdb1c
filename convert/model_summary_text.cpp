#include <fmt/format.h>

#include <algorithm>

#include "convert/cli/text_table.h"
#include "convert/core/units.h"
#include "convert/core/words.h"
#include "convert/manifest_check.h"
#include "convert/model_summary.h"

namespace assay {
namespace {

using cli::TextTable;

std::string shape_text(const Json& shape) {
  return join_words(shape.as_array(), " x ",
                    [](const Json& dim) { return std::to_string(dim.as_integer()); });
}

std::string model_text(const Json& model) {
  std::string text = fmt::format(
      "  {} layers, hidden {}, MLP {}, {} heads of {} ({} for keys and values), vocabulary {}, "
      "context {}\n",
      model.at("layers").as_integer(), model.at("hidden_size").as_integer(),
      model.at("intermediate_size").as_integer(), model.at("heads").as_integer(),
      model.at("head_dim").as_integer(), model.at("kv_heads").as_integer(),
      model.at("vocab_size").as_integer(), model.at("context_length").as_integer());
  std::string rope;
  for (const auto& [key, value] : model.at("rope").as_object()) {
    if (key != "kind") rope += fmt::format(", {} {}", key, value.dump(0));
  }
  text += fmt::format("  rope {}{}\n", model.at("rope").at("kind").as_string(), rope);
  text += fmt::format("  head {}",
                      model.at("tied_head").as_bool() ? "tied to the embedding" : "of its own");
  if (!model.at("sliding_window").is_null()) {
    text += fmt::format(", sliding window {}", model.at("sliding_window").as_integer());
  }
  if (const int64_t n = model.at("prediction_blocks").as_integer(); n > 0) {
    text += fmt::format(", {} blocks that predict further tokens (kept, not run)", n);
  }
  if (model.at("attention_bias").as_bool()) text += ", attention biases";
  if (model.at("mlp_bias").as_bool()) text += ", MLP biases";
  return text + fmt::format(", BOS {}, stop ids {}\n", model.at("bos_id").dump(0),
                            model.at("stop_ids").dump(0));
}

std::string tokenizer_text(const Json& summary) {
  const Json& tokenizer = summary.at("tokenizer");
  std::string text = "Tokenizer: ";
  if (tokenizer.is_null()) {
    text += "none that can be used";
  } else {
    text +=
        fmt::format("{}, {} ids, {} added tokens, {} merges, split rule {}",
                    tokenizer.at("model").as_string(), tokenizer.at("vocab_size").as_integer(),
                    tokenizer.at("added_tokens").as_integer(), tokenizer.at("merges").as_integer(),
                    tokenizer.at("split_rule").is_null() ? "without a name"
                                                         : tokenizer.at("split_rule").as_string());
  }
  return text + fmt::format("; chat template: {}\n",
                            summary.at("chat_template").as_bool() ? "yes" : "none");
}

std::string parts_text(const Json& parts) {
  TextTable table({"part", "n", "parameters", "bits", "size"},
                  {TextTable::Align::kLeft, TextTable::Align::kRight, TextTable::Align::kRight,
                   TextTable::Align::kRight, TextTable::Align::kRight});
  for (const Json& part : parts.as_array()) {
    table.add({part.at("part").as_string(), part.at("n").integer_text(),
               grouped_digits(part.at("parameters").as_integer()),
               fmt::format("{:.3f}", part.at("bits_per_weight").as_number()),
               bytes_text(static_cast<uint64_t>(part.at("bytes").as_integer()))});
  }
  return table.text();
}

std::string weights_text(const Json& summary) {
  TextTable table({"tensor", "n", "shape", "type", "bits", "size"},
                  {TextTable::Align::kLeft, TextTable::Align::kRight, TextTable::Align::kLeft,
                   TextTable::Align::kLeft, TextTable::Align::kRight, TextTable::Align::kRight});
  for (const Json& kind : summary.at("weights").as_array()) {
    const Json* bits = kind.find("bits_per_weight");
    table.add({kind.at("tensor").as_string(), kind.at("n").integer_text(),
               shape_text(kind.at("shape")), kind.at("type").as_string(),
               bits == nullptr ? "" : fmt::format("{:.3f}", bits->as_number()),
               bytes_text(static_cast<uint64_t>(kind.at("bytes").as_integer()))});
  }
  const auto total = static_cast<uint64_t>(summary.at("weight_bytes").as_integer());
  std::string text = fmt::format("Weights: {}", bytes_text(total));
  if (const Json* parameters = summary.find("parameters")) {
    text = fmt::format("Weights: {} parameters, {}, {:.3f} bits per weight",
                       grouped_digits(parameters->as_integer()), bytes_text(total),
                       summary.at("bits_per_weight").as_number());
  }
  const Json* parts = summary.find("parts");
  return text + "\n" + (parts == nullptr ? "" : parts_text(*parts)) + table.text();
}

std::string engines_text(const Json& engines) {
  const auto engine_text = [](const Json& item) {
    const std::string& note = item.at("note").as_string();
    return item.at("engine").as_string() + (note.empty() ? "" : " (" + note + ")");
  };
  return "Loaded by: " + join_words(engines.as_array(), ", ", engine_text) + "\n";
}

std::string tensors_text(const Json& list) {
  TextTable table({"tensor", "type", "shape", "bytes", "SHA-256"},
                  {TextTable::Align::kLeft, TextTable::Align::kLeft, TextTable::Align::kLeft,
                   TextTable::Align::kRight});
  for (const Json& item : list.as_array()) {
    const Json* sha256 = item.find("sha256");
    table.add({item.at("name").as_string(), item.at("type").as_string(),
               shape_text(item.at("shape")), item.at("bytes").integer_text(),
               sha256 == nullptr ? "-" : sha256->as_string()});
  }
  return table.text();
}

std::string files_text(const Json& list) {
  const auto text_of = [](const Json& item, const char* key) {
    const Json* found = item.find(key);
    return found == nullptr ? std::string() : found->as_string();
  };
  const Json::Array& files = list.as_array();
  const bool hashes = !files.empty() && files.front().find("sha256") != nullptr;
  const bool contents = !files.empty() && files.front().find("contents_sha256") != nullptr;
  TextTable table({"file", "bytes", hashes ? "SHA-256" : "", contents ? "of the contents" : ""},
                  {TextTable::Align::kLeft, TextTable::Align::kRight});
  for (const Json& item : files) {
    table.add({item.at("name").as_string(), item.at("bytes").integer_text(),
               text_of(item, "sha256"), text_of(item, "contents_sha256")});
  }
  return table.text();
}

std::string metadata_text(const Json& metadata) {
  std::string text = "Metadata:\n";
  for (const auto& [key, value] : metadata.as_object()) {
    std::string shown = value.is_string() ? value.as_string() : value.dump(0);
    std::replace(shown.begin(), shown.end(), '\n', ' ');
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    text += fmt::format("  {} = {}\n", key, shown);
  }
  return text;
}

}  // namespace

std::string summary_text(const Json& summary) {
  std::string text =
      fmt::format("{}\n{}", summary.at("path").as_string(), summary.at("kind").as_string());
  if (const Json* family = summary.find("family")) {
    text += fmt::format(", family {}\n", family->as_string()) + model_text(summary.at("model")) +
            tokenizer_text(summary);
  } else {
    text += "\n";
  }
  text += weights_text(summary);
  if (const Json* engines = summary.find("engines")) text += engines_text(*engines);
  if (const Json* metadata = summary.find("metadata")) text += metadata_text(*metadata);
  if (const Json* tensors = summary.find("tensors")) text += tensors_text(*tensors);
  text += files_text(summary.at("files"));
  const Json* unsupported = summary.find("unsupported");
  if (unsupported != nullptr) text += fmt::format("Not supported: {}\n", unsupported->as_string());
  const Json::Array& problems = summary.at("problems").as_array();
  if (const Json* checked = summary.find("checked")) {
    text += fmt::format(
        "Checked: every value of {} tensors{}.\n", checked->at("tensors").as_integer(),
        checked->at("manifest").as_bool() ? fmt::format(", and the hashes of {}", kManifestName)
                                          : "; there is no manifest");
  }
  if (const Json* notes = summary.find("notes"); notes != nullptr && !notes->as_array().empty()) {
    text += "Notes:\n";
    for (const Json& note : notes->as_array()) text += fmt::format("  {}\n", note.as_string());
  }
  if (problems.empty() && unsupported == nullptr) text += "No problems found.\n";
  if (!problems.empty()) text += "Problems:\n";
  for (const Json& problem : problems) text += fmt::format("  {}\n", problem.as_string());
  return text;
}

}  // namespace assay
