// Where the parts of experts lie, as kernels see it: records, picks, and a shared expert among them.
#pragma once

#include "cuda/experts.h"
#include "cuda/numerics.cuh"

namespace moeflux::cuda {

// A part of a record as kernels see it: its matrix, with the record's address still to be added.
struct PartTiles {
  Tiles m;
  ptrdiff_t offset, bias;
};

inline PartTiles part_tiles(const ExpertLayout::Part& p) {
  return {tiles_of({nullptr, p.format, p.rows, p.cols}), p.offset, p.bias};
}

// Which record each pick meets: that of its expert, or always the same one.
struct Picks {
  const uint32_t* ids;
  const std::byte* const* records;
  const std::byte* record;
};

__device__ inline const uint8_t* record_of(const Picks& picks, uint32_t pick) {
  return reinterpret_cast<const uint8_t*>(picks.ids ? picks.records[picks.ids[pick]] : picks.record);
}

__device__ inline Tiles tiles_in(const PartTiles& p, const uint8_t* record) {
  Tiles m = p.m;
  m.data = record + p.offset;
  return m;
}

__device__ inline float add_bias(const PartTiles& p, const uint8_t* record, size_t row, float y) {
  if (p.bias == ExpertLayout::kNone) return y;
  return __fadd_rn(y, reinterpret_cast<const float*>(record + p.bias)[row]);
}

// A shared expert is one more pick of every token, of a record of its own.
struct Joined {
  const std::byte* record;  // null: none
  ptrdiff_t gate, up, down, gate_bias, up_bias, down_bias;
};

struct Pick {
  uint32_t token, place;  // place: among the picks of the token
  bool joined;
  const uint8_t* record;
};

// A token has top_k picks, and one more where an expert is joined to them.
__device__ inline Pick pick_at(const Picks& picks, const Joined& joined, uint32_t top_k, uint32_t token,
                               uint32_t place) {
  const bool is_joined = place == top_k;
  return {
      token, place, is_joined,
      is_joined ? reinterpret_cast<const uint8_t*>(joined.record) : record_of(picks, token * top_k + place)};
}

// The part of a joined expert lies elsewhere in its record.
__device__ inline PartTiles part_of(const PartTiles& p, const Pick& pick, ptrdiff_t offset, ptrdiff_t bias) {
  return pick.joined ? PartTiles{p.m, offset, bias} : p;
}

}  // namespace moeflux::cuda
