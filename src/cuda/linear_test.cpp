// The products of linear.h against the plain versions of ops/linear.h: the same bits.
#include "cuda/linear.h"

#include "cuda/pointwise.h"
#include "cuda/vectors_test.h"
#include "ops/linear.h"
#include "ops/test_matrix.h"

namespace moeflux::cuda {
namespace {

class CudaLinear : public OnDevice {};

std::vector<float> reference(const TestMatrix& m, bool exact, size_t first, size_t count,
                             const std::vector<float>& x, size_t n) {
  std::vector<float> y(n * count);
  (exact ? linear_exact_ref : linear_fast_ref)(m.view, first, count, x.data(), n, m.view.cols, y.data(),
                                               count);
  return y;
}

TEST_F(CudaLinear, HasTheBitsOfThePlainVersion) {
  for (const MatrixFormat& f : test_formats())
    for (const size_t cols : {32, 64, 96, 100, 320, 640, 1024, 2112}) {
      if (f.group && cols % f.group) continue;
      const size_t rows = 67;
      const TestMatrix m(f, rows, cols, 7);
      const DeviceMatrix on_device(m);
      for (const size_t n : {1, 2, 5, 37, 130}) {
        const auto x = noise_vector(n * cols, 11);
        const TestVectors v(x, cols);
        for (const bool exact : {false, true}) {
          DeviceArray<float> y(n * rows);
          linear({.w = on_device.view, .x = v.vectors, .out = y.get(), .out_stride = rows, .exact = exact},
                 nullptr);
          ASSERT_EQ(y.values(), reference(m, exact, 0, rows, x, n))
              << to_string(f) << (exact ? " exact" : " fast") << ", cols " << cols << ", n " << n;
        }
      }
    }
}

TEST_F(CudaLinear, WideAndManyRows) {  // more than one tile of a large kernel in every direction
  for (const MatrixFormat& f :
       {MatrixFormat::affine(4, 64), MatrixFormat::affine(8, 128), MatrixFormat::mxfp4()})
    for (const size_t n : {1, 200}) {
      const size_t rows = 333, cols = 4224;
      const TestMatrix m(f, rows, cols, 3);
      const DeviceMatrix on_device(m);
      const auto x = noise_vector(n * cols, 5, 3);
      const TestVectors v(x, cols);
      DeviceArray<float> y(n * rows);
      linear({.w = on_device.view, .x = v.vectors, .out = y.get(), .out_stride = rows}, nullptr);
      ASSERT_EQ(y.values(), reference(m, false, 0, rows, x, n)) << to_string(f) << " " << n;
    }
}

TEST_F(CudaLinear, LargeCodesAndActivationsDoNotSaturate) {
  for (const MatrixFormat& f :
       {MatrixFormat::affine(4, 64), MatrixFormat::affine(8, 64), MatrixFormat::mxfp4()})
    for (const float sign : {1.0f, -1.0f})
      for (const size_t n : {1, 64}) {
        TestMatrix m(f, 16, 128, 3);
        for (size_t t = 0; t < m.bytes.size() / f.tile_bytes(); ++t)
          for (size_t i = 0; i < f.tile_code_bytes(); ++i)  // the largest codes: 15, 255, 6
            m.bytes[t * f.tile_bytes() + i] = std::byte(f.type == MatrixType::Mxfp4 ? 0x77 : 0xff);
        const DeviceMatrix on_device(m);
        const std::vector<float> x(n * 128, sign * 3.0f);
        const TestVectors v(x, 128);
        DeviceArray<float> y(n * 16);
        linear({.w = on_device.view, .x = v.vectors, .out = y.get(), .out_stride = 16}, nullptr);
        ASSERT_EQ(y.values(), reference(m, false, 0, 16, x, n)) << to_string(f);
      }
}

TEST_F(CudaLinear, BiasSumPicksAndPartsOfRows) {
  const size_t rows = 100, cols = 192;
  for (const MatrixFormat& f : {MatrixFormat::affine(4, 64), MatrixFormat::plain(MatrixType::Bf16)}) {
    const TestMatrix m(f, rows, cols, 3);
    const DeviceMatrix on_device(m);
    const auto bias = noise_vector(rows, 8);
    const DeviceArray<float> device_bias(bias);
    for (const size_t n : {9, 150})
      for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 100}, {16, 32}, {20, 41}, {64, 36}}) {
        const auto x = noise_vector(n * cols, 5);
        const TestVectors v(x, cols);
        std::vector<uint32_t> pick;
        for (size_t i = 0; i < n; ++i) pick.push_back(static_cast<uint32_t>(i * 7 % n));
        const DeviceArray<uint32_t> device_pick(pick);
        const auto before = noise_vector(n * (count + 3), 6);
        const DeviceArray<float> y(before);
        linear({.w = on_device.view,
                .bias = device_bias.get(),
                .x = v.vectors,
                .out = y.get(),
                .out_stride = count + 3,
                .add = true,
                .first_row = first,
                .rows = count,
                .pick = device_pick.get(),
                .n_picks = n},
               nullptr);
        auto want = before;
        const auto product = reference(m, false, first, count, x, n);
        for (size_t t = 0; t < n; ++t)
          for (size_t i = 0; i < count; ++i)
            want[t * (count + 3) + i] += product[pick[t] * count + i] + bias[first + i];
        ASSERT_EQ(y.values(), want) << to_string(f) << " rows " << first << " + " << count << ", n " << n;
      }
  }
}

