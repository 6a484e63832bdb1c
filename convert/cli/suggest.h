#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace assay::cli {

/// The candidate that `word` was probably meant to be: smallest edit distance (insert, delete,
/// replace, swap of neighbours; case and '_' against '-' do not count), at most a third of the
/// word's length, at least 1; or a candidate that begins with the word (3 characters or more).
/// Empty if none is that close. Of equals, the first.
std::string closest_word(std::string_view word, const std::vector<std::string>& candidates);

/// `; did you mean "<prefix><candidate>"?`, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates,
                         std::string_view prefix = "");

}  // namespace assay::cli
