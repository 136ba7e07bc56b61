// The host's clock that an implementation's times are of.
//
// OpenCL times its commands. What the driver runs itself it times too, by the same clock, where there is one: a CPU's
// implementation asks the system for the time, but which of its clocks it asks is not said.
#pragma once

#include <cstdint>
#include <mutex>

namespace ocl {

struct Device;

class HostClock {
 public:
  // Compares the system's clocks with the device's, the first time. The calling thread must not be timing.
  void find(Device& device);
  bool is_known() const { return known_; }
  // Nanoseconds, of a clock that is known.
  uint64_t now() const;

 private:
  std::once_flag once_;
  bool known_ = false;  // written once, before anyone times
  int id_ = 0;          // the system's number of the clock
};

}  // namespace ocl
