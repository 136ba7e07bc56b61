#include "program.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "builtins.h"

namespace ocl {
namespace {

std::string build_log(const Device& device, cl_program program) {
  size_t size = 0;
  const Api& api = *device.api;
  if (api.clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS) return "";
  std::string log(size, '\0');
  if (api.clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr) != CL_SUCCESS)
    return "";
  log.resize(std::strlen(log.c_str()));
  return log;
}

// PoCL's front end, which is clang, prints "2 errors generated." to standard error, beside the log. Without carets it
// does not. PoCL takes none of clang's own options, but whatever stands behind -D up to the next blank, and splits it
// at the tab when it calls clang; a version that does not would define a macro that nothing uses.
constexpr const char* kQuiet = " -DTG_QUIET\t-fno-caret-diagnostics";

// OpenCL lets quotients be wrong by 2.5 units in the last place, and roots by 3. torch's are right on every device.
constexpr const char* kExact = " -cl-fp32-correctly-rounded-divide-sqrt";

// What codegen/ptx.py asks for.
constexpr const char* kPtx = " -DTG_PTX";

// The program is released where it does not build.
cl_int build(Device& device, cl_program program, const std::string& options, std::string& log) {
  const cl_int status = device.api->clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr);
  log = build_log(device, program);
  if (status != CL_SUCCESS) device.api->clReleaseProgram(program);
  return status;
}

cl_program create_program(Device& device, const std::string& source) {
  const char* text = source.c_str();
  const size_t length = source.size();
  cl_int status = CL_SUCCESS;
  cl_program program = device.api->clCreateProgramWithSource(device.context(), 1, &text, &length, &status);
  check(status, "clCreateProgramWithSource");
  return program;
}

// Nine tenths of what PoCL's front end does for a kernel is to parse opencl-c.h, which declares 15,000 functions:
// 130 ms, against 15 ms with declarations of only those that the kernel names. The header's include guard keeps it out;
// types and constants come from another. NULL if the program does not build this way, for whatever reason.
cl_program build_without_header(Device& device, const std::string& source, const std::string& options,
                                std::string& log) {
  const size_t standard = options.rfind("-cl-std=");
  if (standard == options.npos || options.compare(standard, 11, "-cl-std=CL1") != 0) return nullptr;
  cl_program program = create_program(device, declare_builtins(source) + source);
  return build(device, program, options + " -D_OPENCL_H_", log) == CL_SUCCESS ? program : nullptr;
}

}  // namespace

tg_module compile(Device& device, const std::string& source, const char* given, std::string& log) {
  const std::string options = std::string(given) + (device.prints_counts ? kQuiet : "") +
                              (device.rounds_if_asked ? kExact : "") + (device.has_fragments ? kPtx : "");
  if (device.includes_builtins) {
    if (cl_program program = build_without_header(device, source, options, log))
      return new tg_module_{&device, program};
  }
  cl_program program = create_program(device, source);
  const cl_int status = build(device, program, options, log);
  if (status != CL_SUCCESS) fail_call("clBuildProgram", status);
  return new tg_module_{&device, program};
}

tg_module load(Device& device, const void* binary, size_t bytes, std::string& log) {
  const unsigned char* data = static_cast<const unsigned char*>(binary);
  cl_int status = CL_SUCCESS, binary_status = CL_SUCCESS;
  cl_program program =
      device.api->clCreateProgramWithBinary(device.context(), 1, &device.id, &bytes, &data, &binary_status, &status);
  if (status != CL_SUCCESS || binary_status != CL_SUCCESS) {
    if (program != nullptr) device.api->clReleaseProgram(program);
    // Whatever the status, the remedy is to compile again.
    throw Failure(TG_ERROR_COMPILE,
                  "clCreateProgramWithBinary: " + status_name(status != CL_SUCCESS ? status : binary_status));
  }
  status = build(device, program, "", log);
  if (status != CL_SUCCESS) fail_call("clBuildProgram", status);
  return new tg_module_{&device, program};
}

void destroy_module(tg_module module) {
  const std::unique_ptr<tg_module_> owner(module);
  check(module->device->api->clReleaseProgram(module->program), "clReleaseProgram");
}

void read_binary(const tg_module_& module, void* buffer, uint64_t& bytes) {
  const Api& api = *module.device->api;
  size_t size = 0;
  check(api.clGetProgramInfo(module.program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr), "clGetProgramInfo");
  if (size == 0) throw Failure(TG_ERROR_UNSUPPORTED, "the device gives no binaries");
  if (buffer != nullptr) {
    if (bytes < size) fail_invalid("the buffer is smaller than the binary");
    unsigned char* data = static_cast<unsigned char*>(buffer);
    check(api.clGetProgramInfo(module.program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr), "clGetProgramInfo");
  }
  bytes = size;
}

namespace {

tg_kernel new_kernel(const tg_module_& module, const char* name, tg_kernel origin) {
  const Api& api = *module.device->api;
  cl_int status = CL_SUCCESS;
  cl_kernel kernel = api.clCreateKernel(module.program, name, &status);
  if (status != CL_SUCCESS) fail_call("clCreateKernel", status, std::string("kernel ") + name);
  cl_uint arguments = 0;
  status = api.clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof arguments, &arguments, nullptr);
  if (status != CL_SUCCESS) {
    api.clReleaseKernel(kernel);
    fail_call("clGetKernelInfo", status, std::string("kernel ") + name);
  }
  std::unique_ptr<ExecutorState> state;
  if (module.device->executor != nullptr) state = module.device->executor->make_kernel_state();
  return new tg_kernel_{module.device, kernel, arguments, name, {}, {}, std::move(state), origin};
}

}  // namespace

