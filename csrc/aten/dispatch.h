// What the kernels of the PrivateUse1 key share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

#include "register.h"

namespace torchgraft {

// factories: new storage on a device, uninitialised.
at::Tensor empty_on_device(c10::DeviceIndex device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                           c10::ScalarType dtype);

// copy: self and dst may be on any device, of any dtype and strides; at least one is ours.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking);
// A CPU tensor over the same memory (same sizes, strides); only for devices with TG_CAP_UNIFIED_MEMORY, after waiting
// for the current stream.
at::Tensor host_alias(const at::Tensor& device_tensor);

// fill: repeats a pattern over a tensor of ours that lies in one piece.
void fill_memory(const at::Tensor& dense, const void* pattern, size_t pattern_bytes);

// fallback: runs `op` on the CPU with the arguments on `stack`, leaves its results there, counts it.
// `why` the device does not serve the call is what users are told; empty if it has no kernel for the op at all.
// `kernel` is the key of the CPU's kernel: CPU, or that of its sparse or quantised tensors.
void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::string_view why = {},
                  c10::DispatchKey kernel = c10::DispatchKey::CPU);

// fallback: the ops that PyTorch had declared when this was first asked.
const std::vector<c10::OperatorHandle>& aten_ops();

// attention: whether the tensor's device can have fused kernels: without a compiler there are none, and the
// CPU, which runs the ops then, has none either.
bool has_kernels(const at::Tensor& tensor);

}  // namespace torchgraft
