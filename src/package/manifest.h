// moeflux.json: what a package contains. docs/FORMAT.md describes the file for other readers and writers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/matrix_format.h"

namespace moeflux {

inline constexpr uint64_t kPackageVersion = 1;
inline constexpr uint64_t kRecordAlignment = 4096;  // so that one O_DIRECT read fetches one expert
inline constexpr uint64_t kTensorAlignment = 64;    // of tensors inside a record or the resident file

// A tensor as it lies in a file: a matrix in tiles, or plain little-endian float32.
struct StoredTensor {
  std::string name;
  bool tiled = false;
  MatrixFormat format;  // of a tiled one
  uint64_t rows = 0, cols = 0;
  uint64_t offset = 0;  // in its file or record
  uint64_t bytes = 0;   // without padding
};

uint64_t stored_bytes(const StoredTensor& tensor);  // what `bytes` must be, from format and shape

struct ResidentTensor {
  StoredTensor tensor;
  uint64_t xxh3 = 0;
};

struct ExpertLayer {
  uint64_t layer = 0;
  std::string file;           // relative to the package
  uint64_t record_bytes = 0;  // padded to kRecordAlignment
  std::vector<StoredTensor> parts;
  std::vector<uint64_t> xxh3;  // one per expert, over the whole padded record
  uint64_t n_experts() const { return xxh3.size(); }
};

struct Manifest {
  std::string family;
  std::string source;        // what it was made from, in words
  uint64_t config_xxh3 = 0;  // of config.json: a changed digit there would change every result
  std::vector<ResidentTensor> resident;
  std::vector<ExpertLayer> layers;      // ascending
  std::map<std::string, double> error;  // relative RMS error of quantisation per tensor class

  uint64_t resident_bytes() const;
  uint64_t expert_bytes() const;
  const ExpertLayer* find_layer(uint64_t layer) const;
  uint64_t identity() const;  // of all that results depend on: config, formats and weights
};

// Sets the offset of each part in order and returns the record's padded size.
uint64_t lay_out_record(std::vector<StoredTensor>& parts);

std::string write_manifest(const Manifest& manifest);

// Parses and validates every field that can be judged without the files; throws Error naming `where`.
Manifest parse_manifest(const std::string& text, const std::string& where);

}  // namespace moeflux
