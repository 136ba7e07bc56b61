// How the host reaches device memory; shared by the copies and the CPU fallback.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "runtime/device.h"

namespace torchgraft {

// Waits for the current stream of the device, then raises what its kernels have reported.
void wait_for_device(c10::DeviceIndex index);

// CPU storage over the memory of a device storage, which it keeps alive. For devices with unified memory; the caller
// has waited.
c10::Storage alias_storage(const c10::Storage& device_storage);
// CPU storage of the same size, contents undefined. Memory that is never touched costs nothing.
c10::Storage image_storage(const c10::Storage& device_storage);
// A tensor of `storage`'s device with the dtype, sizes, strides, offset and conjugate and negative bits of `like`.
at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like);

// The bytes of its storage, from first to last (excluded), that a tensor reaches.
std::pair<size_t, size_t> reached_bytes(const at::Tensor& tensor);
// Blocking copies of bytes [first, last) between a device storage and its image.
void download(const c10::Storage& image, const c10::Storage& device_storage, size_t first, size_t last);
void upload(const c10::Storage& device_storage, const c10::Storage& image, size_t first, size_t last);

// self to dst (both on one device, equal sizes) by PyTorch's CPU kernels: for devices, and dtypes, without a copy
// kernel.
void copy_on_host(const at::Tensor& self, const at::Tensor& dst);
// The same; of a device without a compiler a capture records it, and each replay does it.
void copy_or_record_on_host(const at::Tensor& self, const at::Tensor& dst);

}  // namespace torchgraft
