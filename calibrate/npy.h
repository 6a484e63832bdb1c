#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace assay {

/// Integers of a NumPy array file, row-major.
struct NpyIntegers {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
};

/// Reads a .npy file (format 1.0 to 3.0) of 8- to 64-bit integers in C order, little-endian. Throws
/// FormatError naming the file and what is wrong.
/// Source: NumPy, "numpy.lib.format", section "Format Version 1.0".
NpyIntegers read_npy_integers(const std::string& path);

/// Writes int32 values as format 1.0.
void write_npy_int32(const std::string& path, std::span<const int64_t> shape,
                     std::span<const int32_t> values);

}  // namespace assay
