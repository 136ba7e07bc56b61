// Copying and filling memory with the host's processors, on several of them where that is quicker.
#pragma once

#include <cstdint>

namespace ocl {

void host_copy(void* destination, const void* source, uint64_t bytes);
void host_fill(void* destination, const unsigned char* pattern, uint32_t pattern_bytes, uint64_t bytes);

}  // namespace ocl
