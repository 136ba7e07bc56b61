// What the host's processor can do beyond what OpenCL C says, for devices that run on it.
#pragma once

namespace ocl {

// Whether kernels may multiply tiles of bfloat16 in this process. A tile is large enough for Linux to want to be asked
// for the room to save it: this does.
bool may_use_tiles();

// Whether kernels may multiply vectors of pairs of bfloat16, of 512 bits.
bool may_use_vectors();

}  // namespace ocl
