// Streams: in-order command queues that know whether they are idle, so that waiting for nothing costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "device.h"
#include "error.h"
#include "host_executor.h"
#include "opencl_api.h"
#include "torchgraft/driver.h"

// The opaque type of the driver's contract.
struct tg_stream_ {
  tg_stream_(ocl::Device& device, int32_t priority) : device(&device), priority(priority) {}
  ~tg_stream_();

  std::shared_ptr<tg_stream_> self;  // until it is destroyed; events that were recorded in it may have it longer
  ocl::Device* const device;
  const int32_t priority;

  // Launches since the host last waited, and how many there were before that.
  std::atomic<uint32_t> since_wait = 0, pace = 0;

  // False when all work is known to be done. Set after work was queued, so a reader without the lock can miss only work
  // whose submission has not returned.
  std::atomic<bool> busy = false;

  // Whether there is a `failure`. Set before the command that failed counts as done.
  std::atomic<bool> failed = false;

  std::mutex mutex;  // guards what follows
  ocl::cl_command_queue queue = nullptr;
  bool timed = false;                        // the queue records times
  ocl::cl_event tail = nullptr;              // of the last command, where known; owned
  std::shared_ptr<ocl::ExecutorState> open;  // the last command, where the executor may still add to it
  uint64_t submitted = 0;                    // commands ever queued
  uint32_t since_idle = 0;                   // of them, those since the stream was last idle
  uint32_t since_flush = 0;
  uint32_t since_timed = 0;             // of them, those since time was last asked of one
  std::optional<ocl::Failure> failure;  // of a command, not yet thrown by what waits for it
  bool told = false;                    // but by a query
  bool shared = false;                  // others have the queue too, and what they put into it is not counted here
};

namespace ocl {

tg_stream create_stream(Device& device, int32_t priority);
void destroy_stream(tg_stream stream);

// Blocks until all work of the stream is done.
void finish(tg_stream_& stream);
// Throws what failed of the stream's work, once.
void throw_failure(tg_stream_& stream);
// Both.
void wait(tg_stream_& stream);
// Notes that the host wants what was queued so far.
void note_wait(tg_stream_& stream);
// Notes that the stream's first so many commands are done.
void note_done(tg_stream_& stream, uint64_t count);
// Whether all work is done; throws if it failed. Never blocks.
//
// Whoever asks only to choose between two ways of doing a copy or a fill takes a failure for a no. So what is thrown
// here is kept, for a copy, a fill or a wait to throw it again, unless the stream is asked once more before.
bool is_idle(tg_stream_& stream);

// The last command's event, retained for the caller; NULL if the stream is idle. With `timed`, one whose time of
// completion is recorded: then never NULL.
cl_event last_event(tg_stream_& stream, bool timed);

// A thread that waits after few launches wants results soon. Others want to hand over work.
inline bool waits_soon(const tg_stream_& stream) {
  constexpr uint32_t kFew = 4;
  return stream.pace.load(std::memory_order_relaxed) <= kFew;
}

// Keeps why a command failed that OpenCL sees as done, for whoever waits for it or asks next.
void note_failure(tg_stream_& stream, Failure failure) noexcept;

void flush(tg_stream_& stream);

// The stream's queue, for others to put commands into. From then on it stays the same queue, and the stream never
// counts as idle without having asked it.
cl_command_queue share(tg_stream_& stream);

// The event that times what the calling thread queues on its device, or NULL.
inline constinit thread_local tg_event timer = nullptr;
// Makes the stream record times. With the stream locked.
void prepare_timing(tg_stream_& stream);
// Notes a command that `event` times. With the stream locked.
void time_command(tg_event_& event, cl_event command);
bool is_of(const tg_event_& event, const Device& device);
// Whether what the calling thread queues on the device is to be timed.
inline bool is_timed(const Device& device) { return timer != nullptr && is_of(*timer, device); }
// Notes when what was done without OpenCL began and ended, in nanoseconds of the device's clock.
void time_by_host(tg_event_& event, uint64_t begin, uint64_t end);

// Notes a command that was queued; `event` (perhaps NULL) becomes the tail. With the stream locked.
void note_submission(tg_stream_& stream, cl_event event);

// Queues one command: `enqueue(queue, event)` calls OpenCL with them and returns its status, which is passed on.
//
// A CPU's commands yield their events: 50 ns each, and then asking whether the stream is idle, recording an event and
// waiting need no marker, which would be another command for the workers. A GPU's queue makes a marker when one is
// asked for.
template <class Enqueue>
cl_int try_submit(tg_stream_& stream, Enqueue&& enqueue) {
  std::lock_guard lock(stream.mutex);
  const bool timed = is_timed(*stream.device);
  if (timed) [[unlikely]]
    prepare_timing(stream);
  cl_event event = nullptr;
  const cl_int status = enqueue(stream.queue, stream.device->has_cheap_events || timed ? &event : nullptr);
  if (status != CL_SUCCESS) [[unlikely]]
    return status;
  if (timed) [[unlikely]]
    time_command(*timer, event);
  note_submission(stream, event);
  return status;
}

template <class Enqueue>
void submit(tg_stream_& stream, const char* call, Enqueue&& enqueue) {
  const cl_int status = try_submit(stream, enqueue);
  if (status != CL_SUCCESS) [[unlikely]]
    fail_call(call, status);
}

}  // namespace ocl
