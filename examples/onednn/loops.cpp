// The other operators, by loops over contiguous memory.
#include <cmath>
#include <limits>

#include "loop.h"

namespace npu {
namespace {

void want_contiguous(const Source& source) {
  for (const auto* list : {&source.inputs, &source.outputs})
    for (const Tensor& each : *list)
      if (each && !each.is_number) want(each.is_contiguous(), "a tensor that is not contiguous");
}
void want_contiguous_floats(const Source& source) {
  want_contiguous(source);
  for (const auto* list : {&source.inputs, &source.outputs})
    for (const Tensor& each : *list)
      if (each) want_float(each);
}

template <class T = float>
T* in(const Run& run, size_t i) {
  return static_cast<T*>(run.places[i]);
}

// A tensor as (outer, size, inner) around a dimension.
struct Axis {
  Axis(const Tensor& tensor, int64_t dim) {
    for (int64_t d = 0; d < tensor.dims(); ++d)
      (d < dim ? outer : d == dim ? size : inner) *= tensor.sizes[static_cast<size_t>(d)];
  }
  int64_t outer = 1, size = 1, inner = 1;
};

void check_index(int64_t index, int64_t size) {
  if (index < 0 || index >= size)
    throw std::out_of_range("index " + std::to_string(index) + " is out of range of " + std::to_string(size));
}

// ---- moving ----

Program prepare_copy(const Source& source) {
  const Tensor &x = source.inputs[0], &y = source.outputs[0];
  const Loop loop({&y, &x});
  return with_type(y.element, [&](auto to) {
    return with_type(x.element, [&](auto from) -> Program {
      using To = decltype(to);
      using From = decltype(from);
      return {[loop](const Run& run) {
        loop.run([&](const int64_t* at, int64_t n, const int64_t* by) {
          To* out = in<To>(run, 1) + at[0];
          const From* given = in<From>(run, 0) + at[1];
          for (int64_t j = 0; j < n; ++j) out[j * by[0]] = converted<To>(given[j * by[1]]);
        });
      }};
    });
  });
}

Program prepare_fill(const Source& source) {
  const Tensor& y = source.outputs[0];
  const bool is_integer = source.is_integer("value");
  const double value = source.number("value");
  const int64_t integer = is_integer ? source.integer("value") : 0;
  const Loop loop({&y});
  return with_type(y.element, [&](auto to) -> Program {
    using To = decltype(to);
    const To filled = is_integer ? converted<To>(integer) : converted<To>(value);
    return {[=](const Run& run) {
      loop.run([&](const int64_t* at, int64_t n, const int64_t* by) {
        for (int64_t j = 0; j < n; ++j) in<To>(run, 0)[at[0] + j * by[0]] = filled;
      });
    }};
  });
}

Program prepare_cat(const Source& source) {
  want_contiguous(source);
  const Tensor& y = source.outputs[0];
  const int64_t dim = source.integer("dim");
  const Axis whole(y, dim);
  const auto bytes = static_cast<int64_t>(size_of(y.element)) * whole.inner;
  std::vector<int64_t> sizes;
  for (const Tensor& each : source.inputs) {
    want(each.element == y.element, "parts of other types");
    sizes.push_back(each.sizes[static_cast<size_t>(dim)]);
  }
  return {[=](const Run& run) {
    char* to = in<char>(run, sizes.size());
    for (int64_t o = 0; o < whole.outer; ++o)
      for (size_t i = 0; i < sizes.size(); to += sizes[i++] * bytes)
        std::memcpy(to, in<char>(run, i) + o * sizes[i] * bytes, static_cast<size_t>(sizes[i] * bytes));
  }};
}

Program prepare_range(const Source& source) {
  want_contiguous(source);
  const Tensor& y = source.outputs[0];
  const int64_t n = y.numel();
  if (y.element == TG_ELEMENT_I64) {
    const int64_t start = source.integer("start"), step = source.integer("step");
    return {[=](const Run& run) {
      for (int64_t i = 0; i < n; ++i) in<int64_t>(run, 0)[i] = start + i * step;
    }};
  }
  want_float(y);
  const double start = source.number("start"), step = source.number("step");
  return {[=](const Run& run) {
    for (int64_t i = 0; i < n; ++i) in(run, 0)[i] = static_cast<float>(start + static_cast<double>(i) * step);
  }};
}

Program prepare_triangle(const Source& source) {
  want_contiguous(source);
  const Tensor& y = source.outputs[0];
  const std::string& kind = source.text("kind");
  const bool is_lower = kind == "tril";
  want(is_lower || kind == "triu", "a triangle of another kind");
  const int64_t diagonal = source.integer("diagonal"), columns = y.sizes.back(), rows = y.sizes[y.sizes.size() - 2],
                matrices = y.numel() / rows / columns;
  const size_t bytes = size_of(y.element);
  return {[=](const Run& run) {
    for (int64_t i = 0; i < matrices * rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const bool stays = is_lower ? j - i % rows <= diagonal : j - i % rows >= diagonal;
        const auto place = static_cast<size_t>(i * columns + j) * bytes;
        if (stays)
          std::memcpy(in<char>(run, 1) + place, in<char>(run, 0) + place, bytes);
        else
          std::memset(in<char>(run, 1) + place, 0, bytes);
      }
  }};
}

Program prepare_gather(const Source& source) {
  want_contiguous(source);
  const Tensor &x = source.inputs[0], &indices = source.inputs[1];
  want(indices.element == TG_ELEMENT_I64, "indices of another type than int64");
  const Axis axis(x, source.integer("dim"));
  const auto bytes = static_cast<int64_t>(size_of(x.element)) * axis.inner;
  const int64_t count = indices.numel();
  return {[=](const Run& run) {
    const int64_t* places = in<int64_t>(run, 1);
    for (int64_t i = 0; i < count; ++i) check_index(places[i], axis.size);
    for (int64_t o = 0; o < axis.outer; ++o)
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(in<char>(run, 2) + (o * count + i) * bytes, in<char>(run, 0) + (o * axis.size + places[i]) * bytes,
                    static_cast<size_t>(bytes));
  }};
}

Program prepare_scatter_add(const Source& source) {
  want_contiguous(source);
  const Tensor &grad = source.inputs[0], &indices = source.inputs[1], &y = source.outputs[0];
  want_float(grad), want_float(y);
  want(indices.element == TG_ELEMENT_I64, "indices of another type than int64");
  const int64_t count = indices.numel(), width = y.numel() / y.sizes[0], left_out = source.integer("left_out");
  const int64_t total = y.numel(), rows = y.sizes[0];
  return {[=](const Run& run) {
    float* to = in(run, 2);
    std::fill_n(to, total, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = in<int64_t>(run, 1)[i];
      if (row == left_out) continue;
      check_index(row, rows);
      for (int64_t j = 0; j < width; ++j) to[row * width + j] += in(run, 0)[i * width + j];
    }
  }};
}

// ---- reductions ----

// Whether any of some truths holds, or all do.
Program prepare_reduce_truths(const Source& source) {
  want_contiguous(source);
  const Tensor &x = source.inputs[0], &y = source.outputs[0];
  want(x.element == TG_ELEMENT_BOOL && y.element == TG_ELEMENT_BOOL, "truths of other elements than bool");
  const auto dims = source.integers("dims");
  const bool is_any = source.text("kind") == "any", is_whole = dims.size() == x.sizes.size();
  want(is_whole || dims.size() == 1, "truths of several dimensions");
  Axis axis(x, is_whole ? -1 : dims[0]);
  if (is_whole) axis.size = x.numel(), axis.inner = axis.outer = 1;
  return {[=](const Run& run) {
    for (int64_t row = 0; row < axis.outer * axis.inner; ++row) {
      const truth* from = in<truth>(run, 0) + row / axis.inner * axis.size * axis.inner + row % axis.inner;
      bool found = !is_any;
      for (int64_t i = 0; i < axis.size && found != is_any; ++i) found = bool(from[i * axis.inner]);
      in<truth>(run, 1)[row] = truth(found);
    }
  }};
}

// Of a matrix whose columns touch each other: some of them at a time, row by row.
Program prepare_sum_of_rows(int64_t rows, int64_t pitch, int64_t columns, double factor) {
  return {[=](const Run& run) {
    constexpr int64_t kColumns = 64;
#pragma omp parallel for if (rows * columns > 32768)
    for (int64_t first = 0; first < columns; first += kColumns) {
      const int64_t n = std::min(kColumns, columns - first);
      double sums[kColumns] = {};
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t j = 0; j < n; ++j) sums[j] += in(run, 0)[row * pitch + first + j];
      for (int64_t j = 0; j < n; ++j) in(run, 1)[first + j] = static_cast<float>(sums[j] * factor);
    }
  }};
}

Program prepare_reduce(const Source& source) {
  const Tensor &x = source.inputs[0], &y = source.outputs[0];
  const std::string kind = source.text("kind");
  if (kind == "any" || kind == "all") return prepare_reduce_truths(source);
  want_float(x), want_float(y);
  const bool is_sum = kind == "sum" || kind == "mean", is_norm = kind == "norm", is_most = kind == "amax";
  want(is_sum || is_most || (is_norm && source.number("ord") == 2), "a reduction of another kind");
  std::vector<bool> reduced(x.sizes.size());
  for (const int64_t d : source.integers("dims")) reduced[static_cast<size_t>(d)] = true;
  // Strides of what is kept, of x and y, and of what is reduced.
  std::vector<int64_t> kept, of_x, of_y, sizes, strides;
  size_t next = 0;
  for (size_t d = 0; d < x.sizes.size(); ++d) {
    if (reduced[d]) {
      sizes.push_back(x.sizes[d]), strides.push_back(x.strides[d]);
    } else {
      kept.push_back(x.sizes[d]), of_x.push_back(x.strides[d]), of_y.push_back(y.strides[next++]);
    }
  }
  if (sizes.empty()) sizes = {1}, strides = {1};
  const int64_t results = y.numel(), count = x.numel() / results;
  const double factor = kind == "mean" ? 1.0 / static_cast<double>(count) : 1;
  if (is_sum && sizes.size() == 1 && kept.size() == 1 && of_x[0] == 1 && of_y[0] == 1)
    return prepare_sum_of_rows(count, strides[0], results, factor);
  return {[=](const Run& run) {
    const int64_t rows = count / sizes.back();
#pragma omp parallel for if (results > 1 && results * count > 32768)
    for (int64_t i = 0; i < results; ++i) {
      int64_t from = 0, to = 0, at = i;
      for (size_t d = kept.size(); d-- > 0; at /= kept[d]) from += at % kept[d] * of_x[d], to += at % kept[d] * of_y[d];
      double sum = 0;
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t r = 0; r < rows; ++r) {
        int64_t begin = from, row = r;
        for (size_t d = sizes.size() - 1; d-- > 0; row /= sizes[d]) begin += row % sizes[d] * strides[d];
        const float* row_of_x = in(run, 0) + begin;
        const auto value = [&](int64_t j) { return row_of_x[j * strides.back()]; };
        if (is_most)
          for (int64_t j = 0; j < sizes.back(); ++j) most = value(j) != value(j) || value(j) > most ? value(j) : most;
        else if (is_norm)
          sum += summed<double>(sizes.back(), [&](int64_t j) { return double{value(j)} * value(j); });
        else
          sum += summed<double>(sizes.back(), [&](int64_t j) { return double{value(j)}; });
      }
      in(run, 1)[to] = is_most ? most : static_cast<float>(is_norm ? std::sqrt(sum) : sum * factor);
    }
  }};
}

