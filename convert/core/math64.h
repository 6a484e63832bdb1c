#pragma once

namespace assay {

// The fp64 functions of arithmetic.md §7: host only, for tables made once. Only IEEE
// operations and explicit fma, so that every machine makes the same tables. Error below 2^-45.

/// sin x and cos x for |x| < 2^30.
double sin64(double x);
double cos64(double x);
/// e^x for |x| < 700.
double exp64(double x);
/// Natural logarithm of a normal, positive x.
double log64(double x);

}  // namespace assay
