// The part of the OpenCL API that the driver uses, and how a library that implements it is loaded.
//
// Nothing is linked and no OpenCL header is needed to build: a machine without OpenCL can still load the driver, which
// then has no devices. Every library (an ICD loader, or one vendor's implementation loaded directly) is an `Api` of its
// own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ocl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = uint32_t;
using cl_bitfield = uint64_t;

using cl_platform_id = struct cl_platform_id_*;
using cl_device_id = struct cl_device_id_*;
using cl_context = struct cl_context_*;
using cl_command_queue = struct cl_command_queue_*;
using cl_mem = struct cl_mem_*;
using cl_program = struct cl_program_*;
using cl_kernel = struct cl_kernel_*;
using cl_event = struct cl_event_*;

// Names and values are those of the OpenCL specification.
enum : cl_int {
  CL_COMPLETE = 0,
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_FOUND = -1,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_BUILD_PROGRAM_FAILURE = -11,
  CL_INVALID_VALUE = -30,
  CL_INVALID_BINARY = -42,
  CL_INVALID_BUILD_OPTIONS = -43,
  CL_INVALID_BUFFER_SIZE = -61,
};

enum : cl_uint {
  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,
  CL_PLATFORM_VENDOR = 0x0903,

  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
  CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_ENDIAN_LITTLE = 0x1026,
  CL_DEVICE_AVAILABLE = 0x1027,
  CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
  CL_DEVICE_EXECUTION_CAPABILITIES = 0x1029,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032,
  CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A,
  CL_DEVICE_SVM_CAPABILITIES = 0x1053,
  CL_DEVICE_UUID_KHR = 0x106A,
  CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV = 0x4000,
  CL_DEVICE_PCI_BUS_INFO_KHR = 0x410F,

  CL_QUEUE_PROPERTIES = 0x1093,
  CL_QUEUE_PRIORITY_KHR = 0x1096,

  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_KERNEL_NAMES = 0x1168,
  CL_PROGRAM_BUILD_OPTIONS = 0x1182,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_NUM_ARGS = 0x1191,
  CL_KERNEL_PROGRAM = 0x1194,
  CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2,
  CL_KERNEL_PRIVATE_MEM_SIZE = 0x11B4,

  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_PROFILING_COMMAND_START = 0x1282,
  CL_PROFILING_COMMAND_END = 0x1283,
};

inline constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
inline constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
inline constexpr cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
inline constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

inline constexpr cl_bitfield CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7;

inline constexpr cl_bitfield CL_EXEC_NATIVE_KERNEL = 1 << 1;
inline constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
// Of cl_intel_exec_by_local_thread: the thread that queues a command runs it, and comes back when it is done.
inline constexpr cl_bitfield CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL = cl_bitfield{1} << 31;
inline constexpr cl_bitfield CL_QUEUE_PRIORITY_HIGH_KHR = 1 << 0;
inline constexpr cl_bitfield CL_QUEUE_PRIORITY_MED_KHR = 1 << 1;
inline constexpr cl_bitfield CL_QUEUE_PRIORITY_LOW_KHR = 1 << 2;

inline constexpr cl_bitfield CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1 << 0;
inline constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
inline constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_SYSTEM = 1 << 2;

inline constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
inline constexpr cl_bitfield CL_MEM_USE_HOST_PTR = 1 << 3;
inline constexpr cl_bitfield CL_MEM_ALLOC_HOST_PTR = 1 << 4;
inline constexpr cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
inline constexpr cl_bitfield CL_MAP_READ = 1 << 0;
inline constexpr cl_bitfield CL_MAP_WRITE = 1 << 1;

inline constexpr cl_uint CL_BUFFER_CREATE_TYPE_REGION = 0x1220;

inline constexpr cl_bool CL_TRUE = 1, CL_FALSE = 0;

struct cl_buffer_region {
  size_t origin, size;
};

using BuildCallback = void (*)(cl_program, void*);
using ContextCallback = void (*)(const char*, const void*, size_t, void*);
using NativeKernel = void (*)(void*);

