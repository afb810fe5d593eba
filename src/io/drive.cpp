#include "io/drive.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>

#include "base/buffer.h"
#include "base/error.h"
#include "base/text.h"

namespace moeflux {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kProbeBytes = 64u << 20;  // of one setting: 20-60 ms on drives of 1-3 GB/s
constexpr uint64_t kWorthProbing = 1u << 30;

// Reads go round through this much memory. Experts arrive in slots that no cache of the processor holds; into
// memory that it does hold, the same drive was seen to deliver a fifth more.
constexpr uint64_t kTargetBytes = 64u << 20;

// Keeps a queue full with the pieces of random records.
class Reader {
 public:
  Reader(std::span<const RecordFile> files, const ReadSettings& s, uint64_t seed, AlignedBuffer& memory)
      : files_(files), settings_(s), random_(seed), queue_(make_read_queue(s.queue, s.depth)) {
    const size_t one = s.piece_bytes + kPage, n = std::max<size_t>(queue_->depth(), kTargetBytes / one);
    if (memory.size() < n * one) {
      memory = AlignedBuffer(n * one);
      for (size_t i = 0; i < memory.size(); i += kPage) memory.data()[i] = std::byte{1};  // before the clock
    }
    memory_ = memory.bytes();
    for (size_t i = 0; i < n; ++i) free_.push_back(i);
  }

  double run(uint64_t bytes) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    uint64_t done = 0;
    size_t in_flight = 0;
    while (done < bytes) {
      for (; in_flight < queue_->depth(); ++in_flight) submit_one();
      ReadDone out[64];
      const size_t n = queue_->wait(out, std::chrono::seconds(10));
      if (n == 0) fail(Errc::Io, "{}: no read came back in 10 s", files_[0].buffered->path().string());
      for (const ReadDone& d : std::span(out, n)) {
        if (d.err != 0) fail_errno(d.err, fmt::format("{}: reading", files_[0].buffered->path().string()));
        done += d.bytes;
        free_.push_back(d.tag);
      }
      in_flight -= n;
    }
    return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  void submit_one() {
    if (piece_ == n_pieces_) {
      file_ = &files_[random_() % files_.size()];
      record_ = random_() % file_->n_records;
      n_pieces_ = piece_count(file_->record_bytes, settings_.piece_bytes);
      piece_ = 0;
    }
    const PieceRange range = piece_of(file_->record_bytes, settings_.piece_bytes, piece_++);
    const size_t at = free_.front();
    free_.pop_front();
    const File& file = settings_.direct && file_->direct ? *file_->direct : *file_->buffered;
    const uint64_t offset = record_ * file_->record_bytes + range.begin, bytes = range.end - range.begin;
    if (!settings_.direct)
      posix_fadvise(file.fd(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    const ReadRequest r{file.fd(), offset, memory_.subspan(at * (settings_.piece_bytes + kPage), bytes), at};
    check(queue_->submit({&r, 1}) == 1, "room for as many reads as the queue is deep");
  }

  std::span<const RecordFile> files_;
  const ReadSettings settings_;
  std::mt19937_64 random_;
  std::span<std::byte> memory_;
  std::deque<size_t> free_;  // pieces of it, the longest unused first
  const RecordFile* file_ = nullptr;
  uint64_t record_ = 0;
  size_t piece_ = 0, n_pieces_ = 0;
  std::unique_ptr<ReadQueue> queue_;  // last: it ends before the memory that it reads into
};

class Probe {
 public:
  explicit Probe(std::span<const RecordFile> files, ReadSettings first) : files_(files) {
    best_.settings = first;
    measure(first);  // wakes the drive
    best_.bytes_per_s = measure(first);
  }

  // Takes these settings if they are better by so much, twice: a single measurement may be noise.
  void try_other(const ReadSettings& s, double least_ratio) {
    const double speed = measure(s);
    if (speed < least_ratio * best_.bytes_per_s) return;
    const double again = measure(s), before = measure(best_.settings);
    if (again > least_ratio * before) best_ = {s, (speed + again) / 2};
  }

  const DriveSpeed& best() const { return best_; }

 private:
  double measure(const ReadSettings& s) { return Reader(files_, s, ++seed_, memory_).run(kProbeBytes); }

  std::span<const RecordFile> files_;
  AlignedBuffer memory_;
  DriveSpeed best_;
  uint64_t seed_ = 1;
};

}  // namespace

std::string to_string(const ReadSettings& s) {
  return fmt::format("{}, {}, pieces of {}, {} at once", s.queue,
                     s.direct ? "past the page cache" : "buffered", format_bytes(s.piece_bytes), s.depth);
}

size_t piece_count(uint64_t record_bytes, size_t piece_bytes) {
  return std::max<size_t>(1, (record_bytes + piece_bytes - 1) / piece_bytes);
}

PieceRange piece_of(uint64_t record_bytes, size_t piece_bytes, size_t index) {
  const size_t n = piece_count(record_bytes, piece_bytes);
  const auto edge = [&](size_t i) { return i == n ? record_bytes : record_bytes * i / n / kPage * kPage; };
  return {edge(index), edge(index + 1)};
}

double measure_drive(std::span<const RecordFile> files, const ReadSettings& settings, uint64_t bytes,
                     uint64_t seed) {
  AlignedBuffer memory;
  return Reader(files, settings, seed, memory).run(bytes);
}

DriveSpeed probe_drive(std::span<const RecordFile> files, const ReadWishes& wishes) {
  ReadSettings s;
  const bool can_direct = std::ranges::all_of(files, [](const RecordFile& f) { return f.direct != nullptr; });
  s.queue = make_read_queue(wishes.queue, 1)->name() == "pread" ? "pread" : "uring";
  s.direct = wishes.direct.value_or(can_direct);
  if (s.direct && !can_direct)
    fail(Errc::Unsupported, "{}: this file system has no reads past the page cache",
         files[0].buffered->path().string());
  s.piece_bytes = wishes.piece_bytes.value_or(s.piece_bytes);
  s.depth = wishes.depth.value_or(s.depth);
  s.bulk_piece_bytes = wishes.piece_bytes.value_or(s.bulk_piece_bytes);
  s.bulk_depth = wishes.depth.value_or(s.bulk_depth);
  uint64_t all = 0;
  for (const RecordFile& f : files) all += f.record_bytes * f.n_records;
  if (all < kWorthProbing) return {s, 0};

  Probe probe(files, s);
  const auto variant = [&](double least_ratio, auto set) {
    ReadSettings other = probe.best().settings;
    set(other);
    probe.try_other(other, least_ratio);
  };
  // With more in flight all experts of a layer arrive late together, instead of one after the other, each
  // checked and computed while the next is read: it must be worth that.
  constexpr double kWorthIt = 1.15;
  if (!wishes.depth)
    for (const size_t depth : {24, 48}) variant(kWorthIt, [&](ReadSettings& o) { o.depth = depth; });
  if (!wishes.piece_bytes)
    for (const size_t piece : {512 << 10, 1 << 20})
      variant(kWorthIt, [&](ReadSettings& o) { o.piece_bytes = piece; });
  if (!wishes.direct && can_direct) variant(1.05, [&](ReadSettings& o) { o.direct = false; });
  return probe.best();
}

}  // namespace moeflux
