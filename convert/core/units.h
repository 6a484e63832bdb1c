#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace assay {

/// "512 B", "1.50 GiB"
std::string bytes_text(uint64_t bytes);
/// "4,458,240"
std::string grouped_digits(int64_t value);

/// `heading`, then one indented line each; beyond `most`, how many more there are.
std::string listed(std::string heading, const std::vector<std::string>& lines, size_t most = 10);

}  // namespace assay
