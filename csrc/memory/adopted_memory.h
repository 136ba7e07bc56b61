// Device memory that another library allocated, in use by tensors.
#pragma once

#include <c10/core/Storage.h>

#include <functional>

#include "runtime/device.h"

namespace torchgraft {

// Storage over `bytes` bytes from `address`, which must be what kernels and copies of the device accept. It cannot be
// resized. `release` is called when the last tensor is gone and the device has done all that it was given until then.
c10::Storage adopt_memory(c10::DeviceIndex index, void* address, size_t bytes, std::function<void()> release);

// The device whose adopted memory `address` lies in, or -1.
c10::DeviceIndex device_of_adopted(const void* address);

}  // namespace torchgraft
