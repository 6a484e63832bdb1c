#include "calibrate/dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "calibrate/npy.h"
#include "convert/chat/chat_prompt.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/core/json.h"
#include "convert/core/sha256.h"
#include "convert/safetensors.h"
#include "convert/tokenizer.h"
#include "convert/tokenizer/unicode.h"

namespace assay {
namespace {

// Ids of a file as it holds them: one row per window or document.
struct IdRows {
  int64_t n_rows = 0;
  int64_t row_length = 0;
  std::vector<int64_t> ids;
};

struct WindowSizes {
  int64_t n_windows = 0;
  int64_t window_length = 0;
};

WindowSizes sizes_of(const DatasetOptions& options, int64_t default_length) {
  WindowSizes sizes{options.n_windows, options.window_length.value_or(default_length)};
  if (options.max_tokens) {
    sizes.window_length = std::min(sizes.window_length, *options.max_tokens);
    sizes.n_windows = std::min(sizes.n_windows, *options.max_tokens / sizes.window_length);
  }
  if (sizes.n_windows < 1 || sizes.window_length < 2) {
    throw UsageError("calibration: found " + std::to_string(sizes.n_windows) + " windows of " +
                     std::to_string(sizes.window_length) +
                     " tokens, expected at least 1 window of 2 tokens");
  }
  return sizes;
}

bool ends_with_ignoring_case(const std::string& path, std::string_view ending) {
  if (path.size() < ending.size()) return false;
  return std::equal(ending.begin(), ending.end(), path.end() - static_cast<int64_t>(ending.size()),
                    [](char a, char b) { return a == (b | ('A' <= b && b <= 'Z' ? 0x20 : 0)); });
}

// Puts documents one after another until the windows are full.
class Cutter {
 public:
  Cutter(std::string path, const WindowSizes& sizes, int64_t vocab_size)
      : path_(std::move(path)), sizes_(sizes), vocab_size_(vocab_size) {}

  bool full() const { return n_ids() >= sizes_.n_windows * sizes_.window_length; }

  template <typename T>
  void add(std::span<const T> ids, const std::string& place) {
    for (const T id : ids) {
      if (full()) return;
      if (id < 0 || id >= vocab_size_) {
        throw FormatError(place + ": token id " + std::to_string(id) + ", expected 0 to " +
                          std::to_string(vocab_size_ - 1) + " (the model's vocabulary)");
      }
      ids_.push_back(static_cast<int32_t>(id));
    }
  }

  /// `bos_id` is what the first id of each window becomes; empty: windows stay as they are.
  TokenWindows finish(std::optional<int32_t> bos_id) {
    TokenWindows out;
    out.window_length = sizes_.window_length;
    out.n_windows = n_ids() / sizes_.window_length;
    out.bos_id = bos_id;
    if (out.n_windows == 0) {
      throw FormatError(path_ + ": found " + std::to_string(n_ids()) +
                        " tokens, expected at least one window of " +
                        std::to_string(sizes_.window_length) +
                        "; use more data or a smaller --window-length");
    }
    ids_.resize(static_cast<size_t>(out.n_tokens()));
    out.ids = std::move(ids_);
    if (bos_id) {
      for (int64_t w = 0; w < out.n_windows; ++w) {
        out.ids[static_cast<size_t>(w * out.window_length)] = *bos_id;
      }
    }
    return out;
  }

 private:
  int64_t n_ids() const { return static_cast<int64_t>(ids_.size()); }

