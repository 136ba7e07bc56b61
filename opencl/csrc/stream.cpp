#include "stream.h"

#include <chrono>
#include <memory>
#include <utility>

namespace ocl {
namespace {

// A GPU's work is handed over in batches: at once when it was idle, otherwise after so many commands.
constexpr uint32_t kBatch = 16;

// A stream that has done so many commands without being asked for a time stops recording times.
constexpr uint32_t kUntimed = 10000;

cl_command_queue create_queue(Device& device, int32_t priority, bool timed) {
  const Api& api = *device.api;
  const cl_bitfield properties = timed ? CL_QUEUE_PROFILING_ENABLE : 0;
  cl_int status = CL_SUCCESS;
  if (priority != 0 && device.has_priorities) {
    const cl_ulong list[] = {CL_QUEUE_PROPERTIES, properties, CL_QUEUE_PRIORITY_KHR,
                             priority < 0 ? CL_QUEUE_PRIORITY_HIGH_KHR : CL_QUEUE_PRIORITY_LOW_KHR, 0};
    cl_command_queue queue = api.clCreateCommandQueueWithProperties(device.context(), device.id, list, &status);
    if (status == CL_SUCCESS) return queue;  // a hint: without it as well
  }
  cl_command_queue queue = api.clCreateCommandQueue(device.context(), device.id, properties, &status);
  if (status != CL_SUCCESS) fail_call("clCreateCommandQueue", status);
  return queue;
}

cl_int event_status(const Api& api, cl_event event) {
  cl_int status = CL_COMPLETE;
  check(api.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr),
        "clGetEventInfo");
  return status;
}

void set_tail(tg_stream_& stream, cl_event event) {
  if (stream.tail != nullptr) stream.device->api->clReleaseEvent(stream.tail);
  stream.tail = event;
}

// With nothing left to do in the stream.
void become_untimed(tg_stream_& stream) {
  cl_command_queue untimed = create_queue(*stream.device, stream.priority, false);
  stream.device->api->clReleaseCommandQueue(stream.queue);
  stream.queue = untimed;
  stream.timed = false;
}

void become_idle(tg_stream_& stream) {
  set_tail(stream, nullptr);
  stream.since_idle = 0;
  if (stream.shared) return;  // for all that is known here
  stream.busy.store(false, std::memory_order_release);
  if (stream.timed && stream.since_timed >= kUntimed) [[unlikely]]
    become_untimed(stream);
}

void add_marker(tg_stream_& stream) {
  cl_event marker = nullptr;
  check(stream.device->api->clEnqueueMarkerWithWaitList(stream.queue, 0, nullptr, &marker),
        "clEnqueueMarkerWithWaitList");
  note_submission(stream, marker);
}

// After this the tail is the last command of the queue, or unknown.
void doubt_tail(tg_stream_& stream) {
  if (stream.shared) set_tail(stream, nullptr);
}

void flush_locked(tg_stream_& stream) {
  stream.since_flush = 0;
  check(stream.device->api->clFlush(stream.queue), "clFlush");
}

// Queues that record times are slower (PoCL 4 %, Intel 8 %), so a stream changes to one when time is asked of it.
void become_timed(tg_stream_& stream) {
  Device& device = *stream.device;
  cl_command_queue timed = create_queue(device, stream.priority, true);
  if (stream.busy.load(std::memory_order_relaxed)) {
    if (stream.tail == nullptr) add_marker(stream);
    flush_locked(stream);
    const cl_int status = device.api->clEnqueueBarrierWithWaitList(timed, 1, &stream.tail, nullptr);
    if (status != CL_SUCCESS) {
      device.api->clReleaseCommandQueue(timed);
      fail_call("clEnqueueBarrierWithWaitList", status);
    }
  }
  device.api->clReleaseCommandQueue(stream.queue);
  stream.queue = timed;
  stream.timed = true;
}

// Only a marker behind what others have queued can tell. One that is still pending is asked again, so that a caller who
// asks in a loop does not fill the queue; a new one is given a moment, since none is done at once.
cl_int status_of_shared(tg_stream_& stream) {
  constexpr auto kMoment = std::chrono::microseconds(100);
  const Api& api = *stream.device->api;
  if (stream.tail != nullptr) {
    const cl_int status = event_status(api, stream.tail);
    if (status > CL_COMPLETE) return status;
  }
  add_marker(stream);
  flush_locked(stream);
  const auto end = std::chrono::steady_clock::now() + kMoment;
  cl_int status = CL_COMPLETE;
  do {
    status = event_status(api, stream.tail);
  } while (status > CL_COMPLETE && std::chrono::steady_clock::now() < end);
  return status;
}

}  // namespace
}  // namespace ocl

