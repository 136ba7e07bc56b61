// The host's clock that an implementation's times are of.
//
// OpenCL times its commands. What the driver runs itself it times too, by the same clock, where there is one: a CPU's
// implementation asks the system for the time, but which of its clocks it asks is not said.
#pragma once

#include <cstdint>
#include <mutex>

#include "device.h"
#include "stream.h"

namespace ocl {

class HostClock {
 public:
  // Compares the system's clocks with the device's, the first time. The calling thread must not be timing.
  void find(Device& device);
  // Whether what the calling thread runs on the device without OpenCL is not to be timed, or can be.
  bool can_time(const Device& device) const { return !is_timed(device) || known_; }
  // Runs that, and times it if it is to be timed.
  template <class Run>
  void run_timed(const Device& device, const Run& run) const {
    if (!is_timed(device)) [[likely]]
      return run();
    const uint64_t begin = now();
    run();
    time_by_host(*timer, begin, now());
  }

 private:
  uint64_t now() const;  // nanoseconds, of a clock that is known

  std::once_flag once_;
  bool known_ = false;  // written once, before anyone times
  int id_ = 0;          // the system's number of the clock
};

}  // namespace ocl
