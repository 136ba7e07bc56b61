// Copies: between host and device, between devices, and within one, of any dtypes, strides and sizes that broadcast.
//
// A copy is *plain* if both sides are dense with the same strides, dtype and lazy bits: then one copy by the driver
// does it. Every other copy is made of plain ones, of CPU copies, and of the copy kernel of the device (the plan of
// aten::_copy_from).
#include "copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "dispatch.h"
#include "memory/host_allocator.h"
#include "plans/unboxed.h"
#include "runtime/assertions.h"
#include "runtime/command.h"
#include "runtime/interruption.h"
#include "runtime/serialization.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

bool is_ours(const at::Tensor& tensor) { return tensor.device().is_privateuseone(); }

Device& device_under(const at::Tensor& tensor) { return get_device(tensor.device().index()); }

// After a blocking read through the current stream.
void raise_errors_of_stream(c10::DeviceIndex index) { raise_reported_errors(index, current_stream(index).id()); }

void driver_copy(const Device& device, void* destination, const void* source, size_t bytes, tg_copy_kind kind,
                 bool blocking) {
  // Copying memory onto itself, as loading a module's own state into it does, is an error to some devices.
  if (bytes == 0 || (kind == TG_COPY_DEVICE_TO_DEVICE && destination == source)) return;
  const char* what = kind == TG_COPY_HOST_TO_DEVICE   ? "copying to the device"
                     : kind == TG_COPY_DEVICE_TO_HOST ? "copying to the host"
                                                      : "copying on the device";
  const c10::StreamId id = current_stream(device.index).id();
  const tg_stream stream = stream_handle(device.index, id);
  if (blocking)
    refuse_in_capture(device.index, id,
                      kind == TG_COPY_HOST_TO_DEVICE
                          ? "a copy from host memory other than non_blocking=True from pinned memory"
                          : "a copy to the host other than non_blocking=True to pinned memory");
  // What the copy would wait for is waited for before it, since a copy that has begun cannot be abandoned.
  if (blocking && (can_interrupt(device) || device.has(TG_CAP_UNIFIED_MEMORY)))
    check(device, wait_interruptibly(device, stream), what);
  check(device, submit_copy(device, stream, destination, source, bytes, kind, blocking), what);
}

// The block of pinned memory must not be handed out again before the stream is through with it.
void keep_pinned_until_done(const at::Tensor& host, c10::DeviceIndex index) {
  if (capturing()) [[unlikely]]
    if (const Captured captured = capture_of_current(index)) return captured->keep(host.storage());
  host_allocator()->record_event(const_cast<void*>(host.storage().data()), host.storage().data_ptr().get_context(),
                                 current_stream(index));
}

bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  const c10::IntArrayRef sizes = a.sizes(), left = a.strides(), right = b.strides();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && left[i] != right[i]) return false;
  return true;
}

