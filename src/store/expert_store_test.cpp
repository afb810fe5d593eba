#include "store/expert_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "base/hash.h"
#include "io/faulty_queue.h"
#include "support/support.h"

namespace moeflux {
namespace {

using Use = ExpertStore::Use;

class ExpertStoreTest : public testing::Test {
 protected:
  ExpertStoreTest() : package_(test::golden_package("qwen3_moe")) {
    for (const ExpertLayer& l : package_.manifest().layers)
      for (uint64_t e = 0; e < l.n_experts(); ++e) keys_.push_back({l.layer, e});
    record_bytes_ = package_.manifest().layers[0].record_bytes;
  }

  StoreOptions options(size_t slots) const {
    StoreOptions o;
    o.budget_bytes = slots * record_bytes_;
    o.reads.piece_bytes = 4096;
    o.reads.depth = 5;
    return o;
  }

  // The queue that the store made with these options reads through.
  StoreOptions with_faults(StoreOptions o, Faults faults) {
    o.wrap_queue = [this, faults](std::unique_ptr<ReadQueue> inner) {
      auto queue = std::make_unique<FaultyQueue>(std::move(inner), faults);
      queue_ = queue.get();
      return queue;
    };
    return o;
  }

  bool right(const ExpertStore::Lease& lease) const {
    for (const ExpertLayer& l : package_.manifest().layers)
      if (l.layer == lease.key().layer) return xxh3(lease.bytes()) == l.xxh3[lease.key().expert];
    return false;
  }

  std::set<ExpertKey> take_all(ExpertStore& store, std::span<const ExpertKey> keys, Use use) const {
    std::set<ExpertKey> got;
    ExpertStore::Demand demand(store, keys, use);
    std::vector<ExpertStore::Lease> leases;
    while (demand.take(leases, 3)) {
      for (const auto& lease : leases) {
        EXPECT_TRUE(right(lease));
        EXPECT_TRUE(got.insert(lease.key()).second) << "handed out twice";
      }
      leases.clear();
    }
    return got;
  }

  Package package_;
  std::vector<ExpertKey> keys_;  // all experts
  uint64_t record_bytes_ = 0;
  FaultyQueue* queue_ = nullptr;
};

TEST_F(ExpertStoreTest, HandsOutEveryExpertOnceWithAnyNumberOfSlots) {
  const std::set<ExpertKey> all(keys_.begin(), keys_.end());
  for (const size_t slots : {size_t{1}, size_t{2}, size_t{7}, keys_.size() / 2, keys_.size()})
    for (const Use use : {Use::Decode, Use::Sweep}) {
      ExpertStore store(package_, options(slots));
      EXPECT_EQ(store.holds_all(), slots == keys_.size());
      for (int round = 0; round < 2; ++round) EXPECT_EQ(take_all(store, keys_, use), all) << slots;
      const StoreStats s = store.stats();
      EXPECT_EQ(s.asked(), 2 * keys_.size());
      EXPECT_EQ(s.bytes_read, s.reads * record_bytes_);
      if (store.holds_all()) {
        EXPECT_EQ(s.reads, keys_.size());
      }
    }
}

// Threads make the pages while reads fill them.
TEST_F(ExpertStoreTest, LoadsAllWithAnyNumberOfThreads) {
  for (const size_t threads : {0, 1, 5}) {
    StoreOptions o = options(keys_.size());
    o.threads = threads;
    ExpertStore store(package_, o);
    store.load_all();
    EXPECT_EQ(store.stats().reads, keys_.size());
    EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());
    EXPECT_EQ(store.stats().reads, keys_.size());
  }
}

TEST_F(ExpertStoreTest, LoadsAllThroughReadsThatAreShortLateOrFail) {
  const uint64_t bad = package_.place(package_.manifest().layers[0], 1).offset;
  std::atomic<bool> fails = true;
  StoreOptions o = with_faults(options(keys_.size()),
                               {.shorten = 0.5, .delay = 0.5, .error = [&, bad](const ReadRequest& r) {
                                  return fails && r.offset == bad ? EIO : 0;
                                }});
  ExpertStore store(package_, o);
  try {
    store.load_all();
    FAIL() << "an expert could not be read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::Io);
    EXPECT_NE(std::string(e.what()).find("expert 1 (bytes "), std::string::npos) << e.what();
  }
  fails = false;
  store.load_all();
  EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());
  EXPECT_GE(store.stats().failed, 1u);  // one of each file, as far as they have been asked for
}

