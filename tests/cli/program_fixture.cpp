#include "tests/cli/program_fixture.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "convert/core/file.h"

namespace assay::test {

ShellResult Program::shell(const std::string& command) const {
  const std::string script = "program='" ASSAY_PROGRAM "'; assay() { \"$program\" \"$@\"; }; cd '" +
                             directory_.path() + "'; " + command;
  const std::string out = directory_.file("out"), error = directory_.file("error");
  const pid_t child = ::fork();
  if (child == 0) {
    const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int error_fd = ::open(error.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int in_fd = ::open("/dev/null", O_RDONLY);
    ::dup2(in_fd, STDIN_FILENO);
    ::dup2(out_fd, STDOUT_FILENO);
    ::dup2(error_fd, STDERR_FILENO);
    ::execl("/bin/bash", "bash", "-c", script.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ShellResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_text_file(out);
  result.error = read_text_file(error);
  return result;
}

std::vector<std::string> Program::completions(const std::string& words) const {
  std::istringstream lines(shell("assay __complete " + words).out);
  std::vector<std::string> result;
  for (std::string line; std::getline(lines, line);) {
    result.push_back(line.substr(0, line.find('\t')));
  }
  return result;
}

}  // namespace assay::test
