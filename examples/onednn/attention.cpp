// Attention and its gradient: a block of queries of one head at a time, so that the scores stay in the cache.
#include <dnnl.h>
#include <omp.h>

#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>

#include "loop.h"

namespace npu {
namespace {

constexpr int64_t kBlock = 64;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The matrices of a tensor (batch, heads, rows, size).
struct Matrices {
  Matrices() = default;
  explicit Matrices(const Tensor& tensor)
      : batches(tensor.sizes[0]),
        heads(tensor.sizes[1]),
        rows(tensor.sizes[2]),
        size(tensor.sizes[3]),
        steps(tensor.strides),
        pitch(rows == 1 ? size : tensor.strides[2]) {}

  // Elements of a row touch each other, and rows do not overlap.
  static bool suits(const Tensor& tensor) {
    return (tensor.sizes[3] == 1 || tensor.strides[3] == 1) &&
           (tensor.sizes[2] == 1 || tensor.strides[2] >= tensor.sizes[3]);
  }
  float* at(void* place, int64_t batch, int64_t head, int64_t row = 0) const {
    return static_cast<float*>(place) + batch * steps[0] + head * steps[1] + row * steps[2];
  }

  int64_t batches = 0, heads = 0, rows = 0, size = 0;
  std::vector<int64_t> steps;
  int64_t pitch = 0;
};

// C = scale A B + keep C, of matrices whose rows lie `pitch` apart; 'T' of one that lies the other way round.
void multiply(char a_lies, char b_lies, int64_t rows, int64_t columns, int64_t depth, float scale, const float* a,
              int64_t a_pitch, const float* b, int64_t b_pitch, float keep, float* c, int64_t c_pitch) {
  const dnnl_status_t status =
      dnnl_sgemm(a_lies, b_lies, rows, columns, depth, scale, a, a_pitch, b, b_pitch, keep, c, c_pitch);
  if (status != dnnl_success) throw std::runtime_error("oneDNN's dnnl_sgemm: status " + std::to_string(status));
}

// Shares tasks out among the processor's threads.
template <class Body>
void for_each(int64_t count, const Body& body) {
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

class Scores {
 public:
  Scores(const Source& source, size_t first)
      : query_(source.inputs[first]),
        key_(source.inputs[first + 1]),
        causal_(source.integer("causal") != 0),
        scale_(static_cast<float>(source.number("scale"))),
        mask_(source.inputs[first + 3]) {
    want(!mask_ || mask_.element == TG_ELEMENT_F32 || mask_.element == TG_ELEMENT_BOOL, "a mask of another type");
  }

  float scale() const { return scale_; }
  int64_t keys() const { return key_.rows; }
  int64_t shared() const { return query_.heads / key_.heads; }  // queries' heads that have one of the keys
  int64_t rows(int64_t begin) const { return std::min(kBlock, query_.rows - begin); }
  // How many keys a block of queries may see; the others have no scores.
  int64_t seen(int64_t begin) const { return causal_ ? std::min(key_.rows, begin + rows(begin)) : key_.rows; }

  void compute(void* query, void* key, const void* mask, int64_t batch, int64_t head, int64_t begin, float* to) const {
    const int64_t n = rows(begin), columns = seen(begin);
    multiply('N', 'T', n, columns, key_.size, scale_, query_.at(query, batch, head, begin), query_.pitch,
             key_.at(key, batch, head / shared()), key_.pitch, 0, to, key_.rows);
    for (int64_t i = 0; i < n; ++i) {
      float* row = to + i * key_.rows;
      if (mask != nullptr) add_mask(mask, batch, head, begin + i, columns, row);
      if (causal_ && begin + i + 1 < columns) std::fill(row + begin + i + 1, row + columns, kNothing);
    }
  }

 private:
  void add_mask(const void* mask, int64_t batch, int64_t head, int64_t i, int64_t columns, float* row) const {
    const auto& by = mask_.strides;
    const int64_t first = batch * by[0] + head * by[1] + i * by[2];
    if (mask_.element == TG_ELEMENT_BOOL) {
      const auto* takes_part = static_cast<const truth*>(mask) + first;
      for (int64_t j = 0; j < columns; ++j) row[j] = bool(takes_part[j * by[3]]) ? row[j] : kNothing;
    } else {
      const auto* added = static_cast<const float*>(mask) + first;
      for (int64_t j = 0; j < columns; ++j) row[j] += added[j * by[3]];
    }
  }

  Matrices query_, key_;
  bool causal_;
  float scale_;
  Tensor mask_;
};

// Makes weights of scores; returns the logarithm of their sum.
float weigh(float* row, int64_t n) {
  float most = kNothing;
  for (int64_t j = 0; j < n; ++j) most = row[j] <= most ? most : row[j];
  if (most == kNothing) return std::fill_n(row, n, 0.0f), kNothing;  // sees nothing
  for (int64_t j = 0; j < n; ++j) row[j] = exp_below_one(row[j] - most);
  const auto sum = summed<float>(n, [&](int64_t j) { return row[j]; });
  for (int64_t j = 0; j < n; ++j) row[j] /= sum;
  return most + std::log(sum);
}

// Asks for what it can multiply; returns whether all is so. Of the tensors that are no `matrices` the masks lie in any
// way, the sums touch each other.
bool is_fit(const Source& source, const std::vector<bool>& matrices, std::vector<uint32_t>* wishes) {
  bool all = true;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Tensor& tensor = i < source.inputs.size() ? source.inputs[i] : source.outputs[i - source.inputs.size()];
    if (!tensor) continue;
    const bool is_mask = tensor.dims() == 4 && !matrices[i];
    if (!is_mask) want_float(tensor);
    if (is_mask || (matrices[i] ? Matrices::suits(tensor) : tensor.is_contiguous())) continue;
    if (wishes == nullptr) refuse("matrices whose rows do not touch each other");
    (*wishes)[i] = TG_WISH_CONTIGUOUS;
    all = false;
  }
  return all;
}

// Memory for each thread.
class Rooms {
 public:
  explicit Rooms(int64_t each) : each_(each), memory_(new float[static_cast<size_t>(each * omp_get_max_threads())]) {}
  float* own() const { return memory_.get() + each_ * omp_get_thread_num(); }

