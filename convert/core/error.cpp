#include "convert/core/error.h"

namespace assay {

void check_failed(const char* expression, const char* file, int line) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + expression +
                         " does not hold; this is a fault of assay, please report it");
}

}  // namespace assay
