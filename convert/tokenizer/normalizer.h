#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "convert/tokenizer/part.h"

namespace assay::tokenization {

/// The "normalizer" of tokenizer.json.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Returns false and leaves `result` alone if `text` stays as it is.
  virtual bool apply(std::string_view text, std::string& result) const = 0;
  /// Whether what apply() makes of `text` begins with something made of its first character: not
  /// if that was dropped.
  virtual bool keeps_start(std::string_view text) const {
    (void)text;
    return true;
  }
};

/// Throws UnsupportedError for a type that is not implemented.
std::unique_ptr<Normalizer> make_normalizer(const Part& part);

}  // namespace assay::tokenization
