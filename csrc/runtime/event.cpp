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

namespace {

bool record_in_capture(Event& event, c10::Stream stream) {
  const Captured captured = capture_of(event.device, stream.id());
  if (!captured) return false;
  event.mark = captured->mark(stream.id());
  event.capture = captured.capture;
  event.stream = stream.id();
  event.captured = true;
  return true;
}

void join_capture(const Event& event, c10::Stream stream) {
  const std::shared_ptr<Capture> capture = event.capture.lock();
  if (capture == nullptr) refuse_captured(event, "cannot wait for");
  TORCH_CHECK(stream.device_index() == event.device, "a stream of ", stream.device(), " cannot join the capture of ",
              backend_name(), ":", static_cast<int>(event.device), ": a graph is of one device");
  enter_capture(capture, stream.id());
  capture->wait(stream.id(), event.mark);
}

}  // namespace

void refuse_captured(const Event& event, const char* what) {
  TORCH_CHECK(!event.captured, what, " an event of ", backend_name(), ":", static_cast<int>(event.device),
              " that was last recorded while its stream was being captured into a graph: outside of that capture it "
              "means nothing. Record it again.");
}

void record_event(Event& event, c10::Stream stream) {
  Device& device = get_device(event.device);
  TORCH_CHECK(stream.device_index() == event.device, "an event of ", backend_name(), ":",
              static_cast<int>(event.device), " cannot be recorded on a stream of ", stream.device());
  tg_stream handle = stream_handle(event.device, stream.id());
  if (capturing() && record_in_capture(event, stream)) [[unlikely]]
    return;
  check(device, device.driver->event_record(device.driver->context, device.ordinal, event.handle, handle),
        "recording an event");
  event.stream = stream.id();
  event.captured = false;
}

void wait_event(Event& event, c10::Stream stream) {
  if (event.captured) [[unlikely]]
    return join_capture(event, stream);
  // What is done already need not be in the graph.
  if (capturing() && !query_event(event)) [[unlikely]]
    refuse_in_capture(stream.device_index(), stream.id(), "a wait for work that was submitted before the capture");
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
  refuse_captured(event, "cannot query");
  Device& device = get_device(event.device);
  tg_status status = device.driver->event_query(device.driver->context, device.ordinal, event.handle);
  if (status == TG_NOT_READY) return false;
  check(device, status, "querying an event");
  return true;
}

void synchronize_event(Event& event) {
  refuse_captured(event, "cannot wait for");
  Device& device = get_device(event.device);
  check(device, device.driver->event_synchronize(device.driver->context, device.ordinal, event.handle),
        "waiting for an event");
}

double elapsed_time(Event& start, Event& end) {
  refuse_captured(start, "cannot read the time of");
  refuse_captured(end, "cannot read the time of");
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
