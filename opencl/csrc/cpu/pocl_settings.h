// PoCL's variables, set before platforms are asked for: where there are several, the system's loader sorts them by
// their devices, which PoCL opens then. A user's own settings stay.
#pragma once

#include <vector>

#include "opencl_api.h"

namespace ocl {

class PoclSettings {
 public:
  // Sets them; with or without the second device.
  explicit PoclSettings(bool second_device);
  // Programs that this one starts later see nothing of ours, unless:
  ~PoclSettings();
  // There is a PoCL: what it needs as long as the process lives is kept.
  void keep_for_pocl() { has_pocl_ = true; }
  PoclSettings(const PoclSettings&) = delete;
  PoclSettings& operator=(const PoclSettings&) = delete;

  // Takes the second device on the CPU (caller_device.h) out of PoCL's; NULL if it is not there for us.
  cl_device_id take_second_device(const Platform& platform, std::vector<cl_device_id>& ids) const;

 private:
  struct Setting {
    const char *name, *value;
    bool stays, is_ours = false;
  };

  // By its names from 4.0 on and before. PoCL passes over those that it does not know.
  Setting devices_{"POCL_DEVICES", "cpu cpu-minimal pthread basic", false};
  // PoCL compiles a kernel's machine code when it is first launched, and by default once for each local size, small and
  // large grids apart: tens of milliseconds each, on its worker thread, in the middle of a computation; and reading a
  // program's binary then compiles every kernel once more. Without this specialisation there is one version of each
  // kernel. It is measured as quick (within 5 %), and binaries cost nothing.
  Setting specialization_{"POCL_WORK_GROUP_SPECIALIZATION", "0", true};
  // PoCL sets this one itself, by setenv(), which enlarges the list of variables where it is not there yet; see
  // environment.h.
  Setting plugins_{"HWLOC_PLUGINS_PATH", "/dev/null", true};
  std::vector<Setting*> settings_;
  bool has_pocl_ = false;
};

}  // namespace ocl
