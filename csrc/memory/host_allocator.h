// Pinned host memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torchgraft {

// The process's allocator; registered for PrivateUse1 by install_runtime().
at::HostAllocator* host_allocator();
// Whether `data` lies in memory that came from it.
bool is_pinned(const void* data);

}  // namespace torchgraft
