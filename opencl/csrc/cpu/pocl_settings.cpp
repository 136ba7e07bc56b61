#include "pocl_settings.h"

#include <algorithm>
#include <string>

#include "device.h"
#include "environment.h"

namespace ocl {

PoclSettings::PoclSettings(bool second_device) : settings_{&specialization_, &plugins_} {
  if (second_device) settings_.push_back(&devices_);
  for (Setting* each : settings_) {
    each->is_ours = !find_variable(each->name);
    if (each->is_ours) set_variable(each->name, each->value);
  }
}

PoclSettings::~PoclSettings() {
  for (const Setting* each : settings_)
    if (each->is_ours && !(each->stays && has_pocl_)) set_variable(each->name, std::nullopt);
}

cl_device_id PoclSettings::take_second_device(const Platform& platform, std::vector<cl_device_id>& ids) const {
  if (!devices_.is_ours || ids.size() < 2) return nullptr;
  const auto found = std::find_if(ids.begin(), ids.end(), [&](cl_device_id id) {
    const std::string name = text(*platform.api, id, CL_DEVICE_NAME);
    return name.compare(0, 5, "basic") == 0 || name.compare(0, 11, "cpu-minimal") == 0;
  });
  if (found == ids.end()) return nullptr;
  const cl_device_id second = *found;
  ids.erase(found);
  return second;
}

}  // namespace ocl
