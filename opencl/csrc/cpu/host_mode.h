// How much is done without OpenCL's workers: TORCHGRAFT_OPENCL_HOST, to find out which part a wrong result is from.
#pragma once

#include <compare>
#include <string>

namespace ocl {

// Each does what those before it do.
enum class HostMode {
  kOff,     // all work is queued
  kCaller,  // small launches and copies are run in the calling thread
  kTeam,    // helper threads share those that are not so small
  kCode,    // machine code of kernels is called without the implementation
};

// Throws where the variable has none of the values off, caller, team and code. By default all is done.
HostMode host_mode();

// For users: the variable, and what it is.
std::string describe(HostMode mode);

}  // namespace ocl