 private:
  int64_t each_;
  std::unique_ptr<float[]> memory_;
};

}  // namespace

Program prepare_attention(const Source& source, std::vector<uint32_t>* wishes) {
  if (!is_fit(source, {true, true, true, false, true, false}, wishes) && wishes != nullptr) return {};
  const Scores scores(source, 0);
  const Matrices query(source.inputs[0]), value(source.inputs[2]), out(source.outputs[0]);
  return {[=](const Run& run) {
    const int64_t blocks = (query.rows + kBlock - 1) / kBlock, heads = query.batches * query.heads;
    const Rooms rooms(kBlock * scores.keys());
    for_each(heads * blocks, [&](int64_t each) {
      const int64_t head = each / blocks % query.heads, batch = each / blocks / query.heads;
      const int64_t begin = each % blocks * kBlock, rows = scores.rows(begin), seen = scores.seen(begin);
      float* weights = rooms.own();
      scores.compute(run.places[0], run.places[1], run.places[3], batch, head, begin, weights);
      float* sums = static_cast<float*>(run.places[5]) + each / blocks * query.rows + begin;
      for (int64_t i = 0; i < rows; ++i) sums[i] = weigh(weights + i * scores.keys(), seen);
      multiply('N', 'N', rows, value.size, seen, 1, weights, scores.keys(),
               value.at(run.places[2], batch, head / scores.shared()), value.pitch, 0,
               out.at(run.places[4], batch, head, begin), out.pitch);
    });
  }};
}

Program prepare_attention_gradient(const Source& source, std::vector<uint32_t>* wishes) {
  const std::vector<bool> matrices = {true, true, true, true, false, true, false, true, true, true, false};
  if (!is_fit(source, matrices, wishes) && wishes != nullptr) return {};
  const Scores scores(source, 1);
  const auto of = [](const Tensor& tensor) { return tensor ? Matrices(tensor) : Matrices(); };
  const Matrices grad(source.inputs[0]), query(source.inputs[1]), key(source.inputs[2]), value(source.inputs[3]),
      out(source.inputs[5]), of_query = of(source.outputs[0]), of_key = of(source.outputs[1]),
                             of_value = of(source.outputs[2]), of_scores = of(source.outputs[3]);
  // The gradients of a block's scores in the place of what they are made of; `weights` are the scores.
  const auto of_block = [=](const Run& run, int64_t batch, int64_t head, int64_t begin, float* weights, float* grads) {
    const int64_t keys = scores.keys(), rows = scores.rows(begin), seen = scores.seen(begin);
    scores.compute(run.places[1], run.places[2], run.places[4], batch, head, begin, weights);
    multiply('N', 'T', rows, seen, value.size, 1, grad.at(run.places[0], batch, head, begin), grad.pitch,
             value.at(run.places[3], batch, head / scores.shared()), value.pitch, 0, grads, keys);
    const float* sums = static_cast<const float*>(run.places[6]) + (batch * query.heads + head) * query.rows + begin;
    for (int64_t i = 0; i < rows; ++i) {
      const float *g = grad.at(run.places[0], batch, head, begin + i),
                  *y = out.at(run.places[5], batch, head, begin + i);
      float *weight = weights + i * keys, *of = grads + i * keys;
      const auto common = summed<float>(value.size, [&](int64_t j) { return g[j] * y[j]; });
      const bool sees = sums[i] != kNothing;
      for (int64_t j = 0; j < seen; ++j) {
        weight[j] = sees ? exp_below_one(weight[j] - sums[i]) : 0;
        of[j] = weight[j] * (of[j] - common);
      }
    }
  };
  return {[=](const Run& run) {
    const int64_t keys = scores.keys();
    const Rooms rooms(2 * kBlock * keys);
    for_each(key.batches * key.heads, [&](int64_t each) {
      const int64_t batch = each / key.heads, of_keys = each % key.heads;
      float *weights = rooms.own(), *grads = weights + kBlock * keys;
      const auto cleared = [&](const Matrices& what, void* place) -> float* {
        if (place == nullptr) return nullptr;
        for (int64_t i = 0; i < keys; ++i) std::fill_n(what.at(place, batch, of_keys, i), what.size, 0.0f);
        return what.at(place, batch, of_keys);
      };
      float *to_key = cleared(of_key, run.places[8]), *to_value = cleared(of_value, run.places[9]);
      for (int64_t head = of_keys * scores.shared(); head < (of_keys + 1) * scores.shared(); ++head) {
        for (int64_t begin = 0; begin < query.rows; begin += kBlock) {
          const int64_t rows = scores.rows(begin), seen = scores.seen(begin);
          of_block(run, batch, head, begin, weights, grads);
          if (run.places[7] != nullptr)
            multiply('N', 'N', rows, query.size, seen, scores.scale(), grads, keys,
                     key.at(run.places[2], batch, of_keys), key.pitch, 0,
                     of_query.at(run.places[7], batch, head, begin), of_query.pitch);
          if (to_key != nullptr)
            multiply('T', 'N', seen, query.size, rows, scores.scale(), grads, keys,
                     query.at(run.places[1], batch, head, begin), query.pitch, 1, to_key, of_key.pitch);
          if (to_value != nullptr)
            multiply('T', 'N', seen, value.size, rows, 1, weights, keys, grad.at(run.places[0], batch, head, begin),
                     grad.pitch, 1, to_value, of_value.pitch);
          for (int64_t i = 0; i < rows && run.places[10] != nullptr; ++i) {
            float* to = of_scores.at(run.places[10], batch, head, begin + i);
            for (int64_t j = 0; j < keys; ++j) to[j * of_scores.steps[3]] = j < seen ? grads[i * keys + j] : 0;
          }
        }
      }
    });
  }};
}

}  // namespace npu
