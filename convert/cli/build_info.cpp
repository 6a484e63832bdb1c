#include "convert/cli/build_info.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <sched.h>
#include <utf8proc.h>
#include <yaml-cpp/yaml.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <boost/version.hpp>
#include <fstream>

namespace assay::cli {
namespace {

std::string g_git_id = "unknown";

std::string pcre2_version() {
  std::array<char, 64> text{};
  pcre2_config(PCRE2_CONFIG_VERSION, text.data());
  const std::string result(text.data());  // "10.42 2022-12-11"
  return result.substr(0, result.find(' '));
}

}  // namespace

std::vector<LibraryInfo> linked_libraries() {
  return {
      {"Boost.JSON, Boost.ProgramOptions",
       fmt::format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                   BOOST_VERSION % 100),
       "BSL-1.0", "JSON, command line"},
      {"fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
       "MIT", "text"},
      {"OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING), "Apache-2.0", "SHA-256"},
      {"PCRE2", pcre2_version(), "BSD-3-Clause", "split patterns of tokenizers"},
      {"utf8proc", utf8proc_version(), "MIT AND Unicode-DFS-2016", "Unicode normalisation"},
      {"yaml-cpp", ASSAY_YAML_CPP_VERSION, "MIT", "config files"},
  };
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) return "x86-64-v4";
  if (v3) return "x86-64-v3";
  return v2 ? "x86-64-v2" : "x86-64-v1";
#else
  return "not x86-64";
#endif
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int n_usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

std::string_view git_id() { return g_git_id; }
void set_git_id(std::string_view id) { g_git_id = id; }

}  // namespace assay::cli
