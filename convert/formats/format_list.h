#pragma once

#include "convert/formats/format.h"

namespace assay {

/// `const WeightFormat& <name>_format()` of every row of formats.def.
#define ASSAY_FORMAT(name) const WeightFormat& name##_format();
#include "convert/formats/formats.def"
#undef ASSAY_FORMAT

}  // namespace assay
