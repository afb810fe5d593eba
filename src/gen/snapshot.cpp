#include "gen/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.h"
#include "base/hash.h"

namespace moeflux {
namespace {

constexpr std::array<char, 8> kMagic = {'M', 'F', 'X', 'S', 'T', 'A', 'T', 'E'};

// The fixed beginning, as it lies in the file; tokens, checkpoints and the checksum of all of that follow.
struct FixedHeader {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kSnapshotVersion;
  uint32_t precision = 0, kv = 0, reserved = 0;
  uint64_t model = 0;
  uint64_t n_tokens = 0, n_checkpoints = 0;
  uint64_t state_bytes = 0, total_bytes = 0;
  std::array<char, 16> backend = {};
  std::array<char, 32> family = {};
};
static_assert(sizeof(FixedHeader) == 112 && std::is_trivially_copyable_v<FixedHeader>);

constexpr uint64_t kChecksum = sizeof(uint64_t);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <size_t N>
std::array<char, N> padded(const std::string& text) {
  std::array<char, N> out{};
  std::copy_n(text.begin(), std::min(text.size(), N), out.begin());
  return out;
}
template <size_t N>
std::string unpadded(const std::array<char, N>& text) {
  return {text.begin(), std::ranges::find(text, '\0')};
}

const char* to_string(Precision p) { return p == Precision::Exact ? "exact" : "fast"; }
const char* to_string(KvType t) { return t == KvType::F32 ? "f32" : t == KvType::Bf16 ? "bf16" : "q8"; }

// -- sinks and sources

class CountedSink : public StateSink {
 public:
  explicit CountedSink(StateSink& inner) : inner_(inner) {}
  void write(std::span<const std::byte> bytes) override {
    hasher.add(bytes);
    n_bytes += bytes.size();
    inner_.write(bytes);
  }
  Hasher hasher;
  uint64_t n_bytes = 0;

 private:
  StateSink& inner_;
};

class MemorySink : public StateSink {
 public:
  void write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  std::vector<std::byte> bytes;
};

// Many small pieces become a few writes.
class FileSink : public StateSink {
 public:
  explicit FileSink(const File& file) : file_(file) { buffer_.reserve(kBuffer); }
  void write(std::span<const std::byte> bytes) override {
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() > kBuffer) {
      file_.write_at(at_, bytes);
      at_ += bytes.size();
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  void flush() {
    file_.write_at(at_, buffer_);
    at_ += buffer_.size();
    buffer_.clear();
  }

 private:
  static constexpr size_t kBuffer = 1u << 20;
  const File& file_;
  uint64_t at_ = 0;
  std::vector<std::byte> buffer_;
};

class MemorySource : public StateSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : left_(bytes) {}
  void read(std::span<std::byte> into) override {
    check(into.size() <= left_.size(), "reads inside a snapshot of known size");
    std::ranges::copy(left_.first(into.size()), into.begin());
    left_ = left_.subspan(into.size());
  }

 private:
  std::span<const std::byte> left_;
};

class FileSource : public StateSource {
 public:
  explicit FileSource(const File& file) : file_(file), end_(file.size()) {}
  void read(std::span<std::byte> into) override {
    for (size_t done = 0; done < into.size();) {
      if (next_ == buffer_.size()) fill();
      const size_t n = std::min(into.size() - done, buffer_.size() - next_);
      std::memcpy(into.data() + done, buffer_.data() + next_, n);
      next_ += n, done += n;
    }
  }

 private:
  void fill() {
    buffer_.resize(std::min<uint64_t>(1u << 20, end_ - at_));
    check(!buffer_.empty(), "reads inside a snapshot of known size");
    file_.read_at(at_, buffer_);
    at_ += buffer_.size();
    next_ = 0;
  }
  const File& file_;
  uint64_t at_ = 0, end_;
  std::vector<std::byte> buffer_;
  size_t next_ = 0;
};

// One state of a snapshot: a source that ends where the header says.
class StatePart : public StateSource {
 public:
  StatePart(StateSource& inner, Hasher& hasher, uint64_t bytes, const std::string& where)
      : inner_(inner), hasher_(hasher), left_(bytes), where_(where) {}
  void read(std::span<std::byte> into) override {
    if (into.size() > left_) fail(Errc::Corrupt, "{}: a state that is shorter than the model's", where_);
    left_ -= into.size();
    inner_.read(into);
    hasher_.add(into);
  }
  void finish() const {
    if (left_) fail(Errc::Corrupt, "{}: a state that is {} bytes longer than the model's", where_, left_);
  }