Program prepare_softmax(const Source& source, bool is_log) {
  want_contiguous_floats(source);
  const Axis axis(source.inputs[0], source.integer("dim"));
  return {[=](const Run& run) {
#pragma omp parallel for if (axis.outer * axis.size * axis.inner > 16384)
    for (int64_t row = 0; row < axis.outer * axis.inner; ++row) {
      const int64_t begin = row / axis.inner * axis.size * axis.inner + row % axis.inner;
      const auto softmax = [&](int64_t n, int64_t by) {
        const float* x = in(run, 0) + begin;
        float* y = in(run, 1) + begin;
        float most = -std::numeric_limits<float>::infinity();
        for (int64_t i = 0; i < n; ++i) most = std::max(most, x[i * by]);
        for (int64_t i = 0; i < n; ++i) y[i * by] = is_log ? x[i * by] - most : exp_below_one(x[i * by] - most);
        const auto sum = summed<float>(n, [&](int64_t i) { return is_log ? exp_below_one(y[i * by]) : y[i * by]; });
        const float log = std::log(sum);
        for (int64_t i = 0; i < n; ++i) y[i * by] = is_log ? y[i * by] - log : y[i * by] / sum;
      };
      axis.inner == 1 ? softmax(axis.size, 1) : softmax(axis.size, axis.inner);
    }
  }};
}

