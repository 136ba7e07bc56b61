// Events: points in a stream, for other streams and the host to wait for, and to measure time between.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "device.h"
#include "stream.h"

namespace ocl {
class Bell;
struct Times {
  uint64_t begin = 0, end = 0;  // nanoseconds of the device's clock; 0 where nothing was queued
};
}  // namespace ocl

// The opaque type of the driver's contract.
struct tg_event_ {
  tg_event_(ocl::Device& device, bool timing) : device(&device), timing(timing) {}

  ocl::Device* const device;
  const bool timing;

  std::mutex mutex;                    // guards what follows
  ocl::cl_event command = nullptr;     // the point; NULL where nothing has to be waited for. Owned.
  ocl::cl_event first = nullptr;       // of the commands that the event times; owned
  ocl::Times by_host;                  // of those of them that were done without OpenCL
  std::shared_ptr<tg_stream_> stream;  // that it was recorded in
  std::shared_ptr<ocl::Bell> bell;     // that rings when the point is passed, if one was asked for
};

namespace ocl {

tg_event create_event(Device& device, bool timing);
void destroy_event(tg_event event);
void record(tg_event_& event, tg_stream_& stream);
void make_wait(tg_stream_& stream, tg_event_& event);
bool is_done(tg_event_& event);
void wait(tg_event_& event);
// Waits for at most so long; whether the event has passed.
bool wait_for(tg_event_& event, std::chrono::nanoseconds most);
double elapsed_milliseconds(tg_event_& start, tg_event_& end);

// The event times what the calling thread queues on the event's device, until timing ends.
void begin_timing(tg_event_& event);
inline void end_timing() { timer = nullptr; }
Times command_times(tg_event_& event);
// What that clock shows.
uint64_t device_time(Device& device);

}  // namespace ocl
