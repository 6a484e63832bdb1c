#include "runtime/program.h"

namespace assay {

Uses uses(const Op& op) {
  return std::visit([](const auto& kind) { return kind.uses(); }, op.kind);
}

std::string_view kind_name(const Op& op) {
  return std::visit([](const auto& kind) { return kind.kName; }, op.kind);
}

}  // namespace assay
