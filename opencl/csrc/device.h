// The OpenCL devices of this machine: found in all platforms, put in a stable order, described.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host_executor.h"
#include "memory.h"
#include "opencl_api.h"
#include "torchgraft/driver.h"

namespace ocl {

struct Device {
  Device(const Platform& platform, cl_device_id id);

  // One context for each device, created at its first use: asking for properties is cheap.
  cl_context context();

  // An internal stream for transfers that have no stream of their own on this device. The caller holds no lock.
  tg_stream transfer_stream();
  // One that has nothing to do but tell the time.
  tg_stream clock_stream();
  // What fills memory there; NULL where it does not compile.
  tg_kernel fill_kernel();

  const Api* api;
  cl_platform_id platform;
  cl_device_id id;
  tg_device_properties properties{};

  bool is_cpu = false;
  bool has_native_kernels = false;  // host functions can be queued
  bool has_priorities = false;
  // The compiler parses declarations of all builtin functions for every program; see program.cpp.
  bool includes_builtins = false;
  // The compiler prints how many errors there were; see program.cpp.
  bool prints_counts = false;
  // The compiler divides float32 and takes roots exactly only where it is asked to; see program.cpp.
  bool rounds_if_asked = false;
  // The compiler takes PTX within C, and the device has matrix units for bfloat16.
  bool has_fragments = false;
  // Launches are asked for their events, and begin at once without a flush. Not so on GPUs, nor where a memory model
  // makes a CPU behave like one (which is how that half of the driver is tested without a GPU).
  bool has_cheap_events = false;
  // The host may use device addresses.
  bool unified() const { return (properties.capabilities & TG_CAP_UNIFIED_MEMORY) != 0; }

  std::unique_ptr<Memory> memory;
  std::unique_ptr<HostExecutor> executor;  // NULL: all work is queued

  std::mutex streams_mutex;
  std::set<tg_stream> streams;  // for device_synchronize

 private:
  std::once_flag context_once_, transfer_once_, clock_once_, fill_once_;
  cl_context context_ = nullptr;
  tg_stream transfer_ = nullptr, clock_ = nullptr;
  tg_kernel fill_ = nullptr;
};

// Whose device or platform it is, for what implementations are known to do otherwise than others.
bool is_pocl(const Platform& platform);
bool is_pocl(const Device& device);
bool is_intel(const Device& device);  // their runtime for CPUs

// Empty where the implementation does not know the property.
std::string text(const Platform& platform, cl_uint property);
std::string text(const Api& api, cl_device_id id, cl_uint property);

// Of one device.
cl_context create_context(const Api& api, cl_platform_id platform, cl_device_id id, cl_int& status);

using Devices = std::vector<std::unique_ptr<Device>>;

// What discovery met, for `torchgraft doctor`: a line each, fields separated by tabs, the first one of
//   library   path, problem (empty if none)
//   platform  name, vendor, version, number of devices
//   device    name, platform, version, memory model, features
//   refused   name, platform, why
//   cache     PoCL's choice of a folder for its kernels, why it is not used (empty if it is), what is used (may be
//   empty)
class Journal {
 public:
  void add(std::initializer_list<std::string> fields);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// All devices that TORCHGRAFT_OPENCL_LIBRARY allows: GPUs, then accelerators, then CPUs. The same device seen through
// two platforms is there twice, with one uuid. Where there are none, `why` says what to do.
Devices discover(std::string& why, Journal& journal);

// Libraries, separated by ':', to be tried when no other has a device and the user named none.
void set_fallback_libraries(const std::string& paths);

}  // namespace ocl
