#include "convert/tokenizer/vocabulary_kind.h"

#include "convert/core/words.h"

namespace assay::tokenization {
namespace {

// What a chat parser looks for (llama.cpp's conversion/gemma.py).
constexpr std::string_view kShownByGemma4[] = {
    "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", "<|\"|>",
};

constexpr VocabularyKind kKinds[] = {
    {.name = "gpt2",
     .has_pieces = false,
     .has_merges = true,
     .has_scores = false,
     .has_pre = true,
     .space_prefix = false},
    {.name = "llama",
     .has_pieces = true,
     .has_merges = false,
     .has_scores = true,
     .has_pre = true,
     .space_prefix = true},
    {.name = "gemma4",
     .has_pieces = true,
     .has_merges = true,
     .has_scores = true,
     .has_pre = false,
     .space_prefix = false,
     .shown_specials = kShownByGemma4},
};

}  // namespace

const VocabularyKind* find_vocabulary_kind(std::string_view name) {
  for (const VocabularyKind& kind : kKinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

std::string vocabulary_kind_names() { return join_words(names_of(kKinds)); }

}  // namespace assay::tokenization
