#include "store/loader.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/buffer.h"
#include "io/faulty_queue.h"
#include "support/support.h"

namespace moeflux {
namespace {

constexpr size_t kRecord = 16 * 4096, kRecords = 8;

class LoaderTest : public testing::Test {
 protected:
  LoaderTest() : memory_(kRecord * kRecords) {
    std::string text(kRecord * kRecords, '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
    test::write_file(temp_ / "file", text);
    file_.emplace(File::open_read(temp_ / "file"));
  }

  Load load(uint64_t tag) const {
    return {&*file_, tag * kRecord, memory_.bytes().subspan(tag * kRecord, kRecord)};
  }
  static ReadSettings settings() {
    ReadSettings s;
    s.piece_bytes = 4096;
    s.depth = 5;
    return s;
  }
  bool right() const {
    std::vector<std::byte> want(kRecord * kRecords);
    file_->read_at(0, want);
    return std::memcmp(want.data(), memory_.data(), want.size()) == 0;
  }
  // Waits until so many loads have ended; false: that took too long.
  bool wait_for(size_t n) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, std::chrono::seconds(20), [&] { return n_done_ >= n; });
  }
  void end_one() {
    const std::lock_guard lock(mutex_);
    ++n_done_;
    ended_.notify_all();
  }

  test::TempFolder temp_;
  std::optional<File> file_;
  AlignedBuffer memory_;
  std::mutex mutex_;
  std::condition_variable ended_;
  size_t n_done_ = 0;
};

// What arrives together is looked at together: one that takes long does not keep the others waiting.
TEST_F(LoaderTest, SeveralLoadsAreToldOfAtOnceThreads) {
  std::atomic<int> inside = 0;
  std::atomic<bool> together = false;
  const auto arrived = [&](uint64_t, std::span<const std::byte>) {
    if (++inside > 1) together = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // much longer than a read here
    --inside;
  };
  Loader loader(make_pread_queue(16), settings(), arrived, [&](uint64_t, const LoadResult& r) {
    EXPECT_TRUE(r.ok());
    end_one();
  });
  for (uint64_t tag = 0; tag < kRecords; ++tag) loader.start(tag, load(tag), Urgency::Demand);
  loader.go();
  EXPECT_TRUE(wait_for(kRecords));
  EXPECT_TRUE(together);
  EXPECT_TRUE(right());
}

// Calls for one load never overlap and come in the order of its bytes, the end last, however late and in
// whatever order the pieces arrive.
TEST_F(LoaderTest, TellsOfALoadInOrderThreads) {
  struct Told {
    std::atomic<int> inside = 0;
    size_t bytes = 0;
    bool ended = false;
  };
  std::vector<Told> told(kRecords);
  std::atomic<uint64_t> wrong = 0;
  const auto arrived = [&](uint64_t tag, std::span<const std::byte> bytes) {
    Told& t = told[tag];
    wrong += t.inside++ != 0 || t.ended || bytes.data() != load(tag).into.data() + t.bytes;
    t.bytes += bytes.size();
    std::this_thread::yield();
    --t.inside;
  };
  const auto done = [&](uint64_t tag, const LoadResult& r) {
    Told& t = told[tag];
    wrong += t.inside++ != 0 || t.ended || !r.ok() || t.bytes != kRecord;
    t.ended = true;
    --t.inside;
    end_one();
  };
  const Faults faults{.shorten = 0.2, .delay = 0.5};
  ReadSettings s = settings();
  s.bulk_piece_bytes = kRecord / 4;
  for (size_t round = 1; round <= 20; ++round) {
    for (Told& t : told) t.bytes = 0, t.ended = false;
    Loader loader(std::make_unique<FaultyQueue>(make_pread_queue(5), faults, round), s, arrived, done);
    const Urgency urgency = round % 2 ? Urgency::Demand : Urgency::Bulk;
    for (uint64_t tag = 0; tag < kRecords; ++tag) loader.start(tag, load(tag), urgency);
    loader.go();
    ASSERT_TRUE(wait_for(round * kRecords));
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(right());
}

// A queue that keeps count of what is asked of it, and gives nothing back while it is held.
class CountingQueue : public ReadQueue {
 public:
  explicit CountingQueue(size_t depth) : inner_(make_pread_queue(depth)) {}
  std::string_view name() const override { return inner_->name(); }
  size_t depth() const override { return inner_->depth(); }
  size_t submit(std::span<const ReadRequest> requests) override {
    asked.insert(asked.end(), requests.begin(), requests.end());
    in_flight_ += requests.size();
    most_in_flight = std::max<size_t>(most_in_flight, in_flight_);
    return inner_->submit(requests);
  }
  size_t wait(std::span<ReadDone> out, std::chrono::milliseconds timeout) override {
    if (held) return std::this_thread::sleep_for(std::chrono::milliseconds(1)), 0;
    const size_t n = inner_->wait(out, timeout);
    in_flight_ -= n;
    return n;
  }
  std::vector<ReadRequest> asked;
  std::atomic<size_t> most_in_flight = 0;
  std::atomic<bool> held = false;

 private:
  const std::unique_ptr<ReadQueue> inner_;
  size_t in_flight_ = 0;
};

// Bulk fills the queue with large pieces; what is needed at once goes before it.
TEST_F(LoaderTest, ReadsInBulkWithLargerPiecesAndMoreInFlightThreads) {
  ReadSettings s = settings();
  s.bulk_piece_bytes = kRecord / 2;
  s.bulk_depth = 9;
  for (const Urgency urgency : {Urgency::Demand, Urgency::Bulk}) {
    const bool bulk = urgency == Urgency::Bulk;
    auto own = std::make_unique<CountingQueue>(s.bulk_depth);
    const CountingQueue& queue = *own;
    const size_t before = n_done_;
    Loader loader(
        std::move(own), s, [](uint64_t, std::span<const std::byte>) {},
        [&](uint64_t, const LoadResult& r) {
          EXPECT_TRUE(r.ok());
          end_one();
        });
    for (uint64_t tag = 0; tag < kRecords; ++tag) loader.start(tag, load(tag), urgency);
    loader.promote(kRecords - 1);
    loader.go();
    ASSERT_TRUE(wait_for(before + kRecords));
    EXPECT_EQ(queue.most_in_flight, bulk ? s.bulk_depth : s.depth);
    EXPECT_EQ(queue.asked.size(), kRecords * (bulk ? 2 : kRecord / s.piece_bytes));
    EXPECT_EQ(queue.asked.front().offset, bulk ? (kRecords - 1) * kRecord : 0);
    EXPECT_TRUE(right());
  }
}

TEST_F(LoaderTest, WhatIsNeededGoesBeforeTheRestOfABulkThatIsUnderWayThreads) {
  ReadSettings s = settings();
  s.bulk_piece_bytes = kRecord / 2;
  s.bulk_depth = 9;
  auto own = std::make_unique<CountingQueue>(s.bulk_depth);
  CountingQueue& queue = *own;
  queue.held = true;
  Loader loader(
      std::move(own), s, [](uint64_t, std::span<const std::byte>) {},
      [&](uint64_t, const LoadResult& r) {
        EXPECT_TRUE(r.ok());
        end_one();
      });
  for (uint64_t tag = 0; tag < kRecords; ++tag) loader.start(tag, load(tag), Urgency::Bulk);
  loader.go();
  while (queue.most_in_flight < s.bulk_depth) std::this_thread::yield();
  loader.promote(kRecords - 1);
  queue.held = false;
  ASSERT_TRUE(wait_for(kRecords));
  EXPECT_EQ(queue.asked[s.bulk_depth].offset, (kRecords - 1) * kRecord);
  EXPECT_TRUE(right());
}

// Calls for one load never overlap, and none comes once the loader is gone.
TEST_F(LoaderTest, EndsInTheMiddleOfItsThreads) {
  std::atomic<int> inside[kRecords] = {}, overlaps = 0, calls = 0;
  {
    Loader loader(
        make_pread_queue(5), settings(),
        [&](uint64_t tag, std::span<const std::byte>) {
          ++calls;
          overlaps += inside[tag]++;
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          --inside[tag];
        },
        [](uint64_t, const LoadResult&) {});
    for (uint64_t tag = 0; tag < kRecords; ++tag) loader.start(tag, load(tag), Urgency::Demand);
    loader.go();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  const int at_the_end = calls;
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(calls, at_the_end);
  EXPECT_EQ(overlaps, 0);
}

}  // namespace
}  // namespace moeflux
