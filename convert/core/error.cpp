#include "convert/core/error.h"

#include <cerrno>
#include <system_error>

namespace assay {

void throw_system_error(const std::string& what, int error, const std::string& advice) {
  std::string message = what + ": " + std::generic_category().message(error);
  if (!advice.empty()) message += "; " + advice;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    throw ResourceError(message + "; free space or choose another folder");
  }
  throw FileError(message);
}

void check_failed(const char* expression, const char* file, int line) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + expression +
                         " does not hold; this is a fault of assay, please report it");
}

}  // namespace assay
