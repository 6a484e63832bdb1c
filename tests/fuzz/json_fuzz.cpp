#include <string_view>

#include "convert/core/error.h"
#include "convert/core/json.h"
#include "tests/fuzz/fuzz_support.h"

/// Whatever parses can be written and reads back as the same value; all else is a FormatError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  assay::Json value;
  try {
    value = assay::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const assay::FormatError&) {
    return 0;
  }
  for (const int indent : {0, 2}) {
    const std::string text = value.dump(indent);
    assay::fuzz::require(assay::parse_json(text, "again") == value);
  }
  return 0;
}