// X(name, slot in the ICD dispatch table, result, parameters), first those of OpenCL 1.2, without which a library is
// not used.
#define OCL_REQUIRED_FUNCTIONS(X)                                                                                     \
  X(clGetPlatformIDs, 0, cl_int, (cl_uint, cl_platform_id*, cl_uint*))                                                \
  X(clGetPlatformInfo, 1, cl_int, (cl_platform_id, cl_uint, size_t, void*, size_t*))                                  \
  X(clGetDeviceIDs, 2, cl_int, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))                       \
  X(clGetDeviceInfo, 3, cl_int, (cl_device_id, cl_uint, size_t, void*, size_t*))                                      \
  X(clCreateContext, 4, cl_context, (const intptr_t*, cl_uint, const cl_device_id*, ContextCallback, void*, cl_int*)) \
  X(clCreateCommandQueue, 9, cl_command_queue, (cl_context, cl_device_id, cl_bitfield, cl_int*))                      \
  X(clRetainCommandQueue, 10, cl_int, (cl_command_queue))                                                             \
  X(clReleaseCommandQueue, 11, cl_int, (cl_command_queue))                                                            \
  X(clCreateBuffer, 14, cl_mem, (cl_context, cl_bitfield, size_t, void*, cl_int*))                                    \
  X(clRetainMemObject, 17, cl_int, (cl_mem))                                                                          \
  X(clReleaseMemObject, 18, cl_int, (cl_mem))                                                                         \
  X(clCreateProgramWithSource, 26, cl_program, (cl_context, cl_uint, const char**, const size_t*, cl_int*))           \
  X(clCreateProgramWithBinary, 27, cl_program,                                                                        \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*, cl_int*))               \
  X(clRetainProgram, 28, cl_int, (cl_program))                                                                        \
  X(clReleaseProgram, 29, cl_int, (cl_program))                                                                       \
  X(clBuildProgram, 30, cl_int, (cl_program, cl_uint, const cl_device_id*, const char*, BuildCallback, void*))        \
  X(clGetProgramInfo, 32, cl_int, (cl_program, cl_uint, size_t, void*, size_t*))                                      \
  X(clGetProgramBuildInfo, 33, cl_int, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                   \
  X(clCreateKernel, 34, cl_kernel, (cl_program, const char*, cl_int*))                                                \
  X(clReleaseKernel, 37, cl_int, (cl_kernel))                                                                         \
  X(clSetKernelArg, 38, cl_int, (cl_kernel, cl_uint, size_t, const void*))                                            \
  X(clGetKernelInfo, 39, cl_int, (cl_kernel, cl_uint, size_t, void*, size_t*))                                        \
  X(clGetKernelWorkGroupInfo, 40, cl_int, (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                 \
  X(clWaitForEvents, 41, cl_int, (cl_uint, const cl_event*))                                                          \
  X(clGetEventInfo, 42, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                                          \
  X(clRetainEvent, 43, cl_int, (cl_event))                                                                            \
  X(clReleaseEvent, 44, cl_int, (cl_event))                                                                           \
  X(clGetEventProfilingInfo, 45, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                                 \
  X(clFlush, 46, cl_int, (cl_command_queue))                                                                          \
  X(clFinish, 47, cl_int, (cl_command_queue))                                                                         \
  X(clEnqueueReadBuffer, 48, cl_int,                                                                                  \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*, cl_event*))                  \
  X(clEnqueueWriteBuffer, 49, cl_int,                                                                                 \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*, cl_event*))            \
  X(clEnqueueCopyBuffer, 50, cl_int,                                                                                  \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))                  \
  X(clEnqueueMapBuffer, 56, void*,                                                                                    \
    (cl_command_queue, cl_mem, cl_bool, cl_bitfield, size_t, size_t, cl_uint, const cl_event*, cl_event*, cl_int*))   \
  X(clEnqueueUnmapMemObject, 58, cl_int, (cl_command_queue, cl_mem, void*, cl_uint, const cl_event*, cl_event*))      \
  X(clEnqueueNDRangeKernel, 59, cl_int,                                                                               \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,     \
     cl_event*))                                                                                                      \
  X(clEnqueueNativeKernel, 61, cl_int,                                                                                \
    (cl_command_queue, NativeKernel, void*, size_t, cl_uint, const cl_mem*, const void**, cl_uint, const cl_event*,   \
     cl_event*))                                                                                                      \
  X(clCreateSubBuffer, 82, cl_mem, (cl_mem, cl_bitfield, cl_uint, const void*, cl_int*))                              \
  X(clEnqueueFillBuffer, 102, cl_int,                                                                                 \
    (cl_command_queue, cl_mem, const void*, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))             \
  X(clEnqueueMarkerWithWaitList, 105, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                \
  X(clEnqueueBarrierWithWaitList, 106, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))

// Those of OpenCL 2.0: NULL where the library is older. A device's properties say whether it has what they do.
#define OCL_OPTIONAL_FUNCTIONS(X)                                                                                    \
  X(clCreateCommandQueueWithProperties, 123, cl_command_queue, (cl_context, cl_device_id, const cl_ulong*, cl_int*)) \
  X(clSVMAlloc, 126, void*, (cl_context, cl_bitfield, size_t, cl_uint))                                              \
  X(clSVMFree, 127, void, (cl_context, void*))                                                                       \
  X(clEnqueueSVMMemcpy, 129, cl_int,                                                                                 \
    (cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*, cl_event*))                    \
  X(clEnqueueSVMMemFill, 130, cl_int,                                                                                \
    (cl_command_queue, void*, const void*, size_t, size_t, cl_uint, const cl_event*, cl_event*))                     \
  X(clSetKernelArgSVMPointer, 134, cl_int, (cl_kernel, cl_uint, const void*))

struct Api {
#define OCL_DECLARE(name, slot, result, parameters) result(*name) parameters = nullptr;
  OCL_REQUIRED_FUNCTIONS(OCL_DECLARE)
  OCL_OPTIONAL_FUNCTIONS(OCL_DECLARE)
#undef OCL_DECLARE
};

struct Platform {
  const Api* api;
  cl_platform_id id;
};

// Opens a library and adds its platforms. Returns what was wrong, or an empty string. The library is never closed: its
// threads may outlive every call of ours.
std::string open_library(const std::string& path, std::vector<Platform>& platforms);

bool can_load(const char* library);

// "CL_OUT_OF_RESOURCES (-5)"
std::string status_name(cl_int status);

}  // namespace ocl
