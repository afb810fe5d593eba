// Rows of a source matrix into the tiles of a package matrix.
#pragma once

#include <span>
#include <string>

#include "convert/source.h"

namespace moeflux {

// Sums over a class of tensors; sqrt(error / power) is the relative RMS error.
struct ErrorSum {
  double error = 0, power = 0;
};

// Encodes rows.n rows, of which the first is a multiple of 16, into whole tiles of `target`. `name` is for
// errors.
void encode_rows(const SourceMatrix& m, const SourceRows& rows, const MatrixFormat& target,
                 const std::string& name, std::span<std::byte> out, ErrorSum& sum);

}  // namespace moeflux
