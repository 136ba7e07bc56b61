// Views: tensors over the memory of another. PyTorch's own functions serve any device; they are only made known for
// this one. (All other views are composed of these.)
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "dispatch.h"
#include "memory/allocator.h"

namespace torchgraft {
namespace {

// Whether `self.data = from` may keep self's identity. PyTorch's answer knows the devices of its own tree only; "yes"
// makes Module.to() move parameters in place, so that an optimizer made before still holds the module's parameters.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto ordinary = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided && !tensor.is_nested() && !tensor.is_quantized() && !tensor.is_meta();
  };
  return self.key_set() == from.key_set() || (ordinary(self) && ordinary(from));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

void register_views() {
  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  library->impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library->impl("view", TORCH_FN(at::native::view));
  library->impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library->impl("unfold", TORCH_FN(at::native::unfold));
  library->impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library->impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library->impl("is_set_to", TORCH_FN(at::native::is_set_to));
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  library->impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace torchgraft
