#include "host_clock.h"

#include <ctime>

#include "device.h"
#include "event.h"

namespace ocl {
namespace {

uint64_t time_of(clockid_t id) {
  timespec time{};
  if (clock_gettime(id, &time) != 0) return 0;
  return uint64_t{1000000000} * static_cast<uint64_t>(time.tv_sec) + static_cast<uint64_t>(time.tv_nsec);
}

constexpr clockid_t kClocks[] = {
    CLOCK_MONOTONIC,
#ifdef CLOCK_MONOTONIC_RAW
    CLOCK_MONOTONIC_RAW,
#endif
    CLOCK_REALTIME,
};

}  // namespace

void HostClock::find(Device& device) {
  std::call_once(once_, [&] {
    if (!device.is_cpu) return;
    device_time(device);  // the first takes milliseconds, by which clocks may differ that are not the same
    for (const clockid_t id : kClocks) {
      const uint64_t before = time_of(id), time = device_time(device), after = time_of(id);
      known_ = before != 0 && before <= time && time <= after;
      if (!known_) continue;
      id_ = static_cast<int>(id);
      return;
    }
  });
}

uint64_t HostClock::now() const { return time_of(static_cast<clockid_t>(id_)); }

}  // namespace ocl
