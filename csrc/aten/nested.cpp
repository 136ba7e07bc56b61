// Nested tensors of the layout torch.strided: PyTorch has a key of its own for them, under which nothing is registered
// for a device outside of its tree. (Those of the layout torch.jagged are made of dense tensors in Python.)
//
// They are one buffer, and sizes, strides and offsets on the CPU. Most of PyTorch's functions for them call dense ops
// on the buffer or on its parts, so that they serve every device; the others, which read the memory, go to the CPU
// fallback.
#include "nested.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "dispatch.h"

namespace torchgraft {
namespace {

template <c10::DispatchKey kernel>
void boxed_of(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(kernel), stack);
}

bool is_one_of(const c10::OperatorName& name, std::initializer_list<std::string_view> names) {
  return name.overload_name.empty() && std::ranges::find(names, name.name) != names.end();
}

// HPU is the one key under which PyTorch has registered, for a device outside of its tree, all that it can.
bool is_for_every_device(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::NestedTensorHPU) &&
         // Those choose their kernel by the device.
         !is_one_of(op.operator_name(), {"aten::native_layer_norm", "aten::native_layer_norm_backward"});
}

// Registered for CPU and CUDA alone, though they too call dense ops only.
bool serves_every_device(const c10::OperatorName& name) {
  return is_one_of(
      name, {"aten::_fused_sdp_choice", "aten::_nested_tensor_storage_offsets", "aten::bmm", "aten::to_padded_tensor"});
}

}  // namespace

at::Tensor map_nested(const at::Tensor& nested, const MapTensor& map) {
  const auto* from = static_cast<const at::native::NestedTensorImpl*>(nested.unsafeGetTensorImpl());
  return at::detail::make_tensor<at::native::NestedTensorImpl>(map(from->get_unsafe_storage_as_tensor()),
                                                               from->get_nested_sizes(), from->get_nested_strides(),
                                                               from->get_storage_offsets());
}

void register_nested() {
  static auto* dense = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  dense->impl("_nested_from_padded", TORCH_FN(at::native::nested_from_padded_generic));
  dense->impl("_nested_view_from_buffer", TORCH_FN(at::native::_nested_view_from_buffer));

  static auto* nested = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1));
  const auto give = [](const c10::OperatorHandle& op, torch::CppFunction function) {
    nested->impl(c10::toString(op.operator_name()).c_str(), std::move(function));
  };
  for (const c10::OperatorHandle& op : aten_ops()) {
    if (is_for_every_device(op))
      give(op, torch::CppFunction::makeFromBoxedFunction<&boxed_of<c10::DispatchKey::NestedTensorHPU>>());
    else if (serves_every_device(op.operator_name()))
      give(op, torch::CppFunction::makeFromBoxedFunction<&boxed_of<c10::DispatchKey::NestedTensorCPU>>());
  }
}

}  // namespace torchgraft
