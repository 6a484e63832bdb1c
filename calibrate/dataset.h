#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

class Json;

/// Calibration tokens: windows of one length, as the model is fed with them.
struct TokenWindows {
  int64_t n_windows = 0;
  int64_t window_length = 0;
  std::vector<int32_t> ids;       // (n_windows, window_length)
  std::optional<int32_t> bos_id;  // put at the head of each window when it was cut

  std::span<const int32_t> window(int64_t index) const {
    return std::span(ids).subspan(static_cast<size_t>(index * window_length),
                                  static_cast<size_t>(window_length));
  }
  int64_t n_tokens() const { return n_windows * window_length; }
  /// Of all ids in order, each as a little-endian 64-bit integer.
  std::string sha256() const;
};

/// `n_wanted` of the windows, evenly spread: window i is window spread_index(i, …) of all; all, if
/// there are fewer.
TokenWindows spread_windows(const TokenWindows& windows, int64_t n_wanted);
inline int64_t spread_index(int64_t i, int64_t n_all, int64_t n_wanted) {
  return i * n_all / n_wanted;
}

/// What a data set needs to know of a tokenizer.
struct TextEncoder {
  /// Ids of one document with the post-processor (BOS and the like); special tokens inside the text
  /// are recognised.
  std::function<std::vector<int32_t>(std::string_view text)> encode;
  /// Ids of a conversation, rendered by the model's chat template; message contents are plain text.
  /// `tools` may be null. Empty if the model has no template.
  std::function<std::vector<int32_t>(const Json& messages, const Json& tools)> encode_messages;
  std::optional<int32_t> bos_id;  // what the post-processor puts in front; empty: nothing
};
/// Made only if a file needs it: ids alone need no tokenizer. May throw.
using EncoderSource = std::function<TextEncoder()>;
/// Of the tokenizer and the chat template in a model folder. A template that cannot be read throws
/// when messages need it.
TextEncoder make_text_encoder(const std::string& model_folder);

struct DatasetOptions {
  int64_t n_windows = 128;                    // most
  std::optional<int64_t> window_length = {};  // empty: the file's row length, else 1,024
  std::optional<int64_t> max_tokens = {};     // over all windows; shortens windows if need be
};

inline constexpr int64_t kDefaultWindowLength = 1024;

/// Reads calibration data by the file's extension:
///   .jsonl        one document per line: {"text": …}, {"messages": [{"role", "content"}, …]} with
///                 "tools" where the template knows them, or {"input_ids": […]}; messages are
///                 rendered by the model's chat template, without a generation prompt
///   .npy, .safetensors   ids (tensor `token_ids`, `input_ids` or the only one); a row of the
///                 wanted length is a window as it stands, rows of another length are documents
///   .json          refused: it would be taken as text
///   anything else  text in UTF-8, one document
/// Documents are encoded, put one after another and cut into windows without overlap; the first id
/// of each window is overwritten by BOS where the post-processor puts one in front. What is left
/// over after the last whole window is not used. Throws FormatError with file and line, UsageError
/// for options that do not fit.
TokenWindows load_calibration(const std::string& path, const DatasetOptions& options,
                              int64_t vocab_size, const EncoderSource& encoder);

/// Writes the windows as they are: `token_ids` (n_windows, window_length) int32 as .safetensors or
/// .npy, by extension. Reading the file back gives the same windows.
void write_token_file(const std::string& path, const TokenWindows& windows);
/// UsageError if it is neither.
void require_token_file_name(const std::string& path);

}  // namespace assay
