#include "convert/tokenizer/sentencepiece.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/tokenizer/charsmap.h"
#include "convert/tokenizer/scored_merges.h"
#include "convert/tokenizer/unicode.h"
#include "convert/tokenizer/vocabulary_kind.h"

namespace assay::tokenization {
namespace {

enum WireType : uint32_t { kVarint = 0, kBytes = 2, kFloat = 5 };
enum Count : uint8_t { kOnce, kSwitch, kRepeated };  // a switch stands once, and is 0 or 1

/// What a message may hold.
struct FieldRow {
  uint32_t number;
  WireType wire_type;
  std::string_view name;
  Count count = kOnce;
};
struct MessageType {
  std::string_view name;
  std::span<const FieldRow> fields;
};

// Source: SentencePiece 0.2, src/sentencepiece_model.proto. No known model has extensions.
constexpr FieldRow kModelFields[] = {{1, kBytes, "pieces", kRepeated},
                                     {2, kBytes, "trainer_spec"},
                                     {3, kBytes, "normalizer_spec"},
                                     {4, kBytes, "self_test_data"},
                                     {5, kBytes, "denormalizer_spec"}};
constexpr FieldRow kPieceFields[] = {
    {1, kBytes, "piece"}, {2, kFloat, "score"}, {3, kVarint, "type"}};
constexpr FieldRow kTrainerFields[] = {{1, kBytes, "input", kRepeated},
                                       {2, kBytes, "model_prefix"},
                                       {3, kVarint, "model_type"},
                                       {4, kVarint, "vocab_size"},
                                       {5, kBytes, "accept_language", kRepeated},
                                       {6, kVarint, "self_test_sample_size"},
                                       {7, kBytes, "input_format"},
                                       {10, kFloat, "character_coverage"},
                                       {11, kVarint, "input_sentence_size"},
                                       {12, kVarint, "mining_sentence_size"},
                                       {13, kVarint, "training_sentence_size"},
                                       {14, kVarint, "seed_sentencepiece_size"},
                                       {15, kFloat, "shrinking_factor"},
                                       {16, kVarint, "num_threads"},
                                       {17, kVarint, "num_sub_iterations"},
                                       {18, kVarint, "max_sentence_length"},
                                       {19, kVarint, "shuffle_input_sentence", kSwitch},
                                       {20, kVarint, "max_sentencepiece_length"},
                                       {21, kVarint, "split_by_unicode_script", kSwitch},
                                       {22, kVarint, "split_by_whitespace", kSwitch},
                                       {23, kVarint, "split_by_number", kSwitch},
                                       {24, kVarint, "treat_whitespace_as_suffix", kSwitch},
                                       {25, kVarint, "split_digits", kSwitch},
                                       {26, kVarint, "allow_whitespace_only_pieces", kSwitch},
                                       {30, kBytes, "control_symbols", kRepeated},
                                       {31, kBytes, "user_defined_symbols", kRepeated},
                                       {32, kVarint, "vocabulary_output_piece_score", kSwitch},
                                       {33, kVarint, "hard_vocab_limit", kSwitch},
                                       {34, kVarint, "use_all_vocab", kSwitch},
                                       {35, kVarint, "byte_fallback", kSwitch},
                                       {36, kBytes, "required_chars"},
                                       {40, kVarint, "unk_id"},
                                       {41, kVarint, "bos_id"},
                                       {42, kVarint, "eos_id"},
                                       {43, kVarint, "pad_id"},
                                       {44, kBytes, "unk_surface"},
                                       {45, kBytes, "unk_piece"},
                                       {46, kBytes, "bos_piece"},
                                       {47, kBytes, "eos_piece"},
                                       {48, kBytes, "pad_piece"},
                                       {49, kVarint, "train_extremely_large_corpus", kSwitch},
                                       {50, kVarint, "enable_differential_privacy", kSwitch},
                                       {51, kFloat, "differential_privacy_noise_level"},
                                       {52, kVarint, "differential_privacy_clipping_threshold"},
                                       {53, kBytes, "pretokenization_delimiter"},
                                       {54, kBytes, "seed_sentencepieces_file"}};
constexpr FieldRow kNormalizerFields[] = {{1, kBytes, "name"},
                                          {2, kBytes, "precompiled_charsmap"},
                                          {3, kVarint, "add_dummy_prefix", kSwitch},
                                          {4, kVarint, "remove_extra_whitespaces", kSwitch},
                                          {5, kVarint, "escape_whitespaces", kSwitch},
                                          {6, kBytes, "normalization_rule_tsv"}};
constexpr MessageType kModel{"the model", kModelFields}, kPiece{"a piece", kPieceFields},
    kTrainer{"trainer_spec", kTrainerFields}, kNormalizer{"normalizer_spec", kNormalizerFields},
    kDenormalizer{"denormalizer_spec", kNormalizerFields};

/// The fields of one protobuf message, in the order of the file. All are of its type: one byte that
/// was damaged must not turn a field that says something into one that is skipped.
class Message {
 public:
  struct Field {
    uint32_t number;
    uint32_t wire_type;
    uint64_t value;  // of varints and fixed-size numbers
    std::span<const std::byte> bytes;
    size_t offset;  // of the field in the file
  };