bool has_lazy_bits(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

bool is_plain(const at::Tensor& self, const at::Tensor& dst) {
  return self.scalar_type() == dst.scalar_type() && dst.is_non_overlapping_and_dense() && same_strides(self, dst) &&
         self.is_conj() == dst.is_conj() && self.is_neg() == dst.is_neg();
}

// The same memory, taken as it lies.
at::Tensor without_lazy_bits(const at::Tensor& tensor) {
  if (!has_lazy_bits(tensor)) return tensor;
  at::Tensor raw = at::alias(tensor);
  raw._set_conj(false);
  raw._set_neg(false);
  return raw;
}

void apply_lazy_bits(at::Tensor raw, bool conjugate, bool negate) {
  if (conjugate && raw.is_complex())
    at::conj_physical_outf(raw, raw);  // conj_physical_ would look for a kernel of PyTorch
  if (negate) raw.neg_();
}

// A dense tensor of `like`'s sizes on one of our devices, with its strides if they are dense.
at::Tensor dense_on_device(c10::DeviceIndex index, const at::Tensor& like, c10::ScalarType dtype) {
  if (like.is_non_overlapping_and_dense()) return empty_on_device(index, like.sizes(), like.strides(), dtype);
  return empty_on_device(index, like.sizes(), c10::contiguous_strides(like.sizes()), dtype);
}

at::Tensor dense_on_host(const at::Tensor& like, c10::ScalarType dtype) {
  if (like.is_non_overlapping_and_dense())
    return at::Tensor(at::detail::empty_strided_cpu(like.sizes(), like.strides(), dtype));
  return at::Tensor(at::detail::empty_cpu(like.sizes(), dtype));
}

// The whole reach of a strided device tensor, brought to the host.
at::Tensor download_image(const at::Tensor& tensor) {
  c10::Storage image = image_storage(tensor.storage());
  const auto [first, last] = reached_bytes(tensor);
  download(image, tensor.storage(), first, last);
  return tensor_over(std::move(image), tensor);
}

void upload_image(const at::Tensor& tensor, const at::Tensor& image) {
  const auto [first, last] = reached_bytes(tensor);
  upload(tensor.storage(), image.storage(), first, last);
}

// An integer type as which kernels can move elements of a type that they do not know; otherwise the type itself.
c10::ScalarType moved_as(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kUInt16:
      return at::kShort;
    case at::kUInt32:
    case at::kComplexHalf:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    default:
      return at::isFloat8Type(tensor.scalar_type()) ? at::kChar : tensor.scalar_type();
  }
}

void copy_within(const at::Tensor& self, const at::Tensor& dst) {
  Device& device = device_under(dst);
  if (is_plain(self, dst)) {
    driver_copy(device, dst.data_ptr(), self.data_ptr(), dst.nbytes(), TG_COPY_DEVICE_TO_DEVICE, /*blocking=*/false);
    return;
  }
  at::assert_no_internal_overlap(dst);
  if (!device.can_plan()) {
    copy_or_record_on_host(self, dst);
    return;
  }
  const c10::ScalarType bits = moved_as(dst);
  if (bits != dst.scalar_type() && self.scalar_type() == dst.scalar_type() && self.is_conj() == dst.is_conj()) {
    copy_within(without_lazy_bits(self).view(bits), without_lazy_bits(dst).view(bits));
    return;
  }
  static const OwnOp copy_from("aten::_copy_from");
  const c10::DeviceGuard guard(dst.device());
  copy_from(self, dst, /*non_blocking=*/false);
}

// One value for all elements goes with the command: nothing is waited for, nothing has to stay valid.
void fill_from_host(const at::Tensor& self, const at::Tensor& dst) {
  at::Tensor value(at::detail::empty_cpu({}, dst.scalar_type()));
  value.copy_(without_lazy_bits(self).as_strided({}, {}));
  fill_memory(dst, value.const_data_ptr(), dst.itemsize());
}

bool is_one_value(const at::Tensor& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && strides[i] != 0) return false;
  return true;
}

void copy_to_device(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const Device& device = device_under(dst);
  const bool dense = dst.is_non_overlapping_and_dense();
  if (dense && is_one_value(self)) {
    fill_from_host(self, dst);
    return;
  }
  if (is_plain(self, dst)) {
    // The driver may still read pageable memory after a call that does not block; the caller may change it then.
    const bool asynchronous = non_blocking && is_pinned(self.const_data_ptr());
    driver_copy(device, dst.data_ptr(), self.const_data_ptr(), dst.nbytes(), TG_COPY_HOST_TO_DEVICE, !asynchronous);
    if (asynchronous) keep_pinned_until_done(self, device.index);
    return;
  }
  at::assert_no_internal_overlap(dst);
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    host_alias(dst).copy_(self);
    return;
  }
  // Convert where it makes the transfer smaller.
  const bool convert_there = device.has(TG_CAP_COMPILER) && self.itemsize() < dst.itemsize();
  if (dense && !convert_there) {
    at::Tensor host = dense_on_host(dst, dst.scalar_type());
    host.copy_(self);
    copy_to_device(host, dst, false);
  } else if (device.has(TG_CAP_COMPILER)) {
    at::Tensor staged = dense_on_device(device.index, self, convert_there ? self.scalar_type() : dst.scalar_type());
    copy_to_device(self, staged, non_blocking);
    copy_within(staged, dst);
  } else {
    at::Tensor image = download_image(dst);
    image.copy_(self);
    upload_image(dst, image);
  }
}

