#include "calibrate/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "calibrate/npy.h"
#include "convert/core/error.h"
#include "convert/core/file.h"
#include "convert/tokenizer.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace assay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kVocabulary = 256;

// One id per byte; documents begin with 1.
TextEncoder byte_encoder(bool with_bos = true) {
  TextEncoder encoder;
  if (with_bos) encoder.bos_id = 1;
  encoder.encode = [with_bos](std::string_view text) {
    std::vector<int32_t> ids;
    if (with_bos) ids.push_back(1);
    ids.insert(ids.end(), text.begin(), text.end());
    return ids;
  };
  return encoder;
}

TextEncoder no_encoder() {
  ADD_FAILURE() << "ids alone need no tokenizer";
  return {};
}

TokenWindows load(const std::string& path, const DatasetOptions& options = {}) {
  return load_calibration(path, options, kVocabulary, [] { return byte_encoder(); });
}

TEST(Dataset, RefusesWhatIsNoTextInsteadOfEncodingIt) {
  const test::TemporaryDirectory folder;
  const std::string parquet = folder.write("data.parquet", std::string("PAR1\x15\x04\xff\x00", 8)),
                    json = folder.write("data.json", R"([{"text": "abcdefgh"}])");

  EXPECT_THAT(
      [&] { load(parquet, {.window_length = 2}); },
      testing::ThrowsMessage<FormatError>(HasSubstr("data.parquet: byte 6 is not valid UTF-8")));
  EXPECT_THAT([&] { load(json, {.window_length = 2}); },
              testing::ThrowsMessage<UnsupportedError>(HasSubstr("one object a line")));
}

TEST(Dataset, CutsDocumentsIntoWindowsAndPutsBosAtTheirHeads) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("data.jsonl",
                                        "{\"text\": \"abc\"}\n"
                                        "\n"
                                        "{\"text\": \"defgh\"}\r\n");

  const TokenWindows windows = load(path, {.window_length = 4});

  // 1 a b c | 1 d e f | g h: the second document's BOS stands at a head by chance.
  EXPECT_EQ(windows.n_windows, 2);
  EXPECT_THAT(windows.window(0), ElementsAre(1, 'a', 'b', 'c'));
  EXPECT_THAT(windows.window(1), ElementsAre(1, 'd', 'e', 'f'));
  EXPECT_EQ(windows.n_tokens(), 8);
}

TEST(Dataset, OverwritesTheFirstIdOfEachWindowByBos) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("data.txt", "abcdefgh");

  const TokenWindows windows = load(path, {.window_length = 3});

  EXPECT_THAT(windows.ids, ElementsAre(1, 'a', 'b', 1, 'd', 'e', 1, 'g', 'h'));
  EXPECT_EQ(windows.bos_id, 1);
}

TEST(Dataset, LeavesHeadsAloneWithoutBos) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("data.txt", "abcdef");

  const TokenWindows windows =
      load_calibration(path, {.window_length = 3}, kVocabulary, [] { return byte_encoder(false); });

  EXPECT_THAT(windows.ids, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
}

TEST(Dataset, ReadsNoFurtherThanItNeeds) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("data.jsonl", "{\"text\": \"abcdef\"}\nnot JSON\n");

  const TokenWindows windows = load(path, {.n_windows = 2, .window_length = 3});

  EXPECT_EQ(windows.n_windows, 2);
}

TEST(Dataset, MessagesAreRenderedByTheChatTemplateOfTheModel) {
  const test::TemporaryDirectory folder;
  const test::TinyModel tiny = test::make_tiny_model();
  const std::string model = tiny.write(folder.file("m"));
  write_text_file(model + "/chat_template.jinja",
                  "{{ bos_token }}{% for m in messages %}{{ m.content }}<|pad|>"
                  "{% endfor %}{% if add_generation_prompt %}x{% endif %}{{ tools }}");
  const std::string path =
      folder.write("data.jsonl",
                   "{\"messages\": [{\"role\": \"u\", \"content\": \"<|eos|>\"}], \"tools\": 7}\n");
  const Tokenizer tokenizer = Tokenizer::from_folder(model);
  std::vector<int32_t> expected = {0};
  for (const int32_t id :
       tokenizer.encode("<|eos|>", {.add_special_tokens = false, .parse_special = false})) {
    expected.push_back(id);
  }
  expected.push_back(2);
  for (const int32_t id : tokenizer.encode("7", {.add_special_tokens = false})) {
    expected.push_back(id);
  }

  const TokenWindows windows = load_calibration(
      path, {.window_length = static_cast<int64_t>(expected.size())},
      tiny.config.at("vocab_size").as_integer(), [&] { return make_text_encoder(model); });

  EXPECT_EQ(windows.ids, expected);
}

TEST(Case_B55, MessagesWithoutAChatTemplateAreRefused) {
  const test::TemporaryDirectory folder;
  const std::string path =
      folder.write("data.jsonl", "{\"messages\": [{\"role\": \"u\", \"content\": \"x\"}]}\n");

  try {
    load(path, {.window_length = 2});
    FAIL();
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.jsonl:1: the model has no chat template"));
  }
}

TEST(Dataset, InputIdsOfLinesAreDocuments) {
  const test::TemporaryDirectory folder;
  const std::string path =
      folder.write("data.jsonl", "{\"input_ids\": [1, 5, 6]}\n{\"input_ids\": [7, 8, 9]}\n");

  const TokenWindows windows = load(path, {.window_length = 2});

  EXPECT_THAT(windows.ids, ElementsAre(1, 5, 1, 7, 1, 9));
}

