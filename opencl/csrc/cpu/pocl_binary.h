// The binaries of PoCL's programs: what they say, and how one for a device is made one for another device of the same
// processor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "opencl_api.h"

namespace ocl {

using Binary = std::vector<unsigned char>;

// Empty where the implementation does not give it.
Binary binary_of(const Api& api, cl_program program);

// What this driver has to know of a release of PoCL to call the machine code of its kernels. Releases that are not
// among those whose sources were read are not guessed at.
struct PoclRelease {
  int major, minor;
  uint32_t binary_version;
};

// The one that a platform's version names, as "OpenCL 3.0 PoCL 6.0+debian  Linux, ..."; NULL if it is not known, or is
// not a release.
const PoclRelease* find_pocl_release(const std::string& platform_version);

// The end of the folder, "/<hash>/", in which a release keeps the machine code of a binary's kernels. Empty where the
// binary is another's, or where floating-point numbers are to be treated otherwise than usual.
std::string code_folder(const Binary& binary, const PoclRelease& release);

// Whether a program's kernels may keep variables between launches, for all that its standard says, and whether they do.
// Each of PoCL's devices has its own. A program's binary must not be asked for before it has run if they may: PoCL from
// 4.0 on then leaves them without their first values.
bool may_have_variables(const Api& api, cl_program program, cl_device_id device);
bool has_variables(const Binary& binary);

// Whether a kernel of so many arguments has local memory of its own, or may have: PoCL adds an argument for each array,
// and from 4.0 to 6.0 says to nobody else that there are some.
bool may_have_local_arrays(const Binary& binary, const std::string& kernel, uint32_t arguments);

// Whether kernels may print. What they leave in their buffer then is PoCL's to understand.
bool may_print(const Binary& binary);

// The number by which a binary says what device it is for; 0 if it is not one of PoCL's.
uint64_t device_number(const Binary& binary);
void set_device_number(Binary& binary, uint64_t number);

// That of the device that runs launches in the calling thread, given the name and the number of the one with workers;
// 0 if the rule is not the one that is known.
uint64_t caller_device_number(const std::string& device_name, uint64_t number);

}  // namespace ocl
