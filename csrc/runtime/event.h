// Events: marks in a stream that the host and other streams can wait for.
#pragma once

#include <c10/core/Stream.h>

#include <memory>

#include "device.h"

namespace torchgraft {

struct Event {
  tg_event handle;
  c10::DeviceIndex device;
  bool timing;
  c10::StreamId stream = 0;  // on which it was last recorded
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
void synchronize_event(Event& event);
// Milliseconds.
double elapsed_time(Event& start, Event& end);

}  // namespace torchgraft
