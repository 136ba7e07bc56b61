// Commands: what a stream is given to do. Everything above the driver submits its launches, copies and fills here, so
// that a profile misses none of them.
//
// Where the host may use the device's memory it copies and fills by itself when the stream has nothing left to do: a
// command costs more than a small copy; and torch's threads are as fast with a larger one, if they are not the device's
// own cores. If nobody waits for the result it does so only for a device that has no other cores than the host's. While
// a profile is taken it leaves all to the driver, whose commands are timed.
#pragma once

#include <string>

#include "device.h"
#include "graphs/capture.h"
#include "profiler/activity.h"

namespace torchgraft {

// Whether the host does it instead of the driver.
bool takes_host(const Device& device, tg_stream stream, uint64_t bytes, bool blocking);
void host_copy(void* destination, const void* source, uint64_t bytes);
// False if it has no fill for such a pattern.
bool host_fill(void* destination, const void* pattern, uint32_t pattern_bytes, uint64_t bytes);

inline tg_status submit_launch(const Device& device, tg_stream stream, const tg_launch& launch,
                               const std::string& name) {
  auto submit = [&] { return device.driver->launch(device.driver->context, device.ordinal, stream, &launch); };
  if (collecting()) [[unlikely]]
    return collect_launch(device, stream, launch, name, submit);
  return submit();
}

inline tg_status submit_run(const Device& device, tg_stream stream, const tg_run& run, const std::string& name) {
  auto submit = [&] { return device.driver->program_run(device.driver->context, device.ordinal, stream, &run); };
  if (collecting()) [[unlikely]]
    return collect_run(device, stream, name, submit);
  return submit();
}

// False if the stream is not being captured; otherwise the command is recorded, or refused.
bool captured_copy(const Device& device, tg_stream stream, void* destination, const void* source, uint64_t bytes,
                   tg_copy_kind kind, bool blocking);
bool captured_fill(const Device& device, tg_stream stream, void* destination, const void* pattern,
                   uint32_t pattern_bytes, uint64_t bytes);

inline tg_status submit_copy(const Device& device, tg_stream stream, void* destination, const void* source,
                             uint64_t bytes, tg_copy_kind kind, bool blocking) {
  if (capturing() && captured_copy(device, stream, destination, source, bytes, kind, blocking)) [[unlikely]]
    return TG_OK;
  if (takes_host(device, stream, bytes, blocking)) {
    host_copy(destination, source, bytes);
    return TG_OK;
  }
  auto submit = [&] {
    return device.driver->copy(device.driver->context, device.ordinal, stream, destination, source, bytes, kind,
                               blocking);
  };
  if (collecting()) [[unlikely]]
    return collect_copy(device, stream, bytes, kind, submit);
  return submit();
}

// Between two devices of one driver that has copy_peer, on a stream of the destination's.
inline tg_status submit_peer_copy(const Device& device, tg_stream stream, void* destination, const Device& from,
                                  const void* source, uint64_t bytes) {
  auto submit = [&] {
    return device.driver->copy_peer(device.driver->context, device.ordinal, destination, from.ordinal, source, bytes,
                                    stream);
  };
  if (collecting()) [[unlikely]]
    return collect_copy(device, stream, bytes, TG_COPY_DEVICE_TO_DEVICE, submit);
  return submit();
}

inline tg_status submit_fill(const Device& device, tg_stream stream, void* destination, const void* pattern,
                             uint32_t pattern_bytes, uint64_t bytes) {
  if (capturing() && captured_fill(device, stream, destination, pattern, pattern_bytes, bytes)) [[unlikely]]
    return TG_OK;
  if (takes_host(device, stream, bytes, /*blocking=*/false) && host_fill(destination, pattern, pattern_bytes, bytes))
    return TG_OK;
  auto submit = [&] {
    return device.driver->fill(device.driver->context, device.ordinal, stream, destination, pattern, pattern_bytes,
                               bytes);
  };
  if (collecting()) [[unlikely]]
    return collect_fill(device, stream, bytes, submit);
  return submit();
}

}  // namespace torchgraft
