#include "event.h"

#include <c10/util/Exception.h>

#include <array>
#include <vector>

#include "assertions.h"
#include "stream.h"

namespace torchgraft {
namespace {

constexpr size_t kKept = 256;

struct Spare {
  std::mutex mutex;  // never held across a call of the driver
  std::vector<tg_event> events;
};

Spare& spare_events(c10::DeviceIndex device, bool timing) {
  static auto* spares = new std::array<Spare, size_t{2} * kMaxDevices>;
  return (*spares)[2 * device + (timing ? 1 : 0)];
}

}  // namespace

Event* create_event(c10::DeviceIndex index, bool timing) {
  Device& device = get_device(index);
  timing = timing && device.has(TG_CAP_EVENT_TIMING);
  Spare& spare = spare_events(index, timing);
  {
    std::lock_guard lock(spare.mutex);
    if (!spare.events.empty()) {
      tg_event handle = spare.events.back();
      spare.events.pop_back();
      return new Event{handle, index, timing};
    }
  }
  tg_event handle = nullptr;
  check(device, device.driver->event_create(device.driver->context, device.ordinal, timing, &handle),
        "creating an event");
  return new Event{handle, index, timing};
}

void destroy_event(Event* event) noexcept {
  if (!event) return;
  if (!in_bad_fork()) {
    Spare& spare = spare_events(event->device, event->timing);
    bool kept = false;
    {
      std::lock_guard lock(spare.mutex);
      if (spare.events.size() < kKept) {
        spare.events.push_back(event->handle);
        kept = true;
      }
    }
    if (!kept) {
      Device& device = get_device(event->device);
      device.driver->event_destroy(device.driver->context, device.ordinal, event->handle);
    }
  }
  delete event;
}

void record_event(Event& event, c10::Stream stream) {
  Device& device = get_device(event.device);
  TORCH_CHECK(stream.device_index() == event.device, "an event of ", backend_name(), ":",
              static_cast<int>(event.device), " cannot be recorded on a stream of ", stream.device());
  tg_stream handle = stream_handle(event.device, stream.id());
  check(device, device.driver->event_record(device.driver->context, device.ordinal, event.handle, handle),
        "recording an event");
  event.stream = stream.id();
}

void wait_event(Event& event, c10::Stream stream) {
  if (stream.device_index() != event.device) {
    synchronize_event(event);
    raise_errors_reported_so_far(event.device, event.stream);
    return;
  }
  Device& device = get_device(event.device);
  tg_stream handle = stream_handle(event.device, stream.id());
  check(device, device.driver->event_wait(device.driver->context, device.ordinal, event.handle, handle),
        "making a stream wait for an event");
  inherit_errors(event.device, stream.id(), event.stream);
}

bool query_event(Event& event) {
  Device& device = get_device(event.device);
  tg_status status = device.driver->event_query(device.driver->context, device.ordinal, event.handle);
  if (status == TG_NOT_READY) return false;
  check(device, status, "querying an event");
  return true;
}

void synchronize_event(Event& event) {
  Device& device = get_device(event.device);
  check(device, device.driver->event_synchronize(device.driver->context, device.ordinal, event.handle),
        "waiting for an event");
}

double elapsed_time(Event& start, Event& end) {
  TORCH_CHECK(start.device == end.device, "elapsed_time: the events belong to different devices");
  Device& device = get_device(start.device);
  TORCH_CHECK_NOT_IMPLEMENTED(device.has(TG_CAP_EVENT_TIMING), backend_name(), ":", static_cast<int>(start.device),
                              ": elapsed_time: the device's events take no times");
  TORCH_CHECK_VALUE(start.timing && end.timing, "elapsed_time: both events need enable_timing=True");
  double milliseconds = 0;
  check(device,
        device.driver->event_elapsed(device.driver->context, device.ordinal, start.handle, end.handle, &milliseconds),
        "reading the times of events");
  return milliseconds;
}

}  // namespace torchgraft