TEST(AlignedBuffer, MakingPagesKeepsWhatTheyHold) {
  const AlignedBuffer buffer(6u << 20);
  buffer.data()[5000] = std::byte{7};
  make_pages(buffer.bytes());
  for (size_t i = 0; i < buffer.size(); ++i)
    ASSERT_EQ(buffer.data()[i], std::byte{i == 5000 ? uint8_t{7} : uint8_t{0}});
}

TEST_F(ExpertStoreTest, WorksWithEveryPolicyQueueDepthAndPiece) {
  const std::set<ExpertKey> all(keys_.begin(), keys_.end());
  for (const std::string& policy : policy_names())
    for (const char* queue : {"auto", "pread"})
      for (const bool direct : {true, false})
        for (const size_t depth : {1, 40}) {
          StoreOptions o = options(keys_.size() / 3);
          o.policy = policy;
          o.reads = {queue, direct, depth == 1 ? size_t{1} << 20 : size_t{8192}, depth};
          ExpertStore store(package_, o);
          EXPECT_EQ(take_all(store, keys_, Use::Decode), all);
          EXPECT_EQ(take_all(store, keys_, Use::Sweep), all);
        }
}

TEST_F(ExpertStoreTest, ReadsAreDelayedReorderedAndShortenedWithoutHarm) {
  ExpertStore store(package_, with_faults(options(9), {.shorten = 0.6, .delay = 0.6}));
  EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());
  EXPECT_EQ(store.stats().failed, 0u);
}

TEST_F(ExpertStoreTest, SeveralDemandsShareOneLoad) {
  ExpertStore store(package_,
                    with_faults(options(4), {.keep_back = [](const ReadRequest&) { return true; }}));
  const std::vector<ExpertKey> two{keys_[0], keys_[1]};
  ExpertStore::Demand first(store, two, Use::Decode), second(store, two, Use::Decode);
  while (queue_->kept_back() == 0) std::this_thread::yield();
  queue_->set({});
  queue_->release();
  std::vector<ExpertStore::Lease> leases;
  for (ExpertStore::Demand* demand : {&first, &second})
    while (demand->take(leases)) {
    }
  EXPECT_EQ(leases.size(), 4u);
  EXPECT_EQ(store.stats().reads, 2u);
}

TEST_F(ExpertStoreTest, AFailedReadIsAnErrorAndTheNextOneSucceeds) {
  ExpertStore store(package_, with_faults(options(4), {.error = [](const ReadRequest&) { return EIO; }}));
  for (int i = 0; i < 10; ++i) {  // more often than there are slots: none is lost
    try {
      store.lease(keys_[5]);
      FAIL() << "a lease without bytes";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Errc::Io);
      EXPECT_NE(std::string(e.what()).find("layer_000.bin: expert 5 (bytes "), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("Input/output error"), std::string::npos) << e.what();
    }
  }
  queue_->set({});
  EXPECT_TRUE(right(store.lease(keys_[5])));
  EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());
  EXPECT_EQ(store.stats().failed, 10u);
}

