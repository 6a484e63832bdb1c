#pragma once

#include <cstdint>
#include <string>

namespace assay {

/// "512 B", "1.50 GiB"
std::string bytes_text(uint64_t bytes);
/// "4,458,240"
std::string grouped_digits(int64_t value);

}  // namespace assay
