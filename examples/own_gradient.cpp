// An op's forward and backward on the device, from C++: what torchgraft.autograd.override does from Python.
//
// Build it with torch.utils.cpp_extension.load("own_gradient", ["own_gradient.cpp"], is_python_module=False); loading
// it is enough. No header of torchgraft is needed, and it serves whatever device torch's PrivateUse1 is.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t backward_calls = 0;

struct Tanh : torch::autograd::Function<Tanh> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    at::AutoDispatchBelowAutograd below;  // so that this reaches the device's kernel and not ourselves
    at::Tensor y = at::tanh(x);
    context->save_for_backward({y});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    ++backward_calls;
    at::Tensor y = context->get_saved_variables()[0];
    return {gradients[0] * (1 - y * y)};  // made of differentiable ops, so that it can be differentiated again
  }
};

at::Tensor own_tanh(const at::Tensor& x) { return Tanh::apply(x); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("tanh", own_tanh); }

TORCH_LIBRARY(own_gradient, m) {
  m.def("backward_calls() -> int", [] { return backward_calls; });
}
