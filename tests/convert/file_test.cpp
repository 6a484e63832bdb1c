#include "convert/core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "convert/core/error.h"
#include "convert/core/file_system.h"
#include "convert/core/isa.h"
#include "convert/core/mapping_guard.h"
#include "convert/core/new_folder.h"
#include "convert/core/sha256.h"
#include "convert/core/sha256_streams.h"
#include "tests/support/temporary_directory.h"

namespace assay {
namespace {

using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

// Puts failing calls into the table until the end of the scope.
class CallGuard {
 public:
  CallGuard() : saved_(file_system_calls()) {}
  ~CallGuard() { file_system_calls() = saved_; }

 private:
  FileSystemCalls saved_;
};

TEST(MappedFile, ShowsTheBytesAndMoves) {
  const TemporaryDirectory folder;
  const std::string path = folder.write("a", "hello");

  MappedFile file = MappedFile::open(path);
  const MappedFile moved = std::move(file);

  EXPECT_EQ(text_of(moved.bytes()), "hello");
  EXPECT_EQ(moved.path(), path);
}

TEST(MappedFile, MapsAnEmptyFile) {
  const TemporaryDirectory folder;

  EXPECT_EQ(MappedFile::open(folder.write("a", "")).size(), 0u);
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);

  EXPECT_THAT([&] { MappedFile::open(folder.file("none")); },
              ThrowsMessage<FileError>(AllOf(HasSubstr("none"), HasSubstr("No such file"))));
  EXPECT_THAT([&] { MappedFile::open(folder.path()); },
              ThrowsMessage<FileError>(HasSubstr("is a folder")));
  EXPECT_THAT([&] { MappedFile::open(folder.file("pipe")); },
              ThrowsMessage<FileError>(HasSubstr("not a regular file")));
}

TEST(ByteReader, ReadsLittleEndianFieldsAndStopsAtTheEnd) {
  const std::string text("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x00\x00\x80\x3f", 15);
  ByteReader reader("f.bin", std::as_bytes(std::span(text)));

  EXPECT_EQ(reader.read_u8("a"), 1u);
  EXPECT_EQ(reader.read_u16("b"), 0x0302u);
  EXPECT_EQ(reader.read_u64("c"), 0x0b0a090807060504u);
  EXPECT_EQ(reader.read_f32("d"), 1.0f);
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_THAT(
      [&] { reader.read_u32("the count"); },
      ThrowsMessage<FormatError>("f.bin: the count at byte 15 needs 4 bytes, the file ends at 15"));
  EXPECT_THAT([&] { reader.seek(16, "x"); }, ThrowsMessage<FormatError>(HasSubstr("behind")));
  reader.seek(1, "x");
  EXPECT_THROW(reader.read_bytes(UINT64_MAX, "y"), FormatError);
}

TEST(CheckedArithmetic, ThrowsInsteadOfWrapping) {
  EXPECT_EQ(checked_multiply(1u << 31, 4, "n"), uint64_t{1} << 33);
  EXPECT_THROW(checked_multiply(uint64_t{1} << 33, uint64_t{1} << 31, "n"), FormatError);
  EXPECT_THROW(checked_add(UINT64_MAX, 1, "n"), FormatError);
}

TEST(AtomicFile, AppearsUnderItsNameOnlyAfterCommit) {
  const TemporaryDirectory folder;
  const std::string big(3 << 20, 'x');
  {
    AtomicFile file(folder.file("out"));
    file.write("ab");
    file.pad(3);
    file.write(big);
    EXPECT_EQ(file.size(), 5u + big.size());
    EXPECT_FALSE(file_exists(folder.file("out")));

    file.commit();
  }

  EXPECT_EQ(read_text_file(folder.file("out")), std::string("ab\0\0\0", 5) + big);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"out"});
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TemporaryDirectory folder;
  folder.write("out", "old");
  { AtomicFile(folder.file("out")).write("new"); }

  EXPECT_EQ(read_text_file(folder.file("out")), "old");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"out"});
}

