#include "model/sequence.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace moeflux {

uint64_t Sequence::bytes() const {
  uint64_t sum = 0;
  for (const MemoryPart& part : memory()) sum += part.bytes;
  return sum;
}

bool Sequence::can_cut(size_t position) const {
  return !broken_ && (position >= position_ || can_cut_state(position));
}

bool Sequence::cut(size_t position) {
  if (!can_cut(position)) return false;
  if (position >= position_) return true;
  cut_state(position);
  position_ = position;
  std::erase_if(copies_, [&](const auto& copy) { return copy->position() > position; });
  return true;
}

void Sequence::watch(std::vector<size_t> positions) {
  for (size_t i = 0, before = position_; i < positions.size(); before = positions[i++])
    check(positions[i] > before && positions[i] % kWatchStep == 0, "ascending positions to watch");
  watched_ = std::move(positions);
}

std::vector<std::unique_ptr<Sequence>> Sequence::take_copies() { return std::exchange(copies_, {}); }

void Sequence::advance(size_t count) {
  position_ += count;
  furthest_ = std::max(furthest_, position_);
  broken_ = false;
  for (auto& [position, inside] : take_inside_copies()) {
    inside->position_ = inside->furthest_ = position;
    copies_.push_back(std::move(inside));
  }
  if (std::ranges::find(watched_, position_) != watched_.end()) copies_.push_back(copy());
  std::erase_if(watched_, [&](size_t p) { return p <= position_; });
}

void Sequence::save(StateSink& sink, Saved what) const {
  if (broken_) fail(Errc::InvalidArgument, "a sequence whose last step failed half-way cannot be saved");
  save_state(sink, what);
}

void Sequence::load(StateSource& source, size_t position) {
  check(position_ == 0 && !broken_, "a new sequence to load a state into");
  if (position > capacity_)
    fail(Errc::InvalidArgument, "a state of {} tokens does not fit in the context of {} (--ctx)", position,
         capacity_);
  broken_ = true;
  load_state(source, position, Saved::All);
  position_ = furthest_ = position;
  broken_ = false;
}

std::unique_ptr<Sequence> Sequence::earlier(StateSource& rest, size_t position) const {
  check(position <= position_ && !broken_, "a state that holds the earlier one");
  std::unique_ptr<Sequence> sequence = copy();
  sequence->broken_ = true;
  sequence->load_state(rest, position, Saved::Rest);
  sequence->position_ = sequence->furthest_ = position;
  sequence->broken_ = false;
  return sequence;
}

}  // namespace moeflux
