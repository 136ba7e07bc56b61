#include "opencl_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

namespace ocl {
namespace {

template <class Function>
void assign(Function& slot, void* address) {
  slot = reinterpret_cast<Function>(address);
}

// Fills `api` with lookup(name, dispatch slot); returns the first required function that is missing, or NULL.
template <class Lookup>
const char* fill(Api& api, Lookup lookup) {
#define OCL_FILL(name, slot, result, parameters) assign(api.name, lookup(#name, slot));
  OCL_REQUIRED_FUNCTIONS(OCL_FILL)
  OCL_OPTIONAL_FUNCTIONS(OCL_FILL)
#undef OCL_FILL
#define OCL_CHECK(name, slot, result, parameters) \
  if (api.name == nullptr) return #name;
  OCL_REQUIRED_FUNCTIONS(OCL_CHECK)
#undef OCL_CHECK
  return nullptr;
}

template <class GetIds>
std::vector<cl_platform_id> platform_ids(GetIds get) {
  cl_uint count = 0;
  if (get(0, nullptr, &count) != CL_SUCCESS) return {};  // a loader without any implementation answers with an error
  std::vector<cl_platform_id> ids(count);
  if (count == 0 || get(count, ids.data(), nullptr) != CL_SUCCESS) return {};
  return ids;
}

// A library made only for ICD loaders exports no functions but these two ways to its platforms. The first word of each
// object is a table of functions, whose order the ICD extension fixes.
std::string open_icd(const std::string& path, void* library, std::vector<Platform>& platforms) {
  void* (*extension)(const char*) = nullptr;
  assign(extension, dlsym(library, "clGetExtensionFunctionAddress"));
  cl_int (*get)(cl_uint, cl_platform_id*, cl_uint*) = nullptr;
  assign(get, dlsym(library, "clIcdGetPlatformIDsKHR"));
  if (get == nullptr && extension != nullptr) assign(get, extension("clIcdGetPlatformIDsKHR"));
  if (get == nullptr) return path + " is not an OpenCL library";
  for (cl_platform_id id : platform_ids(get)) {
    void** table = *reinterpret_cast<void***>(id);
    auto api = std::make_unique<Api>();
    if (const char* missing = fill(*api, [&](const char*, int slot) { return table[slot]; })) {
      return path + " has no " + missing;
    }
    platforms.push_back({api.release(), id});
  }
  return "";
}

// What an ICD loader does, for systems that have a vendor's implementation and no loader.
std::string open_folder(const std::string& folder, std::vector<Platform>& platforms) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".icd") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string problems;
  for (const auto& file : files) {
    std::string library;
    if (!(std::ifstream(file) >> library)) continue;
    const std::string problem = open_library(library, platforms);
    if (!problem.empty()) problems += (problems.empty() ? "" : "\n  ") + problem;
  }
  return files.empty() ? folder + " names no OpenCL implementation" : problems;
}

}  // namespace

bool can_load(const char* library) { return dlopen(library, RTLD_LAZY | RTLD_LOCAL) != nullptr; }

std::string open_library(const std::string& path, std::vector<Platform>& platforms) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return open_folder(path, platforms);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return reason != nullptr ? reason : path + " cannot be loaded";
  }
  if (dlsym(library, "clGetPlatformIDs") == nullptr) return open_icd(path, library, platforms);
  auto api = std::make_unique<Api>();
  if (const char *missing = fill(*api, [&](const char* name, int) { return dlsym(library, name); })) {
    return path + " has no " + missing + ": OpenCL 1.2 or later is needed";
  }
  const std::vector<cl_platform_id> ids = platform_ids(api->clGetPlatformIDs);
  if (ids.empty()) return path + " knows of no OpenCL platform";
  const Api* shared = api.release();
  for (cl_platform_id id : ids) platforms.push_back({shared, id});
  return "";
}

std::string status_name(cl_int status) {
  // The two ranges of the core specification, and the extensions' few that a user meets.
  static const char* const run_time[] = {"CL_SUCCESS",
                                         "CL_DEVICE_NOT_FOUND",
                                         "CL_DEVICE_NOT_AVAILABLE",
                                         "CL_COMPILER_NOT_AVAILABLE",
                                         "CL_MEM_OBJECT_ALLOCATION_FAILURE",
                                         "CL_OUT_OF_RESOURCES",
                                         "CL_OUT_OF_HOST_MEMORY",
                                         "CL_PROFILING_INFO_NOT_AVAILABLE",
                                         "CL_MEM_COPY_OVERLAP",
                                         "CL_IMAGE_FORMAT_MISMATCH",
                                         "CL_IMAGE_FORMAT_NOT_SUPPORTED",
                                         "CL_BUILD_PROGRAM_FAILURE",
                                         "CL_MAP_FAILURE",
                                         "CL_MISALIGNED_SUB_BUFFER_OFFSET",
                                         "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
                                         "CL_COMPILE_PROGRAM_FAILURE",
                                         "CL_LINKER_NOT_AVAILABLE",
                                         "CL_LINK_PROGRAM_FAILURE",
                                         "CL_DEVICE_PARTITION_FAILED",
                                         "CL_KERNEL_ARG_INFO_NOT_AVAILABLE"};
  static const char* const invalid[] = {"VALUE",
                                        "DEVICE_TYPE",
                                        "PLATFORM",
                                        "DEVICE",
                                        "CONTEXT",
                                        "QUEUE_PROPERTIES",
                                        "COMMAND_QUEUE",
                                        "HOST_PTR",
                                        "MEM_OBJECT",
                                        "IMAGE_FORMAT_DESCRIPTOR",
                                        "IMAGE_SIZE",
                                        "SAMPLER",
                                        "BINARY",
                                        "BUILD_OPTIONS",
                                        "PROGRAM",
                                        "PROGRAM_EXECUTABLE",
                                        "KERNEL_NAME",
                                        "KERNEL_DEFINITION",
                                        "KERNEL",
                                        "ARG_INDEX",
                                        "ARG_VALUE",
                                        "ARG_SIZE",
                                        "KERNEL_ARGS",
                                        "WORK_DIMENSION",
                                        "WORK_GROUP_SIZE",
                                        "WORK_ITEM_SIZE",
                                        "GLOBAL_OFFSET",
                                        "EVENT_WAIT_LIST",
                                        "EVENT",
                                        "OPERATION",
                                        "GL_OBJECT",
                                        "BUFFER_SIZE",
                                        "MIP_LEVEL",
                                        "GLOBAL_WORK_SIZE",
                                        "PROPERTY",
                                        "IMAGE_DESCRIPTOR",
                                        "COMPILER_OPTIONS",
                                        "LINKER_OPTIONS",
                                        "DEVICE_PARTITION_COUNT",
                                        "PIPE_SIZE",
                                        "DEVICE_QUEUE",
                                        "SPEC_ID"};
  const int positive = -status;
  std::string name = "an unknown status";
  if (positive >= 0 && positive < static_cast<int>(std::size(run_time))) {
    name = run_time[positive];
  } else if (positive >= 30 && positive < 30 + static_cast<int>(std::size(invalid))) {
    name = std::string("CL_INVALID_") + invalid[positive - 30];
  } else if (status == -1001) {
    name = "CL_PLATFORM_NOT_FOUND_KHR";
  } else if (status == -9999) {
    name = "an illegal access of memory by a kernel";  // NVIDIA's, undocumented
  }
  return name + " (" + std::to_string(status) + ")";
}

}  // namespace ocl