TEST(AtomicFile, TakesOverTheRestOfAKilledRun) {
  const TemporaryDirectory folder;
  folder.write("out.partial", "a longer rest of an earlier run");

  write_text_file(folder.file("out"), "new");

  EXPECT_EQ(read_text_file(folder.file("out")), "new");
}

TEST(AtomicFile, RefusesASecondWriterAndALink) {
  const TemporaryDirectory folder;
  const std::string victim = folder.write("victim", "precious");
  const AtomicFile first(folder.file("out"));

  EXPECT_THAT([&] { AtomicFile second(folder.file("out")); },
              ThrowsMessage<FileError>(HasSubstr("another process")));
  std::filesystem::create_symlink(victim, folder.file("linked.partial"));
  EXPECT_THROW(AtomicFile second(folder.file("linked")), FileError);
  EXPECT_EQ(read_text_file(victim), "precious");
}

TEST(AtomicFile, ReplacesWhatALinkNames) {
  const TemporaryDirectory folder;
  const std::string target = folder.write("target", "old");
  std::filesystem::create_symlink("target", folder.file("link"));

  write_text_file(folder.file("link"), "new");

  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_EQ(read_text_file(target), "new");
}

TEST(AtomicFile, RefusesAFolderAndAPipe) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder.file("folder"));
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);

  EXPECT_THAT([&] { AtomicFile file(folder.file("folder")); },
              ThrowsMessage<FileError>(HasSubstr("folder: is a folder")));
  EXPECT_THAT([&] { AtomicFile file(folder.file("pipe")); },
              ThrowsMessage<FileError>(HasSubstr("pipe: is a device or a pipe")));
}

TEST(AtomicFile, RoomLeftIsFilledInAnyOrder) {
  const TemporaryDirectory folder;
  AtomicFile file(folder.file("out"));
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  file.write("head ");
  const uint64_t first = file.reserve(3), second = file.reserve(4);
  file.write(" tail");

  std::thread([&] { file.write_at(second, bytes("four")); }).join();
  file.write_at(first + 1, bytes("ne"));
  file.write_at(first, bytes("o"));
  file.commit();

  EXPECT_EQ(read_text_file(folder.file("out")), "head onefour tail");
}

TEST(FileExists, SaysSoWhereItCannotBeTold) {
  const TemporaryDirectory folder;
  std::filesystem::create_symlink("loop", folder.file("loop"));
  folder.write("text", "x");

  EXPECT_TRUE(file_exists(folder.file("loop")));
  EXPECT_FALSE(file_exists(folder.file("text/inside")));
  EXPECT_FALSE(file_exists(folder.file("none/inside")));
  EXPECT_THAT([&] { file_exists(folder.file("loop/inside")); },
              ThrowsMessage<FileError>(HasSubstr("loop/inside: cannot be examined")));
  if (::geteuid() != 0) {  // root may search anywhere
    std::filesystem::permissions(folder.path(), std::filesystem::perms::none);
    EXPECT_THROW(file_exists(folder.file("text")), FileError);
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  }
}

TEST(NewFolder, AppearsAsAWholeInPlaceOfAnother) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("out");
  std::filesystem::create_directories(path + ".partial/left-over");
  std::filesystem::create_directory(path);
  folder.write("out/old", "old");
  {
    NewFolder made(path + "/");
    EXPECT_TRUE(names_in(made.partial()).empty());
    write_text_file(made.partial() + "/new", "new");
    EXPECT_TRUE(file_exists(path + "/old"));
    made.publish();
  }

  EXPECT_EQ(names_in(path), std::vector<std::string>{"new"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"out"});
}

