#include "stream.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "assertions.h"
#include "graphs/capture.h"
#include "interruption.h"
#include "profiler/activity.h"

namespace torchgraft {
namespace {

// Stream ids: 0 is the default stream; then a pool of kPoolStreams for each of kPriorities. torch.Stream objects do not
// own what they name, so streams are handed out in turn from the pools and never destroyed. kCaptureStream is in no
// pool: what is given to another stream while it is captured must not land in the graph.
constexpr int kPoolStreams = 32;
constexpr int kPriorities = 3;  // -1 urgent, 0 default, 1 background
static_assert(kMaxStreams == 1 + kPriorities * kPoolStreams + 1);

using Handles = std::array<std::atomic<tg_stream>, kMaxStreams>;
constinit std::array<Handles, kMaxDevices> handles{};
constinit std::array<std::array<std::atomic<uint32_t>, kPriorities>, kMaxDevices> next_in_pool{};

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<c10::StreamId, kMaxDevices> stream_of_thread{};
thread_local std::array<StreamSet, kMaxDevices> earlier_streams_of_thread{};

int priority_of(c10::StreamId id) { return id == 0 ? 0 : static_cast<int>(id - 1) / kPoolStreams - 1; }

tg_stream create_stream(c10::DeviceIndex index, c10::StreamId id) {
  Device& device = get_device(index);
  TORCH_CHECK(id >= 0 && id < kMaxStreams, backend_name(), ":", static_cast<int>(index),
              ": there is no stream with id ", id);
  tg_stream created = nullptr;
  check(device, device.driver->stream_create(device.driver->context, device.ordinal, priority_of(id), &created),
        "creating a stream");
  tg_stream expected = nullptr;
  if (handles[index][id].compare_exchange_strong(expected, created, std::memory_order_acq_rel)) return created;
  device.driver->stream_destroy(device.driver->context, device.ordinal, created);  // another thread was first
  return expected;
}

}  // namespace

c10::DeviceIndex current_device() { return device_of_thread; }

void set_current_device(c10::DeviceIndex index) { exchange_device(index); }

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  c10::DeviceIndex previous = device_of_thread;
  if (index != previous && index >= 0) {
    get_device(index);
    device_of_thread = index;
  }
  return previous;
}

void set_current_device_unchecked(c10::DeviceIndex index) noexcept {
  if (index >= 0 && index < kMaxDevices) device_of_thread = index;
}

c10::Stream current_stream(c10::DeviceIndex index) {
  if (index < 0) index = device_of_thread;
  TORCH_CHECK(index < kMaxDevices, "The device index is out of range: there is no ", backend_name(), ":",
              static_cast<int>(index));
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, index), stream_of_thread[index]);
}

c10::Stream exchange_stream(c10::Stream stream) {
  c10::Stream previous = current_stream(stream.device_index());
  if (previous != stream) {
    stream_handle(stream.device_index(), stream.id());  // throws if there is no such stream
    stream_of_thread[stream.device_index()] = stream.id();
    earlier_streams_of_thread[stream.device_index()].set(previous.id());
  }
  return previous;
}

c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  get_device(index);
  int pool = std::clamp(priority, -1, 1) + 1;
  uint32_t turn = next_in_pool[index][pool].fetch_add(1, std::memory_order_relaxed) % kPoolStreams;
  c10::StreamId id = 1 + pool * kPoolStreams + static_cast<int>(turn);
  stream_handle(index, id);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, index), id);
}

tg_stream stream_handle(c10::DeviceIndex index, c10::StreamId id) {
  if (in_bad_fork()) [[unlikely]]
    raise_if_forked();
  if (index >= 0 && index < kMaxDevices && id >= 0 && id < kMaxStreams) [[likely]] {
    tg_stream handle = handles[index][id].load(std::memory_order_acquire);
    if (handle) [[likely]]
      return handle;
  }
  return create_stream(index, id);
}

c10::StreamId stream_id(c10::DeviceIndex index, tg_stream handle) noexcept {
  for (int id = 0; id < kMaxStreams; ++id)
    if (handles[index][id].load(std::memory_order_relaxed) == handle) return id;
  return -1;
}

StreamSet streams_of_thread(c10::DeviceIndex index) {
  return StreamSet(earlier_streams_of_thread[index]).set(stream_of_thread[index]);
}

bool query_stream(c10::Stream stream) {
  refuse_in_capture(stream.device_index(), stream.id(), "asking whether a stream is done");
  Device& device = get_device(stream.device_index());
  tg_stream handle = stream_handle(device.index, stream.id());
  tg_status status = device.driver->stream_query(device.driver->context, device.ordinal, handle);
  if (status == TG_NOT_READY) return false;
  check(device, status, "querying a stream");
  return true;
}

void wait_for_stream(Device& device, c10::StreamId id) {
  refuse_in_capture(device.index, id, "a wait of the host for the stream");
  tg_stream handle = stream_handle(device.index, id);
  auto wait = [&] { return wait_interruptibly(device, handle); };
  check(device, collecting() ? collect_wait(device, handle, wait) : wait(), "waiting for a stream");
}

void synchronize_stream(c10::Stream stream) {
  wait_for_stream(get_device(stream.device_index()), stream.id());
  raise_reported_errors(stream.device_index(), stream.id());
}

void synchronize_device(c10::DeviceIndex index) {
  Device& device = get_device(index < 0 ? current_device() : index);
  refuse_in_capture(device.index, current_stream(device.index).id(), "a wait of the host for the device");
  auto wait = [&] {
    if (can_interrupt(device))
      for (const auto& handle : handles[device.index])
        if (tg_stream stream = handle.load(std::memory_order_acquire))
          if (tg_status status = wait_interruptibly(device, stream); status != TG_OK) return status;
    return device.driver->device_synchronize(device.driver->context, device.ordinal);
  };
  check(device, collecting() ? collect_wait(device, nullptr, wait) : wait(), "waiting for the device");
  raise_reported_errors(device.index);
}

}  // namespace torchgraft