TEST(Dataset, RowsOfTheWantedLengthAreWindowsAsTheyStand) {
  const test::TemporaryDirectory folder;
  const std::vector<int32_t> ids = {9, 8, 7, 6, 5, 4};
  const std::vector<int64_t> shape = {2, 3};
  write_npy_int32(folder.file("ids.npy"), shape, ids);

  const TokenWindows windows =
      load_calibration(folder.file("ids.npy"), {}, kVocabulary, no_encoder);

  EXPECT_EQ(windows.n_windows, 2);
  EXPECT_EQ(windows.window_length, 3);
  EXPECT_EQ(windows.ids, ids);
}

// 300 ids in one row with a limit of 64: the limit holds for ids, too.
TEST(Dataset, Case_B46_TheTokenLimitHoldsForIdsAndIsWhatIsReported) {
  const test::TemporaryDirectory folder;
  const std::vector<int32_t> ids(300, 7);
  const std::vector<int64_t> shape = {1, 300};
  write_npy_int32(folder.file("ids.npy"), shape, ids);

  const TokenWindows windows = load(folder.file("ids.npy"), {.max_tokens = 64});
  const TokenWindows cut = load(folder.file("ids.npy"), {.window_length = 30, .max_tokens = 64});

  EXPECT_EQ(windows.n_tokens(), 64);
  EXPECT_EQ(windows.window_length, 64);
  EXPECT_EQ(cut.n_windows, 2);
  EXPECT_EQ(cut.n_tokens(), 60);
}

TEST(Dataset, AWrittenTokenFileRepeatsTheWindows) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("data.txt", "abcdefghijkl");
  const TokenWindows expected = load(path, {.window_length = 4});

  for (const char* name : {"tokens.safetensors", "tokens.npy"}) {
    write_token_file(folder.file(name), expected);
    const TokenWindows actual = load_calibration(folder.file(name), {}, kVocabulary, no_encoder);

    EXPECT_EQ(actual.ids, expected.ids);
    EXPECT_EQ(actual.sha256(), expected.sha256());
  }
  EXPECT_THROW(write_token_file(folder.file("tokens.txt"), expected), UsageError);
}

TEST(Dataset, HashIsThatOfLittleEndian64BitIds) {
  TokenWindows windows;
  windows.n_windows = 1;
  windows.window_length = 2;
  windows.ids = {1, 256};

  // sha256 of 01 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00
  EXPECT_EQ(windows.sha256(), "89063da2926620b0bcd927a7ef76480cb4772b71306d614f79e016c826e8a0e8");
}

TEST(Dataset, MessagesNameFileAndLine) {
  const test::TemporaryDirectory folder;
  const auto message = [&](const std::string& line) -> std::string {
    const std::string path = folder.write("bad.jsonl", "{\"text\": \"ok\"}\n" + line + "\n");
    try {
      load(path, {.window_length = 100});
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  };

  EXPECT_THAT(message("{\"txt\": 1}"), HasSubstr("bad.jsonl:2: expected an object with"));
  EXPECT_THAT(message("{\"text\": 1}"), HasSubstr("bad.jsonl:2"));
  EXPECT_THAT(message("{\"text\""), HasSubstr("bad.jsonl:2"));
  EXPECT_THAT(message("{\"input_ids\": [3, 256]}"), HasSubstr("token id 256, expected 0 to 255"));
  EXPECT_THAT(message("{\"input_ids\": [-1]}"), HasSubstr("token id -1"));
}

TEST(Dataset, TooLittleDataSaysHowMuchThereIs) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write("data.txt", "abc");
  try {
    load(path, {.window_length = 8});
    FAIL() << "expected FormatError";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("found 4 tokens, expected at least one window of 8"));
  }
}

std::string npy(const std::string& header, const std::string& data) {
  std::string padded = header;
  padded.resize(128 - 10 - 1, ' ');
  padded += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(padded.size()) + '\0' + padded +
         data;
}

TEST(Npy, ReadsEveryIntegerType) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.write(
      "a.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3,)}", {5, 0, 0, 1, 1, 0}));

  const NpyIntegers array = read_npy_integers(path);

  EXPECT_THAT(array.shape, ElementsAre(3));
  EXPECT_THAT(array.values, ElementsAre(5, 256, 1));
}

TEST(Npy, RefusesWhatItDoesNotUnderstandAndEveryPrefix) {
  const test::TemporaryDirectory folder;
  const std::string good =
      npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", std::string(8, '\1'));
  for (const std::string& bad :
       {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", std::string(8, '\1')),
        npy("{'descr': '>i4', 'fortran_order': False, 'shape': (2,)}", std::string(8, '\1')),
        npy("{'descr': '<i4', 'fortran_order': True, 'shape': (2,)}", std::string(8, '\1')),
        npy("{'descr': '<i4', 'fortran_order': False, 'shape': (-2,)}", std::string(8, '\1')),
        npy("{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", ""),
        npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2", std::string(8, '\1')),
        good + "x"}) {
    EXPECT_THROW(read_npy_integers(folder.write("bad.npy", bad)), FormatError);
  }
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_THROW(read_npy_integers(folder.write("cut.npy", good.substr(0, n))), FormatError) << n;
  }
}

}  // namespace
}  // namespace assay
