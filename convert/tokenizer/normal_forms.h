#pragma once

#include <string>
#include <string_view>

namespace assay::tokenization {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Normalizes valid UTF-8 by the tables of Unicode 9.0, which the reference library uses:
/// characters that are newer have combining class 0 and neither decompose nor compose. Returns
/// false and leaves `result` alone if `text` is normalized already; else `result` is the normalized
/// text. Linear in the length of the text, also for runs of combining marks.
bool to_normal_form(NormalForm form, std::string_view text, std::string& result);

}  // namespace assay::tokenization
