// The caching allocator of device memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <vector>

#include "runtime/device.h"

namespace torchgraft {

// What addresses and sizes of blocks are multiples of.
constexpr size_t kGranule = 512;

// The process's allocator; registered for PrivateUse1 by install_runtime().
c10::DeviceAllocator* device_allocator();
// Memory on `index`, for use on its current stream. Zero bytes give a null pointer with the right device. Throws
// c10::OutOfMemoryError.
c10::DataPtr allocate(c10::DeviceIndex index, size_t bytes);

// The device whose memory `address` lies in, or -1.
c10::DeviceIndex device_of_address(const void* address);
// At most this many bytes are taken from the driver, whatever the device would give.
void set_memory_limit(c10::DeviceIndex index, uint64_t bytes);
uint64_t memory_limit(c10::DeviceIndex index);  // the largest number where there is none

struct BlockInfo {
  uintptr_t address;
  size_t size;
  size_t requested;
  bool allocated;  // a tensor has it
  bool active;     // and so it is, or another stream is still using it
};
struct SegmentInfo {
  c10::DeviceIndex device;
  c10::StreamId stream;
  c10::MempoolId_t pool;  // of graphs; {0, 0}: not theirs
  bool large;
  bool expandable;  // a part of a range of addresses
  std::vector<BlockInfo> blocks;
};
// What all devices' segments are cut into.
std::vector<SegmentInfo> memory_snapshot();

// Memory of graphs. While a stream is captured, memory comes from the pool of the capture, which nothing else uses
// until its last user has left it.
void enter_pool(c10::DeviceIndex index, c10::MempoolId_t pool);
void leave_pool(c10::DeviceIndex index, c10::MempoolId_t pool) noexcept;
// What was freed while it was in use on a stream that was being captured waits until the capture is over.
void free_after_capture(c10::DeviceIndex index) noexcept;

// Called once by install_runtime().
void register_allocator();

}  // namespace torchgraft
