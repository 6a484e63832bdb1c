#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/core/json.h"
#include "convert/gguf.h"

namespace assay {

namespace tokenization {
struct Definition;
}

/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin, end;
};

struct EncodeOptions {
  /// Run the post-processor (BOS and the like).
  bool add_special_tokens = true;
  /// Recognise special tokens inside the text.
  bool parse_special = true;
  /// Parts of the text, ascending and disjoint, in which special tokens are not recognised though
  /// they are elsewhere: message contents inside a chat template (case B24). No added token reaches
  /// over an end of such a part. The text must then be valid UTF-8.
  std::span<const ByteRange> plain_text = {};
};

/// One entry of added_tokens.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

/// A tokenizer read from tokenizer.json (Hugging Face tokenizers), from tokenizer.model
/// (SentencePiece) or from GGUF metadata. Immutable after loading; encode and decode may be called
/// from many threads. Parts that are not implemented make loading fail with UnsupportedError that
/// names the part; nothing is guessed.
class Tokenizer {
 public:
  /// `folder`/tokenizer.json, else tokenizer.model, with tokenizer_config.json beside it if there
  /// is one.
  static Tokenizer from_folder(const std::string& folder);
  /// `folder`/tokenizer.model as if no tokenizer.json lay beside it.
  static Tokenizer from_pieces_of_folder(const std::string& folder);
  /// A tokenizer.json if the name ends in .json, else a SentencePiece model.
  static Tokenizer from_file(const std::string& path);
  /// The tokenizer at a path that a user names: a folder, a GGUF file, or a file of from_file.
  static Tokenizer open(const std::string& path);
  /// A parsed tokenizer.json; `source` begins every message.
  static Tokenizer from_json(const Json& json, std::string_view source);
  /// The keys tokenizer.ggml.* of a byte-level BPE tokenizer ("gpt2"), of pieces with scores
  /// ("llama") or of Gemma 4 ("gemma4"). Texts are normalized as in the tokenizer.json of the
  /// models that use this `pre`.
  static Tokenizer from_gguf(const GgufMetadata& metadata, std::string_view source);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Invalid UTF-8 in `text` becomes U+FFFD, as in the reference.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// "byte-level BPE", "BPE" or "Unigram".
  std::string_view model_name() const;
  /// Highest id + 1.
  int32_t vocab_size() const;
  /// The token's own spelling (byte-level alphabet and all); empty if no token has this id.
  std::optional<std::string> token(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token) const;
  const std::vector<AddedToken>& added_tokens() const;
  /// Merges as pairs of token spellings, in rank order (for GGUF).
  std::vector<std::pair<std::string, std::string>> merges() const;
  /// Score of each id, where the file says the order of the merges by scores; else empty.
  std::span<const float> scores() const;
  /// Whether a text may become this token without its being looked for as an added one.
  bool is_in_model(int32_t id) const;
  std::optional<int32_t> unk_id() const;
  /// Tokens are spelled in the byte-level alphabet.
  bool is_byte_level() const;
  /// BPE whose tokens are pieces of text with U+2581 for spaces: whether a space is put in front of
  /// a text. Empty for all others.
  std::optional<bool> space_prefix() const;
  /// The ids that the post-processor puts in front of a single sequence.
  std::span<const int32_t> special_prefix() const;
  std::optional<int32_t> bos_id() const;  // tokenizer_config.json, else the first of special_prefix
  std::optional<int32_t> eos_id() const;  // tokenizer_config.json
  /// Split rule of the pre-tokenizer in the words of GGUF (`llama-bpe`, `qwen2`, …), found by the
  /// exact pattern; empty if GGUF has no word for it.
  std::optional<std::string> gguf_pre() const;
  /// Whether the post-processor has a template for pairs (GGUF add_sep_token).
  bool has_pair_template() const;

  /// Turns a stream of ids into text as bytes become complete characters: all that push() and
  /// finish() return, together, is decode() of all ids.
  class Stream {
   public:
    explicit Stream(const Tokenizer& tokenizer, bool skip_special = false)
        : tokenizer_(&tokenizer), skip_special_(skip_special) {}
    std::string push(int32_t id);
    /// The rest. The stream is then as new.
    std::string finish();

   private:
    std::string take();

    const Tokenizer* tokenizer_;
    bool skip_special_;
    std::string bytes_;         // byte-level decoders: bytes of a character that is not complete
    std::vector<int32_t> ids_;  // other decoders: the ids that are not told yet
    bool started_ = false;      // some ids were told
  };

 private:
  struct State;
  explicit Tokenizer(tokenization::Definition definition);
  std::unique_ptr<State> state_;
};

}  // namespace assay
