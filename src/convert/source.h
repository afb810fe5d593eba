// Finds every tensor of a package in a published checkpoint: the names of the families, prefixes, stacked and
// fused experts, MLX, FP8, MXFP4 and packed-integer weights. The result says where the rows of each matrix
// lie and how they are coded; reading them gives codes and scales as stored, or floats.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/matrix_format.h"
#include "model/schema.h"
#include "package/checkpoint.h"

namespace moeflux {

// Rows first, first + step, .. of what is stored, `count` of them.
struct RowRun {
  uint64_t first, count, step = 1;
};

// Part of a matrix that is stored transposed: its rows are the stored columns of `columns`, its columns the
// stored rows from row0 on.
struct TransposedRun {
  uint64_t row0;
  RowRun columns;
};

struct SourceMatrix {
  const CheckpointTensor* weight = nullptr;
  const CheckpointTensor* scales = nullptr;   // of coded weights
  const CheckpointTensor* biases = nullptr;   // MLX affine only
  uint64_t slab = 0;                          // which matrix of a stacked tensor
  uint64_t stored_rows = 0, stored_cols = 0;  // of one slab
  uint64_t rows = 0, cols = 0;                // of the package's matrix
  std::vector<RowRun> runs;
  std::vector<TransposedRun> transposed;  // in place of runs
  MatrixFormat format;                    // that keeps it without loss
  enum class Coding : uint8_t { Plain, Bits, Fp8, Mxfp4 } coding = Coding::Plain;
  int bits = 0;            // Bits: of a code in the row's bit stream
  bool symmetric = false;  // Bits: value = (code - 2^(bits-1)) * scale; no biases

  enum class Fp8Scales : uint8_t { Blocks, Rows, Tensor } fp8_scales = Fp8Scales::Blocks;

  bool is_coded() const { return coding != Coding::Plain; }
  // What keeps its values: coded rows that are transposed arrive as floats.
  MatrixFormat kept() const {
    return is_coded() && !transposed.empty() ? MatrixFormat::plain(MatrixType::F32) : format;
  }
};

// Rows of a matrix as they are stored, one code per element.
struct SourceRows {
  uint64_t n = 0, cols = 0, group = 0;
  std::vector<uint8_t> codes;         // coded: [n, cols]
  std::vector<float> scales, biases;  // coded: [n, ceil(cols / group)]; biases affine only
  std::vector<std::byte> plain;       // plain: [n, cols] in the stored type
  DType type = DType::BF16;           // of plain
};

// out[0..cols) = row `row` of `rows`, decoded as the format's definition says.
void rows_to_float(const SourceMatrix& m, const SourceRows& rows, uint64_t row, float* out);

struct SourceVector {
  const CheckpointTensor* tensor = nullptr;
  uint64_t first = 0, count = 0, step = 1;  // elements
  float add = 0;                            // 1 for norms that are stored as w - 1
};

class Source {
 public:
  // Resolves every tensor of the model, checks shapes and types, and refuses tensors that belong to nothing.
  Source(const Checkpoint& checkpoint, const ModelConfig& model, const Json& config, bool mtp,
         bool keep_resident);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelConfig& model() const { return model_; }
  const SchemaOptions& schema_options() const { return options_; }
  const std::vector<TensorSpec>& resident() const { return resident_; }

  const SourceMatrix& matrix(const TensorSpec& spec) const { return matrices_.at(spec.name); }
  const SourceVector& vector(const TensorSpec& spec) const { return vectors_.at(spec.name); }
  // Parts of one expert: index 0..2 matrices (gate, up, down), 3..5 their biases.
  SourceMatrix expert_matrix(uint64_t layer, uint64_t expert, size_t part) const;
  SourceVector expert_vector(uint64_t layer, uint64_t expert, size_t part) const;

  // What was left out and why, for the user: "vision tower" -> number of tensors.
  const std::map<std::string, uint64_t>& ignored() const { return ignored_; }
  bool has_mtp() const { return has_mtp_; }

  void read_rows(const SourceMatrix& m, uint64_t first, uint64_t count, SourceRows& out) const;
  std::vector<float> read_vector(const SourceVector& v) const;

 private:
  std::string source_name(const std::string& name) const;
  std::string moe_prefix(uint64_t layer) const;
  const CheckpointTensor* find(const std::string& name) const;
  const CheckpointTensor& need(const std::string& name, const std::string& what) const;
  SourceMatrix module(const std::string& path, uint64_t rows, uint64_t cols, uint64_t slabs) const;
  SourceMatrix coded_module(const std::string& path, const CheckpointTensor& weight, uint64_t rows,
                            uint64_t cols, uint64_t slabs) const;
  SourceMatrix packed_module(const std::string& path, uint64_t rows, uint64_t cols) const;
  SourceMatrix blocks_module(const std::string& path, uint64_t rows, uint64_t cols, uint64_t slabs) const;
  SourceMatrix plain_matrix(const CheckpointTensor& weight, uint64_t rows, uint64_t cols,
                            uint64_t slabs) const;
  SourceMatrix special_matrix(const TensorSpec& spec, const std::string& path) const;
  SourceMatrix fused_expert(const std::string& p, uint64_t expert, size_t part) const;
  void resolve_matrix(const TensorSpec& spec);
  void resolve_vector(const TensorSpec& spec);
  void check_expert_formats(uint64_t layer);
  void sort_leftovers();
  bool mla_is_split() const;
  bool mla_is_coded() const;
  void read_run(const SourceMatrix& m, const RowRun& run, uint64_t at, SourceRows& out) const;
  void read_scales(const SourceMatrix& m, const RowRun& run, uint64_t at, SourceRows& out) const;
  void read_transposed(const SourceMatrix& m, uint64_t first, uint64_t count, SourceRows& out) const;

  const Checkpoint& checkpoint_;
  ModelConfig model_;
  Json quantisation_;   // MLX's table, or null
  std::string prefix_;  // of everything but head and MTP
  bool mlx_ = false;    // norms already have 1 added, conv1d axes swapped
  bool has_mtp_ = false;
  SchemaOptions options_;
  std::vector<TensorSpec> resident_, parts_;
  std::map<std::string, SourceMatrix> matrices_;
  std::map<std::string, SourceVector> vectors_;
  std::map<std::string, uint64_t> ignored_;
  mutable std::map<const CheckpointTensor*, bool>
      used_;  // written while the constructor resolves, then only read
  bool resolving_ = true;
};

}  // namespace moeflux
