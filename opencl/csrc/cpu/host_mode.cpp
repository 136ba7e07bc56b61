#include "host_mode.h"

#include <array>

#include "environment.h"
#include "error.h"

namespace ocl {
namespace {

constexpr std::array kNames = {"off", "caller", "team", "code"};

}  // namespace

HostMode host_mode() {
  const std::string wish = find_variable("TORCHGRAFT_OPENCL_HOST").value_or("");
  if (wish.empty()) return HostMode::kCode;
  for (size_t i = 0; i < kNames.size(); ++i)
    if (wish == kNames[i]) return static_cast<HostMode>(i);
  fail_invalid("TORCHGRAFT_OPENCL_HOST is '" + wish + "': it may be off, caller, team or code");
}

std::string describe(HostMode mode) {
  return std::string("TORCHGRAFT_OPENCL_HOST=") + kNames[static_cast<size_t>(mode)];
}

}  // namespace ocl
