// What a model remembers of the tokens so far: KV cache and recurrent state of one sequence. Made by a
// backend, usable with it only and while it lives, and on the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace moeflux {

// A piece of memory that sequences may share: the same id is the same memory.
struct MemoryPart {
  const void* id;
  uint64_t bytes;
};

// Where a state is written to and read from, piece by piece.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
};
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual void read(std::span<std::byte> into) = 0;  // all of it; throws Error{Corrupt} where it ends before
};

// What is saved of a state: all, or what cannot be taken from the state of a longer text that begins with the
// same tokens (recurrent layers and those with a window).
enum class Saved : uint8_t { All, Rest };

class Sequence {
 public:
  explicit Sequence(size_t capacity) : capacity_(capacity) {}
  virtual ~Sequence() = default;
  Sequence& operator=(const Sequence&) = delete;

  size_t capacity() const { return capacity_; }  // tokens
  size_t position() const { return position_; }  // tokens so far
  // A step failed half-way: the state of some layers is ahead of others, and nothing can be done with it.
  bool broken() const { return broken_; }

  // The memory that it holds now, and its sum; what it shares with copies counts in each of them.
  virtual std::vector<MemoryPart> memory() const = 0;
  uint64_t bytes() const;

  // A sequence with the same tokens that goes its own way from here. Memory is shared until one of them
  // writes, where the backend can.
  virtual std::unique_ptr<Sequence> copy() const = 0;
  // Forgets the tokens from `position` on; what follows has the bits that it would have after a fresh
  // evaluation. False, and nothing has changed, where the state cannot go back that far: layers with a window
  // can while all is held that the window needs, recurrent ones by a few tokens at most, a broken sequence
  // not at all.
  bool cut(size_t position);
  bool can_cut(size_t position) const;
  // How many tokens may follow in one step, which asks for the logits of each, such that all but the first
  // can be cut off again.
  virtual size_t removable() const = 0;

  // Asks for copies of what it will be at these positions, multiples of kWatchStep beyond its own in
  // ascending order, as steps come to them; replaces earlier wishes. What the copies hold is shared as in
  // copy().
  void watch(std::vector<size_t> positions);
  std::vector<std::unique_ptr<Sequence>> take_copies();  // that have come, in ascending order
  // Whether they also come for positions inside a step; else only where a step ends.
  virtual bool copies_inside_steps() const { return false; }
  static constexpr size_t kWatchStep = 64;

  // The state in the layout that all backends share (docs/FORMAT.md). Throws Error{InvalidArgument} of a
  // broken sequence.
  void save(StateSink& sink, Saved what = Saved::All) const;
  virtual uint64_t state_bytes(Saved what = Saved::All) const = 0;
  // Makes a sequence without tokens one of `position` tokens. Where that fails it is broken.
  void load(StateSource& source, size_t position);
  // What this one was at an earlier position, of which the source has the rest.
  std::unique_ptr<Sequence> earlier(StateSource& rest, size_t position) const;

 protected:
  Sequence(const Sequence& other)
      : capacity_(other.capacity_),
        position_(other.position_),
        furthest_(other.furthest_),
        broken_(other.broken_) {}
  // The position that memory was written up to, whether that was cut off again or not: rings that hold the
  // last positions only have lost what that has overwritten.
  size_t furthest() const { return furthest_; }
  std::span<const size_t> watched() const { return watched_; }

 private:
  friend class Model;
  void advance(size_t count);  // a step has succeeded
  // The copies of the step that has succeeded, by position.
  virtual std::map<size_t, std::unique_ptr<Sequence>> take_inside_copies() { return {}; }
  virtual bool can_cut_state(size_t position) const = 0;  // position < position()
  virtual void cut_state(size_t) {}
  virtual void save_state(StateSink& sink, Saved what) const = 0;
  virtual void load_state(StateSource& source, size_t position, Saved what) = 0;

  size_t capacity_;
  size_t position_ = 0, furthest_ = 0;
  bool broken_ = false;
  std::vector<size_t> watched_;
  std::vector<std::unique_ptr<Sequence>> copies_;
};

}  // namespace moeflux
