// When DistributedDataParallel's steps begin and end on a device, for what it logs about itself.

#include <array>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "runtime/event.h"
#include "runtime/stream.h"

namespace torchgraft {

class DeviceTimer final : public c10d::Timer {
 public:
  explicit DeviceTimer(c10::Device device) : device_(device.index()) {}

  void record(Event event) override {
    Timer::record(event);
    EventPtr& mark = marks_.at(static_cast<size_t>(event));
    if (!mark) mark.reset(create_event(device_, /*timing=*/true));
    record_event(*mark, current_stream(device_));
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const EventPtr &first = marks_.at(static_cast<size_t>(start)), &last = marks_.at(static_cast<size_t>(end));
    if (!first || !last) return std::nullopt;
    if (!first->timing || !last->timing) return getTimeRef(end) - getTimeRef(start);  // as the host saw it
    synchronize_event(*first);
    synchronize_event(*last);
    const auto nanoseconds = static_cast<int64_t>(elapsed_time(*first, *last) * 1e6);
    if (nanoseconds < 0) return std::nullopt;  // the end is that of an earlier step
    return nanoseconds;
  }

 private:
  c10::DeviceIndex device_;
  std::array<EventPtr, 5> marks_;
};

}  // namespace torchgraft

namespace c10d {  // where torch declares the registry
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, ::torchgraft::DeviceTimer);
}
