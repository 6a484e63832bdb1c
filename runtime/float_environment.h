#pragma once

namespace assay {

/// Throws UnsupportedError unless this thread rounds to nearest even and keeps subnormal numbers,
/// both as inputs and as results: the ground rules of arithmetic.md §1. Another library in the
/// process may have changed the mode; threads started afterwards inherit it.
void check_float_environment();

}  // namespace assay
