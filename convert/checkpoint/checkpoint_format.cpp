#include "convert/checkpoint/checkpoint_format.h"

namespace assay {

// The list of formats of quantized folders, one row each: k<Name>Format is defined in <name>.cpp.
#define ASSAY_CHECKPOINT_FORMATS(ROW) \
  ROW(kCompressedTensorsFormat)       \
  ROW(kGptqFormat)                    \
  ROW(kAwqFormat)

#define ASSAY_DECLARE_FORMAT(name) extern const CheckpointFormat name;
ASSAY_CHECKPOINT_FORMATS(ASSAY_DECLARE_FORMAT)
#undef ASSAY_DECLARE_FORMAT

std::span<const CheckpointFormat* const> quantized_folder_formats() {
#define ASSAY_FORMAT_ADDRESS(name) &(name),
  static const CheckpointFormat* const kFormats[] = {
      ASSAY_CHECKPOINT_FORMATS(ASSAY_FORMAT_ADDRESS)};
#undef ASSAY_FORMAT_ADDRESS
  return kFormats;
}

namespace {

constexpr Engine kPlainEngines[] = {{"transformers"}, {"vLLM"}, {"SGLang"}};
constexpr Engine kGgufEngines[] = {{"llama.cpp"}};

}  // namespace

const CheckpointFormat kPlainFormat = {
    .kind = CheckpointKind::kHuggingFace, .name = "Hugging Face", .engines = kPlainEngines};
const CheckpointFormat kGgufFormat = {
    .kind = CheckpointKind::kGguf, .name = "GGUF", .engines = kGgufEngines};

}  // namespace assay
