#include "event.h"

namespace ocl {
namespace {

// A command's event, held while it is used without the lock.
class Held {
 public:
  explicit Held(tg_event_& event, cl_event tg_event_::* which = &tg_event_::command) : api_(*event.device->api) {
    std::lock_guard lock(event.mutex);
    command = event.*which;
    if (command != nullptr) api_.clRetainEvent(command);
  }
  ~Held() {
    if (command != nullptr) api_.clReleaseEvent(command);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  bool is_done() const {
    if (command == nullptr) return true;
    cl_int status = CL_COMPLETE;
    check(api_.clGetEventInfo(command, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr),
          "clGetEventInfo");
    if (status < CL_COMPLETE) fail_call("a command before the event", status);
    return status == CL_COMPLETE;
  }

  cl_ulong time(cl_uint moment = CL_PROFILING_COMMAND_END) const {
    if (command == nullptr) fail_invalid("an event whose time is asked for was never recorded");
    if (!is_done()) fail_invalid("an event whose time is asked for has not been reached yet");
    cl_ulong nanoseconds = 0;
    check(api_.clGetEventProfilingInfo(command, moment, sizeof nanoseconds, &nanoseconds, nullptr),
          "clGetEventProfilingInfo");
    return nanoseconds;
  }

  cl_event command = nullptr;

 private:
  const Api& api_;
};

// Makes `command` the event's point, and `first` the begin of what it times. Takes both over.
void point_to(tg_event_& event, cl_event command, cl_event first) {
  {
    std::lock_guard lock(event.mutex);
    std::swap(command, event.command);
    std::swap(first, event.first);
  }
  const Api& api = *event.device->api;
  if (command != nullptr) api.clReleaseEvent(command);
  if (first != nullptr) api.clReleaseEvent(first);
}

}  // namespace

tg_event create_event(Device& device, bool timing) { return new tg_event_(device, timing); }

void destroy_event(tg_event event) {
  point_to(*event, nullptr, nullptr);
  delete event;
}

void record(tg_event_& event, tg_stream_& stream) {
  if (event.device != stream.device) fail_invalid("an event was recorded in a stream of another device");
  point_to(event, last_event(stream, event.timing), nullptr);
}

void make_wait(tg_stream_& stream, tg_event_& event) {
  const Held held(event);
  if (held.is_done()) return;
  if (event.device != stream.device) {
    wait(event);  // events of one context mean nothing to another
    return;
  }
  submit(stream, "clEnqueueBarrierWithWaitList", [&](cl_command_queue queue, cl_event* barrier) {
    return event.device->api->clEnqueueBarrierWithWaitList(queue, 1, &held.command, barrier);
  });
}

bool is_done(tg_event_& event) { return Held(event).is_done(); }

void wait(tg_event_& event) {
  const Held held(event);
  if (!held.is_done()) check(event.device->api->clWaitForEvents(1, &held.command), "clWaitForEvents");
}

double elapsed_milliseconds(tg_event_& start, tg_event_& end) {
  if (!start.timing || !end.timing) fail_invalid("time was asked of an event made without timing");
  if (start.device != end.device) fail_invalid("the events belong to different devices");
  return static_cast<double>(static_cast<int64_t>(Held(end).time() - Held(start).time())) * 1e-6;
}

void begin_timing(tg_event_& event) {
  if (!event.timing) fail_invalid("commands are timed by events made with timing");
  point_to(event, nullptr, nullptr);
  timer = &event;
}

bool is_of(const tg_event_& event, const Device& device) { return event.device == &device; }

void time_command(tg_event_& event, cl_event command) {
  const Api& api = *event.device->api;
  cl_event first = event.first != nullptr ? event.first : command;  // only this thread changes it
  api.clRetainEvent(command);
  api.clRetainEvent(first);
  point_to(event, command, first);
}

Times command_times(tg_event_& event) {
  const Held first(event, &tg_event_::first);
  if (first.command == nullptr) return {0, 0};
  return {first.time(CL_PROFILING_COMMAND_START), Held(event).time()};
}

uint64_t device_time(Device& device) {
  // A stream of its own, so that it does not wait for anyone's work.
  tg_event_ now(device, true);
  record(now, *device.clock_stream());
  wait(now);
  const uint64_t time = Held(now).time();
  point_to(now, nullptr, nullptr);
  return time;
}

}  // namespace ocl
