#include "tests/support/bits_equal.h"

#include <cstring>
#include <iomanip>
#include <sstream>

namespace assay::test {
namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string value_text(DType dtype, const std::byte* element) {
  std::ostringstream out;
  out << std::setprecision(17);
  switch (dtype) {
    case DType::kF16:
      out << f16_to_f32(load<uint16_t>(element));
      break;
    case DType::kBF16:
      out << bf16_to_f32(load<uint16_t>(element));
      break;
    case DType::kF32:
      out << std::setprecision(9) << load<float>(element);
      break;
    case DType::kF64:
      out << load<double>(element);
      break;
    case DType::kI8:
      out << int{load<int8_t>(element)};
      break;
    case DType::kI16:
      out << load<int16_t>(element);
      break;
    case DType::kI32:
      out << load<int32_t>(element);
      break;
    case DType::kI64:
      out << load<int64_t>(element);
      break;
    default:
      for (size_t i = dtype_bytes(dtype); i-- > 0;) {
        out << std::hex << std::setw(2) << std::setfill('0') << std::to_integer<int>(element[i]);
      }
  }
  return out.str();
}

std::string bits_text(const std::byte* element, size_t n_bytes) {
  std::ostringstream out;
  out << "0x" << std::hex << std::setfill('0');
  for (size_t i = n_bytes; i-- > 0;) out << std::setw(2) << std::to_integer<int>(element[i]);
  return out.str();
}

// "17" or, for matrices, "17 = [2, 5]".
std::string index_text(size_t index, const Shape& shape) {
  std::string out = std::to_string(index);
  if (shape.size() < 2) return out;
  Shape position(shape.size());
  auto rest = static_cast<int64_t>(index);
  for (size_t i = shape.size(); i-- > 0;) {
    position[i] = rest % shape[i];
    rest /= shape[i];
  }
  return out + " = " + to_string(position);
}

testing::AssertionResult compare(const TensorView& actual, const TensorView& expected) {
  const size_t width = dtype_bytes(expected.dtype);
  const size_t n = expected.bytes.size() / width;
  if (actual.bytes.size() != expected.bytes.size()) {
    return testing::AssertionFailure()
           << actual.bytes.size() << " bytes, expected " << expected.bytes.size();
  }
  size_t n_different = 0;
  size_t first = 0;
  for (size_t i = 0; i < n; ++i) {
    if (std::memcmp(&actual.bytes[i * width], &expected.bytes[i * width], width) == 0) continue;
    if (n_different++ == 0) first = i;
  }
  if (n_different == 0) return testing::AssertionSuccess();
  const std::byte* a = &actual.bytes[first * width];
  const std::byte* e = &expected.bytes[first * width];
  return testing::AssertionFailure()
         << n_different << " of " << n << " " << dtype_name(expected.dtype)
         << " elements differ, the first at index " << index_text(first, expected.shape)
         << ": actual " << value_text(expected.dtype, a) << " (" << bits_text(a, width)
         << "), expected " << value_text(expected.dtype, e) << " (" << bits_text(e, width) << ")";
}

template <class T>
testing::AssertionResult compare(DType dtype, std::span<const T> actual,
                                 std::span<const T> expected) {
  const auto view = [&](std::span<const T> values) {
    return TensorView{dtype, {static_cast<int64_t>(values.size())}, std::as_bytes(values)};
  };
  return bits_equal(view(actual), view(expected));
}

}  // namespace

testing::AssertionResult bits_equal(const TensorView& actual, const TensorView& expected) {
  if (actual.dtype != expected.dtype) {
    return testing::AssertionFailure()
           << "dtype " << dtype_name(actual.dtype) << ", expected " << dtype_name(expected.dtype);
  }
  if (actual.shape != expected.shape) {
    return testing::AssertionFailure()
           << "shape " << to_string(actual.shape) << ", expected " << to_string(expected.shape);
  }
  return compare(actual, expected);
}

testing::AssertionResult bits_equal(const Tensor& actual, const Tensor& expected) {
  return bits_equal(actual.view(), expected.view());
}
testing::AssertionResult bits_equal(std::span<const float> a, std::span<const float> e) {
  return compare(DType::kF32, a, e);
}
testing::AssertionResult bits_equal(std::span<const double> a, std::span<const double> e) {
  return compare(DType::kF64, a, e);
}
testing::AssertionResult bits_equal(std::span<const uint8_t> a, std::span<const uint8_t> e) {
  return compare(DType::kU8, a, e);
}
testing::AssertionResult bits_equal(std::span<const int8_t> a, std::span<const int8_t> e) {
  return compare(DType::kI8, a, e);
}
testing::AssertionResult bits_equal(std::span<const int16_t> a, std::span<const int16_t> e) {
  return compare(DType::kI16, a, e);
}
testing::AssertionResult bits_equal(std::span<const int32_t> a, std::span<const int32_t> e) {
  return compare(DType::kI32, a, e);
}
testing::AssertionResult bits_equal(std::span<const int64_t> a, std::span<const int64_t> e) {
  return compare(DType::kI64, a, e);
}
testing::AssertionResult bits_equal(std::span<const std::byte> a, std::span<const std::byte> e) {
  return compare(DType::kU8, a, e);
}

}  // namespace assay::test