TEST(NewFolder, LeavesNothingWithoutPublish) {
  const TemporaryDirectory folder;

  write_text_file(NewFolder(folder.file("out")).partial() + "/half", "x");

  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(NewFolder, ExcludesASecondWriter) {
  const TemporaryDirectory folder;
  const NewFolder first(folder.file("out"));
  write_text_file(first.partial() + "/file", "x");

  EXPECT_THAT([&] { NewFolder second(folder.file("out")); },
              ThrowsMessage<FileError>(HasSubstr("out.partial: another process is writing")));
  EXPECT_TRUE(file_exists(first.partial() + "/file"));
}

TEST(NewFolder, ReplacesWhatALinkNames) {
  const TemporaryDirectory folder;
  std::filesystem::create_directories(folder.file("elsewhere/real"));
  std::filesystem::create_symlink("elsewhere/real", folder.file("link"));

  NewFolder made(folder.file("link"));
  write_text_file(made.partial() + "/new", "new");
  made.publish();

  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_EQ(read_text_file(folder.file("elsewhere/real/new")), "new");
  EXPECT_EQ(names_in(folder.file("elsewhere")), std::vector<std::string>{"real"});
}

// The guard's finding lasts as long as the process, so each runs in a child.
using MappingGuardDeathTest = testing::Test;

/// Maps a file of three pages, makes it shorter, lets `use` read it, and ends with 3 if nothing can
/// be committed then.
void use_shortened_file(const std::string& path, const std::string& out, bool by_system) {
  install_mapping_guard();
  write_text_file(path, std::string(3 * 4096, 'x'));
  const MappedFile other = MappedFile::open(path);
  const MappedFile file = MappedFile::open(path);
  std::filesystem::resize_file(path, 100);
  AtomicFile copy(out);
  try {
    copy.write(file.bytes().first(4096));
    if (!by_system && file.bytes()[2 * 4096] != std::byte{0}) std::exit(1);
    copy.write(std::vector<std::byte>(1 << 21));  // what waits is written now
    if (by_system) copy.write_at(0, file.bytes().subspan(4096));
    copy.commit();
  } catch (const FileError& error) {
    std::fputs(error.what(), stderr);
    std::exit(file_exists(out) ? 1 : 3);
  }
  std::exit(0);
}

TEST(MappingGuardDeathTest, ABusErrorBecomesAnErrorThatNamesTheFile) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const TemporaryDirectory folder;
  for (const bool by_system : {false, true}) {
    EXPECT_EXIT(use_shortened_file(folder.file("in"), folder.file("out"), by_system),
                testing::ExitedWithCode(3), "in: the bytes from [0-9]+ on are gone");
  }
}

TEST(MappingGuardDeathTest, OtherBusErrorsEndTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";

  EXPECT_EXIT(
      {
        install_mapping_guard();
        std::raise(SIGBUS);
        std::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(WriteTextFile, WritesIntoAPipeInsteadOfTakingItsPlace) {
  const TemporaryDirectory folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);

  write_text_file(pipe, "hello");

  char text[8] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 5);
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(AtomicFile, GoesOnAfterInterruptionsAndShortWrites) {
  const TemporaryDirectory folder;
  const CallGuard guard;
  static int n_calls;
  n_calls = 0;
  file_system_calls().write = [](int fd, const void* data, size_t n, off_t at) -> ssize_t {
    if (n_calls++ % 2 == 0) {
      errno = EINTR;
      return -1;
    }
    return ::pwrite(fd, data, std::min<size_t>(n, 7), at);
  };
  file_system_calls().fsync = [](int) {
    errno = EINTR;
    return n_calls++ % 2 == 0 ? -1 : 0;
  };

  write_text_file(folder.file("out"), "a text of more than seven bytes");

  EXPECT_EQ(read_text_file(folder.file("out")), "a text of more than seven bytes");
}

TEST(AtomicFile, Case_B82_FullDiskIsAResourceErrorAndLeavesNoPartialFile) {
  const TemporaryDirectory folder;
  const CallGuard guard;
  file_system_calls().write = [](int, const void*, size_t, off_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };

  EXPECT_THAT([&] { write_text_file(folder.file("out"), "12345"); },
              ThrowsMessage<ResourceError>(AllOf(HasSubstr("out.partial"), HasSubstr("5 bytes"),
                                                 HasSubstr("No space left"))));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, Case_B82_EveryFailingCallIsReported) {
  for (const std::string call : {"write", "fsync", "rename"}) {
    const TemporaryDirectory folder;
    const CallGuard guard;
    if (call == "write") {
      file_system_calls().write = [](int, const void*, size_t, off_t) -> ssize_t {
        errno = EIO;
        return -1;
      };
    }
    if (call == "fsync") {
      file_system_calls().fsync = [](int) {
        errno = EIO;
        return -1;
      };
    }
    if (call == "rename") {
      file_system_calls().rename = [](const char*, const char*) {
        errno = EIO;
        return -1;
      };
    }

    EXPECT_THAT([&] { write_text_file(folder.file("out"), "12345"); },
                ThrowsMessage<FileError>(AllOf(HasSubstr("out"), HasSubstr("Input/output error"))))
        << call;
    EXPECT_TRUE(names_in(folder.path()).empty()) << call;
  }
}

TEST(AtomicFile, Case_B82_FileSizeLimitIsReportedInsteadOfASignal) {
  const TemporaryDirectory folder;
  rlimit saved{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &saved), 0);
  rlimit small = saved;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);

  EXPECT_THROW(write_text_file(folder.file("out"), std::string(2000, 'x')), ResourceError);

  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &saved), 0);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFile, Case_B82_FolderThatIsMissingOrVanishes) {
  const TemporaryDirectory folder;
  EXPECT_THAT([&] { write_text_file(folder.file("no/out"), "x"); },
              ThrowsMessage<FileError>(HasSubstr("No such file")));
  std::filesystem::create_directory(folder.file("sub"));
  AtomicFile file(folder.file("sub/out"));
  std::filesystem::remove_all(folder.file("sub"));

  EXPECT_THAT([&] { file.commit(); }, ThrowsMessage<FileError>(HasSubstr("No such file")));
}