TEST_F(CudaLinear, FineProductsAddThoseOfTheRest) {
  const size_t rows = 40, cols = 320;
  for (const MatrixFormat& f : {MatrixFormat::affine(4, 64), MatrixFormat::plain(MatrixType::Bf16)})
    for (const size_t n : {1, 3, 90}) {
      const TestMatrix m(f, rows, cols, 9);
      const DeviceMatrix on_device(m);
      const auto x = noise_vector(n * cols, 4);
      std::vector<float> rest(x.size());
      for (size_t t = 0; t < n; ++t) remainder_ref({&x[t * cols], cols}, &rest[t * cols]);
      const TestVectors v(x, cols), r(rest, cols);
      const TestVectors made(std::vector<float>(x.size()), cols);
      quantise_rest(v.vectors, made.vectors, nullptr);
      ASSERT_EQ(made.q.values(), r.q.values());
      DeviceArray<float> y(n * rows);
      linear({.w = on_device.view, .x = v.vectors, .out = y.get(), .out_stride = rows, .rest = made.vectors},
             nullptr);
      auto want = reference(m, false, 0, rows, x, n);
      if (has_integer_codes(f)) {
        const auto more = reference(m, false, 0, rows, rest, n);
        for (size_t i = 0; i < want.size(); ++i) want[i] += more[i];
      }
      ASSERT_EQ(y.values(), want) << to_string(f) << " " << n;
    }
}

TEST_F(CudaLinear, HeadsMeetTheirOwnRows) {
  const size_t heads = 3, cols = 128;
  for (const size_t rows : {32, 20})
    for (const size_t n : {1, 2, 70}) {
      const TestMatrix m(MatrixFormat::affine(4, 64), heads * rows, cols, 6);
      const DeviceMatrix on_device(m);
      const auto x = noise_vector(n * heads * cols, 2);
      const TestVectors v(x, cols);
      for (const bool exact : {false, true}) {
        const size_t head_stride = rows + 5, out_stride = heads * head_stride;
        std::vector<float> want(n * out_stride, 1.0f);
        const DeviceArray<float> y(want);
        linear({.w = on_device.view,
                .x = v.vectors,
                .out = y.get(),
                .out_stride = out_stride,
                .exact = exact,
                .rows = rows,
                .heads = heads,
                .head_stride = head_stride},
               nullptr);
        for (size_t t = 0; t < n; ++t)
          for (size_t h = 0; h < heads; ++h)
            (exact ? linear_exact_ref : linear_fast_ref)(m.view, h * rows, rows, &x[(t * heads + h) * cols],
                                                         1, cols, &want[t * out_stride + h * head_stride],
                                                         rows);
        ASSERT_EQ(y.values(), want) << rows << " rows, " << n << " vectors";
      }
    }
}

TEST_F(CudaLinear, SeveralProductsAtOnce) {
  const size_t cols = 256;
  const MatrixFormat formats[] = {MatrixFormat::affine(4, 64), MatrixFormat::affine(4, 64),
                                  MatrixFormat::affine(8, 64), MatrixFormat::plain(MatrixType::Bf16),
                                  MatrixFormat::affine(4, 64)};
  for (const size_t n : {1, 6, 100}) {
    const auto x = noise_vector(n * cols, 2);
    const TestVectors v(x, cols);
    std::vector<TestMatrix> matrices;
    std::vector<DeviceMatrix> on_device;
    std::vector<DeviceArray<float>> y;
    std::vector<Product> products;
    for (size_t i = 0; i < std::size(formats); ++i) {
      const size_t rows = 24 + 40 * i;
      matrices.emplace_back(formats[i], rows, cols, static_cast<uint32_t>(i));
      on_device.emplace_back(matrices.back());
      y.emplace_back(n * rows);
      products.push_back({.w = on_device.back().view,
                          .x = v.vectors,
                          .out = y.back().get(),
                          .out_stride = rows,
                          .exact = i == 4});
    }
    linear(products, nullptr);
    for (size_t i = 0; i < std::size(formats); ++i)
      ASSERT_EQ(y[i].values(), reference(matrices[i], i == 4, 0, matrices[i].view.rows, x, n))
          << i << " " << n;
  }
}

