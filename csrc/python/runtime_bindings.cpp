#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <limits>

#include "bindings.h"
#include "memory/adopted_memory.h"
#include "memory/allocator.h"
#include "memory/host_allocator.h"
#include "profiler/profiler.h"
#include "python_driver.h"
#include "runtime/assertions.h"
#include "runtime/command.h"
#include "runtime/device_selection.h"
#include "runtime/event.h"
#include "runtime/generator.h"
#include "runtime/guard.h"
#include "runtime/hooks.h"
#include "runtime/runtime.h"
#include "runtime/serialization.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace torchgraft {
namespace {

py::dict properties_dict(const Device& device) {
  const tg_device_properties& p = device.properties;
  py::dict d;
  d["driver"] = device.driver->name;
  d["ordinal"] = device.ordinal;
  d["index"] = static_cast<int>(device.index);
  d["kind"] = kind_name(p.kind);
  d["capabilities"] = p.capabilities;
  d["total_memory"] = p.total_memory;
  d["max_allocation"] = p.max_allocation;
  d["local_memory"] = p.local_memory;
  d["compute_units"] = p.compute_units;
  d["multi_processor_count"] = p.compute_units;  // the name that torch.cuda gave it
  d["max_work_group_size"] = p.max_work_group_size;
  d["simd_width"] = p.simd_width;
  d["address_align"] = p.address_align;
  d["clock_mhz"] = p.clock_mhz;
  d["name"] = p.name;
  d["vendor"] = p.vendor;
  d["driver_version"] = p.driver_version;
  d["platform"] = p.platform;
  d["dialect"] = p.dialect;
  d["uuid"] = p.uuid;
  d["program_formats"] = p.program_formats;
  d["unified_memory"] = device.has(TG_CAP_UNIFIED_MEMORY);
  d["has_compiler"] = device.has(TG_CAP_COMPILER);
  d["has_float64"] = device.has(TG_CAP_FLOAT64);
  d["has_float16"] = device.has(TG_CAP_FLOAT16);
  return d;
}

void set_memory_fraction(c10::DeviceIndex index, double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "the memory fraction must be between 0 and 1, not ", fraction);
  auto total = device_allocator()->getMemoryInfo(index).second;
  // All of the memory is no limit: the driver's own word counts then.
  set_memory_limit(index, fraction == 1 ? std::numeric_limits<uint64_t>::max()
                                        : static_cast<uint64_t>(static_cast<double>(total) * fraction));
}

double memory_fraction(c10::DeviceIndex index) {
  uint64_t limit = memory_limit(index), total = device_allocator()->getMemoryInfo(index).second;
  return limit >= total ? 1.0 : static_cast<double>(limit) / static_cast<double>(total);
}

// The keys are those of torch.cuda.memory_snapshot, so that the tools for it can be used.
py::dict segment_dict(const SegmentInfo& segment) {
  py::list blocks;
  size_t total = 0, requested = 0, allocated = 0, active = 0;
  for (const BlockInfo& block : segment.blocks) {
    py::dict d;
    d["address"] = block.address;
    d["size"] = block.size;
    d["requested_size"] = block.requested;
    d["state"] = block.allocated ? "active_allocated" : block.active ? "active_awaiting_free" : "inactive";
    d["frames"] = py::list();
    blocks.append(d);
    total += block.size;
    if (block.allocated) allocated += block.size, requested += block.requested;
    if (block.active) active += block.size;
  }
  py::dict d;
  d["device"] = static_cast<int>(segment.device);
  d["address"] = segment.blocks.front().address;
  d["total_size"] = total;
  d["allocated_size"] = allocated;
  d["active_size"] = active;
  d["requested_size"] = requested;
  d["stream"] = segment.stream;
  d["segment_type"] = segment.large ? "large" : "small";
  d["segment_pool_id"] = segment.pool;
  d["is_expandable"] = segment.expandable;
  d["frames"] = py::list();
  d["blocks"] = blocks;
  return d;
}

py::dict stat_dict(const c10::CachingAllocator::Stat& stat) {
  py::dict d;
  d["current"] = stat.current;
  d["peak"] = stat.peak;
  d["allocated"] = stat.allocated;
  d["freed"] = stat.freed;
  return d;
}

py::dict duration_dict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict d;
  d["total"] = stat.total;
  d["max"] = stat.max;
  d["min"] = stat.min;
  d["count"] = stat.count;
  d["avg"] = stat.count ? static_cast<double>(stat.total) / static_cast<double>(stat.count) : 0.0;
  return d;
}

