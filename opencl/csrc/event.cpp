#include "event.h"

#include <algorithm>
#include <condition_variable>
#include <thread>

namespace ocl {

// A command that wakes whoever waits for it with a time limit, which OpenCL's own waits do not have.
class Bell {
 public:
  const tg_stream_* stream = nullptr;  // that it is in
  uint64_t place = 0;                  // its number among the stream's commands

  void ring() {
    std::lock_guard lock(mutex_);
    rung_ = true;
    ringing_.notify_all();
  }
  bool wait_until(std::chrono::steady_clock::time_point end) {
    std::unique_lock lock(mutex_);
    return ringing_.wait_until(lock, end, [this] { return rung_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable ringing_;
  bool rung_ = false;
};

namespace {

// A command's event, held while it is used without the lock.
class Held {
 public:
  explicit Held(tg_event_& event, cl_event tg_event_::* which = &tg_event_::command) : api_(*event.device->api) {
    std::lock_guard lock(event.mutex);
    command = event.*which;
    stream = event.stream;
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

  // Of what came before the event; what came after it may be told, too.
  void throw_failure() const {
    if (stream != nullptr) ocl::throw_failure(*stream);
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
  std::shared_ptr<tg_stream_> stream;

 private:
  const Api& api_;
};

// Makes `command` the event's point, and `first` the begin of what it times. Takes both over.
void point_to(tg_event_& event, cl_event command, cl_event first, std::shared_ptr<tg_stream_> stream = nullptr) {
  {
    std::lock_guard lock(event.mutex);
    std::swap(command, event.command);
    std::swap(first, event.first);
    std::swap(stream, event.stream);
    event.bell.reset();
  }
  const Api& api = *event.device->api;
  if (command != nullptr) api.clReleaseEvent(command);
  if (first != nullptr) api.clReleaseEvent(first);
}

// Queued behind the event's point, at the first call; NULL where host functions cannot be queued. It lives until it has
// rung, though the event may be gone by then.
std::shared_ptr<Bell> bell_behind(tg_event_& event) {
  const Device& device = *event.device;
  std::lock_guard lock(event.mutex);
  if (event.bell != nullptr || event.stream == nullptr || !device.has_native_kernels) return event.bell;
  auto bell = std::make_shared<Bell>();
  auto held = std::make_unique<std::shared_ptr<Bell>>(bell);
  auto* argument = held.get();
  const auto ring = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Bell>> held(*static_cast<std::shared_ptr<Bell>**>(argument));
    (*held)->ring();
  };
  submit(*event.stream, "clEnqueueNativeKernel", [&](cl_command_queue queue, cl_event* command) {
    bell->stream = event.stream.get();
    bell->place = event.stream->submitted + 1;
    return device.api->clEnqueueNativeKernel(queue, ring, &argument, sizeof argument, 0, nullptr, nullptr, 0, nullptr,
                                             command);
  });
  static_cast<void>(held.release());  // the command has it now
  flush(*event.stream);
  return event.bell = bell;
}

}  // namespace

tg_event create_event(Device& device, bool timing) { return new tg_event_(device, timing); }

void destroy_event(tg_event event) {
  point_to(*event, nullptr, nullptr);
  delete event;
}

void record(tg_event_& event, tg_stream_& stream) {
  if (event.device != stream.device) fail_invalid("an event was recorded in a stream of another device");
  point_to(event, last_event(stream, event.timing), nullptr, stream.self);
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
  held.throw_failure();
}

namespace {

// A device that leaves the host's cores alone is mostly through in less time than a thread sleeps at least (some 60
// us), so it is asked again and again at first; a long wait sleeps for a small part of what it has waited.
bool is_reached_by_other(const Held& held, std::chrono::steady_clock::time_point end) {
  using std::chrono::steady_clock;
  constexpr std::chrono::microseconds kBusy(1000), kLongest(1000);
  constexpr int kPart = 16;
  const auto begin = steady_clock::now();
  while (!held.is_done()) {
    const auto now = steady_clock::now();
    if (now >= end) return false;
    if (now - begin < kBusy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<steady_clock::duration>((now - begin) / kPart, kLongest));
    }
  }
  return true;
}

bool is_reached(const Held& held, tg_event_& event, std::chrono::steady_clock::time_point end) {
  constexpr std::chrono::microseconds kShortest(20), kLongest(1000);
  if (held.is_done()) return true;
  const std::shared_ptr<Bell> bell = bell_behind(event);
  if (event.device->executor != nullptr) event.device->executor->note_wait(held.command);
  if (bell != nullptr) {
    const bool rung = bell->wait_until(end);
    const bool done = held.is_done();
    // OpenCL takes a moment longer to see that the bell's command is complete.
    if (rung && bell->stream == held.stream.get()) note_done(*held.stream, bell->place);
    return done;
  }
  if (!event.device->is_cpu) return is_reached_by_other(held, end);
  for (auto pause = kShortest; !held.is_done(); pause = std::min(2 * pause, kLongest)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace

bool wait_for(tg_event_& event, std::chrono::nanoseconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  const Held held(event);
  if (held.stream != nullptr) note_wait(*held.stream);
  if (!is_reached(held, event, end)) return false;
  held.throw_failure();
  return true;
}

double elapsed_milliseconds(tg_event_& start, tg_event_& end) {
  if (!start.timing || !end.timing) fail_invalid("time was asked of an event made without timing");
  if (start.device != end.device) fail_invalid("the events belong to different devices");
  return static_cast<double>(static_cast<int64_t>(Held(end).time() - Held(start).time())) * 1e-6;
}

void begin_timing(tg_event_& event) {
  if (!event.timing) fail_invalid("commands are timed by events made with timing");
  if (event.device->executor != nullptr) event.device->executor->note_timing();
  point_to(event, nullptr, nullptr);
  {
    std::lock_guard lock(event.mutex);
    event.by_host = {};
  }
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

void time_by_host(tg_event_& event, uint64_t begin, uint64_t end) {
  std::lock_guard lock(event.mutex);
  if (event.by_host.begin == 0) event.by_host.begin = begin;
  event.by_host.end = end;
}

Times command_times(tg_event_& event) {
  const Held first(event, &tg_event_::first);
  Times times;
  {
    std::lock_guard lock(event.mutex);
    times = event.by_host;
  }
  if (first.command == nullptr) return times;
  const Times queued{first.time(CL_PROFILING_COMMAND_START), Held(event).time()};
  if (times.end == 0) return queued;
  return {std::min(times.begin, queued.begin), std::max(times.end, queued.end)};
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
