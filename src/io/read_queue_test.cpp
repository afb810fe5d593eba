#include "io/read_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "base/buffer.h"
#include "base/error.h"
#include "io/drive.h"
#include "io/faulty_queue.h"
#include "support/support.h"

namespace moeflux {
namespace {

constexpr size_t kFileBytes = 1 << 20;

std::byte pattern(size_t at) { return static_cast<std::byte>((at * 2654435761u) >> 13); }

class ReadQueueTest : public testing::TestWithParam<std::string> {
 protected:
  ReadQueueTest() {
    std::string text(kFileBytes, '\0');
    for (size_t i = 0; i < kFileBytes; ++i) text[i] = static_cast<char>(pattern(i));
    test::write_file(temp_ / "file", text);
    file_.emplace(File::open_read(temp_ / "file"));
  }

  std::unique_ptr<ReadQueue> make(size_t depth) const {
    std::string why;
    if (GetParam() == "pread") return make_pread_queue(depth);
    if (GetParam() == "uring") return make_uring_queue(depth, why);
    return std::make_unique<FaultyQueue>(make_pread_queue(depth),
                                         Faults{.delay = 0.5, .most_delay = std::chrono::microseconds(500)});
  }

  static bool holds(std::span<const std::byte> bytes, size_t offset) {
    for (size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != pattern(offset + i)) return false;
    return true;
  }

