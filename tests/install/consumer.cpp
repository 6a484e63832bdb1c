#include <cstdio>
#include <string>

#include "convert/core/json.h"
#include "convert/core/version.h"
#include "convert/formats/format.h"

/// Uses headers and libraries of the installed package: prints "assay 0.1.0 knows 12 formats".
int main() {
  const assay::Json document = assay::parse_json(R"({"name": "assay"})", "consumer");
  const std::string name = document.at("name").as_string();
  std::printf("%s %s knows %zu formats\n", name.c_str(), std::string(assay::version()).c_str(),
              assay::all_formats().size());
  return assay::find_format("Q4_K") == nullptr ? 1 : 0;
}
