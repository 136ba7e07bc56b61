// Events: marks in a stream that the host and other streams can wait for.
#pragma once

#include <c10/core/Stream.h>

#include <memory>

#include "device.h"
#include "graphs/capture.h"

namespace torchgraft {

struct Event {
  tg_event handle;
  c10::DeviceIndex device;
  bool timing;
  c10::StreamId stream = 0;  // on which it was last recorded
  bool captured = false;     // which was in a capture,
  std::weak_ptr<Capture> capture{};
  uint32_t mark = 0;  // of which it is this mark
};

// Driver events are kept for reuse: making one can cost more than recording it.
Event* create_event(c10::DeviceIndex device, bool timing);
void destroy_event(Event* event) noexcept;  // NULL is allowed

struct EventDeleter {
  void operator()(Event* event) const noexcept { destroy_event(event); }
};
using EventPtr = std::unique_ptr<Event, EventDeleter>;

void record_event(Event& event, c10::Stream stream);
// Makes the stream wait; where the stream belongs to another device than the event, the host waits instead.
void wait_event(Event& event, c10::Stream stream);
bool query_event(Event& event);
// Waits for the event, uninterruptibly.
void synchronize_event(Event& event);
// Throws RuntimeError if the event was last recorded in a capture, where nothing passes it.
void refuse_captured(const Event& event, const char* what);
// Milliseconds.
double elapsed_time(Event& start, Event& end);

}  // namespace torchgraft
