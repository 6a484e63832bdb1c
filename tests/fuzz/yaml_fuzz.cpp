#include <string_view>

#include "convert/cli/config_file.h"
#include "convert/core/error.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

using assay::cli::Option;
using assay::cli::ValueKind;

std::vector<Option> options() {
  return {Option{.name = "bits", .kind = ValueKind::kInteger, .minimum = 2, .maximum = 8},
          Option{.name = "damp", .kind = ValueKind::kNumber, .minimum = 0},
          Option{.name = "act-order", .choices = {"none", "static"}},
          Option{.name = "name"},
          Option{.name = "exclude", .repeatable = true},
          Option{.name = "memory", .kind = ValueKind::kBytes},
          Option{.name = "out", .kind = ValueKind::kPath},
          Option{.name = "resume", .kind = ValueKind::kFlag}};
}

}  // namespace

/// Any text is a config or refused with a typed error; values that were taken are of their kind.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace assay;
  static const cli::Command quantize = {.name = "quantize", .options = options()};
  static const cli::Command generate = {.name = "generate", .options = {Option{.name = "prompt"}}};
  static const cli::Command* const commands[] = {&quantize, &generate};
  static const cli::OptionTable table(quantize);
  cli::Arguments arguments;
  try {
    cli::add_config_text({reinterpret_cast<const char*>(data), size}, "fuzz", quantize, table,
                         commands, arguments);
  } catch (const UsageError&) {
    return 0;
  }
  if (arguments.given("bits")) {
    fuzz::require(arguments.integer("bits") >= 2 && arguments.integer("bits") <= 8);
  }
  if (arguments.given("damp")) fuzz::require(arguments.number("damp") >= 0);
  if (arguments.given("memory")) arguments.bytes("memory");
  if (arguments.given("resume")) arguments.flag("resume");
  fuzz::require(!arguments.given("config"));
  arguments.to_json().dump();
  return 0;
}