tg_stream_::~tg_stream_() {
  const ocl::Api& api = *device->api;
  if (tail != nullptr) api.clReleaseEvent(tail);
  if (queue != nullptr) api.clReleaseCommandQueue(queue);
}

namespace ocl {

tg_stream create_stream(Device& device, int32_t priority) {
  const auto stream = std::make_shared<tg_stream_>(device, priority);
  stream->queue = create_queue(device, priority, false);
  std::lock_guard lock(device.streams_mutex);
  device.streams.insert(stream.get());
  stream->self = stream;
  return stream.get();
}

void destroy_stream(tg_stream stream) {
  const std::shared_ptr<tg_stream_> last = std::exchange(stream->self, nullptr);
  std::lock_guard lock(last->device->streams_mutex);
  last->device->streams.erase(stream);
}

void note_submission(tg_stream_& stream, cl_event event) {
  set_tail(stream, event);
  stream.open.reset();
  ++stream.submitted;
  ++stream.since_idle;
  ++stream.since_timed;
  stream.since_wait.fetch_add(1, std::memory_order_relaxed);
  stream.busy.store(true, std::memory_order_release);
  ++stream.since_flush;
  if (!stream.device->has_cheap_events && (stream.since_flush >= kBatch || stream.since_idle == 1))
    flush_locked(stream);
}

void prepare_timing(tg_stream_& stream) {
  if (!stream.timed) become_timed(stream);
  stream.since_timed = 0;
}

void flush(tg_stream_& stream) {
  std::lock_guard lock(stream.mutex);
  if (stream.busy.load(std::memory_order_relaxed)) flush_locked(stream);
}

void note_wait(tg_stream_& stream) {
  if (const uint32_t launches = stream.since_wait.exchange(0, std::memory_order_relaxed))
    stream.pace.store(launches, std::memory_order_relaxed);
}

// With the stream locked. The first failure is told; others are likely to come of it.
static void keep_failure(tg_stream_& stream, Failure failure) noexcept {
  if (stream.failure && !stream.told) return;
  stream.failure = std::move(failure);
  stream.told = false;
  stream.failed.store(true, std::memory_order_release);
}

void note_failure(tg_stream_& stream, Failure failure) noexcept {
  std::lock_guard lock(stream.mutex);
  keep_failure(stream, std::move(failure));
}

// With the stream locked.
static void forget_failure(tg_stream_& stream) {
  stream.failure.reset();
  stream.failed.store(false, std::memory_order_relaxed);
}

static Failure as_earlier(const Failure& failure) {
  return {failure.status, std::string("earlier work failed: ") + failure.what()};
}

void throw_failure(tg_stream_& stream) {
  if (!stream.failed.load(std::memory_order_acquire)) [[likely]]
    return;
  std::lock_guard lock(stream.mutex);
  if (!stream.failure) return;
  const Failure failure = as_earlier(*stream.failure);
  forget_failure(stream);
  throw failure;
}

static void tell_failure(tg_stream_& stream) {
  if (!stream.failed.load(std::memory_order_acquire)) [[likely]]
    return;
  std::lock_guard lock(stream.mutex);
  if (!stream.failure) return;
  if (std::exchange(stream.told, true)) {
    forget_failure(stream);
  } else {
    throw as_earlier(*stream.failure);
  }
}

void finish(tg_stream_& stream) {
  note_wait(stream);
  if (!stream.busy.load(std::memory_order_acquire)) return;
  const Api& api = *stream.device->api;
  cl_event tail = nullptr;
  cl_command_queue queue = nullptr;
  uint64_t submitted = 0;
  {
    std::lock_guard lock(stream.mutex);
    if (!stream.busy.load(std::memory_order_relaxed)) return;
    doubt_tail(stream);
    stream.open.reset();  // what comes later is not waited for
    tail = stream.tail;
    queue = stream.queue;
    // Other threads may release them meanwhile: the queue, when the stream begins or ends to record times.
    if (tail != nullptr) {
      api.clRetainEvent(tail);
    } else {
      api.clRetainCommandQueue(queue);
    }
    submitted = stream.submitted;
  }
  // Asking repeatedly before sleeping was measured and left out. On two cores PoCL gained a little after several
  // launches on an idle machine, and lost after a single one and whenever the cores had other work; Intel's runtime
  // lends the waiting thread to the kernels, so that a launch and its wait take 3 us, but 37 if that thread asks first.
  const cl_int status = tail != nullptr ? api.clWaitForEvents(1, &tail) : api.clFinish(queue);
  if (tail != nullptr) {
    api.clReleaseEvent(tail);
  } else {
    api.clReleaseCommandQueue(queue);
  }
  if (status != CL_SUCCESS) note_failure(stream, failure_of(tail == nullptr ? "clFinish" : "clWaitForEvents", status));
  note_done(stream, submitted);
}

void wait(tg_stream_& stream) {
  finish(stream);
  throw_failure(stream);
}

void note_done(tg_stream_& stream, uint64_t count) {
  std::lock_guard lock(stream.mutex);
  if (stream.submitted == count) become_idle(stream);
}

static bool has_finished(tg_stream_& stream) {
  if (!stream.busy.load(std::memory_order_acquire)) return true;
  std::lock_guard lock(stream.mutex);
  if (!stream.busy.load(std::memory_order_relaxed)) return true;
  if (stream.tail == nullptr && !stream.shared) add_marker(stream);
  const cl_int status = stream.shared ? status_of_shared(stream) : event_status(*stream.device->api, stream.tail);
  if (status > CL_COMPLETE) {
    if (stream.since_flush != 0) flush_locked(stream);  // or it might never begin
    return false;
  }
  become_idle(stream);
  if (status < CL_COMPLETE) keep_failure(stream, failure_of("a command of the stream", status));
  return true;
}

bool is_idle(tg_stream_& stream) {
  if (!has_finished(stream)) return false;
  tell_failure(stream);
  return true;
}

cl_command_queue share(tg_stream_& stream) {
  std::lock_guard lock(stream.mutex);
  prepare_timing(stream);  // which would exchange the queue later
  stream.shared = true;
  stream.open.reset();  // what others queue comes before what is launched later
  stream.busy.store(true, std::memory_order_release);
  return stream.queue;
}

cl_event last_event(tg_stream_& stream, bool timed) {
  std::lock_guard lock(stream.mutex);
  const Api& api = *stream.device->api;
  doubt_tail(stream);
  stream.open.reset();  // what comes later is not before the event
  if (timed) {
    const bool was_timed = stream.timed;
    prepare_timing(stream);
    // The last command's end is the time wanted only if it is still to come.
    const bool usable = was_timed && stream.tail != nullptr && event_status(api, stream.tail) > CL_COMPLETE;
    if (!usable) add_marker(stream);
  } else {
    if (!stream.busy.load(std::memory_order_relaxed)) return nullptr;
    if (stream.tail == nullptr) add_marker(stream);
  }
  api.clRetainEvent(stream.tail);
  flush_locked(stream);  // others may wait for it
  return stream.tail;
}

}  // namespace ocl
