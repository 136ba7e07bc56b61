// Programs, kernels and their launch.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "device.h"
#include "host_executor.h"
#include "stream.h"

// The opaque types of the driver's contract.
struct tg_module_ {
  ocl::Device* const device;
  const ocl::cl_program program;
};

struct tg_kernel_ {
  ocl::Device* const device;
  const ocl::cl_kernel kernel;
  const ocl::cl_uint arguments;  // of the OpenCL kernel: a pointer is two where the device has no addresses
  const std::string name;
  std::mutex mutex;                                          // setting arguments and launching is one step
  std::vector<tg_arg> set;                                   // the arguments that the kernel has now
  const std::unique_ptr<ocl::ExecutorState> executor_state;  // NULL where the device has no executor
  tg_kernel_* const origin = nullptr;                        // whose clone it is; it outlives the clone
  std::atomic<uint32_t> users = 1;                           // who made it, and who has still to launch it
};

namespace ocl {

// Both leave the compiler's messages in `log`, also when they throw.
tg_module compile(Device& device, const std::string& source, const char* options, std::string& log);
tg_module load(Device& device, const void* binary, size_t bytes, std::string& log);
void destroy_module(tg_module module);
// The first call, with `buffer` NULL, sets `bytes`; in the second it is the buffer's size.
void read_binary(const tg_module_& module, void* buffer, uint64_t& bytes);

tg_kernel create_kernel(const tg_module_& module, const char* name);
// The same kernel with arguments of its own.
tg_kernel clone_kernel(tg_kernel_& origin);
void retain_kernel(tg_kernel_& kernel);
void destroy_kernel(tg_kernel kernel);  // when nobody uses it any more
void launch(tg_stream_& stream, const tg_launch& launch);

// Sets what differs from the arguments that `target`, which is the kernel or one like it, has already.
void set_arguments(const tg_kernel_& kernel, cl_kernel target, std::vector<tg_arg>& set, const tg_launch& launch);

}  // namespace ocl
