#pragma once

#include <string>

#include "convert/checkpoint.h"

namespace assay {

/// A warning if every norm that this family stores as w and applies as 1 + w has a mean near 1:
/// then the folder may hold 1 + w already, and a file made from it would hold 2 + w. Empty
/// otherwise. Reads these norms.
std::string folded_norms_warning(const Checkpoint& checkpoint);

}  // namespace assay
