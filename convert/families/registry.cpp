#include <algorithm>
#include <string>

#include "convert/core/error.h"
#include "convert/core/words.h"
#include "convert/families/family.h"

namespace assay {

// The list of families, one row each: k<Name>Family is defined in <name>.cpp.
#define ASSAY_FAMILIES(ROW) \
  ROW(kLlamaFamily)         \
  ROW(kQwen2Family)         \
  ROW(kQwen3Family)         \
  ROW(kQwen3MoeFamily)      \
  ROW(kGemma3Family)        \
  ROW(kGemma4Family)        \
  ROW(kQwen35Family)

#define ASSAY_DECLARE_FAMILY(name) extern const Family name;
ASSAY_FAMILIES(ASSAY_DECLARE_FAMILY)
#undef ASSAY_DECLARE_FAMILY

std::span<const Family* const> all_families() {
#define ASSAY_FAMILY_ADDRESS(name) &(name),
  static const Family* const kFamilies[] = {ASSAY_FAMILIES(ASSAY_FAMILY_ADDRESS)};
#undef ASSAY_FAMILY_ADDRESS
  return kFamilies;
}

namespace {

std::string known_architectures() {
  return join_words(all_families(), ", ",
                    [](const Family* family) { return family->gguf_architecture; });
}

std::string known_model_types() {
  return join_words(all_families(), ", ",
                    [](const Family* family) { return join_words(family->model_types); });
}

}  // namespace

const Family& find_family_by_model_type(std::string_view model_type) {
  for (const Family* family : all_families()) {
    if (std::find(family->model_types.begin(), family->model_types.end(), model_type) !=
        family->model_types.end()) {
      return *family;
    }
  }
  throw UnsupportedError("model_type \"" + std::string(model_type) +
                         "\" is not supported; these are: " + known_model_types());
}

const Family& find_family_by_architecture(std::string_view gguf_architecture) {
  for (const Family* family : all_families()) {
    if (family->gguf_architecture == gguf_architecture) return *family;
  }
  throw UnsupportedError("GGUF architecture \"" + std::string(gguf_architecture) +
                         "\" is not supported; these are: " + known_architectures());
}

const Family& find_family(std::string_view name) {
  for (const Family* family : all_families()) {
    if (family->name == name) return *family;
  }
  throw UnsupportedError("there is no model family \"" + std::string(name) + "\"");
}

}  // namespace assay