Program prepare_softmax_gradient(const Source& source, bool is_log) {
  want_contiguous_floats(source);
  const Axis axis(source.inputs[0], source.integer("dim"));
  return {[=](const Run& run) {
#pragma omp parallel for if (axis.outer * axis.size * axis.inner > 16384)
    for (int64_t row = 0; row < axis.outer * axis.inner; ++row) {
      const int64_t begin = row / axis.inner * axis.size * axis.inner + row % axis.inner;
      const auto gradient = [&](int64_t n, int64_t by) {
        const float *g = in(run, 0) + begin, *y = in(run, 1) + begin;
        float* x = in(run, 2) + begin;
        const auto sum = summed<float>(n, [&](int64_t i) { return is_log ? g[i * by] : g[i * by] * y[i * by]; });
        for (int64_t i = 0; i < n; ++i)
          x[i * by] = is_log ? g[i * by] - exp_below_one(y[i * by]) * sum : (g[i * by] - sum) * y[i * by];
      };
      axis.inner == 1 ? gradient(axis.size, 1) : gradient(axis.size, axis.inner);
    }
  }};
}

// ---- normalisation ----

Program prepare_layer_norm(const Source& source) {
  want_contiguous_floats(source);
  const Tensor& x = source.inputs[0];
  int64_t size = 1;
  for (int64_t d = x.dims() - source.integer("dims"); d < x.dims(); ++d) size *= x.sizes[static_cast<size_t>(d)];
  const int64_t rows = x.numel() / size;
  const double eps = source.number("eps");
  return {[=](const Run& run) {
    const float *w = in(run, 1), *b = in(run, 2);
#pragma omp parallel for if (rows * size > 16384)
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = in(run, 0) + r * size;
      float* to = in(run, 3) + r * size;
      const double mean = summed<double>(size, [&](int64_t i) { return double{from[i]}; }) / static_cast<double>(size);
      const auto squares = summed<double>(size, [&](int64_t i) { return (from[i] - mean) * (from[i] - mean); });
      const auto rstd = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(size) + eps));
      const auto center = static_cast<float>(mean);
      for (int64_t i = 0; i < size; ++i)
        to[i] = (from[i] - center) * rstd * (w != nullptr ? w[i] : 1) + (b != nullptr ? b[i] : 0);
      in(run, 4)[r] = center;
      in(run, 5)[r] = rstd;
    }
  }};
}

