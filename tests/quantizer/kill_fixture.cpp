#include "tests/quantizer/kill_fixture.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "convert/core/file.h"

namespace assay::test {

Kill::Kill() : fixture_({.n_layers = 3}) {
  EXPECT_EQ(run("", false), 0);
  expected_ = QuantizeRun::contents(fixture_.path("out"));
  clear();
}

int Kill::run(const std::string& fault, bool resume) const {
  std::vector<std::string> arguments = {ASSAY_PROGRAM,
                                        "quantize",
                                        fixture_.model(),
                                        "--calibration",
                                        fixture_.tokens(),
                                        "--group-size",
                                        "32",
                                        "--threads",
                                        "1",
                                        "--out",
                                        fixture_.path("out"),
                                        "--shard-size",
                                        "60000",
                                        "--quiet"};
  if (resume) arguments.emplace_back("--resume");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string variable = "ASSAY_FAULT=" + fault;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!fault.empty()) ::putenv(const_cast<char*>(variable.c_str()));
    const int nothing = ::open("/dev/null", O_RDWR);
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(nothing, STDERR_FILENO);
    ::execv(argv.front(), argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Kill::clear() const {
  for (const char* name : {"out", "out.partial", "out.state", "out.report.json", "out.replaced"}) {
    std::filesystem::remove_all(fixture_.path(name));
  }
}

bool Kill::has_result() const { return file_exists(fixture_.path("out")); }

void Kill::expect_result() const {
  EXPECT_EQ(QuantizeRun::contents(fixture_.path("out")), expected_);
  EXPECT_FALSE(file_exists(fixture_.path("out.partial")));
  EXPECT_FALSE(file_exists(fixture_.path("out.state")));
  EXPECT_TRUE(file_exists(fixture_.path("out.report.json")));
}

}  // namespace assay::test