tg_kernel create_kernel(const tg_module_& module, const char* name) { return new_kernel(module, name, nullptr); }

tg_kernel clone_kernel(tg_kernel_& origin) {
  cl_program program = nullptr;
  check(origin.device->api->clGetKernelInfo(origin.kernel, CL_KERNEL_PROGRAM, sizeof program, &program, nullptr),
        "clGetKernelInfo");
  return new_kernel({origin.device, program}, origin.name.c_str(), &origin);
}

void retain_kernel(tg_kernel_& kernel) { kernel.users.fetch_add(1, std::memory_order_relaxed); }

void destroy_kernel(tg_kernel kernel) {
  if (kernel->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::unique_ptr<tg_kernel_> owner(kernel);
  check(kernel->device->api->clReleaseKernel(kernel->kernel), "clReleaseKernel");
}

namespace {

[[noreturn]] void fail_argument(const tg_kernel_& kernel, const char* call, cl_int status, uint32_t index) {
  fail_call(call, status, "argument " + std::to_string(index) + " of kernel " + kernel.name);
}

bool same(const tg_arg& a, const tg_arg& b) {
  if (a.is_pointer != b.is_pointer) return false;
  if (a.is_pointer) return a.value.pointer == b.value.pointer;
  return a.size == b.size && std::memcmp(a.value.bytes, b.value.bytes, a.size) == 0;
}

// Where the device has no addresses: a pointer is a buffer and an offset.
void set_place(const tg_kernel_& kernel, cl_kernel target, cl_uint index, const void* pointer, uint32_t i) {
  const Api& api = *kernel.device->api;
  const Memory::Place place = kernel.device->memory->find(pointer);
  const cl_ulong offset = place.offset;
  cl_int status =
      api.clSetKernelArg(target, index, sizeof place.buffer, place.buffer != nullptr ? &place.buffer : nullptr);
  if (status == CL_SUCCESS) status = api.clSetKernelArg(target, index + 1, sizeof offset, &offset);
  if (status != CL_SUCCESS) [[unlikely]]
    fail_argument(kernel, "clSetKernelArg", status, i);
}

}  // namespace

void set_arguments(const tg_kernel_& kernel, cl_kernel target, std::vector<tg_arg>& set, const tg_launch& launch) {
  const Api& api = *kernel.device->api;
  const bool addresses = kernel.device->memory->model != MemoryModel::kBuffer;
  // Elsewhere an address may be looked up when it is set.
  const bool keeps = kernel.device->memory->model == MemoryModel::kHost;
  const bool any_set = keeps && set.size() == launch.arg_count;
  // Until all are set none counts as set.
  std::vector<tg_arg> now = std::exchange(set, {});
  now.resize(launch.arg_count);
  cl_uint next = 0;
  for (uint32_t i = 0; i < launch.arg_count; ++i) {
    const tg_arg& argument = launch.args[i];
    if (argument.is_pointer && !addresses) {
      set_place(kernel, target, next, argument.value.pointer, i);
      next += 2;
      continue;
    }
    const cl_uint index = next++;
    if (any_set && same(now[i], argument)) continue;
    now[i] = argument;
    const cl_int status = argument.is_pointer ? api.clSetKernelArgSVMPointer(target, index, argument.value.pointer)
                                              : api.clSetKernelArg(target, index, argument.size, argument.value.bytes);
    if (status != CL_SUCCESS) [[unlikely]]
      fail_argument(kernel, argument.is_pointer ? "clSetKernelArgSVMPointer" : "clSetKernelArg", status, i);
  }
  if (next != kernel.arguments) [[unlikely]] {
    fail_invalid("kernel " + kernel.name + " has " + std::to_string(kernel.arguments) + " arguments and was given " +
                 std::to_string(next));
  }
  set = std::move(now);
}

void launch(tg_stream_& stream, const tg_launch& launch) {
  tg_kernel_& kernel = *launch.kernel;
  if (kernel.device != stream.device)
    fail_invalid("kernel " + kernel.name + " belongs to another device than its stream");
  if (launch.dims < 1 || launch.dims > 3) fail_invalid("a launch has one to three dimensions");
  HostExecutor* const executor = stream.device->executor.get();
  if (executor != nullptr && executor->launch(stream, kernel, launch)) return;
  size_t global[3];
  for (uint32_t d = 0; d < launch.dims; ++d) global[d] = launch.groups[d] * launch.local[d];
  std::lock_guard lock(kernel.mutex);
  set_arguments(kernel, kernel.kernel, kernel.set, launch);
  const cl_int status = try_submit(stream, [&](cl_command_queue queue, cl_event* event) {
    return kernel.device->api->clEnqueueNDRangeKernel(queue, kernel.kernel, launch.dims, nullptr, global, launch.local,
                                                      0, nullptr, event);
  });
  if (status != CL_SUCCESS) [[unlikely]]
    fail_call("clEnqueueNDRangeKernel", status, "kernel " + kernel.name);
  if (executor != nullptr) executor->note_queued(kernel, launch);
}

}  // namespace ocl
