// DistributedDataParallel's times, which it logs in the first steps and then now and then: without a timer for the
// device it warns that it has none.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <optional>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace torchgraft {
namespace {

// Marks in the current stream; a difference waits for the later one.
class StreamTimer final : public c10d::Timer {
 public:
  explicit StreamTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    c10d::Timer::record(event);
    mark(event).emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    mark(event)->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    if (!mark(start) || !mark(end)) return std::nullopt;
    mark(start)->synchronize();
    mark(end)->synchronize();
    double milliseconds = mark(start)->elapsedTime(*mark(end));
    if (milliseconds < 0) return std::nullopt;  // `end` is that of the step before
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  std::optional<c10::Event>& mark(Event event) { return marks_.at(static_cast<size_t>(event)); }

  c10::Device device_;
  std::array<std::optional<c10::Event>, 5> marks_;
};

[[maybe_unused]] const bool registered = [] {
  c10d::TimerRegistry()->Register(c10::DeviceType::PrivateUse1, [](c10::Device device) -> std::unique_ptr<c10d::Timer> {
    return std::make_unique<StreamTimer>(device);
  });
  return true;
}();

}  // namespace
}  // namespace torchgraft
