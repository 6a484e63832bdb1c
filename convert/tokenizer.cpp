#include "convert/tokenizer.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/tokenizer/added_tokens.h"
#include "convert/tokenizer/definition.h"
#include "convert/tokenizer/sentencepiece.h"
#include "convert/tokenizer/unicode.h"
#include "convert/tokenizer/word_cache.h"

namespace assay {

using namespace tokenization;

namespace {

/// Memory of one encode(); kept for the next one.
struct Workspace {
  ModelScratch model;
  WordCache words;
  std::string valid, normalized;
};

/// Workspaces that no thread uses at the moment. There are never more than threads that encode at
/// the same time.
class WorkspacePool {
 public:
  class Lease {
   public:
    explicit Lease(WorkspacePool& pool) : pool_(pool), workspace_(pool.take()) {}
    ~Lease() {
      // What an exception left half done is thrown away.
      if (std::uncaught_exceptions() == exceptions_) pool_.give(std::move(workspace_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
    int exceptions_ = std::uncaught_exceptions();
  };

 private:
  std::unique_ptr<Workspace> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(free_.back());
        free_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }
  void give(std::unique_ptr<Workspace> workspace) {
    // Long words leave large buffers behind; those are not worth keeping.
    constexpr size_t kLong = size_t{1} << 16;
    if (workspace->model.symbols.capacity() > kLong || workspace->model.steps.capacity() > kLong) {
      workspace->model = {};
    }
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

AddedTokenSplitter make_splitter(const Definition& definition, bool normalized) {
  std::vector<AddedToken> tokens;
  std::vector<std::string> contents;
  for (const AddedToken& token : definition.added_tokens) {
    if (token.normalized != normalized) continue;
    std::string content = token.content;
    if (normalized && definition.normalizer) definition.normalizer->apply(token.content, content);
    if (content.empty()) {
      throw UnsupportedError(definition.source + ": added_tokens: \"" + token.content +
                             "\" is empty when normalized");
    }
    tokens.push_back(token);
    contents.push_back(std::move(content));
  }
  return AddedTokenSplitter(std::move(tokens), contents);
}

std::unique_ptr<const Model> make_model(Definition& definition) {
  if (definition.unigram) {
    UnigramParts& parts = *definition.unigram;
    return std::make_unique<Unigram>(std::move(definition.vocabulary), std::move(parts.scores),
                                     parts.pieces, parts.options, definition.source);
  }
  return std::make_unique<Bpe>(std::move(definition.vocabulary), std::move(definition.merges),
                               definition.merge_ranks, std::move(definition.bpe),
                               definition.source);
}

}  // namespace

struct Tokenizer::State {
  explicit State(Definition definition);

  void encode_segment(std::string_view segment, bool at_start, const EncodeOptions& options,
                      Workspace& workspace, std::vector<int32_t>& ids) const;
  void encode_mixed(std::string_view text, ByteRange segment, const EncodeOptions& options,
                    Workspace& workspace, std::vector<int32_t>& ids) const;
  void encode_piece(const Piece& piece, const EncodeOptions& options, Workspace& workspace,
                    std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, const EncodeOptions& options, Workspace& workspace,
                   std::vector<int32_t>& ids) const;
  void encode_without_specials(std::string_view word, size_t first, Workspace& workspace,
                               std::vector<int32_t>& ids) const;

  bool is_special(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < special.size() && special[static_cast<size_t>(id)];
  }
  void set_spellings();
  /// What decoders see of a token.
  std::string_view spelling(int32_t id) const {
    const auto found = normalized_spellings.find(id);
    return found == normalized_spellings.end() ? all_tokens.token(id) : found->second;
  }
  bool is_decoded(int32_t id, bool skip_special) const {
    return all_tokens.contains(id) && !(skip_special && skippable[static_cast<size_t>(id)]);
  }
  std::vector<std::string> spellings(std::span<const int32_t> ids, bool skip_special) const {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      if (is_decoded(id, skip_special)) tokens.emplace_back(spelling(id));
    }
    return tokens;
  }
  /// Text of ids that do not begin it.
  std::string decode_inside(std::span<const int32_t> ids) const {
    std::vector<std::string> tokens = spellings(ids, false);
    decoder->apply_inside(tokens);
    std::string text;
    for (const std::string& token : tokens) text += token;
    return text;
  }
  std::string_view bytes_of(int32_t id) const {
    if (id < 0 || id >= all_tokens.id_end()) return {};
    const auto i = static_cast<size_t>(id);
    return std::string_view(token_bytes).substr(token_ends[i], token_ends[i + 1] - token_ends[i]);
  }

  std::string source;
  bool byte_level;
  std::string_view model_name;
  Vocabulary all_tokens;
  std::unique_ptr<const Model> model;
  std::vector<AddedToken> added_tokens;
  std::vector<bool> special;    // by id
  std::vector<bool> skippable;  // by id: left out when decoding without special tokens
  std::map<int32_t, std::string> normalized_spellings;
  AddedTokenSplitter raw_splitter, normalized_splitter;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  bool asks_for_start;  // by the pre-tokenizer
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  std::string token_bytes;           // byte-level decoder: what each id adds to the text
  std::vector<uint64_t> token_ends;  // (id_end + 1); id's bytes are [token_ends[id], [id + 1])
  bool decodes_in_parts = false;     // other decoders: see Stream
  std::optional<int32_t> bos_id, eos_id;
  std::optional<std::string> gguf_pre;
  std::optional<bool> space_prefix;
  std::vector<float> scores;
  mutable WorkspacePool workspaces;
};

Tokenizer::State::State(Definition definition)
    : source(definition.source),
      byte_level(!definition.unigram && definition.bpe.byte_level),
      model_name(definition.unigram ? "Unigram"
                 : byte_level       ? "byte-level BPE"
                                    : "BPE"),
      all_tokens(std::move(definition.all_tokens)),
      model(make_model(definition)),
      raw_splitter(make_splitter(definition, false)),
      normalized_splitter(make_splitter(definition, true)),
      normalizer(std::move(definition.normalizer)),
      pre_tokenizer(std::move(definition.pre_tokenizer.pre_tokenizer)),
      asks_for_start(definition.pre_tokenizer.asks_for_start),
      post_processor(std::move(definition.post_processor)),
      decoder(std::move(definition.decoder)),
      bos_id(definition.bos_id),
      eos_id(definition.eos_id),
      gguf_pre(std::move(definition.gguf_pre)),
      space_prefix(definition.unigram ? std::nullopt : definition.space_prefix),
      scores(std::move(definition.scores)) {
  added_tokens = std::move(definition.added_tokens);
  special.resize(static_cast<size_t>(all_tokens.id_end()));
  for (const AddedToken& token : added_tokens) {
    if (token.special) special[static_cast<size_t>(token.id)] = true;
  }
  set_spellings();
  if (decoder && decoder->kind() == StepKind::kBytes) {
    token_ends.push_back(0);
    for (int32_t id = 0; id < all_tokens.id_end(); ++id) {
      token_bytes += bytes_of_token(spelling(id));
      token_ends.push_back(token_bytes.size());
    }
  }
  decodes_in_parts =
      decoder && (decoder->kind() == StepKind::kLocal || decoder->kind() == StepKind::kFuse);
}

/// The reference decodes an added token that is looked for in normalized text by its normalized
/// spelling, and by this spelling it decides whether the token is special.
void Tokenizer::State::set_spellings() {
  std::set<std::string_view> special_contents;
  for (const AddedToken& token : added_tokens) {
    if (token.special) special_contents.insert(token.content);
  }
  skippable = special;
  for (const AddedToken& token : added_tokens) {
    std::string normalized;
    if (!token.normalized || !normalizer || !normalizer->apply(token.content, normalized)) continue;
    skippable[static_cast<size_t>(token.id)] = special_contents.contains(normalized);
    normalized_spellings.emplace(token.id, std::move(normalized));
  }
}

Tokenizer::Tokenizer(Definition definition)
    : state_(std::make_unique<State>(std::move(definition))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(const Json& json, std::string_view source) {
  return Tokenizer(read_tokenizer_json(Part(json, std::string(source), "")));
}

Tokenizer Tokenizer::from_file(const std::string& path) {
  if (path.ends_with(".json")) return from_json(read_json_file(path), path);
  return Tokenizer(read_sentencepiece(MappedFile::open(path).bytes(), path));
}

Tokenizer Tokenizer::open(const std::string& path) {
  if (std::filesystem::is_directory(path)) return from_folder(path);
  if (path.ends_with(".gguf")) return from_gguf(GgufFile::open(path).metadata(), path);
  return from_file(path);
}

Tokenizer Tokenizer::from_folder(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  const std::string config_path = folder + "/tokenizer_config.json";
  if (!file_exists(path)) {
    if (file_exists(folder + "/tokenizer.model")) return from_pieces_of_folder(folder);
    throw FileError(path +
                    ": is not there, nor is tokenizer.model; copy the model's tokenizer into the "
                    "folder, or use token ids instead of text");
  }
  const Json json = read_json_file(path);
  Definition definition = read_tokenizer_json(Part(json, path, ""));
  if (file_exists(config_path)) {
    const Json config = read_json_file(config_path);
    read_tokenizer_config(Part(config, config_path, ""), definition);
  }
  return Tokenizer(std::move(definition));
}

Tokenizer Tokenizer::from_pieces_of_folder(const std::string& folder) {
  const std::string path = folder + "/tokenizer.model";
  const std::string added_path = folder + "/added_tokens.json";
  const std::string config_path = folder + "/tokenizer_config.json";
  Definition definition = read_sentencepiece(MappedFile::open(path).bytes(), path);
  const bool configured = file_exists(config_path);
  const Json config = configured ? read_json_file(config_path) : Json::object();
  const Part root(config, config_path, "");
  read_piece_config(root, definition);
  if (file_exists(added_path)) {
    const Json added = read_json_file(added_path);
    read_added_pieces(Part(added, added_path, ""), definition);
  }
  if (configured) read_tokenizer_config(root, definition);
  return Tokenizer(std::move(definition));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  WorkspacePool::Lease lease(state_->workspaces);
  Workspace& workspace = *lease;
  if (valid_utf8_prefix(text) != text.size()) {
    if (!options.plain_text.empty()) {
      throw FormatError(state_->source + ": a text with marked parts is not valid UTF-8");
    }
    workspace.valid.clear();
    append_lossy_utf8(workspace.valid, text);
    text = workspace.valid;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  const PostProcessor& post = state_->post_processor;
  if (options.add_special_tokens) ids = post.prefix;
  state_->raw_splitter.split(text, options.parse_special, options.plain_text,
                             [&](size_t begin, size_t end, const AddedToken* token) {
                               if (token) {
                                 ids.push_back(token->id);
                               } else if (options.plain_text.empty()) {
                                 state_->encode_segment(text.substr(begin, end - begin), begin == 0,
                                                        options, workspace, ids);
                               } else {
                                 state_->encode_mixed(text, {begin, end}, options, workspace, ids);
                               }
                             });
  if (options.add_special_tokens) ids.insert(ids.end(), post.suffix.begin(), post.suffix.end());
  return ids;
}

/// A segment that holds plain text. Where special tokens are looked for in normalized text, which
/// has lost the places of its parts, each part is encoded alone.
void Tokenizer::State::encode_mixed(std::string_view text, ByteRange segment,
                                    const EncodeOptions& options, Workspace& workspace,
                                    std::vector<int32_t>& ids) const {
  EncodeOptions plain = options;
  plain.parse_special = false;
  const auto encode = [&](size_t begin, size_t end, const EncodeOptions& how) {
    if (begin < end) {
      encode_segment(text.substr(begin, end - begin), begin == 0, how, workspace, ids);
    }
  };
  if (!normalized_splitter.has_special()) return encode(segment.begin, segment.end, plain);
  size_t done = segment.begin;
  for (const ByteRange& range : options.plain_text) {
    if (range.end <= done) continue;
    if (range.begin >= segment.end) break;
    encode(done, std::max(done, range.begin), options);
    encode(std::max(done, range.begin), std::min(range.end, segment.end), plain);
    done = std::min(range.end, segment.end);
  }
  encode(done, segment.end, options);
}

void Tokenizer::State::encode_segment(std::string_view segment, bool at_start,
                                      const EncodeOptions& options, Workspace& workspace,
                                      std::vector<int32_t>& ids) const {
  if (normalizer) {
    // In the reference, a text whose first character was dropped no longer begins.
    at_start = at_start && (!asks_for_start || normalizer->keeps_start(segment));
    if (normalizer->apply(segment, workspace.normalized)) segment = workspace.normalized;
  }
  normalized_splitter.split(
      segment, options.parse_special, {}, [&](size_t begin, size_t end, const AddedToken* token) {
        if (token) {
          ids.push_back(token->id);
        } else {
          encode_piece({segment.substr(begin, end - begin), at_start && begin == 0}, options,
                       workspace, ids);
        }
      });
}

void Tokenizer::State::encode_piece(const Piece& piece, const EncodeOptions& options,
                                    Workspace& workspace, std::vector<int32_t>& ids) const {
  if (!pre_tokenizer) return encode_word(piece.text, options, workspace, ids);
  pre_tokenizer->split(piece,
                       [&](const Piece& word) { encode_word(word.text, options, workspace, ids); });
}

void Tokenizer::State::encode_word(std::string_view word, const EncodeOptions& options,
                                   Workspace& workspace, std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  if (word.size() <= WordCache::kMaxBytes) {
    const WordCache::Key key = WordCache::key_of(word);
    const std::span<const int32_t> known = workspace.words.find(key);
    if (!known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
    } else {
      model->encode(word, workspace.model, ids);
      workspace.words.put(key, std::span(ids).subspan(first));
    }
  } else {
    model->encode(word, workspace.model, ids);
  }
  if (!options.parse_special) encode_without_specials(word, first, workspace, ids);
}

/// A vocabulary may hold a special token that plain text can reach by merges or as a whole word.
/// Where special tokens are not to be parsed, such a token is spelled out: text can never forge
/// one.
void Tokenizer::State::encode_without_specials(std::string_view word, size_t first,
                                               Workspace& workspace,
                                               std::vector<int32_t>& ids) const {
  const auto forged = [&](int32_t id) { return is_special(id) && id != model->unk_id(); };
  const auto begin = [&] { return ids.begin() + static_cast<ptrdiff_t>(first); };
  if (std::none_of(begin(), ids.end(), forged)) return;
  ids.resize(first);
  model->encode_by_merges(word, workspace.model, ids);
  if (std::none_of(begin(), ids.end(), forged)) return;
  ids.resize(first);
  model->encode_unmerged(word, workspace.model, ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  const State& state = *state_;
  std::string text;
  if (!state.token_ends.empty()) {
    std::string bytes;
    for (const int32_t id : ids) {
      if (state.is_decoded(id, skip_special)) bytes += state.bytes_of(id);
    }
    append_lossy_utf8(text, bytes);
    return text;
  }
  std::vector<std::string> tokens = state.spellings(ids, skip_special);
  if (state.decoder) state.decoder->apply(tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !state.decoder) text += ' ';
    text += tokens[i];
  }
  return text;
}

std::string_view Tokenizer::model_name() const { return state_->model_name; }

int32_t Tokenizer::vocab_size() const { return state_->all_tokens.id_end(); }

std::optional<std::string> Tokenizer::token(int32_t id) const {
  if (!state_->all_tokens.contains(id)) return std::nullopt;
  return std::string(state_->all_tokens.token(id));
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  return state_->all_tokens.find(token);
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return state_->added_tokens; }

std::vector<std::pair<std::string, std::string>> Tokenizer::merges() const {
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(state_->model->merges().size());
  const Vocabulary& vocabulary = state_->model->vocabulary();
  for (const auto& [left, right] : state_->model->merges()) {
    merges.emplace_back(vocabulary.token(left), vocabulary.token(right));
  }
  return merges;
}

std::span<const float> Tokenizer::scores() const { return state_->scores; }

bool Tokenizer::is_in_model(int32_t id) const { return state_->model->vocabulary().contains(id); }

std::optional<int32_t> Tokenizer::unk_id() const { return state_->model->unk_id(); }

bool Tokenizer::is_byte_level() const { return state_->byte_level; }

std::optional<bool> Tokenizer::space_prefix() const { return state_->space_prefix; }

std::span<const int32_t> Tokenizer::special_prefix() const { return state_->post_processor.prefix; }

std::optional<int32_t> Tokenizer::bos_id() const {
  if (state_->bos_id) return state_->bos_id;
  if (state_->post_processor.prefix.empty()) return std::nullopt;
  return state_->post_processor.prefix.front();
}

std::optional<int32_t> Tokenizer::eos_id() const { return state_->eos_id; }

std::optional<std::string> Tokenizer::gguf_pre() const { return state_->gguf_pre; }

bool Tokenizer::has_pair_template() const { return state_->post_processor.has_pair_template; }

std::string Tokenizer::Stream::push(int32_t id) {
  const State& state = *tokenizer_->state_;
  if (!state.is_decoded(id, skip_special_)) return "";
  std::string text;
  if (!state.token_ends.empty()) {
    bytes_ += state.bytes_of(id);
    const size_t complete = bytes_.size() - incomplete_utf8_suffix(bytes_);
    append_lossy_utf8(text, std::string_view(bytes_).substr(0, complete));
    bytes_.erase(0, complete);
    return text;
  }
  ids_.push_back(id);
  if (!state.decodes_in_parts || !state.decoder->settled_after(state.spelling(id))) {
    return "";
  }
  // What is stripped from the begin ends where the first other character stands.
  const bool waits = !started_ && state.decoder->strips_start() && tokenizer_->decode(ids_).empty();
  return waits ? "" : take();
}

std::string Tokenizer::Stream::take() {
  std::string text = started_ ? tokenizer_->state_->decode_inside(ids_) : tokenizer_->decode(ids_);
  started_ = true;
  ids_.clear();
  return text;
}

std::string Tokenizer::Stream::finish() {
  std::string text = tokenizer_->state_->decodes_in_parts ? take() : tokenizer_->decode(ids_);
  append_lossy_utf8(text, bytes_);
  ids_.clear();
  bytes_.clear();
  started_ = false;
  return text;
}

}  // namespace assay