  Message(const MessageType& type, std::span<const std::byte> bytes, size_t offset,
          const std::string& source)
      : type_(type), bytes_(bytes), offset_(offset), source_(source) {}

  std::optional<Field> next() {
    if (at_ == bytes_.size()) return std::nullopt;
    Field field{};
    field.offset = offset_ + at_;
    const uint64_t tag = varint();
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire_type = static_cast<uint32_t>(tag & 7u);
    if (tag >> 35 != 0 || field.number == 0) fail(field.offset, "a field without a valid number");
    switch (field.wire_type) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        fail(field.offset, fmt::format("wire type {}; expected 0, 1, 2 or 5", field.wire_type));
    }
    check(field);
    return field;
  }

  Message message(const MessageType& type, const Field& field) const {
    return Message(type, field.bytes, field.offset, source_);
  }
  [[noreturn]] void fail(size_t offset, std::string_view what) const {
    throw FormatError(fmt::format("{}: byte {}: {}; the file is damaged or no SentencePiece model",
                                  source_, offset, what));
  }

 private:
  void check(const Field& field) {
    const auto row =
        std::find_if(type_.fields.begin(), type_.fields.end(),
                     [&](const FieldRow& known) { return known.number == field.number; });
    if (row == type_.fields.end()) {
      fail(field.offset,
           fmt::format("{} has no field {} that is known here", type_.name, field.number));
    }
    if (field.wire_type != row->wire_type) {
      fail(field.offset,
           fmt::format("{} of {} has wire type {}, expected {}", row->name, type_.name,
                       field.wire_type, static_cast<uint32_t>(row->wire_type)));
    }
    if (row->count == kSwitch && field.value > 1) {
      fail(field.offset,
           fmt::format("{} of {} is {}, expected 0 or 1", row->name, type_.name, field.value));
    }
    const uint64_t bit = uint64_t{1} << row->number;
    if (row->count != kRepeated && (seen_ & bit) != 0) {
      fail(field.offset, fmt::format("{} stands twice in {}", row->name, type_.name));
    }
    seen_ |= bit;
  }

  std::span<const std::byte> take(uint64_t n) {
    if (n > bytes_.size() - at_) {
      fail(offset_ + at_,
           fmt::format("{} bytes were announced, {} are left", n, bytes_.size() - at_));
    }
    const auto part = bytes_.subspan(at_, n);
    at_ += n;
    return part;
  }
  uint64_t fixed(size_t n) {
    uint64_t value = 0;
    std::memcpy(&value, take(n).data(), n);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = std::to_integer<uint64_t>(take(1)[0]);
      value |= (byte & 0x7Fu) << shift;
      if (byte < 0x80) return value;
    }
    fail(offset_ + at_, "a number of more than 64 bits");
  }

  const MessageType& type_;
  std::span<const std::byte> bytes_;
  size_t offset_;
  size_t at_ = 0;
  uint64_t seen_ = 0;  // a bit per field number
  const std::string& source_;
};