 private:
  StateSource& inner_;
  Hasher& hasher_;
  uint64_t left_;
  const std::string& where_;
};

// -- header

SnapshotHeader header_of(const History& history) {
  SnapshotHeader header;
  header.maker = snapshot_maker(history.engine());
  header.tokens.assign(history.tokens().begin(), history.tokens().end());
  header.state_bytes = history.sequence().state_bytes();
  for (const History::Checkpoint& c : history.checkpoint_states())
    header.checkpoints.push_back({c->position(), c->state_bytes(Saved::Rest)});
  return header;
}

void write_header(const SnapshotHeader& header, StateSink& sink) {
  FixedHeader fixed;
  fixed.precision = static_cast<uint32_t>(header.maker.precision);
  fixed.kv = static_cast<uint32_t>(header.maker.kv);
  fixed.model = header.maker.model;
  fixed.n_tokens = header.tokens.size();
  fixed.n_checkpoints = header.checkpoints.size();
  fixed.state_bytes = header.state_bytes;
  fixed.total_bytes = header.total_bytes();
  fixed.backend = padded<16>(header.maker.backend);
  fixed.family = padded<32>(header.maker.family);
  CountedSink counted(sink);
  counted.write(bytes_of(fixed));
  counted.write(std::as_bytes(std::span(header.tokens)));
  counted.write(std::as_bytes(std::span(header.checkpoints)));
  sink.write(bytes_of(counted.hasher.digest()));
}

void check_sizes(const FixedHeader& f, const SnapshotHeader& header, uint64_t size,
                 const std::string& where) {
  uint64_t before = 0, bytes = header.header_bytes() + header.state_bytes;
  for (const SnapshotHeader::Checkpoint& c : header.checkpoints) {
    if (c.position <= before || c.position > f.n_tokens)
      fail(Errc::Corrupt, "{}: a checkpoint at {} after {}, in a text of {} tokens", where, c.position,
           before, f.n_tokens);
    before = c.position;
    bytes = checked_add(bytes, c.bytes, where);
  }
  if (checked_add(bytes, kChecksum, where) != size || f.total_bytes != size)
    fail(Errc::Corrupt, "{}: {} bytes, but its parts have {}", where, size, bytes + kChecksum);
}

// Of a source with `size` bytes in all.
SnapshotHeader read_header(StateSource& source, uint64_t size, const std::string& where) {
  FixedHeader f;
  if (size < sizeof f + 2 * kChecksum) fail(Errc::Corrupt, "{}: {} bytes are no saved state", where, size);
  source.read(std::as_writable_bytes(std::span(&f, 1)));
  if (f.magic != kMagic) fail(Errc::Corrupt, "{}: not a saved state", where);
  if (f.version != kSnapshotVersion)
    fail(Errc::Unsupported, "{}: a saved state of version {}; this program reads version {}", where,
         f.version, kSnapshotVersion);
  const uint64_t most = size / sizeof(Token);
  if (f.n_tokens > most || f.n_checkpoints > most || f.state_bytes > size || f.total_bytes != size)
    fail(Errc::Corrupt, "{}: {} bytes, but {} tokens, {} checkpoints and a state of {} are said to be there",
         where, size, f.n_tokens, f.n_checkpoints, f.state_bytes);
  SnapshotHeader header;
  header.state_bytes = f.state_bytes;
  if (sizeof f + f.n_tokens * sizeof(Token) + f.n_checkpoints * sizeof(SnapshotHeader::Checkpoint) +
          kChecksum >
      size)
    fail(Errc::Corrupt, "{}: {} bytes end before {} tokens and {} checkpoints", where, size, f.n_tokens,
         f.n_checkpoints);
  header.tokens.resize(f.n_tokens);
  header.checkpoints.resize(f.n_checkpoints);
  source.read(std::as_writable_bytes(std::span(header.tokens)));
  source.read(std::as_writable_bytes(std::span(header.checkpoints)));
  Hasher hasher;
  hasher.add(bytes_of(f));
  hasher.add(std::as_bytes(std::span(header.tokens)));
  hasher.add(std::as_bytes(std::span(header.checkpoints)));
  uint64_t checksum = 0;
  source.read(std::as_writable_bytes(std::span(&checksum, 1)));
  if (checksum != hasher.digest() || f.precision > 1 || f.kv > 2)
    fail(Errc::Corrupt, "{}: the header is damaged: its checksum is {}, want {}", where,
         to_hex(hasher.digest()), to_hex(checksum));
  check_sizes(f, header, size, where);
  header.maker = {unpadded(f.family), f.model, static_cast<Precision>(f.precision), static_cast<KvType>(f.kv),
                  unpadded(f.backend)};
  return header;
}

void match(const SnapshotHeader& header, const Engine& engine, const std::string& where) {
  const SnapshotMaker &is = header.maker, want = snapshot_maker(engine);
  if (is.model != want.model)
    fail(Errc::InvalidArgument, "{}: a state of another model ({} {}; this one is {} {})", where, is.family,
         to_hex(is.model), want.family, to_hex(want.model));
  if (is.precision != want.precision || is.kv != want.kv)
    fail(Errc::InvalidArgument,
         "{}: a state with other settings (precision {}, KV cache {}; here precision {}, KV cache {})", where,
         to_string(is.precision), to_string(is.kv), to_string(want.precision), to_string(want.kv));
  if (header.tokens.size() > engine.plan().ctx)
    fail(Errc::InvalidArgument, "{}: a state of {} tokens does not fit in the context of {} (--ctx)", where,
         header.tokens.size(), engine.plan().ctx);
  for (const Token t : header.tokens)
    if (t >= engine.config().n_vocab)
      fail(Errc::Corrupt, "{}: token {} is not in the vocabulary of {}", where, t, engine.config().n_vocab);
}

std::unique_ptr<History> load(Engine& engine, const HistoryOptions& options, StateSource& source,
                              uint64_t size, const std::string& where) {
  SnapshotHeader header = read_header(source, size, where);
  match(header, engine, where);
  Hasher hasher;
  std::unique_ptr<Sequence> sequence = engine.make_sequence();
  StatePart all(source, hasher, header.state_bytes, where);
  sequence->load(all, header.tokens.size());
  all.finish();
  std::vector<History::Checkpoint> checkpoints;
  for (const SnapshotHeader::Checkpoint& c : header.checkpoints) {
    StatePart rest(source, hasher, c.bytes, where);
    checkpoints.push_back(sequence->earlier(rest, c.position));
    rest.finish();
  }
  uint64_t checksum = 0;
  source.read(std::as_writable_bytes(std::span(&checksum, 1)));
  if (checksum != hasher.digest())
    fail(Errc::Corrupt, "{}: the state is damaged: its checksum is {}, want {}", where,
         to_hex(hasher.digest()), to_hex(checksum));
  return std::make_unique<History>(engine, options, std::move(header.tokens), std::move(sequence),
                                   std::move(checkpoints));
}

}  // namespace

SnapshotMaker snapshot_maker(const Engine& engine) {
  return {engine.config().family, engine.package().manifest().identity(), engine.options().precision,
          engine.kv(), engine.options().backend};
}

uint64_t SnapshotHeader::header_bytes() const {
  return sizeof(FixedHeader) + tokens.size() * sizeof(Token) + checkpoints.size() * sizeof(Checkpoint) +
         kChecksum;
}

uint64_t SnapshotHeader::total_bytes() const {
  uint64_t sum = header_bytes() + state_bytes + kChecksum;
  for (const Checkpoint& c : checkpoints) sum += c.bytes;
  return sum;
}

uint64_t snapshot_bytes(const History& history) { return header_of(history).total_bytes(); }

void save_snapshot(const History& history, StateSink& sink) {
  if (history.broken()) fail(Errc::InvalidArgument, "a text whose last step failed half-way cannot be saved");
  const SnapshotHeader header = header_of(history);
  write_header(header, sink);
  CountedSink counted(sink);
  history.sequence().save(counted);
  for (const History::Checkpoint& c : history.checkpoint_states()) c->save(counted, Saved::Rest);
  sink.write(bytes_of(counted.hasher.digest()));
  check(counted.n_bytes + header.header_bytes() + kChecksum == header.total_bytes(),
        "states of the size that was announced");
}

std::vector<std::byte> save_snapshot(const History& history) {
  MemorySink sink;
  sink.bytes.reserve(snapshot_bytes(history));
  save_snapshot(history, sink);
  return std::move(sink.bytes);
}

void save_snapshot(const History& history, const fs::path& path) {
  const fs::path partial = path.string() + ".partial";
  try {
    const File file = File::create(partial);
    FileSink sink(file);
    save_snapshot(history, sink);
    sink.flush();
    file.sync();
    rename_durably(partial, path);
  } catch (...) {
    std::error_code ec;
    fs::remove(partial, ec);
    throw;
  }
}

std::unique_ptr<History> load_snapshot(Engine& engine, const HistoryOptions& options, const fs::path& path) {
  const File file = File::open_read(path);
  FileSource source(file);
  return load(engine, options, source, file.size(), path.string());
}

std::unique_ptr<History> load_snapshot(Engine& engine, const HistoryOptions& options,
                                       std::span<const std::byte> bytes) {
  MemorySource source(bytes);
  return load(engine, options, source, bytes.size(), "the saved state");
}

SnapshotHeader read_snapshot_header(const fs::path& path) {
  const File file = File::open_read(path);
  FileSource source(file);
  return read_header(source, file.size(), path.string());
}

}  // namespace moeflux
