// The binaries of PoCL's programs, and how one for a device is made one for another device of the same processor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "opencl_api.h"

namespace ocl {

using Binary = std::vector<unsigned char>;

// Empty where the implementation does not give it.
Binary binary_of(const Api& api, cl_program program);

// The number by which a binary says what device it is for; 0 if it is not one of PoCL's.
uint64_t device_number(const Binary& binary);
void set_device_number(Binary& binary, uint64_t number);

// That of the device that runs launches in the calling thread, given the name and the number of the one with workers;
// 0 if the rule is not the one that is known.
uint64_t caller_device_number(const std::string& device_name, uint64_t number);

}  // namespace ocl