enum ModelType : uint64_t { kUnigram = 1, kBpe = 2 };

constexpr int64_t kAllSpaces = std::numeric_limits<int64_t>::max();

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& source)
      : root_(kModel, bytes, 0, source), source_(source) {}

  std::vector<SentencePiece> bpe_pieces() {
    read_fields();
    return model_type_ == kBpe ? std::move(pieces_) : std::vector<SentencePiece>();
  }

  Definition read() {
    read_fields();
    check_rules();
    definition_.source = source_;
    add_pieces();
    if (model_type_ == kBpe) {
      ScoredMerges merges = merges_of_scores(definition_.vocabulary, scores_, merged_, source_);
      definition_.merges = std::move(merges.merges);
      definition_.merge_ranks = std::move(merges.ranks);
      definition_.scores = scores_;
    } else {
      definition_.unigram = UnigramParts{
          {scores_.begin(), scores_.end()},
          merged_,
          {.unk_id = unk_id_, .byte_fallback = rules_.byte_fallback, .single_precision = true}};
    }
    set_piece_rules(rules_, definition_);
    if (charsmap_ || remove_extra_whitespaces_) set_normalizer();
    definition_.bos_id = special(bos_id_);
    definition_.eos_id = special(eos_id_);
    if (definition_.bos_id) definition_.post_processor.prefix = {*definition_.bos_id};
    return std::move(definition_);
  }

 private:
  void read_fields() {
    while (const auto field = root_.next()) {
      if (field->number == 1) read_piece(*field);
      if (field->number == 2) read_trainer(root_.message(kTrainer, *field));
      if (field->number == 3) read_normalizer(root_.message(kNormalizer, *field));
      if (field->number == 5) read_denormalizer(root_.message(kDenormalizer, *field));
    }
    if (pieces_.empty()) throw FormatError(source_ + ": holds no pieces; no SentencePiece model");
    // Both come after the pieces in every file that a trainer wrote.
    for (const auto& [name, is_there] :
         {std::pair("trainer_spec", has_trainer_), std::pair("normalizer_spec", has_normalizer_)}) {
      if (!is_there) throw FormatError(fmt::format("{}: ends without {}", source_, name));
    }
  }

  void read_piece(const Message::Field& field) {
    Message message = root_.message(kPiece, field);
    SentencePiece piece;
    auto type = static_cast<uint64_t>(piece.type);
    while (const auto part = message.next()) {
      if (part->number == 1) {
        const auto bytes = part->bytes;
        piece.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      } else if (part->number == 2) {
        const auto bits = static_cast<uint32_t>(part->value);
        std::memcpy(&piece.score, &bits, sizeof(bits));
      } else if (part->number == 3) {
        type = part->value;
      }
    }
    const std::string place = fmt::format("piece {}", pieces_.size());
    if (piece.text.empty()) root_.fail(field.offset, place + " is empty");
    if (valid_utf8_prefix(piece.text) != piece.text.size()) {
      root_.fail(field.offset, place + " is not valid UTF-8");
    }
    if (type < 1 || type > 6) {
      root_.fail(field.offset, fmt::format("{} has type {}; expected 1 to 6", place, type));
    }
    piece.type = static_cast<TokenType>(type);
    if (pieces_.size() >= static_cast<size_t>(Vocabulary::kIdLimit)) {
      throw UnsupportedError(fmt::format("{}: more than {} pieces", source_, Vocabulary::kIdLimit));
    }
    pieces_.push_back(std::move(piece));
  }

  void read_trainer(Message message) {
    has_trainer_ = true;
    while (const auto field = message.next()) {
      if (field->number == 3) model_type_ = field->value;
      if (field->number == 24 && field->value != 0) {
        unsupported_ = "trainer_spec.treat_whitespace_as_suffix";
      }
      if (field->number == 35) rules_.byte_fallback = field->value != 0;
      if (field->number == 41) bos_id_ = static_cast<int64_t>(field->value);
      if (field->number == 42) eos_id_ = static_cast<int64_t>(field->value);
    }
  }

  void read_normalizer(Message message) {
    has_normalizer_ = true;
    while (const auto field = message.next()) {
      if (field->number == 2) {
        const auto bytes = field->bytes;
        if (bytes.empty()) continue;
        const std::string_view map(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (const auto fault = CharacterMap::read(map, charsmap_.emplace())) {
          message.fail(field->offset, "normalizer_spec.precompiled_charsmap " + *fault);
        }
      }
      if (field->number == 3) rules_.add_space_prefix = field->value != 0;
      if (field->number == 4) remove_extra_whitespaces_ = field->value != 0;
      if (field->number == 5 && field->value == 0) {
        unsupported_ = "normalizer_spec.escape_whitespaces = false";
      }
    }
  }

  void read_denormalizer(Message message) {
    while (const auto field = message.next()) {
      if (field->number == 2 && !field->bytes.empty()) {
        unsupported_ = "denormalizer_spec.precompiled_charsmap";
      }
    }
  }

  /// In place of steps of tokenizer.json, which has none for this.
  void set_normalizer() {
    const bool strips = rules_.add_space_prefix || remove_extra_whitespaces_;
    definition_.normalizer =
        make_piece_normalizer({.map = charsmap_ ? std::move(*charsmap_) : CharacterMap(),
                               .add_space_prefix = rules_.add_space_prefix,
                               .remove_extra_whitespaces = remove_extra_whitespaces_});
    const Json decoder = piece_decoder(!strips                     ? 0
                                       : remove_extra_whitespaces_ ? kAllSpaces
                                                                   : int64_t{1});
    definition_.decoder = make_decoder(Part(decoder, definition_.source, "decoder"));
    definition_.space_prefix.reset();  // they alone do not say what is done with a text
  }

  void check_rules() const {
    const auto fail = [&](std::string_view what) {
      throw UnsupportedError(fmt::format(
          "{}: {} is not implemented; save the tokenizer as tokenizer.json", source_, what));
    };
    if (model_type_ != kUnigram && model_type_ != kBpe) {
      fail(fmt::format("trainer_spec.model_type {} (expected 1, unigram, or 2, BPE)", model_type_));
    }
    if (!unsupported_.empty()) fail(unsupported_);
  }

  void add_pieces() {
    using enum TokenType;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const SentencePiece& piece = pieces_[i];
      const auto id = static_cast<int32_t>(i);
      scores_.push_back(piece.score);
      if (!definition_.all_tokens.add(piece.text, id)) {
        throw FormatError(
            fmt::format("{}: piece {}: \"{}\" stands there twice", source_, i, piece.text));
      }
      if (piece.type == kUnknown) {
        if (unk_id_) throw FormatError(source_ + ": more than one piece is the unknown one");
        unk_id_ = id;
        definition_.bpe.unk_token = piece.text;
      }
      if (piece.type == kNormal || piece.type == kUserDefined) merged_.push_back(id);
      if (piece.type != kControl && piece.type != kUnused) {
        definition_.vocabulary.add(piece.text, id);
      }
    }
    if (!unk_id_) throw FormatError(source_ + ": no piece is the unknown one");
    check_bytes();
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const TokenType type = pieces_[i].type;
      if (type != kControl && type != kUserDefined && type != kUnknown) continue;
      AddedToken token;
      token.id = static_cast<int32_t>(i);
      token.content = pieces_[i].text;
      token.special = type != kUserDefined;
      add_added_token(definition_, std::move(token), fmt::format("{}: piece {}", source_, i));
    }
  }

  /// byte_fallback and the pieces of bytes go together, as SentencePiece itself demands.
  void check_bytes() const {
    std::set<std::string> bytes;
    for (const SentencePiece& piece : pieces_) {
      if (piece.type == TokenType::kByte) bytes.insert(piece.text);
    }
    for (int byte = 0; byte < 256 && rules_.byte_fallback; ++byte) {
      if (!bytes.contains(fmt::format("<0x{:02X}>", byte))) {
        throw FormatError(fmt::format(
            "{}: trainer_spec.byte_fallback wants a piece for each byte, <0x{:02X}> is missing",
            source_, byte));
      }
    }
    const size_t expected = rules_.byte_fallback ? 256 : 0;
    if (bytes.size() != expected) {
      throw FormatError(
          fmt::format("{}: {} pieces are bytes, expected {}, for "
                      "trainer_spec.byte_fallback is {}",
                      source_, bytes.size(), expected, rules_.byte_fallback));
    }
  }

  std::optional<int32_t> special(int64_t id) const {
    if (id == -1) return std::nullopt;  // not in use
    if (id < 0 || id >= definition_.all_tokens.id_end()) {
      throw FormatError(fmt::format("{}: trainer_spec: no piece has the id {}", source_, id));
    }
    const SentencePiece& piece = pieces_[static_cast<size_t>(id)];
    if (piece.type != TokenType::kControl) {
      throw FormatError(
          fmt::format("{}: trainer_spec: the piece of the id {}, {}, is no control piece", source_,
                      id, in_quotes(piece.text)));
    }
    return static_cast<int32_t>(id);
  }

  Message root_;
  std::string source_;
  std::vector<SentencePiece> pieces_;
  uint64_t model_type_ = kUnigram;
  PieceRules rules_;
  std::optional<CharacterMap> charsmap_;
  bool remove_extra_whitespaces_ = true;
  bool has_trainer_ = false, has_normalizer_ = false;
  std::string unsupported_;
  int64_t bos_id_ = 1, eos_id_ = 2;
  std::optional<int32_t> unk_id_;
  std::vector<float> scores_;
  std::vector<int32_t> merged_;
  Definition definition_;
};