Program prepare_layer_norm_gradient(const Source& source) {
  want_contiguous_floats(source);
  const Tensor& x = source.inputs[1];
  int64_t size = 1;
  for (int64_t d = x.dims() - source.integer("dims"); d < x.dims(); ++d) size *= x.sizes[static_cast<size_t>(d)];
  const int64_t rows = x.numel() / size;
  return {[=](const Run& run) {
    const float *g = in(run, 0), *from = in(run, 1), *means = in(run, 2), *rstds = in(run, 3), *w = in(run, 4);
    float *to = in(run, 5), *of_w = in(run, 6), *of_b = in(run, 7);
    if (to != nullptr) {
#pragma omp parallel for if (rows * size > 16384)
      for (int64_t r = 0; r < rows; ++r) {
        const auto weighted = [&](int64_t i) { return double{g[r * size + i] * (w != nullptr ? w[i] : 1)}; };
        const auto one = summed<double>(size, weighted),
                   other = summed<double>(
                       size, [&](int64_t i) { return weighted(i) * ((from[r * size + i] - means[r]) * rstds[r]); });
        for (int64_t i = 0; i < size; ++i) {
          const float grad = g[r * size + i] * (w != nullptr ? w[i] : 1);
          const double normal = (from[r * size + i] - means[r]) * rstds[r];
          to[r * size + i] = static_cast<float>(rstds[r] * (grad - (one + normal * other) / static_cast<double>(size)));
        }
      }
    }
    if (of_w == nullptr && of_b == nullptr) return;
    std::vector<double> weights(static_cast<size_t>(size)), biases(static_cast<size_t>(size));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < size; ++i) {
        weights[static_cast<size_t>(i)] += double{g[r * size + i]} * ((from[r * size + i] - means[r]) * rstds[r]);
        biases[static_cast<size_t>(i)] += g[r * size + i];
      }
    for (int64_t i = 0; i < size; ++i) {
      if (of_w != nullptr) of_w[i] = static_cast<float>(weights[static_cast<size_t>(i)]);
      if (of_b != nullptr) of_b[i] = static_cast<float>(biases[static_cast<size_t>(i)]);
    }
  }};
}

