// New tensors, and the ops that give a tensor other storage or another size.
#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS
#endif

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/set_native.h>
#include <torch/library.h>

#include "dispatch.h"
#include "memory/allocator.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

constexpr c10::DispatchKeySet kDense(c10::DispatchKey::PrivateUse1);

c10::DeviceIndex resolve_device(std::optional<c10::Device> device) {
  if (!device || !device->has_index()) return current_device();
  get_device(device->index());  // throws for an index out of range, which an empty allocation would not notice
  return device->index();
}

c10::ScalarType resolve_options(std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                                std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == c10::kStrided, "tensors of layout ", *layout, " are not supported on device '",
              backend_name(), "': only torch.strided is");
  TORCH_CHECK(
      !pin_memory || !*pin_memory, "Cannot pin a tensor on device '", backend_name(),
      "': only dense CPU tensors can be pinned. Make it without device= and with pin_memory=True, then move it.");
  return dtype ? *dtype : at::get_default_dtype_as_scalartype();
}

// `bytes` of new storage under a tensor that has no sizes yet.
at::Tensor make_tensor(c10::DeviceIndex device, size_t bytes, c10::ScalarType dtype) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocate(device, bytes), device_allocator(), /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kDense, c10::scalarTypeToTypeMeta(dtype));
}

// torch.use_deterministic_algorithms() promises that uninitialised memory holds NaN (or the largest integer).
at::Tensor finish(at::Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) [[unlikely]]
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty_memory_format(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype_option,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  const c10::ScalarType dtype = resolve_options(dtype_option, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(dtype));
  at::Tensor tensor = make_tensor(resolve_device(device), bytes, dtype);
  if (size.size() != 1 || size[0] != 0) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (memory_format && *memory_format != c10::MemoryFormat::Contiguous)
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  return finish(std::move(tensor));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype_option,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  const c10::ScalarType dtype = resolve_options(dtype_option, layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  return finish(empty_on_device(resolve_device(device), size, stride, dtype));
}

// A tensor that is known to be zero and has no memory, as forward-mode autograd uses it.
at::Tensor efficient_zero_tensor(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype_option,
                                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                 std::optional<bool> pin_memory) {
  const c10::ScalarType dtype = resolve_options(dtype_option, layout, pin_memory);
  at::native::ZeroTensorAllocator allocator({c10::DeviceType::PrivateUse1, resolve_device(device)});
  return at::detail::empty_generic(size, &allocator, kDense | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor), dtype,
                                   std::nullopt);
}

// Gives a tensor these sizes (and strides, or contiguous ones), growing its storage if need be; never shrinks it.
void resize_tensor(c10::TensorImpl* self, c10::IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (self->sizes() == size && (!stride || self->strides() == *stride)) return;
  at::detail::check_size_nonnegative(size);
  const size_t item = self->dtype().itemsize(), offset = self->storage_offset();
  const size_t bytes = stride ? at::detail::computeStorageNbytes(size, *stride, item, offset)
                              : at::detail::computeStorageNbytesContiguous(size, item, offset);
  // First what may fail, so that then the tensor is as it was.
  const c10::Storage& storage = self->unsafe_storage();
  if (c10::multiply_integers(size) > 0 && bytes > storage.nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
  if (stride) {
    self->set_sizes_and_strides(size, *stride);
  } else {
    self->set_sizes_contiguous(size);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> memory_format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const int64_t old_bytes = static_cast<int64_t>(impl->unsafe_storage().nbytes());
  resize_tensor(impl, size, std::nullopt);
  if (memory_format) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) [[unlikely]]
    at::native::fill_resize_deterministic_(self, old_bytes);
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                               c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize_tensor(self.unsafeGetTensorImpl(), size,
                stride.data() ? at::OptionalIntArrayRef(stride) : at::OptionalIntArrayRef());
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceIndex device = self.device().index();
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocate(device, 0), device_allocator(), /*resizable=*/true));
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

}  // namespace

at::Tensor empty_on_device(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                           c10::ScalarType dtype) {
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  at::Tensor tensor = make_tensor(device, bytes, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void register_factories() {
  // Never destroyed: leaving the dispatcher's tables while the process ends would race with its other users.
  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  library->impl("empty.memory_format", TORCH_FN(empty_memory_format));
  library->impl("empty_strided", TORCH_FN(empty_strided));
  library->impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  library->impl("resize_", TORCH_FN(resize_));
  library->impl("set_", TORCH_FN(set_nothing));
  library->impl("set_.source_Storage",
                TORCH_FN(static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_)));
  library->impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  library->impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
}

}  // namespace torchgraft