void copy_to_host(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const Device& device = device_under(self);
  if (is_plain(self, dst)) {
    const bool asynchronous = non_blocking && is_pinned(dst.const_data_ptr());
    driver_copy(device, dst.data_ptr(), self.const_data_ptr(), dst.nbytes(), TG_COPY_DEVICE_TO_HOST, !asynchronous);
    if (asynchronous)
      keep_pinned_until_done(dst, device.index);
    else
      raise_errors_of_stream(device.index);
    return;
  }
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    dst.copy_(host_alias(self));
    return;
  }
  const bool convert_there = device.has(TG_CAP_COMPILER) && dst.itemsize() < self.itemsize();
  if (self.is_non_overlapping_and_dense() && !convert_there) {
    at::Tensor host = dense_on_host(self, self.scalar_type());
    copy_to_host(self, host, false);
    dst.copy_(host);
  } else if (device.has(TG_CAP_COMPILER)) {
    at::Tensor staged = dense_on_device(device.index, dst, convert_there ? dst.scalar_type() : self.scalar_type());
    copy_within(self, staged);
    copy_to_host(staged, dst, non_blocking);
  } else {
    at::Tensor image = download_image(self);
    raise_errors_of_stream(device.index);
    dst.copy_(image);
  }
}

// A plain copy from one of our devices to another.
void transfer(const at::Tensor& self, const at::Tensor& dst) {
  const Device &from = device_under(self), &to = device_under(dst);
  // Streams of different devices, of perhaps different drivers, cannot wait for each other, so the host waits: for the
  // source to be ready, and for it to be read before its memory can be used again.
  wait_for_device(from.index);
  if (from.driver == to.driver && to.driver->copy_peer) {
    check(to,
          submit_peer_copy(to, current_stream_handle(to.index), dst.data_ptr(), from, self.const_data_ptr(),
                           dst.nbytes()),
          "copying between devices");
    wait_for_device(to.index);
  } else if (from.has(TG_CAP_UNIFIED_MEMORY)) {
    driver_copy(to, dst.data_ptr(), self.const_data_ptr(), dst.nbytes(), TG_COPY_HOST_TO_DEVICE, /*blocking=*/true);
  } else {
    at::Tensor host = dense_on_host(self, self.scalar_type());
    driver_copy(from, host.data_ptr(), self.const_data_ptr(), self.nbytes(), TG_COPY_DEVICE_TO_HOST, /*blocking=*/true);
    driver_copy(to, dst.data_ptr(), host.const_data_ptr(), dst.nbytes(), TG_COPY_HOST_TO_DEVICE, /*blocking=*/true);
  }
}

void copy_between(const at::Tensor& self, const at::Tensor& dst) {
  at::Tensor source = self;
  if (!self.is_non_overlapping_and_dense()) {
    source = dense_on_device(self.device().index(), self, self.scalar_type());
    copy_within(self, source);
  }
  if (is_plain(source, dst)) {
    transfer(source, dst);
  } else {
    at::Tensor landed = dense_on_device(dst.device().index(), source, source.scalar_type());
    transfer(source, landed);
    copy_within(landed, dst);
  }
}

void copy_by_place(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (!is_ours(dst)) {
    copy_to_host(self, dst, non_blocking);
  } else if (!is_ours(self)) {
    copy_to_device(self, dst, non_blocking);
  } else if (self.device() == dst.device()) {
    copy_within(self, dst);
  } else {
    copy_between(self, dst);
  }
}

