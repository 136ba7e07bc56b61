// Loops over the elements of tensors of one shape, shared by the processor's threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "operators.h"

namespace npu {

struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  explicit bfloat16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    bits = value != value ? 0x7fc0 : static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

struct truth {
  uint8_t byte;

  truth() = default;
  explicit truth(bool value) : byte(value) {}
  explicit operator bool() const { return byte != 0; }
};

inline size_t size_of(uint32_t element) {
  switch (element) {
    case TG_ELEMENT_U8:
    case TG_ELEMENT_I8:
    case TG_ELEMENT_BOOL:
      return 1;
    case TG_ELEMENT_I16:
    case TG_ELEMENT_F16:
    case TG_ELEMENT_BF16:
      return 2;
    case TG_ELEMENT_I32:
    case TG_ELEMENT_F32:
      return 4;
    case TG_ELEMENT_I64:
    case TG_ELEMENT_F64:
    case TG_ELEMENT_C64:
      return 8;
    default:
      return 16;
  }
}

// Calls a function with a value of the C++ type of some elements.
template <class Function>
auto with_type(uint32_t element, Function function) {
  switch (element) {
    case TG_ELEMENT_U8:
      return function(uint8_t{});
    case TG_ELEMENT_I8:
      return function(int8_t{});
    case TG_ELEMENT_I16:
      return function(int16_t{});
    case TG_ELEMENT_I32:
      return function(int32_t{});
    case TG_ELEMENT_I64:
      return function(int64_t{});
    case TG_ELEMENT_BF16:
      return function(bfloat16{});
    case TG_ELEMENT_F32:
      return function(float{});
    case TG_ELEMENT_F64:
      return function(double{});
    case TG_ELEMENT_BOOL:
      return function(truth{});
    default:
      refuse("the device has no elements of this type");
  }
}

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<From, bfloat16>) {
    return converted<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, truth>) {
    return converted<To>(static_cast<int>(static_cast<bool>(value)));
  } else if constexpr (std::is_same_v<To, bfloat16>) {
    return bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, truth>) {
    return truth(value != From{});
  } else {
    return static_cast<To>(value);
  }
}

// e^x of x <= 1, in a form that a compiler makes vectors of; coefficients as of Cephes' expf.
[[gnu::always_inline]] inline float exp_below_one(float x) {
  constexpr float kLeast = -87.3f, kRound = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction
  const float t = x < kLeast ? kLeast : x, shifted = t * 1.44269504f + kRound, n = shifted - kRound;
  const float r = t - n * 0.693359375f + n * 2.12194440e-4f;
  const float p = ((((1.3981999507e-3f + 1.9875691500e-4f * r) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
                   1.6666665459e-1f) *
                      r +
                  5.0000001201e-1f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);  // 2^n
  return x < kLeast ? 0 : (p * r * r + r + 1) * power;
}

// The sum of what a function gives for 0 to n, in parts of which a compiler makes vectors.
template <class T, class Function>
T summed(int64_t n, const Function& function) {
  constexpr int64_t kParts = 16;
  T parts[kParts] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts)
    for (int64_t part = 0; part < kParts; ++part) parts[part] += function(i + part);
  for (; i < n; ++i) sum += function(i);
  for (const T part : parts) sum += part;
  return sum;
}

class Loop {
 public:
  // Numbers have strides of 0. The dimensions are ordered by the first tensor's strides.
  explicit Loop(const std::vector<const Tensor*>& tensors) : strides_(tensors.size()) {
    const Tensor& first = *tensors.front();
    std::vector<size_t> order;
    for (size_t d = 0; d < first.sizes.size(); ++d)
      if (first.sizes[d] != 1) order.push_back(d);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return first.strides[a] > first.strides[b]; });
    const auto stride = [&](size_t i, size_t d) { return tensors[i]->is_number ? 0 : tensors[i]->strides[d]; };
    for (const size_t d : order) {
      bool joins = !sizes_.empty();
      for (size_t i = 0; joins && i < tensors.size(); ++i) joins = strides_[i].back() == stride(i, d) * first.sizes[d];
      if (joins) {
        sizes_.back() *= first.sizes[d];
      } else {
        sizes_.push_back(first.sizes[d]);
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (joins) strides_[i].pop_back();
        strides_[i].push_back(stride(i, d));
      }
    }
    if (sizes_.empty()) {
      sizes_ = {1};
      for (auto& own : strides_) own = {1};
    }
  }

  // Calls body(offsets, n, steps), in elements, a number for each tensor: pieces of rows.
  template <class Body>
  void run(const Body& body) const {
    constexpr int64_t kPiece = 16384;
    const int64_t row = sizes_.back(), pieces = (row + kPiece - 1) / kPiece;
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < sizes_.size(); ++d) rows *= sizes_[d];
    const int64_t total = rows * pieces;
    std::vector<int64_t> steps;
    for (const auto& own : strides_) steps.push_back(own.back());
#pragma omp parallel for schedule(static) if (total > 1 && rows * row > 32768)
    for (int64_t each = 0; each < total; ++each) {
      int64_t offsets[8] = {}, at = each / pieces;
      const int64_t begin = each % pieces * kPiece;
      for (size_t d = sizes_.size() - 1; d-- > 0; at /= sizes_[d])
        for (size_t i = 0; i < strides_.size(); ++i) offsets[i] += at % sizes_[d] * strides_[i][d];
      for (size_t i = 0; i < strides_.size(); ++i) offsets[i] += begin * steps[i];
      body(offsets, std::min(kPiece, row - begin), steps.data());
    }
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<std::vector<int64_t>> strides_;
};

}  // namespace npu