TEST_F(ExpertStoreTest, OneFailureLeavesOtherDemandsAlone) {
  const ExpertLayer& l = package_.manifest().layers[0];
  const uint64_t bad = package_.place(l, 1).offset;
  ExpertStore store(
      package_,
      with_faults(options(6), {.error = [bad](const ReadRequest& r) { return r.offset == bad ? EIO : 0; }}));
  const std::vector<ExpertKey> good{keys_[0], keys_[2]}, mixed{keys_[0], keys_[1], keys_[3]};
  ExpertStore::Demand a(store, good, Use::Decode), b(store, mixed, Use::Decode);
  std::vector<ExpertStore::Lease> leases;
  while (a.take(leases)) {
  }
  EXPECT_EQ(leases.size(), 2u);
  EXPECT_THROW(
      {
        while (b.take(leases)) {
        }
      },
      Error);
}

// A request that failed leaves reads behind; the next request must not inherit their failure.
TEST_F(ExpertStoreTest, AJoinedLoadThatFailsIsReadAgain) {
  StoreOptions o = with_faults(options(4), {.keep_back = [](const ReadRequest&) { return true; }});
  o.reads.piece_bytes = 1 << 20;
  ExpertStore store(package_, o);
  auto first = std::make_unique<ExpertStore::Demand>(store, std::span(keys_).first(1), Use::Decode);
  ExpertStore::Demand second(store, std::span(keys_).first(1), Use::Decode);
  while (queue_->kept_back() == 0) std::this_thread::yield();
  std::atomic<int> damaged = 0;
  queue_->set({.damage = [&damaged](const ReadRequest& r) {
    if (damaged++ == 0) r.into[17] ^= std::byte{4};
  }});
  queue_->release();
  std::vector<ExpertStore::Lease> leases;
  EXPECT_THROW(first->take(leases), Error);
  first.reset();
  ASSERT_TRUE(second.take(leases));
  EXPECT_TRUE(right(leases.at(0)));
  EXPECT_EQ(store.stats().reads, 2u);
  EXPECT_EQ(store.stats().failed, 1u);
}

TEST_F(ExpertStoreTest, WrongBytesAreRefusedAndNotKept) {
  std::atomic<bool> damage = true;
  ExpertStore store(package_, with_faults(options(3), {.damage = [&damage](const ReadRequest& r) {
                                            if (damage) r.into[17] ^= std::byte{4};
                                          }}));
  try {
    store.lease(keys_[2]);
    FAIL() << "a lease of damaged bytes";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Errc::Corrupt);
    EXPECT_NE(std::string(e.what()).find("has checksum"), std::string::npos) << e.what();
  }
  damage = false;
  EXPECT_TRUE(right(store.lease(keys_[2])));
}

TEST_F(ExpertStoreTest, AReadThatNeverReturnsEndsItsRequestAndKeepsItsSlot) {
  StoreOptions o = with_faults(options(2), {.keep_back = [](const ReadRequest&) { return true; }});
  o.read_timeout = std::chrono::milliseconds(500);
  o.reads.piece_bytes = 1 << 20;  // one read for an expert: the queue has room for others
  ExpertStore store(package_, o);
  try {
    store.lease(keys_[4]);
    FAIL() << "a lease of bytes that never came";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("expert 4 "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("has not returned in 0.5 s"), std::string::npos) << e.what();
  }
  queue_->set({});
  EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());  // through the other slot
  {
    const ExpertStore::Lease one = store.lease(keys_[0]);
    EXPECT_THROW(store.lease(keys_[1]), Error);  // the lost slot's memory may still be written to
  }
  queue_->release();
  const ExpertStore::Lease one = store.lease(keys_[0]);
  for (int i = 0; i < 100; ++i) try {
      EXPECT_TRUE(right(store.lease(keys_[1])));
      return;
    } catch (const Error&) {  // not back yet
    }
  FAIL() << "the slot never came back";
}

