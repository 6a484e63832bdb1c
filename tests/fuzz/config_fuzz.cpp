#include <set>
#include <string_view>

#include "convert/checkpoint/quantized_layout.h"
#include "convert/core/error.h"
#include "convert/core/json.h"
#include "convert/families/family.h"
#include "tests/fuzz/fuzz_support.h"

/// Any text is a configuration or refused with a typed error. What a spec says is in the ranges
/// that later divisions and products rely on, and its tensors have names of their own.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  try {
    const Json config = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const Json* quantization = config.find("quantization_config");
    if (quantization != nullptr && !quantization->is_null()) {
      fuzz::require(read_quantization("fuzz", config).layout != nullptr);
    }
    const Family& family = find_family_by_model_type(config.at("model_type").as_string());
    const ModelSpec spec = family.read_config(config, Json());
    for (const LayerSpec& layer : spec.layers) {
      const AttentionSpec& attention = layer.attention;
      fuzz::require(attention.n_kv_heads > 0 && attention.n_heads % attention.n_kv_heads == 0);
      fuzz::require(attention.head_dim >= 2 && attention.head_dim % 2 == 0);
      fuzz::require(layer.mlp.intermediate_size > 0);
    }
    if (spec.layers.size() > 64) return 0;  // the table of a deep model takes long
    std::set<std::string> names;
    for (const TensorEntry& entry : family.tensors(spec)) {
      fuzz::require(n_elements(entry.shape) > 0);
      fuzz::require(names.insert(entry.hf_name).second);
    }
    for (const GgufExtraTensor& extra : family.gguf_extra_tensors(spec)) {
      fuzz::touch(std::as_bytes(std::span(extra.values)));
    }
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
