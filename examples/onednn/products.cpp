// Products and convolutions by oneDNN, of float32.
#include <dnnl.hpp>
#include <unordered_map>

#include "operators.h"

namespace npu {
namespace {

using dnnl::memory;
using Dims = memory::dims;

const dnnl::engine& engine() {
  static const dnnl::engine& cpu = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::stream& stream() {
  thread_local dnnl::stream own(engine());
  return own;
}

// Releases 2 and 3 make primitives in different ways.
template <class Primitive, class... Arguments>
typename Primitive::primitive_desc described(const dnnl::primitive_attr& attributes, const Arguments&... arguments) {
#if DNNL_VERSION_MAJOR < 3
  return {typename Primitive::desc(arguments...), attributes, engine()};
#else
  return {engine(), arguments..., attributes};
#endif
}

template <class Primitive, class Forward, class... Arguments>
typename Primitive::primitive_desc gradient_described(const dnnl::primitive_attr& attributes, const Forward& forward,
                                                      const Arguments&... arguments) {
#if DNNL_VERSION_MAJOR < 3
  return {typename Primitive::desc(arguments...), attributes, engine(), forward};
#else
  return {engine(), arguments..., forward, attributes};
#endif
}

void append_scale(dnnl::post_ops& ops, float scale) {
#if DNNL_VERSION_MAJOR < 3
  ops.append_eltwise(1, dnnl::algorithm::eltwise_linear, scale, 0);
#else
  ops.append_eltwise(dnnl::algorithm::eltwise_linear, scale, 0);
#endif
}

dnnl::primitive_attr with_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

memory::desc laid_out(const Tensor& tensor) { return {tensor.sizes, memory::data_type::f32, tensor.strides}; }
memory::desc any(const Dims& sizes) { return {sizes, memory::data_type::f32, memory::format_tag::any}; }
Dims sizes_of(const memory::desc& what) {
#if DNNL_VERSION_MAJOR < 3
  return what.dims();
#else
  return what.get_dims();
#endif
}
memory at(const memory::desc& what, void* place) { return {what, engine(), place}; }

// Parts of a run's scratch.
class Scratch {
 public:
  uint64_t add(uint64_t bytes) {
    const uint64_t begin = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return begin;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

bool is_repeated(const Tensor& tensor) {
  for (size_t d = 0; d < tensor.sizes.size(); ++d)
    if (tensor.sizes[d] != 1 && tensor.strides[d] == 0) return true;
  return false;
}

// What is repeated along some dimensions, once.
Tensor once(Tensor tensor) {
  for (size_t d = 0; d < tensor.sizes.size(); ++d)
    if (tensor.strides[d] == 0) tensor.sizes[d] = 1;
  int64_t step = 1;  // strides of ordinary order for dimensions of one element, too
  for (size_t d = tensor.sizes.size(); d-- > 0; step *= tensor.sizes[d])
    if (tensor.sizes[d] == 1) tensor.strides[d] = step;
  return tensor;
}

// Rows or columns whose elements touch each other, and which do not overlap.
bool is_matrix(const Tensor& tensor) {
  const size_t last = tensor.sizes.size() - 1;
  const auto lies = [&](size_t inner, size_t outer) {
    return tensor.strides[inner] == 1 && (tensor.sizes[outer] == 1 || tensor.strides[outer] >= tensor.sizes[inner]);
  };
  return !is_repeated(tensor) && (lies(last, last - 1) || lies(last - 1, last));
}

}  // namespace

Program prepare_matmul(const Source& source, std::vector<uint32_t>* wishes) {
  const Tensor &a = source.inputs[0], &b = source.inputs[1], &d = source.inputs[2], &c = source.outputs[0];
  for (const Tensor* each : {&a, &b, &c}) want_float(*each);
  const bool suits[] = {is_matrix(a), is_matrix(b), !d || once(d).is_contiguous(), c.is_contiguous()};
  const size_t places[] = {0, 1, 2, 3};
  for (int i = 0; i < 4; ++i) {
    if (suits[i]) continue;
    if (wishes == nullptr) refuse("a product of matrices whose rows do not touch each other");
    (*wishes)[places[i]] = TG_WISH_CONTIGUOUS;
  }
  if (wishes != nullptr && !(suits[0] && suits[1] && suits[2] && suits[3])) return {};

  dnnl::post_ops ops;
  if (const double alpha = source.number("alpha"); alpha != 1) append_scale(ops, static_cast<float>(alpha));
  memory::desc added;
  if (d) {
    want_float(d);
    want(source.number("beta") == 1, "a product to which something is added that is multiplied, too");
    ops.append_binary(dnnl::algorithm::binary_add, added = laid_out(once(d)));
  }
  dnnl::primitive_attr attributes = with_scratch();
  attributes.set_post_ops(ops);
  const memory::desc of_a = laid_out(a), of_b = laid_out(b), of_c = laid_out(c);
  const auto described_as = described<dnnl::matmul>(attributes, of_a, of_b, of_c);
  const memory::desc scratch = described_as.scratchpad_desc();
  const dnnl::matmul primitive(described_as);
  const int add_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(ops.len() - 1) | DNNL_ARG_SRC_1;
  return {[=](const Run& run) {
            std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, at(of_a, run.places[0])},
                                                         {DNNL_ARG_WEIGHTS, at(of_b, run.places[1])},
                                                         {DNNL_ARG_DST, at(of_c, run.places[3])},
                                                         {DNNL_ARG_SCRATCHPAD, at(scratch, run.scratch)}};
            if (run.places[2] != nullptr) arguments.emplace(add_argument, at(added, run.places[2]));
            primitive.execute(stream(), arguments);
          },
          scratch.get_size()};
}

namespace {

// A tensor on its way into the layout that a primitive has chosen, or out of it.
class Passage {
 public:
  Passage(const memory::desc& own, const memory::desc& chosen, bool inwards, Scratch& scratch)
      : own_(own), chosen_(chosen), inwards_(inwards), moves_(own != chosen) {
    if (!moves_) return;
    place_ = scratch.add(chosen.get_size());
    reorder_ = dnnl::reorder(inwards ? dnnl::reorder::primitive_desc(engine(), own, engine(), chosen)
                                     : dnnl::reorder::primitive_desc(engine(), chosen, engine(), own));
  }