py::dict host_stats_dict() {
  at::HostStats stats = host_allocator()->get_stats();
  py::dict d;
  d["num_host_alloc"] = stats.num_host_alloc;
  d["num_host_free"] = stats.num_host_free;
  d["allocations"] = stat_dict(stats.allocations);
  d["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  d["active_requests"] = stat_dict(stats.active_requests);
  d["active_bytes"] = stat_dict(stats.active_bytes);
  d["host_alloc_time"] = duration_dict(stats.host_alloc_time);
  d["host_free_time"] = duration_dict(stats.host_free_time);
  return d;
}

// For tests: what a kernel does that finds an error, done by the host.
void report_error_as_kernel(c10::DeviceIndex index, int32_t code, int64_t position) {
  const Device& device = get_device(index);
  const c10::StreamId stream = current_stream(index).id();
  void* words = stream_error_words(index, stream);
  int32_t report[4] = {code, static_cast<int32_t>(position), static_cast<int32_t>(position >> 32), 0};
  note_checked_launch(index, stream);
  check(device,
        submit_copy(device, stream_handle(index, stream), words, report, sizeof(report), TG_COPY_HOST_TO_DEVICE,
                    /*blocking=*/true),
        "writing the error words");
}

py::object generator_object(c10::DeviceIndex index) {
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(index)));
}

// Bytes over another library's device memory; `owner` lives as long as they are in use.
at::Tensor adopt(c10::DeviceIndex index, uintptr_t address, size_t bytes, py::object owner) {
  auto* held = new py::object(std::move(owner));
  c10::Storage storage = adopt_memory(index, reinterpret_cast<void*>(address), bytes, [held] {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    delete held;
  });
  at::Tensor tensor = at::empty({0}, at::device(storage.device()).dtype(at::kByte));
  return tensor.set_(storage, 0, {static_cast<int64_t>(bytes)}, {1});
}

const tg_driver* driver_of(const py::object& table) {
  if (py::isinstance<py::capsule>(table)) {
    auto capsule = py::reinterpret_borrow<py::capsule>(table);
    return capsule.get_pointer<const tg_driver>();
  }
  return reinterpret_cast<const tg_driver*>(table.cast<uintptr_t>());
}

}  // namespace

void install_runtime() {
  static bool installed = [] {
    register_hooks();  // first: it is the one that refuses when the place is taken
    register_guard();
    register_allocator();
    at::setHostAllocator(c10::DeviceType::PrivateUse1, host_allocator());
    register_profiler();
    register_serialization();
    watch_forks();
    return true;
  }();
  (void)installed;
}