TEST_F(ExpertStoreTest, WhatIsExpectedIsReadAheadAndCounted) {
  ExpertStore store(package_, options(24));
  const std::vector<ExpertKey> guess{keys_[3], keys_[4]};
  store.expect(guess, Use::Decode);
  for (int i = 0; i < 5000 && store.stats().reads < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  { const auto lease = store.lease(keys_[3]); }
  const StoreStats s = store.stats();
  EXPECT_EQ(s.prefetched, 2u);
  EXPECT_EQ(s.prefetch_useful, 1u);
  EXPECT_EQ(s.hits, 1u);
  EXPECT_EQ(s.misses, 0u);
  take_all(store, keys_, Use::Decode);
  EXPECT_EQ(store.stats().prefetch_useful + store.stats().prefetch_wasted, 2u);
}

TEST_F(ExpertStoreTest, AGuessThatIsNotBegunIsTakenBack) {
  std::atomic<bool> hold = true;
  StoreOptions o =
      with_faults(options(32), {.keep_back = [&hold](const ReadRequest&) { return hold.load(); }});
  o.reads.depth = 1;
  o.reads.piece_bytes = 1 << 20;
  ExpertStore store(package_, o);
  const std::vector<ExpertKey> guess{keys_[3], keys_[4], keys_[5]};
  store.expect(guess, Use::Decode);
  while (queue_->kept_back() == 0) std::this_thread::yield();  // the first one is on its way
  store.expect({}, Use::Decode);
  hold = false;
  queue_->release();
  EXPECT_TRUE(right(store.lease(keys_[9])));
  EXPECT_EQ(store.stats().prefetched, 1u);
  EXPECT_EQ(store.stats().reads, 2u);
}

TEST_F(ExpertStoreTest, ASweepLeavesMostOfWhatDecodingUses) {
  const size_t slots = keys_.size() / 2;
  ExpertStore store(package_, options(slots));
  const std::vector<ExpertKey> used(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(slots));
  take_all(store, used, Use::Decode);
  for (int i = 0; i < 3; ++i) take_all(store, keys_, Use::Sweep);
  const StoreStats before = store.stats();
  for (const ExpertKey& key : used) store.lease(key);
  const StoreStats s = store.stats() - before;
  EXPECT_LE(s.misses, slots / 4);
}

TEST_F(ExpertStoreTest, TheNextSweepStartsWithWhatTheLastOneLeft) {
  const size_t slots = keys_.size() / 2;
  ExpertStore store(package_, options(slots));
  take_all(store, keys_, Use::Sweep);
  const StoreStats before = store.stats();
  take_all(store, keys_, Use::Sweep);
  EXPECT_GE((store.stats() - before).hits, slots * 3 / 4);
}

TEST_F(ExpertStoreTest, DiscardingADemandFreesItsSlots) {
  ExpertStore store(package_, options(8));
  for (int i = 0; i < 50; ++i) {
    ExpertStore::Demand demand(store, keys_, Use::Decode);
    std::vector<ExpertStore::Lease> leases;
    if (i % 3 != 0) demand.take(leases, 2);
  }
  EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());
}

TEST_F(ExpertStoreTest, RefusesABudgetBelowOneSlot) {
  StoreOptions o = options(1);
  --o.budget_bytes;
  EXPECT_THROW(ExpertStore(package_, o), Error);
}

// Files that change under a running store.
class ChangingPackage : public ExpertStoreTest {
 protected:
  ChangingPackage() {
    std::filesystem::copy(test::golden_package("qwen3_moe"), temp_ / "p",
                          std::filesystem::copy_options::recursive);
    copy_.emplace(temp_ / "p");
    file_ = temp_.path() / "p" / copy_->manifest().layers[0].file;
  }
  test::TempFolder temp_;
  std::optional<Package> copy_;
  std::filesystem::path file_;
};

TEST_F(ChangingPackage, ATruncatedFileIsAnErrorUntilItIsWholeAgain) {
  const std::string bytes = test::read_file(file_);
  for (const bool direct : {true, false})
    for (const size_t keep : {size_t{0}, size_t{3 * 4096}, size_t{3 * 4096 + 77}}) {
      StoreOptions o = options(4);
      o.reads.direct = direct;
      ExpertStore store(*copy_, o);
      std::filesystem::resize_file(file_, keep);
      try {
        store.lease(keys_[6]);
        FAIL() << "a lease beyond the end of the file";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("the file now ends at"), std::string::npos) << e.what();
      }
      test::write_file(file_, bytes);
      EXPECT_TRUE(right(store.lease(keys_[6])));
    }
}