Program prepare_batch_norm(const Source& source) {
  want_contiguous_floats(source);
  const Axis axis(source.inputs[0], 1);
  const bool trains = source.integer("training") != 0;
  const double eps = source.number("eps"), momentum = source.number("momentum");
  return {[=](const Run& run) {
    const auto count = static_cast<double>(axis.outer * axis.inner);
#pragma omp parallel for if (axis.outer * axis.size * axis.inner > 16384)
    for (int64_t c = 0; c < axis.size; ++c) {
      const auto each = [&](const auto& what) {
        for (int64_t o = 0; o < axis.outer; ++o)
          for (int64_t i = 0; i < axis.inner; ++i) what((o * axis.size + c) * axis.inner + i);
      };
      const float *x = in(run, 0), *w = in(run, 1), *b = in(run, 2), *old_mean = in(run, 3), *old_var = in(run, 4);
      double mean = 0, variance = 0;
      if (trains) {
        each([&](int64_t at) { mean += x[at]; });
        mean /= count;
        each([&](int64_t at) { variance += (x[at] - mean) * (x[at] - mean); });
        variance /= count;
      } else {
        mean = old_mean[c], variance = old_var[c];
      }
      const double rstd = 1 / std::sqrt(variance + eps);
      const auto scale = static_cast<float>(rstd * (w != nullptr ? w[c] : 1));
      const auto center = static_cast<float>(mean);
      const float shift = b != nullptr ? b[c] : 0;
      each([&](int64_t at) { in(run, 5)[at] = (x[at] - center) * scale + shift; });
      if (!trains) continue;
      if (in(run, 6) != nullptr) in(run, 6)[c] = center;
      if (in(run, 7) != nullptr) in(run, 7)[c] = static_cast<float>(rstd);
      if (in(run, 8) != nullptr) in(run, 8)[c] = static_cast<float>((1 - momentum) * old_mean[c] + momentum * mean);
      if (in(run, 9) != nullptr)
        in(run, 9)[c] = static_cast<float>((1 - momentum) * old_var[c] + momentum * variance * count / (count - 1));
    }
  }};
}

Program prepare_batch_norm_gradient(const Source& source) {
  want_contiguous_floats(source);
  const Axis axis(source.inputs[1], 1);
  return {[=](const Run& run) {
    const auto count = static_cast<double>(axis.outer * axis.inner);
#pragma omp parallel for if (axis.outer * axis.size * axis.inner > 16384)
    for (int64_t c = 0; c < axis.size; ++c) {
      const auto each = [&](const auto& what) {
        for (int64_t o = 0; o < axis.outer; ++o)
          for (int64_t i = 0; i < axis.inner; ++i) what((o * axis.size + c) * axis.inner + i);
      };
      const float *g = in(run, 0), *x = in(run, 1), *w = in(run, 2);
      const float mean = in(run, 3)[c], rstd = in(run, 4)[c];
      double sum = 0, product = 0;
      each([&](int64_t at) { sum += g[at], product += double{g[at]} * (x[at] - mean) * rstd; });
      if (float* to = in(run, 5)) {
        const double scale = rstd * (w != nullptr ? w[c] : 1);
        const auto one = static_cast<float>(sum / count), other = static_cast<float>(product / count * rstd);
        each([&](int64_t at) { to[at] = static_cast<float>(scale) * (g[at] - one - (x[at] - mean) * other); });
      }
      if (in(run, 6) != nullptr) in(run, 6)[c] = static_cast<float>(product);
      if (in(run, 7) != nullptr) in(run, 7)[c] = static_cast<float>(sum);
    }
  }};
}