  std::string path_;
  WindowSizes sizes_;
  int64_t vocab_size_;
  std::vector<int32_t> ids_;
};

std::vector<int32_t> encode_conversation(const Json& document, const Json& messages,
                                         const TextEncoder& encoder) {
  if (!encoder.encode_messages) {
    throw UnsupportedError(
        "the model has no chat template, by which messages become text; write the conversations as "
        "\"text\", or put a chat_template.jinja into the model's folder");
  }
  const Json* tools = document.find("tools");
  return encoder.encode_messages(messages, tools != nullptr ? *tools : Json());
}

void add_json_document(const Json& document, const std::string& place, const TextEncoder& encoder,
                       Cutter& cutter) {
  if (const Json* text = document.find("text")) {
    cutter.add<int32_t>(encoder.encode(text->as_string()), place);
  } else if (const Json* messages = document.find("messages")) {
    cutter.add<int32_t>(encode_conversation(document, *messages, encoder), place);
  } else if (const Json* ids = document.find("input_ids")) {
    std::vector<int64_t> values;
    for (const Json& id : ids->as_array()) values.push_back(id.as_integer());
    cutter.add<int64_t>(values, place);
  } else {
    throw FormatError(place + ": expected an object with \"text\", \"messages\" or \"input_ids\"");
  }
}

TokenWindows load_jsonl(const std::string& path, const WindowSizes& sizes, int64_t vocab_size,
                        const TextEncoder& encoder) {
  const MappedFile file = MappedFile::open(path);
  std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  Cutter cutter(path, sizes, vocab_size);
  for (int64_t line = 1; !rest.empty() && !cutter.full(); ++line) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = path + ":" + std::to_string(line);
    const Json document = parse_json(text, place);
    try {
      add_json_document(document, place, encoder, cutter);
    } catch (const FormatError& error) {
      const std::string message = error.what();
      if (message.starts_with(place)) throw;
      throw FormatError(std::string(place).append(": ").append(message));
    } catch (const UnsupportedError& error) {
      throw UnsupportedError(std::string(place).append(": ").append(error.what()));
    }
  }
  return cutter.finish(encoder.bos_id);
}

TokenWindows load_text(const std::string& path, const WindowSizes& sizes, int64_t vocab_size,
                       const TextEncoder& encoder) {
  const std::string text = read_text_file(path);
  tokenization::require_utf8(text, path);
  Cutter cutter(path, sizes, vocab_size);
  cutter.add<int32_t>(encoder.encode(text), path);
  return cutter.finish(encoder.bos_id);
}

IdRows rows_of(const std::vector<int64_t>& shape, std::vector<int64_t> ids,
               const std::string& path) {
  if (shape.size() != 1 && shape.size() != 2) {
    throw FormatError(path + ": the ids have " + std::to_string(shape.size()) +
                      " dimensions, expected (windows, tokens) or (tokens)");
  }
  return {shape.size() == 2 ? shape[0] : 1, shape.back(), std::move(ids)};
}

IdRows read_safetensors_ids(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const SafetensorsEntry* entry = file.find("token_ids");
  if (entry == nullptr) entry = file.find("input_ids");
  if (entry == nullptr && file.tensors().size() == 1) entry = &file.tensors().front();
  if (entry == nullptr) {
    throw FormatError(path + ": expected a tensor \"token_ids\", found " +
                      std::to_string(file.tensors().size()) + " others");
  }
  const TensorView& view = entry->view;
  std::vector<int64_t> ids(static_cast<size_t>(n_elements(view.shape)));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (view.dtype == DType::kI32) {
      int32_t id;
      std::memcpy(&id, view.bytes.data() + i * sizeof(id), sizeof(id));
      ids[i] = id;
    } else if (view.dtype == DType::kI64) {
      std::memcpy(&ids[i], view.bytes.data() + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      throw FormatError(path + ": \"" + entry->name + "\" is " +
                        std::string(dtype_name(view.dtype)) + ", expected I32 or I64");
    }
  }
  return rows_of(view.shape, std::move(ids), path);
}

TokenWindows load_ids(const std::string& path, const IdRows& rows, const DatasetOptions& options,
                      int64_t vocab_size, const EncoderSource& encoder) {
  const WindowSizes sizes = sizes_of(options, rows.row_length);
  Cutter cutter(path, sizes, vocab_size);
  for (int64_t row = 0; row < rows.n_rows && !cutter.full(); ++row) {
    cutter.add<int64_t>(std::span(rows.ids).subspan(static_cast<size_t>(row * rows.row_length),
                                                    static_cast<size_t>(rows.row_length)),
                        path + ": row " + std::to_string(row));
  }
  // Rows that are windows already stay as they are, so a written token file repeats a run.
  if (sizes.window_length == rows.row_length) return cutter.finish(std::nullopt);
  return cutter.finish(encoder().bos_id);
}

}  // namespace

std::string TokenWindows::sha256() const { return sha256_of_token_ids(ids); }

TokenWindows spread_windows(const TokenWindows& windows, int64_t n_wanted) {
  TokenWindows out = windows;
  out.n_windows = std::min(n_wanted, windows.n_windows);
  out.ids.clear();
  for (int64_t i = 0; i < out.n_windows; ++i) {
    const auto ids = windows.window(spread_index(i, windows.n_windows, out.n_windows));
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  }
  return out;
}

TextEncoder make_text_encoder(const std::string& model_folder) {
  const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::from_folder(model_folder));
  TextEncoder encoder;
  const std::span<const int32_t> prefix = tokenizer->special_prefix();
  if (!prefix.empty()) encoder.bos_id = prefix.front();
  encoder.encode = [tokenizer](std::string_view text) { return tokenizer->encode(text); };
  if (const auto found = chat::find_template(model_folder)) {
    std::shared_ptr<const chat::ChatTemplate> parsed;
    encoder.encode_messages = [tokenizer, found, parsed](const Json& messages,
                                                         const Json& tools) mutable {
      if (!parsed) {
        parsed = std::make_shared<const chat::ChatTemplate>(
            chat::ChatTemplate::parse(found->text, found->source));
      }
      const chat::Text prompt =
          chat::render(*parsed, *tokenizer, messages, tools, {.add_generation_prompt = false});
      return chat::encode(prompt, *tokenizer);
    };
  }
  return encoder;
}

TokenWindows load_calibration(const std::string& path, const DatasetOptions& options,
                              int64_t vocab_size, const EncoderSource& encoder) {
  if (ends_with_ignoring_case(path, ".npy")) {
    NpyIntegers array = read_npy_integers(path);
    return load_ids(path, rows_of(array.shape, std::move(array.values), path), options, vocab_size,
                    encoder);
  }
  if (ends_with_ignoring_case(path, ".safetensors")) {
    return load_ids(path, read_safetensors_ids(path), options, vocab_size, encoder);
  }
  const WindowSizes sizes = sizes_of(options, kDefaultWindowLength);
  if (ends_with_ignoring_case(path, ".jsonl")) {
    return load_jsonl(path, sizes, vocab_size, encoder());
  }
  if (ends_with_ignoring_case(path, ".json")) {
    throw UnsupportedError(path + ": expected text, or a .jsonl with one object a line");
  }
  return load_text(path, sizes, vocab_size, encoder());
}

void require_token_file_name(const std::string& path) {
  if (ends_with_ignoring_case(path, ".npy") || ends_with_ignoring_case(path, ".safetensors"))
    return;
  throw UsageError(path + ": expected a name that ends in .safetensors or .npy");
}

void write_token_file(const std::string& path, const TokenWindows& windows) {
  require_token_file_name(path);
  const std::vector<int64_t> shape = {windows.n_windows, windows.window_length};
  if (ends_with_ignoring_case(path, ".npy")) {
    write_npy_int32(path, shape, windows.ids);
    return;
  }
  const TensorView view{DType::kI32, shape, std::as_bytes(std::span(windows.ids))};
  write_safetensors(path, {source_of("token_ids", view)});
}

}  // namespace assay
