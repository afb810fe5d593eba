// The safetensors container: a JSON table of tensors in front of their bytes. Reading validates everything in
// the table (ranges, sizes, overlaps) before any of it is used; data may start at any offset and need not be
// aligned.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace moeflux {

enum class DType : uint8_t {
  F64,
  F32,
  F16,
  BF16,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool,
  F8E4M3,
  F8E5M2,
  F8E8M0,
  F4
};

const char* to_string(DType type);
size_t bits_of(DType type);

struct TensorInfo {
  std::string name;
  DType type = DType::BF16;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // byte positions in the file

  uint64_t bytes() const { return end - begin; }
  uint64_t elements() const;
};

std::string shape_text(const std::vector<uint64_t>& shape);  // [2, 3]

// The table of a file, sorted by name. Throws Error{Corrupt} naming the file, the tensor and the numbers.
std::vector<TensorInfo> read_safetensors_table(const File& file);
// The same from a copy of the header (its 8-byte length and JSON) of a file that had `file_bytes` bytes.
std::vector<TensorInfo> parse_safetensors_table(std::string_view header, uint64_t file_bytes,
                                                const std::string& where);
// The length and JSON of a file's header, as parse_safetensors_table takes it.
std::string read_safetensors_header(const File& file);

// Lays tensors out in the given order without gaps and sets begin and end; returns the header, padded with
// spaces so that data start at a multiple of `alignment`.
std::string make_safetensors_header(std::vector<TensorInfo>& tensors, uint64_t alignment);

}  // namespace moeflux