// ---- pooling ----

struct Planes {
  explicit Planes(const Tensor& tensor)
      : rows(tensor.sizes[tensor.sizes.size() - 2]),
        columns(tensor.sizes.back()),
        count(tensor.numel() / rows / columns) {}
  int64_t rows, columns, count;
};

Program prepare_max_pool(const Source& source) {
  want_contiguous(source);
  want_float(source.inputs[0]);
  const Planes from(source.inputs[0]), to(source.outputs[0]);
  const auto size = source.integers("kernel_size"), stride = source.integers("stride"),
             padding = source.integers("padding"), dilation = source.integers("dilation");
  return {[=](const Run& run) {
#pragma omp parallel for if (to.count > 1 && to.count * to.rows * to.columns > 4096)
    for (int64_t p = 0; p < to.count; ++p)
      for (int64_t y = 0; y < to.rows; ++y)
        for (int64_t x = 0; x < to.columns; ++x) {
          float most = -std::numeric_limits<float>::infinity();
          int64_t place = -1;
          for (int64_t i = 0; i < size[0]; ++i)
            for (int64_t j = 0; j < size[1]; ++j) {
              const int64_t row = y * stride[0] - padding[0] + i * dilation[0];
              const int64_t column = x * stride[1] - padding[1] + j * dilation[1];
              if (row < 0 || row >= from.rows || column < 0 || column >= from.columns) continue;
              const float value = in(run, 0)[(p * from.rows + row) * from.columns + column];
              if (place >= 0 && !(value > most) && value == value) continue;
              most = value, place = row * from.columns + column;
            }
          const int64_t at = (p * to.rows + y) * to.columns + x;
          in(run, 1)[at] = most;
          in<int64_t>(run, 2)[at] = place;
        }
  }};
}

Program prepare_max_pool_gradient(const Source& source) {
  want_contiguous(source);
  want_float(source.inputs[0]);
  const Planes from(source.inputs[0]), to(source.outputs[0]);
  return {[=](const Run& run) {
    const int64_t inside = from.rows * from.columns, outside = to.rows * to.columns;
#pragma omp parallel for if (to.count > 1 && to.count * outside > 16384)
    for (int64_t p = 0; p < to.count; ++p) {
      float* target = in(run, 2) + p * outside;
      std::fill_n(target, outside, 0.0f);
      for (int64_t i = 0; i < inside; ++i) target[in<int64_t>(run, 1)[p * inside + i]] += in(run, 0)[p * inside + i];
    }
  }};
}

// Calls what(row and column of the small image, a pixel of its window, the window's size).
template <class What>
void for_each_window(const Planes& large, const Planes& small, int64_t plane, const What& what) {
  const auto begin = [](int64_t i, int64_t n, int64_t of) { return i * of / n; };
  const auto end = [](int64_t i, int64_t n, int64_t of) { return ((i + 1) * of + n - 1) / n; };
  for (int64_t y = 0; y < small.rows; ++y)
    for (int64_t x = 0; x < small.columns; ++x) {
      const int64_t top = begin(y, small.rows, large.rows), bottom = end(y, small.rows, large.rows);
      const int64_t left = begin(x, small.columns, large.columns), right = end(x, small.columns, large.columns);
      const auto size = static_cast<float>((bottom - top) * (right - left));
      for (int64_t i = top; i < bottom; ++i)
        for (int64_t j = left; j < right; ++j)
          what((plane * small.rows + y) * small.columns + x, (plane * large.rows + i) * large.columns + j, size);
    }
}

Program prepare_adaptive_pool(const Source& source, bool is_gradient) {
  want_contiguous_floats(source);
  const Tensor &x = source.inputs[0], &y = source.outputs[0];
  const Planes large(is_gradient ? y : x), small(is_gradient ? x : y);
  const int64_t total = y.numel();
  return {[=](const Run& run) {
    std::fill_n(in(run, 1), total, 0.0f);
    for (int64_t p = 0; p < small.count; ++p)
      for_each_window(large, small, p, [&](int64_t one, int64_t pixel, float size) {
        in(run, 1)[is_gradient ? pixel : one] += in(run, 0)[is_gradient ? one : pixel] / size;
      });
  }};
}