  memory enter(const Run& run, void* place) const {
    if (!moves_) return at(own_, place);
    const memory inside = at(chosen_, run.scratch + place_);
    if (inwards_) execute(at(own_, place), inside);
    return inside;
  }
  void leave(const Run& run, void* place) const {
    if (moves_ && !inwards_) execute(at(chosen_, run.scratch + place_), at(own_, place));
  }

 private:
  void execute(const memory& from, const memory& to) const {
    dnnl::primitive(reorder_).execute(stream(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }

  memory::desc own_, chosen_;
  bool inwards_, moves_;
  uint64_t place_ = 0;
  dnnl::reorder reorder_;
};

// With the groups of channels as a dimension of their own.
memory::desc weights(const Tensor& w, int64_t groups) {
  if (groups == 1) return laid_out(w);
  Dims sizes = w.sizes, strides = w.strides;
  sizes[0] /= groups;
  sizes.insert(sizes.begin(), groups);
  strides.insert(strides.begin(), strides[0] * sizes[1]);
  return {sizes, memory::data_type::f32, strides};
}

struct Geometry {
  explicit Geometry(const Source& source) {
    want(source.integer("transposed") == 0, "a transposed convolution");
    strides = source.integers("stride");
    padding = source.integers("padding");
    for (const int64_t each : source.integers("dilation")) dilation.push_back(each - 1);
    groups = source.integer("groups");
  }
  Dims strides, padding, dilation;
  int64_t groups = 1;
};

dnnl::convolution_forward::primitive_desc forward(const Geometry& g, const Dims& x, const memory::desc& w,
                                                  const memory::desc* bias, const Dims& y) {
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_auto;
  const memory::desc weight = any(sizes_of(w));
  if (bias != nullptr)
    return described<dnnl::convolution_forward>(with_scratch(), kind, algorithm, any(x), weight, *bias, any(y),
                                                g.strides, g.dilation, g.padding, g.padding);
  return described<dnnl::convolution_forward>(with_scratch(), kind, algorithm, any(x), weight, any(y), g.strides,
                                              g.dilation, g.padding, g.padding);
}

void want_floats(const Source& source) {
  for (const auto* list : {&source.inputs, &source.outputs})
    for (const Tensor& each : *list)
      if (each) want_float(each), want(!is_repeated(each), "a tensor that repeats its elements");
}

}  // namespace

Program prepare_convolution(const Source& source, std::vector<uint32_t>* wishes) {
  want_floats(source);
  const Geometry g(source);
  const Tensor &x = source.inputs[0], &w = source.inputs[1], &b = source.inputs[2], &y = source.outputs[0];
  if (b && !b.is_contiguous()) {  // oneDNN does not look at its stride
    if (wishes == nullptr) refuse("a bias whose elements do not touch each other");
    (*wishes)[2] = TG_WISH_CONTIGUOUS;
    return {};
  }
  const memory::desc of_w = weights(w, g.groups);
  const memory::desc of_b = b ? laid_out(b) : memory::desc();
  const auto chosen = forward(g, x.sizes, of_w, b ? &of_b : nullptr, y.sizes);
  Scratch scratch;
  const Passage in_x(laid_out(x), chosen.src_desc(), true, scratch), in_w(of_w, chosen.weights_desc(), true, scratch);
  const Passage out_y(laid_out(y), chosen.dst_desc(), false, scratch);
  const memory::desc work = chosen.scratchpad_desc();
  const uint64_t work_place = scratch.add(work.get_size());
  const dnnl::convolution_forward primitive(chosen);
  return {[=](const Run& run) {
            std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, in_x.enter(run, run.places[0])},
                                                         {DNNL_ARG_WEIGHTS, in_w.enter(run, run.places[1])},
                                                         {DNNL_ARG_DST, out_y.enter(run, run.places[3])},
                                                         {DNNL_ARG_SCRATCHPAD, at(work, run.scratch + work_place)}};
            if (run.places[2] != nullptr) arguments.emplace(DNNL_ARG_BIAS, at(of_b, run.places[2]));
            primitive.execute(stream(), arguments);
            out_y.leave(run, run.places[3]);
          },
          scratch.bytes()};
}

Program prepare_convolution_input_gradient(const Source& source, std::vector<uint32_t>*) {
  want_floats(source);
  const Geometry g(source);
  const Tensor &grad = source.inputs[0], &w = source.inputs[1], &x = source.outputs[0];
  const memory::desc of_w = weights(w, g.groups);
  const auto hint = forward(g, x.sizes, of_w, nullptr, grad.sizes);
  const auto chosen = gradient_described<dnnl::convolution_backward_data>(
      with_scratch(), hint, dnnl::algorithm::convolution_auto, any(x.sizes), any(sizes_of(of_w)), any(grad.sizes),
      g.strides, g.dilation, g.padding, g.padding);
  Scratch scratch;
  const Passage in_grad(laid_out(grad), chosen.diff_dst_desc(), true, scratch);
  const Passage in_w(of_w, chosen.weights_desc(), true, scratch);
  const Passage out_x(laid_out(x), chosen.diff_src_desc(), false, scratch);
  const memory::desc work = chosen.scratchpad_desc();
  const uint64_t work_place = scratch.add(work.get_size());
  const dnnl::convolution_backward_data primitive(chosen);
  return {[=](const Run& run) {
            primitive.execute(stream(), {{DNNL_ARG_DIFF_DST, in_grad.enter(run, run.places[0])},
                                         {DNNL_ARG_WEIGHTS, in_w.enter(run, run.places[1])},
                                         {DNNL_ARG_DIFF_SRC, out_x.enter(run, run.places[2])},
                                         {DNNL_ARG_SCRATCHPAD, at(work, run.scratch + work_place)}});
            out_x.leave(run, run.places[2]);
          },
          scratch.bytes()};
}

Program prepare_convolution_weight_gradient(const Source& source, std::vector<uint32_t>*) {
  want_floats(source);
  const Geometry g(source);
  const Tensor &grad = source.inputs[0], &x = source.inputs[1], &w = source.outputs[0];
  const memory::desc of_w = weights(w, g.groups);
  const auto hint = forward(g, x.sizes, of_w, nullptr, grad.sizes);
  const auto chosen = gradient_described<dnnl::convolution_backward_weights>(
      with_scratch(), hint, dnnl::algorithm::convolution_auto, any(x.sizes), any(sizes_of(of_w)), any(grad.sizes),
      g.strides, g.dilation, g.padding, g.padding);
  Scratch scratch;
  const Passage in_grad(laid_out(grad), chosen.diff_dst_desc(), true, scratch);
  const Passage in_x(laid_out(x), chosen.src_desc(), true, scratch);
  const Passage out_w(of_w, chosen.diff_weights_desc(), false, scratch);
  const memory::desc work = chosen.scratchpad_desc();
  const uint64_t work_place = scratch.add(work.get_size());
  const dnnl::convolution_backward_weights primitive(chosen);
  return {[=](const Run& run) {
            primitive.execute(stream(), {{DNNL_ARG_DIFF_DST, in_grad.enter(run, run.places[0])},
                                         {DNNL_ARG_SRC, in_x.enter(run, run.places[1])},
                                         {DNNL_ARG_DIFF_WEIGHTS, out_w.enter(run, run.places[2])},
                                         {DNNL_ARG_SCRATCHPAD, at(work, run.scratch + work_place)}});
            out_w.leave(run, run.places[2]);
          },
          scratch.bytes()};
}

}  // namespace npu