Json step(std::string_view type) { return Json::object().set("type", type); }
Json replace(std::string_view from, std::string_view to) {
  return step("Replace").set("pattern", Json::object().set("String", from)).set("content", to);
}

}  // namespace

Json piece_normalizer(bool add_space_prefix) {
  Json spaces = replace(" ", kMetaSpace);
  if (!add_space_prefix) return spaces;
  return step("Sequence")
      .set("normalizers",
           Json::array().push(step("Prepend").set("prepend", kMetaSpace)).push(std::move(spaces)));
}

Json piece_decoder(int64_t n_spaces) {
  Json decoders = Json::array();
  decoders.push(replace(kMetaSpace, " ")).push(step("ByteFallback")).push(step("Fuse"));
  if (n_spaces > 0) {
    decoders.push(step("Strip").set("content", " ").set("start", n_spaces).set("stop", 0));
  }
  return step("Sequence").set("decoders", std::move(decoders));
}

std::optional<bool> space_prefix_of(const Json& normalizer, const Json& pre_tokenizer) {
  // Where every space has become another character, a split at spaces does nothing.
  const Json* pattern = pre_tokenizer.is_object() ? pre_tokenizer.find("pattern") : nullptr;
  const bool splits = !pre_tokenizer.is_null() &&
                      (pattern == nullptr || *pattern != Json::object().set("String", " "));
  for (const bool prefix : {false, true}) {
    if (!splits && normalizer == piece_normalizer(prefix)) return prefix;
  }
  return std::nullopt;
}

void set_piece_rules(const PieceRules& rules, Definition& definition) {
  const Json normalizer = piece_normalizer(rules.add_space_prefix);
  const Json decoder = piece_decoder(rules.add_space_prefix ? 1 : 0);
  definition.normalizer = make_normalizer(Part(normalizer, definition.source, "normalizer"));
  definition.decoder = make_decoder(Part(decoder, definition.source, "decoder"));
  definition.bpe.byte_fallback = rules.byte_fallback;
  definition.bpe.fuse_unk = true;
  definition.space_prefix = rules.add_space_prefix;
}

Definition read_sentencepiece(std::span<const std::byte> bytes, const std::string& source) {
  return Reader(bytes, source).read();
}

std::vector<SentencePiece> read_bpe_pieces(std::span<const std::byte> bytes,
                                           const std::string& source) {
  return Reader(bytes, source).bpe_pieces();
}

}  // namespace assay::tokenization