// ---- losses ----

struct Classes {
  explicit Classes(const Source& source, const Tensor& x, const Tensor& target, const Tensor& weight)
      : rows(x.dims() == 2 ? x.sizes[0] : 1), classes(x.sizes.back()), ignored(source.integer("ignored")) {
    want_contiguous(source);
    want_float(x);
    want(!weight && target.element == TG_ELEMENT_I64 && x.dims() <= 2, "a loss with weights, or of images");
    const std::string& reduction = source.text("reduction");
    is_mean = reduction == "mean";
    want(is_mean || reduction == "sum", "a loss for each element");
  }
  int64_t rows, classes, ignored;
  bool is_mean;
};

Program prepare_nll_loss(const Source& source) {
  const Classes c(source, source.inputs[0], source.inputs[1], source.inputs[2]);
  return {[=](const Run& run) {
    double sum = 0, count = 0;
    for (int64_t r = 0; r < c.rows; ++r) {
      const int64_t target = in<int64_t>(run, 1)[r];
      if (target == c.ignored) continue;
      check_index(target, c.classes);
      sum -= in(run, 0)[r * c.classes + target], ++count;
    }
    in(run, 3)[0] = static_cast<float>(c.is_mean ? sum / count : sum);
    in(run, 4)[0] = static_cast<float>(count);
  }};
}

Program prepare_nll_loss_gradient(const Source& source) {
  const Classes c(source, source.outputs[0], source.inputs[1], source.inputs[2]);
  return {[=](const Run& run) {
    const float grad = in(run, 0)[0] / (c.is_mean ? in(run, 3)[0] : 1);
    std::fill_n(in(run, 4), c.rows * c.classes, 0.0f);
    for (int64_t r = 0; r < c.rows; ++r) {
      const int64_t target = in<int64_t>(run, 1)[r];
      if (target == c.ignored) continue;
      check_index(target, c.classes);
      in(run, 4)[r * c.classes + target] = -grad;
    }
  }};
}

}  // namespace

Program prepare_loops(const Source& source) {
  const std::string& name = source.name;
  if (name == "copy") return prepare_copy(source);
  if (name == "fill") return prepare_fill(source);
  if (name == "cat") return prepare_cat(source);
  if (name == "range") return prepare_range(source);
  if (name == "triangle") return prepare_triangle(source);
  if (name == "gather") return prepare_gather(source);
  if (name == "scatter_add") return prepare_scatter_add(source);
  if (name == "reduce") return prepare_reduce(source);
  if (name == "softmax" || name == "log_softmax") return prepare_softmax(source, name != "softmax");
  if (name == "softmax_gradient" || name == "log_softmax_gradient")
    return prepare_softmax_gradient(source, name != "softmax_gradient");
  if (name == "layer_norm") return prepare_layer_norm(source);
  if (name == "layer_norm_gradient") return prepare_layer_norm_gradient(source);
  if (name == "batch_norm") return prepare_batch_norm(source);
  if (name == "batch_norm_gradient") return prepare_batch_norm_gradient(source);
  if (name == "max_pool") return prepare_max_pool(source);
  if (name == "max_pool_gradient") return prepare_max_pool_gradient(source);
  if (name == "adaptive_average_pool") return prepare_adaptive_pool(source, false);
  if (name == "adaptive_average_pool_gradient") return prepare_adaptive_pool(source, true);
  if (name == "nll_loss") return prepare_nll_loss(source);
  if (name == "nll_loss_gradient") return prepare_nll_loss_gradient(source);
  refuse("the device has no operator " + name);
}

Program prepare(const Source& source, std::vector<uint32_t>* wishes) {
  if (source.name == "matmul") return prepare_matmul(source, wishes);
  if (source.name == "convolution") return prepare_convolution(source, wishes);
  if (source.name == "convolution_input_gradient") return prepare_convolution_input_gradient(source, wishes);
  if (source.name == "convolution_weight_gradient") return prepare_convolution_weight_gradient(source, wishes);
  if (source.name == "attention") return prepare_attention(source, wishes);
  if (source.name == "attention_gradient") return prepare_attention_gradient(source, wishes);
  if (source.name == "pointwise") return prepare_pointwise(source);
  return prepare_loops(source);
}

}  // namespace npu
