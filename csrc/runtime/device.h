// The devices that the registered drivers offer, numbered one after the other under one backend name.
#pragma once

#include <c10/core/Device.h>
#include <torchgraft/driver.h>

#include <mutex>
#include <string>
#include <vector>

namespace torchgraft {

inline constexpr c10::DeviceIndex kMaxDevices = 64;

struct Device {
  const tg_driver* driver;
  int32_t ordinal;         // the device's number within its driver
  c10::DeviceIndex index;  // its number within the backend
  tg_device_properties properties;

  // Any of the capabilities.
  bool has(uint64_t capabilities) const { return (properties.capabilities & capabilities) != 0; }
  // Whether ops may be planned: by kernels, or by operators of its own.
  bool can_plan() const { return has(TG_CAP_COMPILER | TG_CAP_PROGRAMS); }
};

// A device as a driver offers it, used or not.
struct FoundDevice {
  Device device;              // its index is -1 if it is not used
  int32_t duplicate_of = -1;  // the place of an earlier one that is the same physical device
};

// Adds a driver. Allowed until devices are first counted; its devices are not opened here.
void add_driver(const tg_driver* driver);
// Loads a shared library and returns its table; throws the loader's message, or what is wrong with the table.
const tg_driver* load_driver(const std::string& path, const std::string& symbol);

// The backend's name as renamed ("ocl"), for messages.
const std::string& backend_name();
void set_backend_name(const std::string& name);

// Opens the drivers at the first call. Never throws: a driver that fails counts as having no devices, and its message
// is kept.
c10::DeviceIndex device_count() noexcept;
bool devices_opened() noexcept;
// Why there are no devices (or fewer than expected); empty if all is well.
std::string device_errors();
// All devices that the drivers offer, in their order, also those that are not used; fixed once they are opened.
const std::vector<FoundDevice>& found_devices();
// Throws RuntimeError naming the backend, the index and the number of devices.
Device& get_device(c10::DeviceIndex index);

// Throws the exception of a status: torch.OutOfMemoryError, NotImplementedError, RuntimeError, torch.AcceleratorError,
// with what was being done, the device and the driver's message.
[[noreturn]] void raise_status(const Device& device, tg_status status, const char* what);
inline void check(const Device& device, tg_status status, const char* what) {
  if (status != TG_OK) [[unlikely]]
    raise_status(device, status, what);
}

// The GIL is let go where the thread has it: for waits in destructors, which Python may call.
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* state_ = nullptr;  // the thread's, in Python
};

// A lock that may be taken with or without the GIL: nobody waits for it while holding the GIL, so a driver written in
// Python may be called under it.
class GilSafeLock {
 public:
  explicit GilSafeLock(std::mutex& mutex);
  ~GilSafeLock() { mutex_.unlock(); }
  GilSafeLock(const GilSafeLock&) = delete;
  GilSafeLock& operator=(const GilSafeLock&) = delete;

 private:
  std::mutex& mutex_;
};

// After a fork the child must not touch devices the parent opened. `raise_if_forked` throws RuntimeError with what to
// do.
bool in_bad_fork() noexcept;
void raise_if_forked();
// Arranges that a child of fork() knows; called once by install_runtime().
void watch_forks();

}  // namespace torchgraft