TEST_F(ChangingPackage, AReplacedFileServesFromTheOpenOne) {
  ExpertStore store(*copy_, options(4));
  test::write_file(temp_ / "other", std::string(std::filesystem::file_size(file_), 'x'));
  std::filesystem::rename(temp_ / "other", file_);
  EXPECT_TRUE(right(store.lease(keys_[6])));
}

// Nothing is read or waited for, and the slot stays where it is for as long as the lease lives.
TEST_F(ExpertStoreTest, LeasesWhatIsHere) {
  ExpertStore store(package_, with_faults(options(2), {}));
  EXPECT_FALSE(store.lease_if_here(keys_[0]));
  EXPECT_EQ(store.stats().reads + store.stats().asked(), 0u);
  store.lease(keys_[0]);
  const uint64_t hits = store.stats().hits;
  {
    const std::optional<ExpertStore::Lease> here = store.lease_if_here(keys_[0]);
    ASSERT_TRUE(here);
    EXPECT_EQ(here->key(), keys_[0]);
    EXPECT_TRUE(right(*here));
    EXPECT_EQ(store.stats().hits, hits + 1);
    EXPECT_EQ(take_all(store, std::span(keys_).subspan(1, 6), Use::Sweep).size(), 6u);
    EXPECT_TRUE(right(*here));
  }
  EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());

  // What is on its way is not here yet.
  queue_->set({.keep_back = [](const ReadRequest&) { return true; }});
  std::vector<ExpertKey> missing = keys_;
  store.keep_missing(missing);
  {
    ExpertStore::Demand demand(store, std::span(missing).first(1), Use::Decode);
    while (queue_->kept_back() == 0) std::this_thread::yield();
    EXPECT_FALSE(store.lease_if_here(missing[0]));
    queue_->set({});
    queue_->release();
    std::vector<ExpertStore::Lease> leases;
    EXPECT_TRUE(demand.take(leases));
  }
  EXPECT_TRUE(store.lease_if_here(missing[0]));
}

// Many threads ask at once, reads fail and are late, and what arrives is right.
TEST_F(ExpertStoreTest, ManyThreadsAtOnceThreads) {
  for (const size_t slots : {3, 20}) {
    std::atomic<uint64_t> count = 0;
    StoreOptions o = with_faults(
        options(slots), {.shorten = 0.2,
                         .delay = 0.3,
                         .most_delay = std::chrono::microseconds(100),
                         .error = [&count](const ReadRequest&) { return ++count % 31 == 0 ? EIO : 0; }});
    ExpertStore store(package_, o);
    std::atomic<uint64_t> wrong = 0;
    {
      std::vector<std::jthread> threads;
      for (uint64_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
          std::mt19937_64 random(t);
          for (int i = 0; i < 60; ++i) {
            std::vector<ExpertKey> wanted;
            std::sample(keys_.begin(), keys_.end(), std::back_inserter(wanted), 1 + random() % 8, random);
            try {
              ExpertStore::Demand demand(store, wanted, i % 2 ? Use::Decode : Use::Sweep);
              if (i % 3 == 0) store.expect(wanted, Use::Decode);
              std::vector<ExpertStore::Lease> leases;
              while (demand.take(leases, 2)) {
                for (const auto& lease : leases) wrong += !right(lease);
                leases.clear();
              }
            } catch (const Error&) {  // one of the failed reads
            }
          }
        });
    }
    EXPECT_EQ(wrong, 0u);
    queue_->set({});
    EXPECT_EQ(take_all(store, keys_, Use::Decode).size(), keys_.size());
  }
}

}  // namespace
}  // namespace moeflux
