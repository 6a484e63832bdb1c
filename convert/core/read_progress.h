#pragma once

#include <functional>
#include <string_view>

namespace assay {

/// Told the tensor or file that is read next, or read on, on any thread; what it throws ends the
/// work.
using ReadProgress = std::function<void(std::string_view what)>;

}  // namespace assay
