#include "device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "clblast.h"
#include "environment.h"
#include "error.h"
#include "host_executor.h"
#include "program.h"
#include "stream.h"

namespace ocl {
namespace {

std::string fallback_libraries;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    const size_t first = part.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    parts.push_back(part.substr(first, part.find_last_not_of(" \t") - first + 1));
  }
  return parts;
}

// Absent properties read as zero: an older device does not know the newer names.
template <class T>
T number(const Device& device, cl_uint name) {
  T value{};
  if (device.api->clGetDeviceInfo(device.id, name, sizeof value, &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

template <class Get>
std::string text_of(Get get) {
  size_t size = 0;
  if (get(0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  if (get(size, text.data(), nullptr) != CL_SUCCESS) return "";
  text.resize(std::strlen(text.c_str()));
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

constexpr std::string_view kPocl = "Portable Computing Language", kIntel = "Intel(R) OpenCL";

}  // namespace

std::string text(const Api& api, cl_device_id id, cl_uint property) {
  return text_of(
      [&](size_t size, void* value, size_t* needed) { return api.clGetDeviceInfo(id, property, size, value, needed); });
}

std::string text(const Platform& platform, cl_uint property) {
  return text_of([&](size_t size, void* value, size_t* needed) {
    return platform.api->clGetPlatformInfo(platform.id, property, size, value, needed);
  });
}

bool is_pocl(const Platform& platform) { return text(platform, CL_PLATFORM_NAME) == kPocl; }
bool is_pocl(const Device& device) { return device.properties.platform == kPocl; }
bool is_intel(const Device& device) { return device.properties.platform == kIntel; }

namespace {

std::string text(const Device& device, cl_uint property) { return text(*device.api, device.id, property); }

template <size_t N>
void store(char (&field)[N], const std::string& value) {
  const size_t length = std::min(value.size(), N - 1);
  std::memcpy(field, value.data(), length);
  field[length] = '\0';
}

std::string unique_name(const Device& device, const std::string& extensions) {
  char name[64];
  if (device.is_cpu) return "host-cpu";  // whatever its implementations call it, there is one
  if (extensions.find("cl_khr_device_uuid") != std::string::npos) {
    unsigned char uuid[16] = {};
    if (device.api->clGetDeviceInfo(device.id, CL_DEVICE_UUID_KHR, sizeof uuid, uuid, nullptr) == CL_SUCCESS) {
      std::string printed;
      for (unsigned char byte : uuid) {
        std::snprintf(name, sizeof name, "%02x", byte);
        printed += name;
      }
      return printed;
    }
  }
  if (extensions.find("cl_khr_pci_bus_info") != std::string::npos) {
    cl_uint bus[4] = {};  // domain, bus, device, function
    if (device.api->clGetDeviceInfo(device.id, CL_DEVICE_PCI_BUS_INFO_KHR, sizeof bus, bus, nullptr) == CL_SUCCESS) {
      std::snprintf(name, sizeof name, "pci-%04x:%02x:%02x.%x", bus[0], bus[1], bus[2], bus[3]);
      return name;
    }
  }
  return "";
}

// The memory this process may use on the host, less what the rest of the system needs. Implementations on a CPU say
// much less (PoCL has answered 5 GiB of 23), because they must guess; ours is allocated by the driver itself.
uint64_t usable_host_memory() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes - std::min<uint64_t>(bytes / 4, uint64_t{2} << 30);
}

MemoryModel choose_memory(const Device& device, cl_bitfield svm, bool& unified) {
  const Api& api = *device.api;
  const bool has_svm = (svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0 && api.clSVMAlloc != nullptr &&
                       api.clSVMFree != nullptr && api.clEnqueueSVMMemcpy != nullptr &&
                       api.clEnqueueSVMMemFill != nullptr && api.clSetKernelArgSVMPointer != nullptr;
  // PoCL does not claim that any host address will do on its CPU device, but passes it through (3.1 measured, 7.1
  // read).
  const bool has_host = has_svm && device.is_cpu && ((svm & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) != 0 || is_pocl(device));
  const bool fine = has_svm && (svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0 &&
                    (device.is_cpu || number<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0);

  // A device with memory of its own may map all shared memory into the host's, too: of 1 GB that was measured to take
  // half a second, where a buffer takes some microseconds.
  const bool own = !device.is_cpu && number<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY) == 0;
  MemoryModel model = has_host ? MemoryModel::kHost : has_svm && !own ? MemoryModel::kSvm : MemoryModel::kBuffer;
  unified = has_host || (fine && !own);
  const std::string wish = find_variable("TORCHGRAFT_OPENCL_MEMORY").value_or("");
  if (wish == "host" && has_host) return model;
  if (wish == "svm" && has_svm) {
    unified = fine;
    return MemoryModel::kSvm;
  }
  if (wish == "coarse" && has_svm) {
    unified = false;
    return MemoryModel::kSvm;
  }
  if (wish == "buffer") {
    unified = false;
    return MemoryModel::kBuffer;
  }
  return model;  // a wish that this device cannot grant is one for other devices
}

void check_memory_wish() {
  const std::string wish = find_variable("TORCHGRAFT_OPENCL_MEMORY").value_or("");
  for (const char* known : {"", "host", "svm", "coarse", "buffer"})
    if (wish == known) return;
  fail_invalid("TORCHGRAFT_OPENCL_MEMORY is '" + wish + "': it may be host, svm, coarse or buffer");
}

int rank(const Device& device) {
  switch (device.properties.kind) {
    case TG_DEVICE_GPU:
      return 0;
    case TG_DEVICE_ACCELERATOR:
      return 1;
    default:
      return 2;
  }
}

const char* name_of(MemoryModel model) {
  switch (model) {
    case MemoryModel::kHost:
      return "host memory";
    case MemoryModel::kSvm:
      return "shared virtual memory";
    default:
      return "buffers";
  }
}

std::string features(const Device& device) {
  const uint64_t capabilities = device.properties.capabilities;
  std::string names;
  const auto add = [&](bool there, const char* name) {
    if (there) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  const auto svm = number<cl_bitfield>(device, CL_DEVICE_SVM_CAPABILITIES);
  add((capabilities & TG_CAP_COMPILER) != 0, "compiler");
  add((capabilities & TG_CAP_FLOAT64) != 0, "float64");
  add((capabilities & TG_CAP_FLOAT16) != 0, "float16");
  add((capabilities & TG_CAP_ATOMIC_INT64) != 0, "int64 atomics");
  add((capabilities & TG_CAP_SUBGROUPS) != 0, "subgroups");
  add((capabilities & TG_CAP_BFLOAT16_TILES) != 0, "tiles of bfloat16");
  add((capabilities & TG_CAP_BFLOAT16_VECTORS) != 0, "vectors of bfloat16");
  add((capabilities & TG_CAP_FRAGMENTS) != 0, "fragments of 16-bit floats");
  add((capabilities & TG_CAP_OUTER_VECTORS) != 0, "vectors of outer loops");
  add((svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0, "SVM");
  add((svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0, "fine-grained SVM");
  add((svm & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) != 0, "system SVM");
  add(device.unified(), "memory shared with the host");
  add((capabilities & TG_CAP_PROGRAMS) != 0,
      (capabilities & TG_CAP_KERNELS_FIRST) != 0 ? "tuned products by CLBlast" : "products by CLBlast");
  const std::string why = why_no_clblast(device);
  add(!why.empty(), ("no CLBlast (" + why + ")").c_str());
  return names;
}

// Why this driver cannot use a device; empty if it can.
std::string refusal(const Device& device) {
  if (number<cl_bool>(device, CL_DEVICE_AVAILABLE) == 0) return "its driver says that it is not available";
  if (number<cl_bool>(device, CL_DEVICE_ENDIAN_LITTLE) == 0) return "its byte order is not the host's";
  return "";
}

void add_device(const Platform& platform, cl_device_id id, Devices& devices, Journal& journal) {
  std::string name = "a device", platform_name, why;
  try {
    auto device = std::make_unique<Device>(platform, id);
    const tg_device_properties& p = device->properties;
    name = p.name, platform_name = p.platform, why = refusal(*device);
    if (why.empty()) {
      journal.add({"device", name, platform_name, text(*device, CL_DEVICE_VERSION), name_of(device->memory->model),
                   features(*device)});
      devices.push_back(std::move(device));
    }
  } catch (const Failure& failure) {  // the others are not to suffer from it
    why = failure.what();
  }
  if (!why.empty()) journal.add({"refused", name, platform_name, why});
}

using Names = std::set<std::string, std::less<>>;

// The platforms' names are added to `names`.
void add_devices(const std::vector<Platform>& platforms, HostImplementations& host, Devices& devices, Names& names,
                 Journal& journal) {
  for (const Platform& platform : platforms) {
    const std::string name = text(platform, CL_PLATFORM_NAME);
    names.insert(name);
    cl_uint count = 0;
    cl_int status = CL_DEVICE_NOT_FOUND;
    if (host.can_work(platform))
      status = platform.api->clGetDeviceIDs(platform.id, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
    if (status == CL_DEVICE_NOT_FOUND) count = 0, status = CL_SUCCESS;
    std::vector<cl_device_id> ids(count);
    if (status == CL_SUCCESS && count != 0)
      status = platform.api->clGetDeviceIDs(platform.id, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr);
    if (status == CL_SUCCESS) host.hide(platform, ids);
    journal.add({"platform", name, text(platform, CL_PLATFORM_VENDOR), text(platform, CL_PLATFORM_VERSION),
                 std::to_string(ids.size())});
    if (status != CL_SUCCESS) {
      journal.add({"refused", "all devices", name, "clGetDeviceIDs failed: " + status_name(status)});
      continue;
    }
    const size_t before = devices.size();
    for (cl_device_id id : ids) add_device(platform, id, devices, journal);
    host.equip(platform, devices, devices.size() - before);
  }
}

// Where files tell loaders of implementations.
std::string vendors_folder() {
  const std::string folder = find_variable("OCL_ICD_VENDORS").value_or("");
  return folder.empty() ? "/etc/OpenCL/vendors" : folder;
}

// Why there is no device, for a user who wants one.
std::string why_none(bool libraries_named, const Names& platforms) {
  std::error_code ignored;
  const bool has_rusticl = platforms.contains("rusticl") ||
                           (!libraries_named && std::filesystem::exists(vendors_folder() + "/rusticl.icd", ignored));
  const std::string rusticl =
      " Mesa's rusticl has those of the drivers that RUSTICL_ENABLE names: RUSTICL_ENABLE=radeonsi in the environment "
      "for AMD's GPUs, iris for Intel's, llvmpipe for the CPU; `torchgraft doctor` says which fits.";
  std::string why = "No OpenCL device was found.";
  if (libraries_named) why = "The libraries that TORCHGRAFT_OPENCL_LIBRARY names offer no OpenCL device.";
  std::string names;
  for (const std::string& name : platforms) names += (names.empty() ? "" : ", ") + name;
  if (!libraries_named && !names.empty()) why += " These platforms are installed and offer none: " + names + ".";
  if (has_rusticl) why += rusticl;
  if (libraries_named || platforms.contains(kPocl)) return why;
  return why +
         " A GPU's comes with its driver; for the CPU install PoCL (Debian, Ubuntu: apt-get install pocl-opencl-icd), "
         "or without root Intel's runtime (pip install intel-opencl-rt intel-cmplr-lib-rt).";
}

}  // namespace

Device::Device(const Platform& platform, cl_device_id id) : api(platform.api), platform(platform.id), id(id) {
  tg_device_properties& p = properties;
  p.struct_size = sizeof p;
  const cl_bitfield type = number<cl_bitfield>(*this, CL_DEVICE_TYPE);
  is_cpu = (type & CL_DEVICE_TYPE_CPU) != 0;
  p.kind = is_cpu ? TG_DEVICE_CPU : (type & CL_DEVICE_TYPE_GPU) != 0 ? TG_DEVICE_GPU : TG_DEVICE_ACCELERATOR;

  const std::string platform_name = text(platform, CL_PLATFORM_NAME);
  store(p.name, text(*this, CL_DEVICE_NAME));
  store(p.vendor, text(*this, CL_DEVICE_VENDOR));
  store(p.platform, platform_name);
  store(p.driver_version, text(*this, CL_DRIVER_VERSION) + "; " + text(*this, CL_DEVICE_VERSION) + "; " +
                              platform_name + "; " + text(platform, CL_PLATFORM_VERSION));
  const std::string extensions = text(*this, CL_DEVICE_EXTENSIONS);
  const auto has = [&](const char* name) { return extensions.find(name) != std::string::npos; };
  store(p.uuid, unique_name(*this, extensions));

  p.total_memory = number<cl_ulong>(*this, CL_DEVICE_GLOBAL_MEM_SIZE);
  p.max_allocation = number<cl_ulong>(*this, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  p.local_memory = number<cl_ulong>(*this, CL_DEVICE_LOCAL_MEM_SIZE);
  p.compute_units = number<cl_uint>(*this, CL_DEVICE_MAX_COMPUTE_UNITS);
  p.max_work_group_size = static_cast<uint32_t>(number<size_t>(*this, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  p.simd_width = std::max<cl_uint>(1, number<cl_uint>(*this, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
  p.clock_mhz = number<cl_uint>(*this, CL_DEVICE_MAX_CLOCK_FREQUENCY);

  has_native_kernels =
      is_cpu && (number<cl_bitfield>(*this, CL_DEVICE_EXECUTION_CAPABILITIES) & CL_EXEC_NATIVE_KERNEL) != 0;
  has_priorities = api->clCreateCommandQueueWithProperties != nullptr && has("cl_khr_priority_hints");

  prints_counts = is_pocl(*this);
  rounds_if_asked =
      !is_cpu && (number<cl_bitfield>(*this, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  // The other value is for comparing.
  includes_builtins = is_pocl(*this) && find_variable("TORCHGRAFT_OPENCL_BUILTINS").value_or("") != "header";

  bool unified = false;
  const MemoryModel model = choose_memory(*this, number<cl_bitfield>(*this, CL_DEVICE_SVM_CAPABILITIES), unified);
  if (model == MemoryModel::kHost) {
    p.total_memory = p.max_allocation = usable_host_memory();
  }
  // Ours are multiples of 128 bytes (of a page in two models): the width of OpenCL's largest type, double16.
  p.address_align = std::max<cl_uint>(Memory::kAlign, number<cl_uint>(*this, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8);
  memory = std::make_unique<Memory>(*this, model);
  has_cheap_events = is_cpu && unified;

  p.capabilities = TG_CAP_EVENT_TIMING;
  if (unified) p.capabilities |= TG_CAP_UNIFIED_MEMORY;
  if (model == MemoryModel::kBuffer) p.capabilities |= TG_CAP_BASE_OFFSET_POINTERS;
  if (number<cl_bool>(*this, CL_DEVICE_COMPILER_AVAILABLE) != 0) {
    p.capabilities |= TG_CAP_COMPILER;
    store(p.dialect, "opencl-c");
  }
  if (number<cl_bitfield>(*this, CL_DEVICE_DOUBLE_FP_CONFIG) != 0) p.capabilities |= TG_CAP_FLOAT64;
  if (has("cl_khr_fp16")) p.capabilities |= TG_CAP_FLOAT16;
  if (has("cl_khr_int64_base_atomics")) p.capabilities |= TG_CAP_ATOMIC_INT64;
  if (has("cl_khr_subgroups") || has("cl_intel_subgroups")) p.capabilities |= TG_CAP_SUBGROUPS;
  // Since compute capability 8.0. Older devices, and other makers', do not know the question.
  has_fragments =
      has("cl_nv_device_attribute_query") && number<cl_uint>(*this, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV) >= 8;
  if (has_fragments) p.capabilities |= TG_CAP_FRAGMENTS;
  if (is_cpu) add_host_capabilities(*this, text(platform, CL_PLATFORM_VERSION));
  add_clblast(*this);
}

cl_context create_context(const Api& api, cl_platform_id platform, cl_device_id id, cl_int& status) {
  const intptr_t properties[] = {0x1084 /* CL_CONTEXT_PLATFORM */, reinterpret_cast<intptr_t>(platform), 0};
  return api.clCreateContext(properties, 1, &id, nullptr, nullptr, &status);
}

cl_context Device::context() {
  std::call_once(context_once_, [this] {
    cl_int status = CL_SUCCESS;
    context_ = create_context(*api, platform, id, status);
    if (status != CL_SUCCESS) fail_call("clCreateContext", status, properties.name);
  });
  return context_;
}

tg_stream Device::transfer_stream() {
  std::call_once(transfer_once_, [this] { transfer_ = create_stream(*this, 0); });
  return transfer_;
}

tg_stream Device::clock_stream() {
  std::call_once(clock_once_, [this] { clock_ = create_stream(*this, 0); });
  return clock_;
}

tg_kernel Device::fill_kernel() {
  std::call_once(fill_once_, [this] {
    if ((properties.capabilities & TG_CAP_COMPILER) == 0) return;
    const bool offset = memory->model == MemoryModel::kBuffer;
    const std::string source = std::string("__kernel void tg_fill(__global uint4* to, ") +
                               (offset ? "ulong offset, " : "") + "ulong pieces, uint4 pattern) {\n" +
                               "  const ulong i = get_global_id(0);\n  if (i < pieces) to[" +
                               (offset ? "offset / 16 + " : "") + "i] = pattern;\n}\n";
    std::string log;
    try {
      fill_ = create_kernel(*compile(*this, source, "-cl-std=CL1.2", log), "tg_fill");
    } catch (const Failure&) {  // OpenCL's own command fills, too
    }
  });
  return fill_;
}

void set_fallback_libraries(const std::string& paths) { fallback_libraries = paths; }

void Journal::add(std::initializer_list<std::string> fields) {
  const char* separator = "";
  for (std::string field : fields) {
    std::replace_if(field.begin(), field.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
    text_ += separator + field;
    separator = "\t";
  }
  text_ += '\n';
}

Devices discover(std::string& why, Journal& journal) {
  check_memory_wish();
  check_clblast_wish();
  HostImplementations host;
  const std::string wanted_libraries = find_variable("TORCHGRAFT_OPENCL_LIBRARY").value_or("");
  const bool named = !wanted_libraries.empty();

  Devices devices;
  Names platform_names;
  std::string problems;
  const auto open = [&](const std::string& path) {
    std::vector<Platform> platforms;
    const std::string problem = open_library(path, platforms);
    if (!problem.empty()) problems += "\n  " + problem;
    journal.add({"library", path, problem});
    add_devices(platforms, host, devices, platform_names, journal);
  };

  if (named) {
    for (const std::string& path : split(wanted_libraries, ':')) open(path);
  } else {
    // The system's loader; without one, what it would have loaded.
    open(can_load("libOpenCL.so.1") ? "libOpenCL.so.1" : can_load("libOpenCL.so") ? "libOpenCL.so" : vendors_folder());
    for (const std::string& path : split(fallback_libraries, ':')) {
      if (devices.empty()) open(path);
    }
  }
  if (devices.empty()) why = why_none(named, platform_names) + problems;
  host.report(journal, !devices.empty(), why);
  std::stable_sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) { return rank(*a) < rank(*b); });
  return devices;
}

}  // namespace ocl