// A tensor may be conjugated or negated lazily, by a bit. CPU copies honour the bits; device memory is copied as it
// lies and what is pending is applied in place at the destination, or at a copy of the source where the dtype changes
// on the way.
void copy_with_lazy_bits(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (!is_ours(dst)) {
    at::Tensor host(at::detail::empty_cpu(dst.sizes(), self.scalar_type()));
    copy_by_place(without_lazy_bits(self), host, false);
    host._set_conj(self.is_conj());
    host._set_neg(self.is_neg());
    dst.copy_(host);
    return;
  }
  at::Tensor source = self;
  bool conjugate = dst.is_conj(), negate = dst.is_neg();
  if (!is_ours(self)) {
    source = self.resolve_conj().resolve_neg();
  } else if (self.scalar_type() == dst.scalar_type()) {
    source = without_lazy_bits(self);
    conjugate ^= self.is_conj();
    negate ^= self.is_neg();
  } else if (has_lazy_bits(self)) {
    source = dense_on_device(self.device().index(), self, self.scalar_type());
    copy_within(without_lazy_bits(self), source);
    apply_lazy_bits(source, self.is_conj(), self.is_neg());
  }
  at::Tensor raw = without_lazy_bits(dst);
  copy_by_place(source, raw, non_blocking);
  apply_lazy_bits(raw, conjugate, negate);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const Device& device = device_under(self);
  refuse_in_capture(device.index, current_stream(device.index).id(),
                    "a tensor's value (aten::_local_scalar_dense: item(), if, int(), a result whose size depends on "
                    "data)");
  at::Tensor value(at::detail::empty_cpu({}, self.scalar_type()));
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    wait_for_device(device.index);
    std::memcpy(value.data_ptr(), self.const_data_ptr(), self.itemsize());
  } else {
    driver_copy(device, value.data_ptr(), self.const_data_ptr(), self.itemsize(), TG_COPY_DEVICE_TO_HOST,
                /*blocking=*/true);
    raise_errors_of_stream(device.index);
  }
  value._set_conj(self.is_conj());
  value._set_neg(self.is_neg());
  return at::native::_local_scalar_dense_cpu(value.resolve_conj().resolve_neg());
}

// PyTorch's kernels of these two, which also carry a tensor's fields to a copy of the same elements on this backend.

at::Tensor clone(const at::Tensor& self, std::optional<c10::MemoryFormat> memory_format) {
  at::Tensor copy = at::native::clone(self, memory_format);
  carry_backend_meta(self, copy);
  return copy;
}

at::Tensor to_copy(const at::Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<c10::MemoryFormat> memory_format) {
  at::Tensor copy = at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
  if (copy.is_privateuseone() && copy.scalar_type() == self.scalar_type()) carry_backend_meta(self, copy);
  return copy;
}

}  // namespace

void wait_for_device(c10::DeviceIndex index) { synchronize_stream(current_stream(index)); }

c10::Storage alias_storage(const c10::Storage& device_storage) {
  auto* owner = new c10::Storage(device_storage);
  c10::DataPtr data(
      const_cast<void*>(device_storage.data()), owner,
      [](void* context) { delete static_cast<c10::Storage*>(context); }, c10::DeviceType::CPU);
  // Resizable, so that a CPU kernel may grow its output: it then finds itself in ordinary memory, which the fallback
  // notices.
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), device_storage.nbytes(),
                                               std::move(data), c10::GetCPUAllocator(), /*resizable=*/true);
}

c10::Storage image_storage(const c10::Storage& device_storage) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), device_storage.nbytes(),
                                               c10::GetCPUAllocator(), /*resizable=*/true);
}

at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like) {
  const bool ours = storage.device().is_privateuseone();
  at::Tensor tensor;
  if (like.is_quantized()) {
    const c10::DispatchKeySet keys(ours ? c10::DispatchKey::QuantizedPrivateUse1 : c10::DispatchKey::QuantizedCPU);
    tensor = at::detail::make_tensor<at::QTensorImpl>(std::move(storage), keys, like.dtype(), like.quantizer());
  } else {
    const c10::DispatchKeySet keys(ours ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU);
    tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  }
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (has_lazy_bits(like)) {
    tensor._set_conj(like.is_conj());
    tensor._set_neg(like.is_neg());
  }
  return tensor;
}

