#include "convert/tokenizer/post_processor.h"

#include <optional>
#include <string>

namespace assay::tokenization {
namespace {

void append_special(const Part& piece, const Part& special_tokens, const Vocabulary& vocabulary,
                    std::vector<int32_t>& ids) {
  const Part ids_part = special_tokens.member(piece.member("id").string()).member("ids");
  for (const Part& element : ids_part.elements()) {
    const int64_t id = element.integer();
    if (id < 0 || id >= vocabulary.id_end() || !vocabulary.contains(static_cast<int32_t>(id))) {
      element.malformed("no token has the id " + std::to_string(id));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
}

PostProcessor make_template(const Part& part, const Vocabulary& vocabulary) {
  PostProcessor result;
  bool after_sequence = false;
  const Part single = part.member("single");
  for (const Part& piece : single.elements()) {
    if (const auto special = piece.optional_member("SpecialToken")) {
      append_special(*special, part.member("special_tokens"), vocabulary,
                     after_sequence ? result.suffix : result.prefix);
    } else if (const auto sequence = piece.optional_member("Sequence")) {
      if (sequence->member("id").string() != "A") {
        sequence->malformed("a template for one sequence can only hold the sequence A");
      }
      if (after_sequence) sequence->unsupported("a sequence that appears twice is not implemented");
      after_sequence = true;
    } else {
      piece.unsupported("this piece of a template is not implemented");
    }
  }
  if (!after_sequence) single.malformed("the template has no place for the sequence");
  result.has_pair_template = part.optional_member("pair").has_value();
  return result;
}

}  // namespace

PostProcessor make_post_processor(const Part& part, const Vocabulary& vocabulary) {
  const std::string& type = part.type();
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") return make_template(part, vocabulary);
  if (type == "Sequence") {
    std::optional<PostProcessor> result;
    for (const Part& step : part.member("processors").elements()) {
      if (step.type() == "ByteLevel") continue;
      if (result) step.unsupported("a second processor that adds tokens is not implemented");
      result = make_post_processor(step, vocabulary);
    }
    return result.value_or(PostProcessor{});
  }
  part.unsupported("the post-processor \"" + type + "\" is not implemented");
}

}  // namespace assay::tokenization
