#include "convert/layout.h"

#include <algorithm>

#include "base/checked.h"
#include "package/safetensors.h"

namespace moeflux {

const char* to_string(Width width) {
  constexpr const char* kNames[] = {"q4", "q8", "bf16", "mxfp4", "keep"};
  return kNames[static_cast<size_t>(width)];
}

Width width_from_string(const std::string& text) {
  for (const Width w : {Width::Q4, Width::Q8, Width::Bf16, Width::Mxfp4, Width::Keep})
    if (text == to_string(w)) return w;
  fail(Errc::InvalidArgument, "'{}' is none of q4, q8, bf16, mxfp4 and keep", text);
}

MatrixFormat choose_format(const TensorSpec& spec, const MatrixFormat& source, Width width, uint16_t group) {
  if (!spec.may_narrow || width == Width::Keep) return source;
  const bool coded = source.is_affine() || source.type == MatrixType::Mxfp4;
  const auto bf16 = MatrixFormat::plain(MatrixType::Bf16);
  switch (width) {
    case Width::Q4:
    case Width::Q8: {
      const int bits = width == Width::Q4 ? 4 : 8;
      if (coded && source.code_bits() <= static_cast<size_t>(bits)) return source;
      if (spec.cols % group) return coded ? source : bf16;
      return MatrixFormat::affine(bits, group);
    }
    case Width::Mxfp4:
      if (coded && source.code_bits() == 4) return source;
      return spec.cols % 32 ? bf16 : MatrixFormat::mxfp4();
    default:
      return bf16;
  }
}

void PackageLayout::add_resident(const TensorSpec& spec, const MatrixFormat& format) {
  ResidentTensor r;
  r.tensor = {spec.name, spec.matrix, format, spec.rows, spec.cols, 0, 0};
  r.tensor.bytes = stored_bytes(r.tensor);
  manifest.resident.push_back(std::move(r));
}

void PackageLayout::add_experts(uint64_t layer, const std::vector<TensorSpec>& parts,
                                const std::vector<MatrixFormat>& formats, uint64_t n_experts) {
  ExpertLayer l;
  l.layer = layer;
  l.file = fmt::format("experts/layer_{:03}.bin", layer);
  for (size_t i = 0; i < parts.size(); ++i)
    l.parts.push_back({parts[i].name, parts[i].matrix, formats[i], parts[i].rows, parts[i].cols, 0, 0});
  l.record_bytes = lay_out_record(l.parts);
  l.xxh3.resize(n_experts);
  checked_mul(l.record_bytes, n_experts, l.file);
  manifest.layers.push_back(std::move(l));
}

void PackageLayout::finish() {
  // Matrices first: their sizes are rounded to 64 bytes, so each of them is aligned in the file.
  std::ranges::stable_sort(manifest.resident, [](const ResidentTensor& a, const ResidentTensor& b) {
    return a.tensor.tiled && !b.tensor.tiled;
  });
  std::vector<TensorInfo> table;
  for (const ResidentTensor& r : manifest.resident) {
    const StoredTensor& t = r.tensor;
    const auto shape =
        t.tiled ? std::vector{align_up(t.bytes, kTensorAlignment)} : std::vector{t.rows, t.cols};
    table.push_back({t.name, t.tiled ? DType::U8 : DType::F32, shape, 0, 0});
  }
  resident_header = make_safetensors_header(table, kRecordAlignment);
  resident_file_bytes = resident_header.size();
  for (size_t i = 0; i < table.size(); ++i) {
    manifest.resident[i].tensor.offset = table[i].begin;
    resident_file_bytes = table[i].end;
  }
}

uint64_t PackageLayout::total_bytes() const { return resident_file_bytes + manifest.expert_bytes(); }

}  // namespace moeflux
