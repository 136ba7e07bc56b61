#include "functions.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <vector>

#include "command.h"
#include "graphs/capture.h"
#include "memory/allocator.h"
#include "runtime.h"
#include "stream.h"

namespace torchgraft {
namespace {

thread_local std::string failure;

struct Scratch {
  c10::DeviceIndex device;
  c10::DataPtr memory;
};
thread_local std::vector<Scratch> scratch;  // for the thread's next submission on its device

// Runs `body`, and keeps what it throws.
template <class Body>
bool succeeds(Body body) noexcept {
  failure.clear();
  try {
    body();
    return true;
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  return false;
}

c10::DeviceIndex checked(int32_t device) {
  TORCH_CHECK_INDEX(device >= 0 && device < device_count(), "there is no device ", device, " of '", backend_name(),
                    "', which has ", int(device_count()));
  raise_if_forked();
  return static_cast<c10::DeviceIndex>(device);
}

struct Submission {
  c10::DeviceIndex device;
  std::string name;
  torchgraft_function function;
  std::vector<void*> addresses;
  std::string data;

  // On the current stream.
  void operator()() const {
    const tg_stream stream = current_stream_handle(device);
    const char* refused = nullptr;
    const auto submit = [&] {
      refused = function(stream, addresses.data(), static_cast<uint32_t>(addresses.size()), data.data());
      return refused == nullptr ? TG_OK : TG_ERROR_INVALID;
    };
    const Device& known = get_device(device);
    const tg_status status = collecting() ? collect_run(known, stream, name, submit) : submit();
    TORCH_CHECK(refused == nullptr, device_name(known), ": ", name, " failed: ", refused);
    if (status != TG_OK) raise_status(known, status, name.c_str());
  }
};

tg_stream stream(int32_t device) {
  tg_stream found = nullptr;
  succeeds([&] {
    const c10::DeviceIndex index = checked(device);
    refuse_in_capture(index, current_stream(index).id(), "work of others by its native handle");
    found = current_stream_handle(index);
  });
  return found;
}

const char* submit(int32_t device, const char* name, torchgraft_function function, void* const* addresses,
                   uint32_t count, const void* data, uint64_t data_bytes) {
  const bool submitted = succeeds([&] {
    const c10::DeviceIndex index = checked(device);
    const Submission made{
        index, name, function, {addresses, addresses + count}, std::string(static_cast<const char*>(data), data_bytes)};
    if (capturing())
      if (const Captured captured = capture_of_current(index)) {
        TORCH_CHECK(captured->symbolic_memory() == nullptr, name, " has addresses, which a recording cannot change");
        return captured->function(captured.stream, name, made, {});
      }
    made();
  });
  std::erase_if(scratch, [&](const Scratch& each) { return each.device == device; });  // in the order of the stream
  return submitted ? nullptr : failure.c_str();
}

void* new_scratch(int32_t device, uint64_t bytes) {
  void* address = nullptr;
  succeeds([&] {
    const c10::DeviceIndex index = checked(device);
    scratch.push_back({index, allocate(index, bytes)});
    address = scratch.back().memory.get();
  });
  return address;
}

const char* error() { return failure.c_str(); }

}  // namespace

const torchgraft_functions* author_functions() {
  static const torchgraft_functions table{
      sizeof table, TORCHGRAFT_FUNCTIONS_VERSION, stream, submit, new_scratch, error,
  };
  return &table;
}

}  // namespace torchgraft
