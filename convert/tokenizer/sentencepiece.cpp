#include "convert/tokenizer/sentencepiece.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/tokenizer/charsmap.h"
#include "convert/tokenizer/scored_merges.h"
#include "convert/tokenizer/unicode.h"
#include "convert/tokenizer/vocabulary_kind.h"

namespace assay::tokenization {
namespace {

/// The fields of one protobuf message, in the order of the file.
class Message {
 public:
  struct Field {
    uint32_t number;
    uint32_t wire_type;
    uint64_t value;  // of varints and fixed-size numbers
    std::span<const std::byte> bytes;
    size_t offset;  // of the field in the file
  };

  Message(std::span<const std::byte> bytes, size_t offset, const std::string& source)
      : bytes_(bytes), offset_(offset), source_(source) {}

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
    return field;
  }

  /// The value of a field that must be of `wire_type`.
  const Field& expect(const Field& field, uint32_t wire_type, std::string_view name) const {
    if (field.wire_type != wire_type) {
      fail(field.offset,
           fmt::format("{} has wire type {}, expected {}", name, field.wire_type, wire_type));
    }
    return field;
  }
  Message message(const Field& field, std::string_view name) const {
    expect(field, 2, name);
    return Message(field.bytes, field.offset, source_);
  }
  [[noreturn]] void fail(size_t offset, std::string_view what) const {
    throw FormatError(fmt::format("{}: byte {}: {}; the file is damaged or no SentencePiece model",
                                  source_, offset, what));
  }

 private:
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

  std::span<const std::byte> bytes_;
  size_t offset_;
  size_t at_ = 0;
  const std::string& source_;
};

enum ModelType : uint64_t { kUnigram = 1, kBpe = 2 };

constexpr int64_t kAllSpaces = std::numeric_limits<int64_t>::max();

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& source)
      : root_(bytes, 0, source), source_(source) {}

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
      if (field->number == 2) read_trainer(root_.message(*field, "trainer_spec"));
      if (field->number == 3) read_normalizer(root_.message(*field, "normalizer_spec"));
      if (field->number == 5) read_denormalizer(root_.message(*field, "denormalizer_spec"));
    }
    if (pieces_.empty()) throw FormatError(source_ + ": holds no pieces; no SentencePiece model");
    // Both come after the pieces in every file that a trainer wrote.
    for (const auto& [name, is_there] :
         {std::pair("trainer_spec", has_trainer_), std::pair("normalizer_spec", has_normalizer_)}) {
      if (!is_there) throw FormatError(fmt::format("{}: ends without {}", source_, name));
    }
  }

  void read_piece(const Message::Field& field) {
    Message message = root_.message(field, "pieces");
    SentencePiece piece;
    auto type = static_cast<uint64_t>(piece.type);
    while (const auto part = message.next()) {
      if (part->number == 1) {
        const auto bytes = message.expect(*part, 2, "piece").bytes;
        piece.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      } else if (part->number == 2) {
        const auto bits = static_cast<uint32_t>(message.expect(*part, 5, "score").value);
        std::memcpy(&piece.score, &bits, sizeof(bits));
      } else if (part->number == 3) {
        type = message.expect(*part, 0, "type").value;
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
      const auto number = [&](std::string_view name) {
        return message.expect(*field, 0, name).value;
      };
      if (field->number == 3) model_type_ = number("model_type");
      if (field->number == 24 && number("treat_whitespace_as_suffix") != 0) {
        unsupported_ = "trainer_spec.treat_whitespace_as_suffix";
      }
      if (field->number == 35) rules_.byte_fallback = number("byte_fallback") != 0;
      if (field->number == 41) bos_id_ = static_cast<int64_t>(number("bos_id"));
      if (field->number == 42) eos_id_ = static_cast<int64_t>(number("eos_id"));
    }
  }

  void read_normalizer(Message message) {
    has_normalizer_ = true;
    while (const auto field = message.next()) {
      if (field->number == 2) {
        const auto bytes = message.expect(*field, 2, "precompiled_charsmap").bytes;
        charsmap_.reset();
        if (bytes.empty()) continue;
        const std::string_view map(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (const auto fault = CharacterMap::read(map, charsmap_.emplace())) {
          message.fail(field->offset, "normalizer_spec.precompiled_charsmap " + *fault);
        }
      }
      if (field->number == 3) {
        rules_.add_space_prefix = message.expect(*field, 0, "add_dummy_prefix").value != 0;
      }
      if (field->number == 4) {
        remove_extra_whitespaces_ =
            message.expect(*field, 0, "remove_extra_whitespaces").value != 0;
      }
      if (field->number == 5 && message.expect(*field, 0, "escape_whitespaces").value == 0) {
        unsupported_ = "normalizer_spec.escape_whitespaces = false";
      }
    }
  }

  void read_denormalizer(Message message) {
    while (const auto field = message.next()) {
      if (field->number == 2 && !message.expect(*field, 2, "charsmap").bytes.empty()) {
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

  std::optional<int32_t> special(int64_t id) const {
    if (id < 0) return std::nullopt;  // -1: not in use
    if (id >= definition_.all_tokens.id_end()) {
      throw FormatError(fmt::format("{}: trainer_spec: no piece has the id {}", source_, id));
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
