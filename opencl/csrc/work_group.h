// PoCL's machine code of a kernel, called without PoCL.
//
// PoCL makes a shared object of each kernel, with a function that runs one work-group. What it does around that
// function for a launch, by its device that runs launches in the calling thread, takes longer than a small kernel; and
// there only one thread can run the groups of a launch. So they are called here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thread_team.h"
#include "torchgraft/driver.h"

namespace ocl {

// Takes the kernel's arguments, each by its address, what is the same for all groups, and the group's place.
using WorkGroup = void (*)(const void* const* arguments, void* context, size_t x, size_t y, size_t z);

// How the path of a kernel's shared object ends, said by its program's binary. Empty where the binary is not one of
// those whose functions are known here, or where its floating-point numbers are to be treated otherwise than usual.
std::string code_of(const std::vector<unsigned char>& binary, const std::string& kernel);

// A shared object of this process, loaded for as long as this lives.
using LoadedObject = std::unique_ptr<void, void (*)(void*)>;
// The one whose path ends so, which PoCL has loaded when it first ran the kernel; NULL if there is none.
LoadedObject find_object(const std::string& path_end);
// Its function; NULL if there is none.
WorkGroup find_work_group(const LoadedObject& object, const std::string& kernel);

constexpr uint32_t kMostArguments = 128;
// Runs a launch with no more arguments than that, which are of the sizes that the kernel has. Returns whether the
// kernel has printed.
bool run_groups(WorkGroup function, const tg_launch& launch, ThreadTeam* team, bool wake);

}  // namespace ocl
