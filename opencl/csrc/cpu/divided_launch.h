// A launch in pieces, which several threads run.
//
// A queue of Intel's runtime that has the calling thread run what it queues has no other thread help. So a thread of a
// team queues a piece of the launch, a range of its groups along one dimension, in a queue of the piece's. What a
// kernel sees of the launch must not tell a piece from the whole: its groups have one work-item, so that the
// piece's offset, which is counted in work-items, is theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "opencl_api.h"
#include "thread_team.h"
#include "torchgraft/driver.h"

namespace ocl {

// Along which dimensions launches of the program's kernel may be divided: a bit for each.
uint32_t divisible_dimensions(const Api& api, cl_program program);

// Which dimension of a launch to divide: that of the most groups. 0 groups if there is none.
struct Cut {
  size_t dimension = 0;
  size_t groups = 0;
};
Cut find_cut(const tg_launch& launch, uint32_t dimensions);

// Runs a launch, whose arguments the kernel has, in about so many pieces: no more than there are queues, or groups.
cl_int run_divided(const Api& api, cl_kernel kernel, const std::vector<cl_command_queue>& queues,
                   const tg_launch& launch, Cut cut, size_t pieces, ThreadTeam& team, bool wake);

}  // namespace ocl
