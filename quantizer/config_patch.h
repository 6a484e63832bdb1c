#pragma once

#include <string>
#include <string_view>

#include "convert/core/json.h"

namespace assay {

/// `text` (a JSON object, already parsed once without error) with the member `key` inserted or
/// replaced at the top level; every other byte stays. A new member goes before the first key that
/// sorts after it, or to the end, in the indentation of the others. `source` begins messages.
std::string set_json_member(std::string_view text, std::string_view key, const Json& value,
                            std::string_view source);

}  // namespace assay