TEST_F(CudaLinear, MakeTheNormThemselves) {
  for (const MatrixFormat& f :
       {MatrixFormat::affine(4, 64), MatrixFormat::affine(8, 64), MatrixFormat::affine(4, 32)})
    for (const size_t cols : {64, 192, 2048, 4096}) {
      const std::vector<float> x = whole_numbers(cols, 3), w = noise_vector(cols, 5);
      const DeviceArray<float> device_x(x), device_w(w);
      const TestVectors h(std::vector<float>(cols), cols);
      rms_norm(device_x.get(), cols, nullptr, device_w.get(), 1e-6f, h.vectors, nullptr);
      const std::vector<float> normed = h.f.values();
      std::vector<TestMatrix> matrices;
      std::vector<DeviceMatrix> on_device;
      std::vector<DeviceArray<float>> y;
      std::vector<Product> products;
      for (const size_t rows : {67, 16, 200}) {
        matrices.emplace_back(f, rows, cols, static_cast<uint32_t>(rows));
        on_device.emplace_back(matrices.back());
        y.emplace_back(rows);
        products.push_back({.w = on_device.back().view,
                            .x = {.n = 1, .cols = cols, .stride = cols},
                            .out = y.back().get(),
                            .out_stride = rows,
                            .unnormed = {device_x.get(), device_w.get(), 1e-6f}});
      }
      ASSERT_TRUE(can_norm(products)) << to_string(f) << " " << cols;
      linear(products, nullptr);
      for (size_t i = 0; i < matrices.size(); ++i)
        ASSERT_EQ(y[i].values(), reference(matrices[i], false, 0, matrices[i].view.rows, normed, 1))
            << to_string(f) << ", cols " << cols << ", product " << i;
    }
}

TEST_F(CudaLinear, QuantisedVectorsAreThoseOfThePlainVersion) {
  for (const size_t cols : {1, 63, 64, 100, 256}) {
    const auto x = noise_vector(3 * cols, 9, 4);
    const TestVectors v(x, cols);
    const auto q = v.q.values();
    const auto spans = v.span.values();
    for (size_t t = 0; t < 3; ++t) {
      const QuantisedVector want = quantise_vector({&x[t * cols], cols});
      for (size_t i = 0; i < want.q.size(); ++i) ASSERT_EQ(q[t * want.q.size() + i], want.q[i]);
      for (size_t s = 0; s < want.scale.size(); ++s) {
        const QuantSpan& span = spans[t * want.scale.size() + s];
        int sum[2] = {};
        for (size_t i = 0; i < 64; ++i) sum[i / 32] += want.q[s * 64 + i];
        ASSERT_EQ(span.xs, want.scale[s]);
        ASSERT_EQ(span.xb, span.xs * static_cast<float>(sum[0] + sum[1]));
        ASSERT_EQ(span.xb_half[0], span.xs * static_cast<float>(sum[0]));
        ASSERT_EQ(span.xb_half[1], span.xs * static_cast<float>(sum[1]));
      }
    }
  }
}

TEST_F(CudaLinear, TransposedProductsAndRows) {
  for (const MatrixFormat& f : test_formats()) {
    const size_t heads = 3, rows = 20, cols = f.group == 128 ? 256 : 160, n = 2;
    const TestMatrix m(f, heads * rows, cols, 19);
    const DeviceMatrix on_device(m);
    const auto x = noise_vector(n * heads * rows, 4);
    const DeviceArray<float> device_x(x);
    DeviceArray<float> y(n * heads * cols);
    linear_transposed({.w = on_device.view,
                       .rows = rows,
                       .heads = heads,
                       .n = n,
                       .x = device_x.get(),
                       .x_stride = heads * rows,
                       .x_head = rows,
                       .out = y.get(),
                       .out_stride = heads * cols,
                       .out_head = cols},
                      nullptr);
    std::vector<float> want(n * heads * cols);
    for (size_t t = 0; t < n; ++t)
      for (size_t h = 0; h < heads; ++h)
        linear_transposed_ref(m.view, h * rows, rows, &x[(t * heads + h) * rows],
                              &want[(t * heads + h) * cols]);
    ASSERT_EQ(y.values(), want) << to_string(f);

    const std::vector<uint32_t> ids = {59, 0, 17, 17};
    const DeviceArray<uint32_t> device_ids(ids);
    DeviceArray<float> decoded(ids.size() * cols);
    dequantise_rows(on_device.view, device_ids.get(), ids.size(), decoded.get(), cols, nullptr);
    std::vector<float> rows_wanted(ids.size() * cols);
    for (size_t i = 0; i < ids.size(); ++i) dequantise_row(m.view, ids[i], &rows_wanted[i * cols]);
    ASSERT_EQ(decoded.values(), rows_wanted) << to_string(f);
  }
}

}  // namespace
}  // namespace moeflux::cuda
