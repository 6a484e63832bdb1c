#include "convert/families/role.h"

#include <cstddef>

namespace assay {
namespace {

struct Row {
  std::string_view name;
  std::string_view part;
};

constexpr Row kRows[] = {
#define ASSAY_ROLE_ROW(constant, name, part) {name, part},
    ASSAY_ROLES(ASSAY_ROLE_ROW)
#undef ASSAY_ROLE_ROW
};

}  // namespace

std::string_view role_name(Role role) { return kRows[static_cast<size_t>(role)].name; }

std::string_view role_part(Role role) { return kRows[static_cast<size_t>(role)].part; }

}  // namespace assay
