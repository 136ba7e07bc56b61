// Whether the machine code of PoCL's kernels may be called without PoCL (work_group.h).
//
// How it is called is nothing that PoCL promises. So it is done only for releases whose sources were read, and then a
// kernel of the driver's is first run both ways: if they differ in a byte, everything is left to PoCL.
#pragma once

#include <string>

#include "host_mode.h"
#include "pocl_binary.h"

namespace ocl {

struct Device;

class DirectCalls {
 public:
  // For a platform of that version.
  DirectCalls(const std::string& platform_version, HostMode mode);

  // The release, if its machine code may be called as far as is known; NULL if not, and `why` says why.
  const PoclRelease* release() const { return release_; }
  const std::string& why() const { return why_; }

  // Runs a kernel both ways, the first time that it is called.
  void try_once(Device& device);

 private:
  bool tried_ = false;
  const PoclRelease* release_ = nullptr;
  std::string why_;
};

}  // namespace ocl
