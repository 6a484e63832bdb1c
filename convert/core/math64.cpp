#include "convert/core/math64.h"

#include <array>
#include <cmath>
#include <cstdint>

namespace assay {
namespace {

constexpr double factorial(int n) {
  double product = 1.0;
  for (int i = 2; i <= n; ++i) product *= i;  // exact up to 18!
  return product;
}

/// Quotients ±1/n!: entry i is the coefficient of r^(first + 2 i), signs alternating from +.
template <int kFirst, int kTerms>
constexpr std::array<double, kTerms> taylor_coefficients() {
  std::array<double, kTerms> c = {};
  for (int i = 0; i < kTerms; ++i) c[i] = (i % 2 == 0 ? 1.0 : -1.0) / factorial(kFirst + 2 * i);
  return c;
}

constexpr auto kSin = taylor_coefficients<1, 9>();   // r … r^17
constexpr auto kCos = taylor_coefficients<0, 10>();  // 1 … r^18

template <size_t kTerms>
double horner(const std::array<double, kTerms>& c, double z) {
  double p = c[kTerms - 1];
  for (size_t i = kTerms - 1; i-- > 0;) p = std::fma(p, z, c[i]);
  return p;
}

struct Reduced {
  double r = 0.0;    // x − k·π/2
  int quadrant = 0;  // k mod 4
};

Reduced reduce(double x) {
  const double k = std::rint(x * 0x1.45f306dc9c883p-1);
  double r = std::fma(-k, 0x1.921fb54442d18p+0, x);
  r = std::fma(-k, 0x1.1a62633145c07p-54, r);
  return {r, static_cast<int>(static_cast<int64_t>(k) & 3)};
}

double sin_of_reduced(double r) { return r * horner(kSin, r * r); }
double cos_of_reduced(double r) { return horner(kCos, r * r); }

}  // namespace

double sin64(double x) {
  const auto [r, quadrant] = reduce(x);
  switch (quadrant) {
    case 0:
      return sin_of_reduced(r);
    case 1:
      return cos_of_reduced(r);
    case 2:
      return -sin_of_reduced(r);
    default:
      return -cos_of_reduced(r);
  }
}

double cos64(double x) {
  const auto [r, quadrant] = reduce(x);
  switch (quadrant) {
    case 0:
      return cos_of_reduced(r);
    case 1:
      return -sin_of_reduced(r);
    case 2:
      return -cos_of_reduced(r);
    default:
      return sin_of_reduced(r);
  }
}

double exp64(double x) {
  const double n = std::rint(x * 0x1.71547652b82fep+0);
  double r = std::fma(n, -0x1.62e42fefa39efp-1, x);
  r = std::fma(n, -0x1.abc9e3b39803fp-56, r);
  double p = 1.0;
  for (int i = 18; i >= 1; --i) p = std::fma(p * r, 1.0 / i, 1.0);
  return std::ldexp(p, static_cast<int>(n));
}

double log64(double x) {
  constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // m in [1/2, 1)
  if (m < kSqrtHalf) {
    m *= 2.0;
    --exponent;
  }
  const double k = exponent;
  const double t = (m - 1.0) / (m + 1.0);
  const double z = t * t;
  double p = 0.0;
  for (int i = 41; i >= 1; i -= 2) p = std::fma(p, z, 1.0 / i);
  double y = (2.0 * t) * p;
  y = std::fma(k, 0x1.abc9e3b39803fp-56, y);
  return std::fma(k, 0x1.62e42fefa39efp-1, y);
}

}  // namespace assay
