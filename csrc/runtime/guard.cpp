#include "guard.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "assertions.h"
#include "event.h"
#include "interruption.h"
#include "memory/allocator.h"
#include "stream.h"

namespace torchgraft {
namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override { return on(exchange_device(checked(device).index())); }
  c10::Device getDevice() const override { return on(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(checked(device).index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device_unchecked(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    const Device& ours = get_device(index_of(device));
    c10::DeviceCapability capability;
    auto& bits = capability.capability_data.capability_bits;
    bits = 0;
    // What can be stored and computed with. float16 and bfloat16 are computed in float32 where the device has no
    // better.
    for (auto type :
         {c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int, c10::kIndex_Long, c10::kIndex_Half,
          c10::kIndex_BFloat16, c10::kIndex_Float, c10::kIndex_ComplexFloat, c10::kIndex_Bool})
      bits |= uint64_t{1} << type;
    if (ours.has(TG_CAP_FLOAT64))
      for (auto type : {c10::kIndex_Double, c10::kIndex_ComplexDouble}) bits |= uint64_t{1} << type;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(get_device(index_of(device)).index);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, on(get_device(index_of(device)).index));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return new_stream(index_of(device), high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(index_of(device), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  // Work that is given to the handle would be done once, and no replay would do it.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    refuse_in_capture(stream.device_index(), stream.id(), "work of others by its native handle");
    return stream_handle(stream.device_index(), stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override { return query_stream(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize_device(index); }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return capturing() && bool(capture_of(stream.device_index(), stream.id()));
  }

  // An event is made when it is first recorded, on the device of that stream; until then its pointer is null, and
  // waiting for it is waiting for nothing.
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (!*event) {
      EventPtr created(create_event(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT));
      record_event(*created, stream);
      *event = created.release();
    } else {
      record_event(*static_cast<Event*>(*event), stream);
    }
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait_event(*static_cast<Event*>(event), stream);
  }
  // Asking never waits, so it does not read (and raise) what kernels have reported; the waits do.
  bool queryEvent(void* event) const override { return !event || query_event(*static_cast<Event*>(event)); }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    auto& waited = *static_cast<Event*>(event);
    const Device& device = get_device(waited.device);
    refuse_captured(waited, "cannot wait for");
    torchgraft::check(device, wait_interruptibly(device, waited.handle), "waiting for an event");
    raise_errors_reported_so_far(waited.device, waited.stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    destroy_event(static_cast<Event*>(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(start && end, "elapsed_time: both events must have been recorded");
    return elapsed_time(*static_cast<Event*>(start), *static_cast<Event*>(end));
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

 private:
  static c10::Device on(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }
  static c10::DeviceIndex index_of(c10::Device device) {
    return checked(device).has_index() ? device.index() : current_device();
  }
  static c10::Device checked(c10::Device device) {
    TORCH_CHECK(device.is_privateuseone(), "expected a device of ", backend_name(), ", not ", device);
    return device;
  }
};

}  // namespace

void register_guard() {
  // Guards are used until the process ends: never destroyed.
  c10::impl::registerDeviceGuard(c10::DeviceType::PrivateUse1, new Guard);
}

}  // namespace torchgraft
