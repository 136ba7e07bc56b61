// What discovery needs for implementations on CPUs (HostImplementations in host_executor.h).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "device.h"
#include "environment.h"
#include "executor.h"
#include "host_executor.h"
#include "host_mode.h"
#include "pocl_cache.h"
#include "pocl_settings.h"
#include "processor.h"

namespace ocl {
namespace {

// Whether an implementation for the host's processor takes assembly within OpenCL C that has instructions for bfloat16.
// LLVM knows them since versions 9 (vectors) and 11 (tiles). PoCL's platform has its own in its version: "OpenCL 3.0
// PoCL 3.1 Linux, LLVM 15.0.6, SLEEF"; Intel's driver begins its with the year: "2026.22.10.0.01_160000".
bool assembles_bfloat16(const Device& device, const std::string& platform_version) {
  constexpr int kLlvm = 11, kYear = 2026;
  if (is_intel(device)) return std::atoi(device.properties.driver_version) >= kYear;
  const std::string name = "LLVM ";
  const size_t at = platform_version.find(name);
  return is_pocl(device) && at != std::string::npos && std::atoi(platform_version.c_str() + at + name.size()) >= kLlvm;
}

}  // namespace

struct HostImplementations::State {
  HostMode mode = host_mode();
  bool has_pocl = false;
  PoclCache cache;
  PoclSettings settings{mode != HostMode::kOff};
  cl_device_id hidden = nullptr;  // of the platform that is being opened
};

HostImplementations::HostImplementations() : state_(new State) {}

HostImplementations::~HostImplementations() = default;

bool HostImplementations::can_work(const Platform& platform) {
  if (!is_pocl(platform)) return true;
  state_->has_pocl = true;
  state_->settings.keep_for_pocl();
  return !state_->cache.used().empty();  // else it ends the process at the first kernel
}

void HostImplementations::hide(const Platform& platform, std::vector<cl_device_id>& ids) {
  state_->hidden = is_pocl(platform) ? state_->settings.take_second_device(platform, ids) : nullptr;
}

void HostImplementations::equip(const Platform& platform, const std::vector<std::unique_ptr<Device>>& devices,
                                size_t count) {
  if (state_->mode == HostMode::kOff) return;
  for (size_t i = devices.size() - count; i < devices.size(); ++i) {
    if (devices[i]->is_cpu)
      devices[i]->executor = std::make_unique<CpuExecutor>(*devices[i], platform, state_->hidden, state_->mode);
  }
}

void HostImplementations::report(Journal& journal, bool any_devices, std::string& why_none) {
  PoclCache& cache = state_->cache;
  if (!state_->has_pocl) {
    cache.forget();
    return;
  }
  journal.add({"cache", cache.own(), cache.problem(), cache.used()});
  const std::string warning = cache.warning();
  if (warning.empty()) return;
  if (any_devices) {
    std::fprintf(stderr, "torchgraft: %s\n", warning.c_str());
  } else {
    why_none += "\n  " + warning;
  }
}

void add_host_capabilities(Device& device, const std::string& platform_version) {
  uint64_t& capabilities = device.properties.capabilities;
  // Intel's compiler (2026.2) may crash (a segmentation fault in clBuildProgram) where it is told to.
  if (is_pocl(device)) capabilities |= TG_CAP_OUTER_VECTORS;
  if (!assembles_bfloat16(device, platform_version)) return;
  if (may_use_tiles()) capabilities |= TG_CAP_BFLOAT16_TILES;
  if (may_use_vectors()) capabilities |= TG_CAP_BFLOAT16_VECTORS;
}

}  // namespace ocl