TEST(RequireWritable, Case_B82_ComparesSpaceAndTriesAWrite) {
  const TemporaryDirectory folder;

  EXPECT_NO_THROW(require_writable(folder.path(), 1));
  EXPECT_TRUE(names_in(folder.path()).empty());
  EXPECT_THAT([&] { require_writable(folder.path(), UINT64_MAX); },
              ThrowsMessage<ResourceError>(HasSubstr("18446744073709551615 bytes are needed")));
  EXPECT_THROW(require_writable(folder.file("none"), 1), FileError);
  if (::geteuid() != 0) {  // root may write anywhere
    std::filesystem::permissions(
        folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    EXPECT_THROW(require_writable(folder.path(), 1), FileError);
  }
}

// The hook is read once per process, so each setting is tried in a child (which runs the test again
// from its beginning: checks stand after all children).
using FaultHookDeathTest = testing::Test;

TEST(FaultHookDeathTest, KillsAtTheChosenCallAndLeavesTheFinalNameAlone) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto folder = [](int n) { return testing::TempDir() + "/assay-kill-" + std::to_string(n); };
  // The calls of one file are write, fsync, rename, fsync of the folder.
  for (int n = 1; n <= 3; ++n) {
    std::filesystem::create_directories(folder(n));
    EXPECT_EXIT(
        {
          ::setenv("ASSAY_FAULT", ("kill:" + std::to_string(n)).c_str(), 1);
          write_text_file(folder(n) + "/out", "12345678");
          std::exit(0);
        },
        testing::KilledBySignal(SIGKILL), "");
  }
  for (int n = 1; n <= 3; ++n) {
    EXPECT_FALSE(file_exists(folder(n) + "/out")) << n;
    EXPECT_EQ(read_text_file(folder(n) + "/out.partial"), n == 1 ? "1234" : "12345678");
    std::filesystem::remove_all(folder(n));
  }
}

