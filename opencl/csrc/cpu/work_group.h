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

#include "thread_team.h"
#include "torchgraft/driver.h"

namespace ocl {

// Takes the kernel's arguments, each by its address, what is the same for all groups, and the group's place.
using WorkGroup = void (*)(const void* const* arguments, void* context, size_t x, size_t y, size_t z);

// A shared object of this process, loaded for as long as this lives, and the function of it.
using LoadedObject = std::unique_ptr<void, void (*)(void*)>;
struct Code {
  LoadedObject object{nullptr, nullptr};
  WorkGroup function = nullptr;
};
// A kernel's in a folder of PoCL's cache whose path ends so, which PoCL has loaded when it first ran the kernel;
// nothing if there is none.
Code find_code(const std::string& folder, const std::string& kernel);

constexpr uint32_t kMostArguments = 128;
// Runs a launch with no more arguments than that, which are of the sizes that the kernel has. Returns whether it ended
// well: a kernel fails where it comes to what it says that it never comes to, as later releases notice.
bool run_groups(WorkGroup function, const tg_launch& launch, ThreadTeam* team, bool wake);

}  // namespace ocl
