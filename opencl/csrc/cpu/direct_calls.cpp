#include "direct_calls.h"

#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "device.h"
#include "error.h"
#include "program.h"
#include "work_group.h"

namespace ocl {
namespace {

// Writes down all that it is told of its place, and what its arguments are. `count` keeps it within its memory whatever
// it is told.
constexpr char kName[] = "tg_both_ways";
constexpr char kSource[] = R"(
#define PLACE(d)                   \
  mine[d] = get_global_id(d);      \
  mine[3 + d] = get_local_id(d);   \
  mine[6 + d] = get_group_id(d);   \
  mine[9 + d] = get_num_groups(d); \
  mine[12 + d] = get_local_size(d); \
  mine[15 + d] = get_global_size(d); \
  mine[18 + d] = get_global_offset(d);
__kernel void tg_both_ways(__global ulong* out, ulong count, char a, float4 b, __global const uint* table, short2 c) {
  const size_t item = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
  if (item >= count) return;
  __global ulong* mine = out + item * 32;
  PLACE(0) PLACE(1) PLACE(2)
  mine[21] = get_work_dim();
  mine[22] = a;
  mine[23] = as_uint(b.x) + as_uint(b.y / b.z) + as_uint(sin(b.w));
  mine[24] = table[item % 4];
  mine[25] = (ulong)c.x << 16 ^ c.y;
}
)";
constexpr size_t kWords = 32, kItems = 4 * 3 * 2 * 2 * 3;
using Results = std::vector<uint64_t>;

tg_arg pointer(const void* address) {
  tg_arg argument{};
  argument.is_pointer = 1;
  argument.value.pointer = const_cast<void*>(address);
  return argument;
}

template <class T>
tg_arg value(const T& data) {
  tg_arg argument{};
  argument.size = sizeof data;
  std::memcpy(argument.value.bytes, &data, sizeof data);
  return argument;
}

struct Shape {
  uint32_t dims;
  std::array<uint64_t, 3> groups, local;
};
// In the first all numbers are others than those of the second.
constexpr Shape kShapes[] = {{3, {4, 3, 2}, {2, 3, 1}}, {1, {18, 1, 1}, {8, 1, 1}}};

void run_by_workers(tg_kernel_& kernel, const tg_launch& launch) {
  Device& device = *kernel.device;
  const Api& api = *device.api;
  cl_int status = CL_SUCCESS;
  cl_command_queue queue = api.clCreateCommandQueue(device.context(), device.id, 0, &status);
  check(status, "clCreateCommandQueue");
  const std::unique_ptr<std::remove_pointer_t<cl_command_queue>, decltype(api.clReleaseCommandQueue)> owner(
      queue, api.clReleaseCommandQueue);
  set_arguments(kernel, kernel.kernel, kernel.set, launch);
  size_t global[3];
  for (uint32_t d = 0; d < launch.dims; ++d) global[d] = launch.groups[d] * launch.local[d];
  check(
      api.clEnqueueNDRangeKernel(queue, kernel.kernel, launch.dims, nullptr, global, launch.local, 0, nullptr, nullptr),
      "clEnqueueNDRangeKernel");
  check(api.clFinish(queue), "clFinish");
}

// What is wrong; empty if both ways gave the same.
std::string compare_ways(Device& device, const PoclRelease& release) {
  std::string log;
  const std::unique_ptr<tg_module_, void (*)(tg_module)> module(compile(device, kSource, "-cl-std=CL1.2", log),
                                                                destroy_module);
  const std::unique_ptr<tg_kernel_, void (*)(tg_kernel)> kernel(create_kernel(*module, kName), destroy_kernel);
  const std::string folder = code_folder(binary_of(*device.api, module->program), release);
  if (folder.empty()) return "its binaries are not those of this release";
  Code code;
  for (const Shape& shape : kShapes) {
    Results by_workers(kWords * kItems, 0x5555555555555555), directly = by_workers;
    const std::array<uint32_t, 4> table{2, 3, 5, 7};
    const std::array<float, 4> four{1.5f, 2, 3, 0.7f};
    const std::array<int16_t, 2> two{300, -7};
    std::array<tg_arg, 6> arguments{pointer(by_workers.data()), value(uint64_t{kItems}),
                                    value(int8_t{-3}),          value(four),
                                    pointer(table.data()),      value(two)};
    tg_launch launch{};
    launch.kernel = kernel.get();
    launch.dims = shape.dims;
    for (uint32_t d = 0; d < 3; ++d) launch.groups[d] = shape.groups[d], launch.local[d] = shape.local[d];
    launch.args = arguments.data();
    launch.arg_count = arguments.size();
    run_by_workers(*kernel, launch);
    if (code.function == nullptr) code = find_code(folder, kName);
    if (code.function == nullptr) return "its machine code was not found in " + folder;
    arguments[0] = pointer(directly.data());
    if (!run_groups(code.function, launch, nullptr, false)) return "a kernel failed when it was called directly";
    if (faults_armed.load(std::memory_order_relaxed) && is_to_fail("direct_calls")) [[unlikely]]
      directly.back() ^= 1;
    if (directly != by_workers) return "a kernel that was called directly gave other results than by PoCL";
  }
  return "";
}

}  // namespace

DirectCalls::DirectCalls(const std::string& platform_version, HostMode mode)
    : release_(mode >= HostMode::kCode ? find_pocl_release(platform_version) : nullptr) {
  if (release_ != nullptr) return;
  why_ = mode >= HostMode::kCode ? "it is not known how this release is called: " + platform_version : describe(mode);
}

void DirectCalls::try_once(Device& device) {
  if (tried_ || release_ == nullptr) return;
  tried_ = true;
  try {
    why_ = compare_ways(device, *release_);
  } catch (const std::exception& problem) {
    why_ = std::string("the trial failed: ") + problem.what();
  }
  if (!why_.empty()) release_ = nullptr;
}

}  // namespace ocl