TEST(FaultHookDeathTest, FailsOnceOrForEver) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto outcome_of_two_files = [](const char* fault) {
    ::setenv("ASSAY_FAULT", fault, 1);
    int code = 0;
    for (int i = 0; i < 2; ++i) {
      const std::string path = testing::TempDir() + "/assay-fault-" + std::to_string(::getpid());
      try {
        write_text_file(path, "x");
      } catch (const ResourceError&) {
        code = 10 * code + 6;
      } catch (const FileError&) {
        code = 10 * code + 3;
      } catch (const UsageError&) {
        code = 10 * code + 2;
      }
      ::unlink(path.c_str());
    }
    std::exit(code);
  };

  EXPECT_EXIT(outcome_of_two_files("kill:99"), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(outcome_of_two_files("eio:1"), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(outcome_of_two_files("enospc:3"), testing::ExitedWithCode(66), "");
  EXPECT_EXIT(outcome_of_two_files("fail:1"), testing::ExitedWithCode(22), "");
}

TEST(Sha256, GivesKnownHashes) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(std::as_bytes(std::span("abc", 3))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, DoesNotDependOnHowBytesArrive) {
  const TemporaryDirectory folder;
  const std::string text(2500000, 'q');
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += 999) {
    hash.update(std::as_bytes(std::span(text).subspan(i, std::min<size_t>(999, text.size() - i))));
  }

  const std::string pieces = hash.finish();

  EXPECT_EQ(pieces, sha256_hex(std::as_bytes(std::span(text))));
  EXPECT_EQ(pieces, sha256_of_file(folder.write("a", text)));
}

/// Streams of many lengths, in pieces of up to `piece` bytes.
std::vector<ByteStream> streams_of(const std::vector<std::string>& texts, size_t piece) {
  std::vector<ByteStream> streams;
  for (const std::string& text : texts) {
    streams.push_back({text.size(), [&text, piece, at = size_t{0}]() mutable {
                         const size_t n = std::min(piece, text.size() - at);
                         at += n;
                         return std::as_bytes(std::span(text).subspan(at - n, n));
                       }});
  }
  return streams;
}

TEST(Sha256Streams, GiveTheHashOfEachWithAnyPiecesThreadsAndInstructions) {
  std::vector<std::string> texts;
  for (size_t n = 0; n < 200; ++n) texts.emplace_back(n, static_cast<char>('a' + n % 26));
  texts.emplace_back(300000, 'x');
  texts.emplace_back(299999, 'y');
  std::vector<std::string> expected;
  for (const std::string& text : texts) {
    expected.push_back(sha256_hex(std::as_bytes(std::span(text))));
  }

  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    force_isa(isa);
    for (const size_t piece : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{100000}}) {
      for (const int n_workers : {1, 3}) {
        Sha256Streams hashes(streams_of(texts, piece));
        std::vector<std::thread> threads;
        for (int i = 1; i < n_workers; ++i) threads.emplace_back([&] { hashes.work(); });
        hashes.work();
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(hashes.finish(), expected) << isa_name(isa) << " " << piece << " " << n_workers;
      }
    }
  }
  force_isa(best_isa());
}

TEST(Sha256Streams, TellTheFailureOfTheLongestStreamThatHasOne) {
  const std::vector<std::string> texts = {"a", std::string(900, 'b'), std::string(700, 'c')};
  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    force_isa(isa);
    std::vector<ByteStream> streams = streams_of(texts, 100);
    for (const size_t bad : {0u, 2u}) {
      streams[bad].next = [bad]() -> std::span<const std::byte> {
        throw FormatError("stream " + std::to_string(bad));
      };
    }
    Sha256Streams hashes(std::move(streams));
    hashes.work();

    EXPECT_THAT([&] { hashes.finish(); }, ThrowsMessage<FormatError>("stream 2"));
  }
  force_isa(best_isa());
}

TEST(Sha256, TakesTokenIdsAsLittleEndian64BitIntegers) {
  const std::vector<int32_t> ids = {1, 70000, -1};
  std::string bytes;
  for (const int64_t id : ids) bytes.append(reinterpret_cast<const char*>(&id), 8);

  EXPECT_EQ(sha256_of_token_ids(ids), sha256_hex(std::as_bytes(std::span(bytes))));
  const std::vector<int32_t> many(5000, 3);
  std::string many_bytes;
  for (int i = 0; i < 5000; ++i) many_bytes += std::string("\3\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(sha256_of_token_ids(many), sha256_hex(std::as_bytes(std::span(many_bytes))));
}

}  // namespace
}  // namespace assay
