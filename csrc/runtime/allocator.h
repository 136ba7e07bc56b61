// The caching allocator of device memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device.h"

namespace torchgraft {

// The process's allocator; registered for PrivateUse1 by install_runtime().
c10::DeviceAllocator* device_allocator();
// Memory on `index`, for use on its current stream. Zero bytes give a null pointer with the right device. Throws
// c10::OutOfMemoryError.
c10::DataPtr allocate(c10::DeviceIndex index, size_t bytes);

// The device whose memory `address` lies in, or -1.
c10::DeviceIndex device_of_address(const void* address);
// At most this many bytes are taken from the driver, whatever the device would give.
void set_memory_limit(c10::DeviceIndex index, uint64_t bytes);

// Called once by install_runtime().
void register_allocator();

}  // namespace torchgraft
