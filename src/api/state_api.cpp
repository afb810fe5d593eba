// A sequence's state to memory and to files, and back.
#include "api/context_state.h"
#include "api/handles.h"
#include "gen/snapshot.h"

namespace {

using namespace moeflux;
using namespace moeflux::api;

constexpr size_t kMostStateBytes = size_t{1} << 44;

// Writes into a buffer that is known to be large enough.
class BufferSink : public StateSink {
 public:
  explicit BufferSink(std::span<std::byte> into) : into_(into) {}
  void write(std::span<const std::byte> bytes) override {
    check(bytes.size() <= into_.size(), "a snapshot of the size that it said");
    std::copy(bytes.begin(), bytes.end(), into_.begin());
    into_ = into_.subspan(bytes.size());
  }

 private:
  std::span<std::byte> into_;
};

// The history to be saved: nothing is left to be evaluated.
const History& settled(TokenSequence& sequence) {
  sequence.drain();
  return sequence.held();
}

template <class From>
void load_into(ContextState& state, TokenSequence& sequence, const From& from) {
  sequence.replace(load_snapshot(state.model().engine, state.history_options(), from), state.shared_model());
}

}  // namespace

moeflux_status moeflux_state_size(moeflux_context* context, uint32_t sequence, size_t* n_bytes) {
  return with_sequence(context, sequence, [&](ContextState&, TokenSequence& s) {
    required(n_bytes, "n_bytes") = snapshot_bytes(settled(s));
  });
}

moeflux_status moeflux_state_save(moeflux_context* context, uint32_t sequence, void* buffer, size_t n_bytes,
                                  size_t* n_written) {
  return with_sequence(context, sequence, [&](ContextState&, TokenSequence& s) {
    auto* into = &required(static_cast<std::byte*>(buffer), "buffer");
    required(n_written, "n_written");
    const History& history = settled(s);
    const uint64_t wanted = snapshot_bytes(history);
    if (n_bytes < wanted)
      throw Failure(MOEFLUX_TOO_SMALL,
                    fmt::format("the state has {} bytes, and there is room for {}", wanted, n_bytes));
    BufferSink sink({into, wanted});
    save_snapshot(history, sink);
    *n_written = wanted;
  });
}

moeflux_status moeflux_state_load(moeflux_context* context, uint32_t sequence, const void* buffer,
                                  size_t n_bytes) {
  return with_sequence(context, sequence, [&](ContextState& state, TokenSequence& s) {
    const auto* from = &required(static_cast<const std::byte*>(buffer), "buffer");
    if (n_bytes > kMostStateBytes) refuse("a state of {} bytes is more than {}", n_bytes, kMostStateBytes);
    load_into(state, s, std::span(from, n_bytes));
  });
}

moeflux_status moeflux_state_save_file(moeflux_context* context, uint32_t sequence, const char* path) {
  return with_sequence(context, sequence, [&](ContextState&, TokenSequence& s) {
    const fs::path file(text_argument(path, "path"));
    save_snapshot(settled(s), file);
  });
}

moeflux_status moeflux_state_load_file(moeflux_context* context, uint32_t sequence, const char* path) {
  return with_sequence(context, sequence, [&](ContextState& state, TokenSequence& s) {
    load_into(state, s, fs::path(text_argument(path, "path")));
  });
}