  test::TempFolder temp_;
  std::optional<File> file_;
};

TEST_P(ReadQueueTest, ReadsWhatTheFileHoldsThreads) {
  const auto queue = make(7);
  if (!queue) GTEST_SKIP() << "this system has no such queue";
  std::mt19937 random(3);
  std::vector<std::vector<std::byte>> memory(200);
  std::map<uint64_t, size_t> offset;  // of reads in flight
  size_t submitted = 0, finished = 0;
  while (finished < memory.size()) {
    while (submitted < memory.size()) {
      const size_t bytes = 1 + random() % 5000, at = random() % (kFileBytes - bytes);
      memory[submitted].assign(bytes, std::byte{0});
      const ReadRequest r{file_->fd(), at, memory[submitted], submitted};
      if (queue->submit({&r, 1}) == 0) break;
      offset[submitted++] = at;
      ASSERT_LE(offset.size(), queue->depth());
    }
    ReadDone done[3];
    const size_t n = queue->wait(done, std::chrono::seconds(10));
    ASSERT_GT(n, 0u);
    for (const ReadDone& d : std::span(done, n)) {
      EXPECT_EQ(d.err, 0);
      ASSERT_EQ(d.bytes, memory[d.tag].size());
      EXPECT_TRUE(holds(memory[d.tag], offset.at(d.tag)));
      offset.erase(d.tag);
      ++finished;
    }
  }
}

TEST_P(ReadQueueTest, SaysHowAReadEnded) {
  const auto queue = make(4);
  if (!queue) GTEST_SKIP() << "this system has no such queue";
  std::vector<std::byte> memory(100);
  const std::vector<ReadRequest> requests{{file_->fd(), kFileBytes - 10, memory, 1},
                                          {file_->fd(), kFileBytes + 10, memory, 2},
                                          {-1, 0, memory, 3}};
  ASSERT_EQ(queue->submit(requests), 3u);
  std::map<uint64_t, ReadDone> got;
  while (got.size() < 3) {
    ReadDone done;
    ASSERT_EQ(queue->wait({&done, 1}, std::chrono::seconds(10)), 1u);
    got[done.tag] = done;
  }
  EXPECT_EQ(got[1].bytes, 10u);
  EXPECT_EQ(got[2].bytes, 0u);
  EXPECT_EQ(got[2].err, 0);
  EXPECT_EQ(got[3].err, EBADF);
  ReadDone done;
  EXPECT_EQ(queue->wait({&done, 1}, std::chrono::seconds(10)), 0u);  // at once: nothing is in flight
}

TEST_P(ReadQueueTest, WaitsForReadsBeforeItEnds) {
  std::vector<std::byte> memory(kFileBytes / 2);
  {
    const auto queue = make(2);
    if (!queue) GTEST_SKIP() << "this system has no such queue";
    const ReadRequest r{file_->fd(), 0, memory, 1};
    ASSERT_EQ(queue->submit({&r, 1}), 1u);
  }
  EXPECT_TRUE(holds(memory, 0));
}

INSTANTIATE_TEST_SUITE_P(Queues, ReadQueueTest, testing::Values("pread", "uring", "faulty"),
                         [](const auto& test) { return test.param; });

TEST(ReadQueue, AutomaticallyTakesWhatThereIs) {
  EXPECT_NE(make_read_queue("auto", 4), nullptr);
  EXPECT_EQ(make_read_queue("pread", 4)->name(), "pread");
}

TEST(ReadQueue, ReadsIntoRegisteredMemory) {
  std::string why;
  const auto queue = make_uring_queue(4, why);
  if (!queue) GTEST_SKIP() << why;
  const test::TempFolder temp;
  test::write_file(temp / "file", std::string(8192, 'x'));
  const File file = File::open_read(temp / "file");
  const AlignedBuffer memory(16384);
  const std::span<std::byte> parts[] = {memory.bytes().subspan(12288), memory.bytes().first(12288)};
  queue->register_memory(parts);
  EXPECT_EQ(queue->registered_bytes(), 0u);  // nothing was read into it
  const auto read = [&](size_t at, size_t bytes) {
    const ReadRequest r{file.fd(), 0, memory.bytes().subspan(at, bytes), 9};
    ASSERT_EQ(queue->submit({&r, 1}), 1u);
    ReadDone done;
    ASSERT_EQ(queue->wait({&done, 1}, std::chrono::seconds(10)), 1u);
    EXPECT_EQ(done.err, 0);
    EXPECT_EQ(done.bytes, bytes);
  };
  read(4096, 8192);
  if (queue->registered_bytes() == 0) GTEST_SKIP() << "this system lets no memory be registered";
  EXPECT_EQ(queue->registered_bytes(), 12288u);
  EXPECT_EQ(memory.bytes()[4096], std::byte{'x'});
  EXPECT_EQ(memory.bytes()[4095], std::byte{0});
  EXPECT_EQ(memory.bytes()[12288], std::byte{0});
  read(8192, 8192);  // over the edge of two parts: a plain read
  EXPECT_EQ(queue->registered_bytes(), 12288u);
  EXPECT_EQ(memory.bytes()[12288], std::byte{'x'});
  read(12288, 4096);
  EXPECT_EQ(queue->registered_bytes(), 16384u);
}

TEST(Pieces, CoverARecordInWholePages) {
  for (const uint64_t record : {4096u, 8192u, 2654208u, 1769472u})
    for (const size_t piece : {4096u, 65536u, 262144u, 1048576u}) {
      uint64_t at = 0;
      for (size_t i = 0; i < piece_count(record, piece); ++i) {
        const PieceRange r = piece_of(record, piece, i);
        EXPECT_EQ(r.begin, at);
        EXPECT_LT(r.begin, r.end);
        EXPECT_EQ(r.end % 4096, 0u);
        EXPECT_LE(r.end - r.begin, piece + 4096);
        at = r.end;
      }
      EXPECT_EQ(at, record);
    }
}

TEST(Drive, ReadsRandomRecordsWithEveryQueue) {
  const test::TempFolder temp;
  test::write_file(temp / "file", std::string(64 * 8192, 'x'));
  const File buffered = File::open_read(temp / "file");
  const auto direct = File::open_direct(temp / "file");
  const std::vector<RecordFile> files{{&buffered, direct ? &*direct : nullptr, 8192, 64}};
  for (const char* queue : {"auto", "pread"})
    for (const bool past_cache : {true, false})
      EXPECT_GT(measure_drive(files, {queue, past_cache, 4096, 5}, 1 << 20), 0);
  EXPECT_EQ(probe_drive(files, {}).bytes_per_s, 0);  // too small to be worth it
  EXPECT_EQ(probe_drive(files, {.depth = 3}).settings.depth, 3u);
}

}  // namespace
}  // namespace moeflux
