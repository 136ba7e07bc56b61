#include "divided_launch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

namespace ocl {
namespace {

struct Division {
  const Api& api;
  cl_kernel kernel;
  const std::vector<cl_command_queue>& queues;  // a piece's, by its number: a queue is one thread's at a time
  const tg_launch& launch;
  const size_t dimension;
  const size_t pieces;
  std::atomic<cl_int>& status;

  void run(size_t first, size_t end) const {
    size_t offset[3] = {}, global[3] = {1, 1, 1};
    std::copy_n(launch.groups, launch.dims, global);
    const size_t groups = global[dimension];
    offset[dimension] = groups * first / pieces;
    global[dimension] = groups * end / pieces - offset[dimension];
    const cl_int result = api.clEnqueueNDRangeKernel(queues[first], kernel, launch.dims, offset, global, launch.local,
                                                     0, nullptr, nullptr);
    if (result != CL_SUCCESS) status.store(result, std::memory_order_relaxed);
  }
};

void run_pieces(const void* work, size_t begin, size_t end) { static_cast<const Division*>(work)->run(begin, end); }

}  // namespace

uint32_t divisible_dimensions(const Api& api, cl_program program) {
  // Said by the name of an empty kernel; see codegen/dialects/opencl.py.
  constexpr std::string_view kWord = "tg_divisible_";
  size_t size = 0;
  if (api.clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size) != CL_SUCCESS) return 0;
  std::string names(size, '\0');
  if (api.clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, size, names.data(), nullptr) != CL_SUCCESS) return 0;
  const size_t at = names.find(kWord);
  return at == names.npos ? 0 : static_cast<uint32_t>(std::atoi(names.c_str() + at + kWord.size()));
}

Cut find_cut(const tg_launch& launch, uint32_t dimensions) {
  Cut cut;
  for (uint32_t d = 0; d < launch.dims; ++d) {
    if (launch.local[d] != 1) return {};
    if ((dimensions >> d & 1) != 0 && launch.groups[d] > cut.groups) cut = {d, launch.groups[d]};
  }
  return cut;
}

cl_int run_divided(const Api& api, cl_kernel kernel, const std::vector<cl_command_queue>& queues,
                   const tg_launch& launch, Cut cut, size_t pieces, ThreadTeam& team, bool wake) {
  std::atomic<cl_int> status = CL_SUCCESS;
  const size_t possible = std::min({pieces, cut.groups, queues.size()});
  const Division division{api, kernel, queues, launch, cut.dimension, possible, status};
  team.share(run_pieces, &division, possible, wake);
  return status.load(std::memory_order_relaxed);
}

}  // namespace ocl
