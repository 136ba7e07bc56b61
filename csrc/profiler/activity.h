// Activities: what the devices do while a profile is taken, and when. How torch gets to see them is in profiler.h.
#pragma once

#include <c10/util/FunctionRef.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/stream.h"

namespace torchgraft {

// Times are nanoseconds since 1970, as everywhere in torch's profiler.
struct Activity {
  enum Kind : uint8_t { Launch, Copy, Fill, Wait };

  Kind kind;
  tg_copy_kind direction{};      // Copy
  bool timed_by_device = false;  // otherwise `begin` and `end` are what the host saw
  c10::DeviceIndex device;
  int64_t stream = 0;                 // torch's id of it, or kOwnStream; of a Wait perhaps kAllStreams
  const std::string* name = nullptr;  // Launch: the kernel's; never freed
  std::array<uint64_t, 3> groups{}, local{};
  uint64_t bytes = 0;            // Copy, Fill
  uint64_t op = 0;               // torch's correlation id of the operator that asked for it; 0: none
  uint64_t range = 0;            // the same of the innermost record_function
  int32_t thread = 0;            // the system's id of the thread that asked
  uint64_t number = 0;           // in the order of submission, from 1
  int64_t host_begin, host_end;  // the call of the driver
  int64_t begin = 0, end = 0;    // on the device; a Wait has none
};
inline constexpr int64_t kAllStreams = -1;
inline constexpr int64_t kOwnStream = kMaxStreams;  // one of torchgraft's, that torch does not know

namespace detail {
extern std::atomic<bool> collecting;
}
inline bool collecting() noexcept { return detail::collecting.load(std::memory_order_relaxed); }

// One collection at a time. Stopping waits for what was submitted; `problems` receives what is wrong with the times.
void start_collecting();
std::vector<Activity> stop_collecting(std::vector<std::string>& problems);
void abandon_collecting() noexcept;
// How many activities of one collection are kept, in place of a million.
void set_activity_capacity(uint64_t most);

// Which operator and which record_function the calling thread is in.
void push_op(uint64_t correlation);
void pop_op() noexcept;
void push_range(uint64_t correlation);
void pop_range() noexcept;

// Submit one command, with what it takes to know its times. See command.h.
using Submit = c10::function_ref<tg_status()>;
tg_status collect_launch(const Device& device, tg_stream stream, const tg_launch& launch, const std::string& name,
                         Submit submit);
tg_status collect_run(const Device& device, tg_stream stream, const std::string& name, Submit submit);
tg_status collect_copy(const Device& device, tg_stream stream, uint64_t bytes, tg_copy_kind direction, Submit submit);
tg_status collect_fill(const Device& device, tg_stream stream, uint64_t bytes, Submit submit);
// The host waits for a stream, or with a NULL one for the device.
tg_status collect_wait(const Device& device, tg_stream stream, Submit wait);

}  // namespace torchgraft
