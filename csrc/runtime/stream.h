// Streams: queues of work on one device. Stream id 0 is the device's default stream.
#pragma once

#include <c10/core/Stream.h>

#include <bitset>

#include "device.h"

namespace torchgraft {

inline constexpr int kMaxStreams = 98;  // of one device; see stream.cpp for what the ids mean
inline constexpr c10::StreamId kCaptureStream = kMaxStreams - 1;
using StreamSet = std::bitset<kMaxStreams>;

// Thread-local current device and stream, as the guard sees them.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);           // throws if there is no such device
c10::DeviceIndex exchange_device(c10::DeviceIndex index);  // a negative index changes nothing
void set_current_device_unchecked(c10::DeviceIndex index) noexcept;

c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex index, int priority);

// The driver's handle, created at first use. Fast: no lock for streams that exist.
tg_stream stream_handle(c10::DeviceIndex index, c10::StreamId id);
inline tg_stream current_stream_handle(c10::DeviceIndex index) {
  return stream_handle(index, current_stream(index).id());
}

// The id of a handle, by search; -1 if no stream has it.
c10::StreamId stream_id(c10::DeviceIndex index, tg_stream handle) noexcept;

// The streams that have been current in the calling thread.
StreamSet streams_of_thread(c10::DeviceIndex index);

bool query_stream(c10::Stream stream);
void wait_for_stream(Device& device, c10::StreamId id);
// These two also raise what kernels have reported (see assertions.h).
void synchronize_stream(c10::Stream stream);
void synchronize_device(c10::DeviceIndex index);

}  // namespace torchgraft
