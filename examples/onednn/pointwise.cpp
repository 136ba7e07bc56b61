// Elementwise ops: each is a function of the elements at one place.
#include <cmath>
#include <map>
#include <utility>

#include "loop.h"

namespace npu {
namespace {

using Function = std::function<void(const Loop&, const Source&, const Run&)>;
struct Entry {
  Function function;
  uint32_t result;  // tg_element
};
// By op, the names of its arguments, and the type of its elements.
using Table = std::map<std::pair<std::string, uint32_t>, Entry>;

template <class T>
T number(const Tensor& tensor, const void* place) {
  if (tensor.element == TG_ELEMENT_I64) return static_cast<T>(*static_cast<const int64_t*>(place));
  return static_cast<T>(*static_cast<const double*>(place));
}

template <class T>
constexpr uint32_t element_of() {
  if constexpr (std::is_same_v<T, float>) return TG_ELEMENT_F32;
  if constexpr (std::is_same_v<T, int64_t>) return TG_ELEMENT_I64;
  return TG_ELEMENT_BOOL;
}

template <int kCount, class In, class Out, class Op>
void run_over(const Loop& loop, const Source& source, const Run& run, Op op) {
  In numbers[kCount];
  const In* inputs[kCount];
  for (int i = 0; i < kCount; ++i) {
    const Tensor& tensor = source.inputs[static_cast<size_t>(i)];
    inputs[i] = static_cast<const In*>(run.places[static_cast<size_t>(i)]);
    if (!tensor.is_number) continue;
    numbers[i] = number<In>(tensor, inputs[i]);
    inputs[i] = &numbers[i];
  }
  Out* const output = static_cast<Out*>(run.places[kCount]);
  loop.run([&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    Out* to = output + offsets[0];
    const In* by[kCount];
    bool is_dense = steps[0] == 1;
    for (int i = 0; i < kCount; ++i) {
      by[i] = inputs[i] + offsets[i + 1];
      is_dense = is_dense && (steps[i + 1] == 1 || steps[i + 1] == 0);
    }
    if (is_dense) {  // loops that a compiler makes vectors of: what is repeated lies there several times
      constexpr int64_t kTogether = 256;
      In repeated[kCount][kTogether];
      for (int i = 0; i < kCount; ++i)
        if (steps[i + 1] == 0) std::fill_n(repeated[i], std::min(n, kTogether), *by[i]);
      for (int64_t begin = 0; begin < n; begin += kTogether) {
        const In* from[kCount];
        for (int i = 0; i < kCount; ++i) from[i] = steps[i + 1] == 0 ? repeated[i] : by[i] + begin;
        const int64_t count = std::min(n - begin, kTogether);
        for (int64_t j = 0; j < count; ++j) {
          In x[kCount];
          for (int i = 0; i < kCount; ++i) x[i] = from[i][j];
          to[begin + j] = static_cast<Out>(op(x));
        }
      }
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      In x[kCount];
      for (int i = 0; i < kCount; ++i) x[i] = by[i][j * steps[i + 1]];
      to[j * steps[0]] = static_cast<Out>(op(x));
    }
  });
}

template <int kCount, class In, class Out, class Op>
void enter(Table& table, const char* key, Op op) {
  table[{key, element_of<In>()}] = {[op](const Loop& loop, const Source& source, const Run& run) {
                                      run_over<kCount, In, Out>(loop, source, run, op);
                                    },
                                    element_of<Out>()};
}

template <int kCount, class Op>
void of_floats(Table& table, const char* key, Op op) {
  enter<kCount, float, float>(table, key, op);
}
template <int kCount, class Op>
void of_both(Table& table, const char* key, Op op) {
  enter<kCount, float, float>(table, key, op);
  enter<kCount, int64_t, int64_t>(table, key, op);
}
template <int kCount, class Op>
void comparison(Table& table, const char* key, Op op) {
  enter<kCount, float, truth>(table, key, op);
  enter<kCount, int64_t, truth>(table, key, op);
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
constexpr float kRootHalf = 0.70710678f, kRootTwoByPi = 0.79788456f, kCube = 0.044715f;
// The normal distribution, of the density `power` / sqrt(2 pi): Abramowitz and Stegun, 7.1.26, for erf(x / sqrt(2)).
[[gnu::always_inline]] inline float below(float x, float power) {
  const float t = 1 / (1 + 0.3275911f * kRootHalf * std::fabs(x));
  const float sum =
      ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  const float beyond = 0.5f * sum * power;
  return x < 0 ? beyond : 1 - beyond;
}
[[gnu::always_inline]] inline float gelu(float x) { return x * below(x, exp_below_one(-0.5f * x * x)); }
[[gnu::always_inline]] inline float gelu_gradient(float g, float x) {
  const float power = exp_below_one(-0.5f * x * x);
  return g * (below(x, power) + x * 0.39894228f * power);
}
float gelu_by_tanh(float x) { return 0.5f * x * (1 + std::tanh(kRootTwoByPi * (x + kCube * x * x * x))); }
float gelu_by_tanh_gradient(float g, float x) {
  const float t = std::tanh(kRootTwoByPi * (x + kCube * x * x * x));
  return g * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kRootTwoByPi * (1 + 3 * kCube * x * x));
}

Table made() {
  Table t;
  of_both<3>(t, "add self other alpha", [](const auto* x) { return x[0] + x[2] * x[1]; });
  of_both<3>(t, "sub self other alpha", [](const auto* x) { return x[0] - x[2] * x[1]; });
  of_both<3>(t, "rsub self other alpha", [](const auto* x) { return x[1] - x[2] * x[0]; });
  of_both<2>(t, "mul self other", [](const auto* x) { return x[0] * x[1]; });
  of_both<2>(t, "maximum self other", [](const auto* x) { return x[0] != x[0] || x[0] > x[1] ? x[0] : x[1]; });
  of_both<2>(t, "minimum self other", [](const auto* x) { return x[0] != x[0] || x[0] < x[1] ? x[0] : x[1]; });
  of_both<1>(t, "neg self", [](const auto* x) { return -x[0]; });
  of_both<1>(t, "relu self", [](const auto* x) { return x[0] != x[0] || x[0] > 0 ? x[0] : decltype(-x[0]){0}; });
  of_floats<2>(t, "div self other", [](const float* x) { return x[0] / x[1]; });
  of_floats<1>(t, "abs self", [](const float* x) { return std::fabs(x[0]); });
  of_floats<1>(t, "sqrt self", [](const float* x) { return std::sqrt(x[0]); });
  of_floats<1>(t, "rsqrt self", [](const float* x) { return 1 / std::sqrt(x[0]); });
  of_floats<1>(t, "reciprocal self", [](const float* x) { return 1 / x[0]; });
  of_floats<1>(t, "exp self", [](const float* x) { return std::exp(x[0]); });
  of_floats<1>(t, "log self", [](const float* x) { return std::log(x[0]); });
  of_floats<1>(t, "sin self", [](const float* x) { return std::sin(x[0]); });
  of_floats<1>(t, "cos self", [](const float* x) { return std::cos(x[0]); });
  of_floats<1>(t, "erf self", [](const float* x) { return std::erf(x[0]); });
  of_floats<1>(t, "tanh self", [](const float* x) { return std::tanh(x[0]); });
  of_floats<1>(t, "sigmoid self", [](const float* x) { return sigmoid(x[0]); });
  of_floats<1>(t, "silu self", [](const float* x) { return x[0] * sigmoid(x[0]); });
  of_floats<1>(t, "gelu self none", [](const float* x) { return gelu(x[0]); });
  of_floats<1>(t, "gelu self tanh", [](const float* x) { return gelu_by_tanh(x[0]); });
  of_floats<2>(t, "gelu_backward grad_output self none", [](const float* x) { return gelu_gradient(x[0], x[1]); });
  of_floats<2>(t, "gelu_backward grad_output self tanh",
               [](const float* x) { return gelu_by_tanh_gradient(x[0], x[1]); });
  of_floats<2>(t, "pow self exponent", [](const float* x) { return x[1] == 2 ? x[0] * x[0] : std::pow(x[0], x[1]); });
  of_floats<3>(t, "threshold_backward grad_output self threshold",
               [](const float* x) { return x[1] <= x[2] ? 0 : x[0]; });
  of_floats<2>(t, "tanh_backward grad_output output", [](const float* x) { return x[0] * (1 - x[1] * x[1]); });
  of_floats<2>(t, "sigmoid_backward grad_output output", [](const float* x) { return x[0] * (1 - x[1]) * x[1]; });
  of_floats<2>(t, "silu_backward grad_output self", [](const float* x) {
    const float s = sigmoid(x[1]);
    return x[0] * s * (1 + x[1] * (1 - s));
  });
  of_floats<4>(t, "addcmul self tensor1 tensor2 value", [](const float* x) { return x[0] + x[3] * x[1] * x[2]; });
  of_floats<4>(t, "addcdiv self tensor1 tensor2 value", [](const float* x) { return x[0] + x[3] * (x[1] / x[2]); });
  of_floats<3>(t, "lerp self end weight", [](const float* x) {
    const bool is_near = x[2] < 0.5f;
    return (is_near ? x[0] : x[1]) + (is_near ? x[2] : x[2] - 1) * (x[1] - x[0]);
  });
  comparison<2>(t, "eq self other", [](const auto* x) { return x[0] == x[1]; });
  comparison<2>(t, "ne self other", [](const auto* x) { return x[0] != x[1]; });
  comparison<2>(t, "lt self other", [](const auto* x) { return x[0] < x[1]; });
  comparison<2>(t, "le self other", [](const auto* x) { return x[0] <= x[1]; });
  comparison<2>(t, "gt self other", [](const auto* x) { return x[0] > x[1]; });
  comparison<2>(t, "ge self other", [](const auto* x) { return x[0] >= x[1]; });
  enter<1, float, truth>(t, "isnan self", [](const float* x) { return x[0] != x[0]; });
  enter<1, float, truth>(t, "isinf self", [](const float* x) { return std::isinf(x[0]); });
  enter<1, float, truth>(t, "isneginf self", [](const float* x) { return std::isinf(x[0]) && x[0] < 0; });
  enter<1, truth, truth>(t, "logical_not self", [](const truth* x) { return !x[0]; });
  enter<1, truth, truth>(t, "bitwise_not self", [](const truth* x) { return !x[0]; });
  enter<2, truth, truth>(t, "bitwise_and self other", [](const truth* x) { return bool(x[0]) && bool(x[1]); });
  enter<2, truth, truth>(t, "bitwise_or self other", [](const truth* x) { return bool(x[0]) || bool(x[1]); });
  return t;
}

// The condition has another type than the others.
Program prepare_choice(const Source& source) {
  const Tensor &condition = source.inputs[0], &out = source.outputs[0];
  want(condition.element == TG_ELEMENT_BOOL && out.element == TG_ELEMENT_F32, "a choice of float32 by truths alone");
  for (size_t i = 1; i < 3; ++i)
    want(source.inputs[i].is_number || source.inputs[i].element == out.element, "a choice among one type alone");
  const Loop loop({&out, &condition, &source.inputs[1], &source.inputs[2]});
  return {[=](const Run& run) {
    float numbers[2];
    const float* choices[2];
    for (size_t i = 0; i < 2; ++i) {
      choices[i] = static_cast<const float*>(run.places[i + 1]);
      if (!source.inputs[i + 1].is_number) continue;
      numbers[i] = number<float>(source.inputs[i + 1], run.places[i + 1]);
      choices[i] = &numbers[i];
    }
    loop.run([&](const int64_t* at, int64_t n, const int64_t* by) {
      const auto* chosen = static_cast<const truth*>(run.places[0]) + at[1];
      float* to = static_cast<float*>(run.places[3]) + at[0];
      for (int64_t j = 0; j < n; ++j)
        to[j * by[0]] = bool(chosen[j * by[1]]) ? choices[0][at[2] + j * by[2]] : choices[1][at[3] + j * by[3]];
    });
  }};
}

}  // namespace

Program prepare_pointwise(const Source& source) {
  static const Table& table = *new Table(made());
  const std::string kind = source.text("kind"), names = source.text("names");
  if (kind == "where" && names == "condition self other") return prepare_choice(source);
  std::string key = kind + " " + names;
  if (kind == "gelu" || kind == "gelu_backward") key += " " + source.text("approximate");
  uint32_t element = 0;
  for (const Tensor& each : source.inputs) {
    if (each.is_number) continue;
    want(element == 0 || element == each.element, "elements of several types");
    element = each.element;
  }
  const auto found = table.find({key, element});
  if (found == table.end()) refuse("the device has no " + kind + " of such elements");
  const Entry entry = found->second;
  want(source.outputs.size() == 1 && source.outputs[0].element == entry.result, "a result of another type");
  std::vector<const Tensor*> tensors = {&source.outputs[0]};
  for (const Tensor& each : source.inputs) tensors.push_back(&each);
  const Loop loop(tensors);
  return {[=](const Run& run) { entry.function(loop, source, run); }};
}

}  // namespace npu