std::pair<size_t, size_t> reached_bytes(const at::Tensor& tensor) {
  const size_t item = tensor.itemsize(), first = tensor.storage_offset() * item;
  return {first, first + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), item)};
}

void download(const c10::Storage& image, const c10::Storage& device_storage, size_t first, size_t last) {
  driver_copy(get_device(device_storage.device().index()), static_cast<char*>(image.mutable_data()) + first,
              static_cast<const char*>(device_storage.data()) + first, last - first, TG_COPY_DEVICE_TO_HOST,
              /*blocking=*/true);
}

void upload(const c10::Storage& device_storage, const c10::Storage& image, size_t first, size_t last) {
  driver_copy(get_device(device_storage.device().index()), static_cast<char*>(device_storage.mutable_data()) + first,
              static_cast<const char*>(image.data()) + first, last - first, TG_COPY_HOST_TO_DEVICE, /*blocking=*/true);
}

at::Tensor host_alias(const at::Tensor& device_tensor) {
  const Device& device = device_under(device_tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(device.has(TG_CAP_UNIFIED_MEMORY), "the host cannot read the memory of ",
                              device_tensor.device(), " (", device.properties.name, ")");
  wait_for_device(device.index);
  return tensor_over(alias_storage(device_tensor.storage()), device_tensor);
}

void copy_or_record_on_host(const at::Tensor& self, const at::Tensor& dst) {
  const Device& device = device_under(dst);
  if (capturing() && !device.has(TG_CAP_COMPILER)) [[unlikely]]
    if (const Captured captured = capture_of_current(device.index)) {
      const at::Tensor from = at::alias(self), to = at::alias(dst);
      const auto copy = [from, to] { copy_on_host(from, to); };
      return captured->function(captured.stream, "aten::_copy_from", copy, {from, to});
    }
  copy_on_host(self, dst);
}

void copy_on_host(const at::Tensor& self, const at::Tensor& dst) {
  if (device_under(dst).has(TG_CAP_UNIFIED_MEMORY)) {
    host_alias(dst).copy_(host_alias(self));
    return;
  }
  at::Tensor source = download_image(self), image = download_image(dst);
  raise_errors_of_stream(dst.device().index());
  image.copy_(source);
  upload_image(dst, image);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (self.is_same(dst)) return dst;
  at::assert_no_partial_overlap(dst, self);
  const bool same_sizes = self.sizes() == dst.sizes();
  if (!same_sizes) {
    const auto common = at::infer_size(dst.sizes(), self.sizes());
    TORCH_CHECK(c10::IntArrayRef(common) == dst.sizes(), "output with shape ", dst.sizes(),
                " doesn't match the broadcast shape ", c10::IntArrayRef(common));
  }
  if (dst.numel() == 0) return dst;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor source = same_sizes ? self : self.expand(dst.sizes());
  if ((has_lazy_bits(self) || has_lazy_bits(dst)) && !is_plain(source, dst))
    copy_with_lazy_bits(source, dst, non_blocking);
  else
    copy_by_place(source, dst, non_blocking);
  return dst;
}

void register_copy() {
  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  library->impl("_copy_from", TORCH_FN(copy_from));
  library->impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library->impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  library->impl("clone", TORCH_FN(clone));
  library->impl("_to_copy", TORCH_FN(to_copy));

  // PyTorch's kernels of these keys would resolve the bits by a clone, which is a copy, which they would resolve by a
  // clone.
  static auto* conjugate = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, Conjugate));
  conjugate->impl("_copy_from", torch::CppFunction::makeFallthrough());
  static auto* negative = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, Negative));
  negative->impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace torchgraft