void bind_runtime(py::module_& m) {
  // Functions that may wait let the GIL go; the others keep it.
  auto def = [&m](const char* name, auto function, const char* doc) {
    m.def(name, torch::wrap_pybind_function(function), doc);
  };
  auto def_waiting = [&m](const char* name, auto function, const char* doc) {
    m.def(name, torch::wrap_pybind_function_no_gil(function), doc);
  };

  def("install_runtime", [] { install_runtime(); }, "Takes PyTorch's place for out-of-tree devices. Idempotent.");
  def(
      "add_python_driver", [](py::object driver) { add_driver(wrap_python_driver(std::move(driver))); },
      "Adds a torchgraft.Driver.");
  def(
      "load_driver",
      [](const std::string& path, const std::string& symbol) {
        return reinterpret_cast<uintptr_t>(load_driver(path, symbol));
      },
      "The address of the driver table that a shared library exports.");
  def(
      "add_driver", [](const py::object& table) { add_driver(driver_of(table)); },
      "Adds a driver table, given by its address or a capsule of it.");
  def("set_backend_name", [](const std::string& name) { set_backend_name(name); }, "The name used in messages.");
  def("backend_name", [] { return backend_name(); }, "The same.");

  def_waiting("device_count", [] { return static_cast<int>(device_count()); }, "Opens the drivers at the first call.");
  def_waiting("device_errors", [] { return device_errors(); }, "Why devices are missing, or ''.");
  def("devices_opened", [] { return devices_opened(); }, "Whether the drivers have been opened.");
  def("set_activity_capacity", &set_activity_capacity, "How many activities one profile keeps.");
  def(
      "device_properties", [](int index) { return properties_dict(get_device(static_cast<c10::DeviceIndex>(index))); },
      "The properties of a device.");
  def(
      "found_devices",
      [] {
        py::list all;
        for (const FoundDevice& found : found_devices()) {
          py::dict properties = properties_dict(found.device);
          properties["duplicate_of"] = found.duplicate_of;
          all.append(properties);
        }
        return all;
      },
      "The properties of all devices that the drivers offer; those not used have the index -1, and `duplicate_of` is "
      "the "
      "place of an earlier one that is the same physical device, or -1.");
  def("in_bad_fork", [] { return in_bad_fork(); }, "Whether this is a forked child of a process that used devices.");
  def("raise_if_forked", [] { raise_if_forked(); }, "Raises in such a child.");
  def("current_device", [] { return static_cast<int>(current_device()); }, "The thread's current device.");
  def_waiting(
      "exchange_device",
      [](int index) { return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(index))); },
      "Sets the thread's current device (a negative index changes nothing) and returns the one before.");
  def_waiting(
      "synchronize", [](int index) { synchronize_device(static_cast<c10::DeviceIndex>(index)); },
      "Waits for all work of a device; raises what its kernels have reported.");
  def_waiting(
      "stream_handle",
      [](int index, int64_t id) {
        return reinterpret_cast<uintptr_t>(stream_handle(static_cast<c10::DeviceIndex>(index), id));
      },
      "The driver's handle of a stream.");
  def(
      "adopt_memory",
      [](int index, uintptr_t address, size_t bytes, py::object owner) {
        return adopt(static_cast<c10::DeviceIndex>(index), address, bytes, std::move(owner));
      },
      "A tensor of bytes over device memory that another library allocated; it keeps `owner` alive.");
  def("carry_backend_meta", &carry_backend_meta, "Gives the second tensor, a copy of the first, the first's fields.");
  def_waiting(
      "device_of_address",
      [](uintptr_t address) { return static_cast<int>(device_of_address(reinterpret_cast<const void*>(address))); },
      "The device that an address was allocated on, or -1.");
  def_waiting(
      "elapsed_time",
      [](uintptr_t start, uintptr_t end) {
        TORCH_CHECK_VALUE(start && end, "elapsed_time: both events must have been recorded");
        return elapsed_time(*reinterpret_cast<Event*>(start), *reinterpret_cast<Event*>(end));
      },
      "Milliseconds between two events, given by their torch.Event.event_id.");

  def_waiting(
      "memory_info", [](int index) { return device_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(index)); },
      "(free, total) bytes.");
  def_waiting(
      "set_memory_fraction",
      [](double fraction, int index) { set_memory_fraction(static_cast<c10::DeviceIndex>(index), fraction); },
      "Limits what this process takes of a device's memory.");
  def(
      "set_memory_limit",
      [](int index, uint64_t bytes) { set_memory_limit(static_cast<c10::DeviceIndex>(index), bytes); },
      "The same in bytes.");
  def_waiting(
      "memory_fraction", [](int index) { return memory_fraction(static_cast<c10::DeviceIndex>(index)); },
      "The part of the device's memory that this process is limited to; 1 where it is not.");
  def(
      "memory_snapshot",
      [] {
        py::list segments;
        for (const SegmentInfo& segment : memory_snapshot()) segments.append(segment_dict(segment));
        return segments;
      },
      "What all devices' segments are cut into.");
  def("host_memory_stats", [] { return host_stats_dict(); }, "The statistics of pinned memory.");
  def("reset_accumulated_host_memory_stats", [] { host_allocator()->reset_accumulated_stats(); }, "Of pinned memory.");
  def("reset_peak_host_memory_stats", [] { host_allocator()->reset_peak_stats(); }, "Of pinned memory.");

  def(
      "default_generator", [](int index) { return generator_object(static_cast<c10::DeviceIndex>(index)); },
      "The torch.Generator that a device uses when none is given.");

  def(
      "error_code", [](const std::string& message, bool is_index_error) { return error_code(message, is_index_error); },
      "The code of a message, raised as an IndexError or as a RuntimeError.");
  def_waiting(
      "_report_error_as_kernel",
      [](int index, int32_t code, int64_t position) {
        report_error_as_kernel(static_cast<c10::DeviceIndex>(index), code, position);
      },
      "For tests: writes the error words of the current stream as a kernel would.");
}

}  // namespace torchgraft
