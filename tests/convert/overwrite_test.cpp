#include "convert/core/overwrite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/core/error.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class Overwrite : public testing::Test {
 protected:
  Overwrite() {
    std::filesystem::create_directories(model_);
    folder_.write("model/config.json", "{}");
    folder_.write("model/old.gguf", "x");
    folder_.write("text", "x");
  }

  void expect_refused(const std::string& output, const std::string& part) const {
    const std::vector<OutputPath> outputs = {{"--out", output, ".gguf"}};
    EXPECT_THAT([&] { refuse_to_overwrite(outputs, inputs_); },
                ThrowsMessage<UsageError>(HasSubstr("--out " + output + ": " + part)));
  }
  void expect_allowed(const std::string& output) const {
    const std::vector<OutputPath> outputs = {{"--out", output, ".gguf"}};
    EXPECT_NO_THROW(refuse_to_overwrite(outputs, inputs_)) << output;
  }

  test::TemporaryDirectory folder_;
  std::string model_ = folder_.file("model");
  std::vector<std::string> inputs_ = {model_, folder_.file("text"), "decode", "-"};
};

TEST_F(Overwrite, RefusesTheInputsThemselvesHoweverTheyAreSpelt) {
  std::filesystem::create_symlink(model_, folder_.file("link"));
  for (const std::string& spelling :
       {model_, model_ + "/", model_ + "/../model", folder_.file("link"), folder_.file("text")}) {
    expect_refused(spelling, "is an input of this command");
  }
}

TEST_F(Overwrite, RefusesAFolderAroundAnInput) {
  expect_refused(folder_.path(), "holds the input");
  expect_refused("/", "holds the input");
}

TEST_F(Overwrite, InsideAnInputFolderRefusesAllButItsOwnKind) {
  for (const char* name : {"/config.json", "/new.json", "/out", "/a/b.json", "/../model/out"}) {
    expect_refused(model_ + name, "lies in the input folder");
  }
  expect_allowed(model_ + "/old.gguf");
  expect_allowed(model_ + "/new.gguf");
  expect_allowed(folder_.file("model-W4A16"));
  expect_allowed(folder_.file("absent/x"));
}

TEST_F(Overwrite, RefusesTwoOutputsOfOneName) {
  const auto two = [&](const std::string& a, const std::string& b) {
    const std::vector<OutputPath> outputs = {{"--a", a, {}}, {"--b", b, {}}};
    refuse_to_overwrite(outputs, {});
  };

  EXPECT_THAT([&] { two(folder_.file("x"), folder_.path() + "/./x"); },
              ThrowsMessage<UsageError>(HasSubstr("--a and --b are both")));
  EXPECT_NO_THROW(two(folder_.file("x"), folder_.file("y")));
  EXPECT_NO_THROW(two("/dev/null", "/dev/null"));
}

TEST_F(Overwrite, FilesAreReplacedByForceAlone) {
  std::filesystem::create_symlink("nowhere", folder_.file("dangling"));
  for (const char* name : {"text", "dangling"}) {
    EXPECT_THAT([&] { require_free_file_name(folder_.file(name), false); },
                ThrowsMessage<UsageError>(HasSubstr(std::string(name) + ": exists already")));
    EXPECT_NO_THROW(require_free_file_name(folder_.file(name), true));
  }
  EXPECT_NO_THROW(require_free_file_name(folder_.file("absent"), false));
  EXPECT_NO_THROW(require_free_file_name("/dev/null", false));
  EXPECT_THAT([&] { require_free_file_name(model_, true); },
              ThrowsMessage<UsageError>(HasSubstr("model: is a folder")));
}

TEST_F(Overwrite, FoldersAreReplacedByForceAndOnlyWhereTheyAreOfTheKind) {
  std::filesystem::create_directories(folder_.file("home/documents"));
  std::filesystem::create_directories(folder_.file("empty"));
  const auto require = [&](const std::string& path, bool force) {
    require_free_folder_name(path, force, "model folder", {"config.json"});
  };

  EXPECT_NO_THROW(require(folder_.file("absent"), false));
  for (const std::string& there : {model_, folder_.file("empty"), folder_.file("text")}) {
    EXPECT_THAT([&] { require(there, false); },
                ThrowsMessage<UsageError>(HasSubstr(there + ": exists already")));
  }
  EXPECT_NO_THROW(require(model_, true));
  EXPECT_NO_THROW(require(folder_.file("empty"), true));
  for (const char* name : {"home", "text"}) {
    EXPECT_THAT([&] { require(folder_.file(name), true); },
                ThrowsMessage<UsageError>(HasSubstr("is no model folder, and would be lost")));
  }
}

}  // namespace
}  // namespace assay
