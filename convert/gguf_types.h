#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace assay {

/// What a GGUF file may say a tensor is: every type id of ggml, with the size of its blocks, so
/// that a file can be checked to its end before a type is refused as unsupported. Which of them
/// Assay can use is the list of weight formats. Source: ggml's docs/gguf.md.
struct GgufTypeRow {
  uint32_t id;
  std::string_view name;
  int64_t block_columns;  // elements per block
  int64_t block_bytes;
};

inline constexpr std::array kGgufTypes = {
    GgufTypeRow{0, "F32", 1, 4},         GgufTypeRow{1, "F16", 1, 2},
    GgufTypeRow{2, "Q4_0", 32, 18},      GgufTypeRow{3, "Q4_1", 32, 20},
    GgufTypeRow{6, "Q5_0", 32, 22},      GgufTypeRow{7, "Q5_1", 32, 24},
    GgufTypeRow{8, "Q8_0", 32, 34},      GgufTypeRow{9, "Q8_1", 32, 36},
    GgufTypeRow{10, "Q2_K", 256, 84},    GgufTypeRow{11, "Q3_K", 256, 110},
    GgufTypeRow{12, "Q4_K", 256, 144},   GgufTypeRow{13, "Q5_K", 256, 176},
    GgufTypeRow{14, "Q6_K", 256, 210},   GgufTypeRow{15, "Q8_K", 256, 292},
    GgufTypeRow{16, "IQ2_XXS", 256, 66}, GgufTypeRow{17, "IQ2_XS", 256, 74},
    GgufTypeRow{18, "IQ3_XXS", 256, 98}, GgufTypeRow{19, "IQ1_S", 256, 50},
    GgufTypeRow{20, "IQ4_NL", 32, 18},   GgufTypeRow{21, "IQ3_S", 256, 110},
    GgufTypeRow{22, "IQ2_S", 256, 82},   GgufTypeRow{23, "IQ4_XS", 256, 136},
    GgufTypeRow{24, "I8", 1, 1},         GgufTypeRow{25, "I16", 1, 2},
    GgufTypeRow{26, "I32", 1, 4},        GgufTypeRow{27, "I64", 1, 8},
    GgufTypeRow{28, "F64", 1, 8},        GgufTypeRow{29, "IQ1_M", 256, 56},
    GgufTypeRow{30, "BF16", 1, 2},       GgufTypeRow{34, "TQ1_0", 256, 54},
    GgufTypeRow{35, "TQ2_0", 256, 66},   GgufTypeRow{39, "MXFP4", 32, 17},
    GgufTypeRow{40, "NVFP4", 64, 36},    GgufTypeRow{41, "Q1_0", 128, 18},
    GgufTypeRow{42, "Q2_0", 64, 18},
};

/// nullptr for an id that never existed or was removed.
constexpr const GgufTypeRow* find_gguf_type(uint32_t id) {
  for (const GgufTypeRow& row : kGgufTypes) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

}  // namespace assay
