// The caching allocator of device memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device.h"

namespace torchgraft {

// The process's allocator; registered for PrivateUse1 by install_runtime().
c10::DeviceAllocator* device_allocator();
// Memory on `index`, for use on its current stream. Zero bytes give a null pointer with the right device. Throws c10::OutOfMemoryError.
c10::DataPtr allocate(c10::DeviceIndex index, size_t bytes);

}  // namespace torchgraft
