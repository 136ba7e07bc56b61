// The driver's table: arguments checked, failures turned into statuses, and nothing else.
#include "torchgraft/driver.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

#include "clblast.h"
#include "device.h"
#include "error.h"
#include "event.h"
#include "graph.h"
#include "program.h"
#include "stream.h"
#include "transfer.h"

namespace ocl {
namespace {

#define OCL_EXPORT extern "C" __attribute__((visibility("default")))

struct Driver {
  std::once_flag once;
  Devices devices;
  std::string why_none;
  Journal journal;
};

// Never destroyed: the implementations' threads and torch's own last frees outlive static objects.
Driver& driver() {
  static Driver& instance = *new Driver;
  return instance;
}

Devices& devices() {
  Driver& d = driver();
  std::call_once(d.once, [&] { d.devices = discover(d.why_none, d.journal); });
  return d.devices;
}

Device& device_at(int32_t index) {
  Devices& all = devices();
  if (index < 0 || static_cast<size_t>(index) >= all.size()) [[unlikely]] {
    fail_invalid("there is no OpenCL device " + std::to_string(index) + ", only " + std::to_string(all.size()));
  }
  return *all[static_cast<size_t>(index)];
}

tg_stream_& stream_of(int32_t device, tg_stream stream) {
  if (stream->device != &device_at(device)) [[unlikely]]
    fail_invalid("a stream was used with another device than its own");
  return *stream;
}

// Runs the body of a table's function. The body may return a status of its own.
template <class Body>
tg_status run(const char* function, Body&& body) noexcept {
  try {
    if (faults_armed.load(std::memory_order_relaxed)) [[unlikely]]
      maybe_fail(function);
    if constexpr (std::is_same_v<decltype(body()), tg_status>) {
      return body();
    } else {
      body();
      return TG_OK;
    }
  } catch (const Failure& failure) {
    set_last_error(failure.what());
    return failure.status;
  } catch (const std::bad_alloc&) {
    set_last_error(std::string(function) + ": the host has no memory left");
    return TG_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(std::string(function) + ": " + error.what());
    return TG_ERROR;
  }
}

// The same for what submits a command: the event that times it, if any, times nothing else.
template <class Body>
tg_status run_command(const char* function, Body&& body) noexcept {
  const tg_status status = run(function, body);
  end_timing();
  return status;
}

// The log of the thread's last compilation.
thread_local std::string thread_log;

const tg_driver table = {
    .abi_version = TG_DRIVER_ABI,
    .struct_size = sizeof(tg_driver),
    .name = "opencl",
    .context = nullptr,

    .last_error = [](void*) { return last_error(); },

    .device_count =
        [](void*, int32_t* count) {
          return run("device_count", [&] {
            *count = static_cast<int32_t>(devices().size());
            if (*count == 0) set_last_error(driver().why_none);
          });
        },
    .device_properties =
        [](void*, int32_t device, tg_device_properties* out) {
          return run("device_properties", [&] {
            // A caller built against an older header has a shorter struct.
            const uint32_t size = std::min<uint32_t>(out->struct_size, sizeof *out);
            std::memcpy(out, &device_at(device).properties, size);
            out->struct_size = size;
          });
        },
    .device_synchronize =
        [](void*, int32_t device) {
          return run("device_synchronize", [&] {
            Device& d = device_at(device);
            std::lock_guard lock(d.streams_mutex);  // so that none is destroyed meanwhile
            for (tg_stream stream : d.streams) finish(*stream);
            for (tg_stream stream : d.streams) throw_failure(*stream);
          });
        },
    .memory_info =
        [](void*, int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
          return run("memory_info", [&] {
            const Device& d = device_at(device);
            *total_bytes = d.properties.total_memory;
            *free_bytes = d.properties.total_memory - d.memory->allocated();
          });
        },

    .allocate =
        [](void*, int32_t device, uint64_t bytes, void** address) {
          return run("allocate", [&] { *address = device_at(device).memory->allocate(bytes); });
        },
    .deallocate =
        [](void*, int32_t device, void* address) {
          return run("deallocate", [&] { device_at(device).memory->deallocate(address); });
        },
    .host_allocate =
        [](void*, int32_t device, uint64_t bytes, void** address) {
          return run("host_allocate", [&] { *address = device_at(device).memory->allocate_pinned(bytes); });
        },
    .host_deallocate =
        [](void*, int32_t device, void* address) {
          return run("host_deallocate", [&] { device_at(device).memory->deallocate_pinned(address); });
        },

    .copy =
        [](void*, int32_t device, tg_stream stream, void* destination, const void* source, uint64_t bytes,
           tg_copy_kind kind, int32_t blocking) {
          return run_command("copy", [&] {
            if (bytes != 0) copy(stream_of(device, stream), destination, source, bytes, kind, blocking != 0);
          });
        },
    .copy_peer =
        [](void*, int32_t destination_device, void* destination, int32_t source_device, const void* source,
           uint64_t bytes, tg_stream stream) {
          return run_command("copy_peer", [&] {
            tg_stream_& own = stream_of(destination_device, stream);
            if (bytes != 0) copy_peer(own, destination, device_at(source_device), source, bytes);
          });
        },
    .fill =
        [](void*, int32_t device, tg_stream stream, void* destination, const void* pattern, uint32_t pattern_bytes,
           uint64_t bytes) {
          return run_command("fill", [&] {
            if (bytes != 0) fill(stream_of(device, stream), destination, pattern, pattern_bytes, bytes);
          });
        },

    .stream_create =
        [](void*, int32_t device, int32_t priority, tg_stream* out) {
          return run("stream_create", [&] { *out = create_stream(device_at(device), priority); });
        },
    .stream_destroy =
        [](void*, int32_t device, tg_stream stream) {
          return run("stream_destroy", [&] { destroy_stream(&stream_of(device, stream)); });
        },
    .stream_synchronize =
        [](void*, int32_t device, tg_stream stream) {
          return run("stream_synchronize", [&] { wait(stream_of(device, stream)); });
        },
    .stream_query =
        [](void*, int32_t device, tg_stream stream) {
          return run("stream_query", [&] {
            tg_stream_& asked = stream_of(device, stream);
            note_wait(asked);
            return is_idle(asked) ? TG_OK : TG_NOT_READY;
          });
        },

    .event_create =
        [](void*, int32_t device, int32_t timing, tg_event* out) {
          return run("event_create", [&] { *out = create_event(device_at(device), timing != 0); });
        },
    .event_destroy = [](void*, int32_t, tg_event event) { return run("event_destroy", [&] { destroy_event(event); }); },
    .event_record =
        [](void*, int32_t device, tg_event event, tg_stream stream) {
          return run("event_record", [&] { record(*event, stream_of(device, stream)); });
        },
    .event_wait =
        [](void*, int32_t device, tg_event event, tg_stream stream) {
          return run("event_wait", [&] { make_wait(stream_of(device, stream), *event); });
        },
    .event_query =
        [](void*, int32_t, tg_event event) {
          return run("event_query", [&] { return is_done(*event) ? TG_OK : TG_NOT_READY; });
        },
    .event_synchronize = [](void*, int32_t, tg_event event) { return run("event_synchronize", [&] { wait(*event); }); },
    .event_elapsed =
        [](void*, int32_t, tg_event start, tg_event end, double* milliseconds) {
          return run("event_elapsed", [&] { *milliseconds = elapsed_milliseconds(*start, *end); });
        },

    .module_compile =
        [](void*, int32_t device, const char* source, uint64_t source_bytes, const char* options, tg_module* out,
           const char** log) {
          thread_log.clear();
          const tg_status status = run("module_compile", [&] {
            *out = compile(device_at(device), std::string(source, source_bytes), options != nullptr ? options : "",
                           thread_log);
          });
          if (log != nullptr) *log = thread_log.c_str();
          return status;
        },
    .module_load =
        [](void*, int32_t device, const void* binary, uint64_t bytes, tg_module* out, const char** log) {
          thread_log.clear();
          const tg_status status =
              run("module_load", [&] { *out = load(device_at(device), binary, bytes, thread_log); });
          if (log != nullptr) *log = thread_log.c_str();
          return status;
        },
    .module_binary =
        [](void*, tg_module module, void* buffer, uint64_t* bytes) {
          return run("module_binary", [&] { read_binary(*module, buffer, *bytes); });
        },
    .module_destroy = [](void*, tg_module module) { return run("module_destroy", [&] { destroy_module(module); }); },
    .kernel_create = [](void*, tg_module module, const char* name,
                        tg_kernel* out) { return run("kernel_create", [&] { *out = create_kernel(*module, name); }); },
    .kernel_destroy = [](void*, tg_kernel kernel) { return run("kernel_destroy", [&] { destroy_kernel(kernel); }); },
    .launch =
        [](void*, int32_t device, tg_stream stream, const tg_launch* what) {
          return run_command("launch", [&] { launch(stream_of(device, stream), *what); });
        },

    .event_time_next =
        [](void*, int32_t device, tg_event event) {
          return run("event_time_next", [&] {
            if (event->device != &device_at(device)) fail_invalid("an event was used with another device than its own");
            begin_timing(*event);
          });
        },
    .event_times =
        [](void*, int32_t, tg_event event, uint64_t* begin, uint64_t* end) {
          return run("event_times", [&] {
            const Times times = command_times(*event);
            *begin = times.begin;
            *end = times.end;
          });
        },
    .device_time = [](void*, int32_t device,
                      uint64_t* time) { return run("device_time", [&] { *time = device_time(device_at(device)); }); },

    .event_synchronize_for =
        [](void*, int32_t, tg_event event, uint64_t nanoseconds) {
          return run("event_synchronize_for",
                     [&] { return wait_for(*event, std::chrono::nanoseconds(nanoseconds)) ? TG_OK : TG_NOT_READY; });
        },

    .graph_create =
        [](void*, int32_t device, const tg_command* commands, uint32_t count, tg_graph* out) {
          return run("graph_create", [&] { *out = create_graph(device_at(device), commands, count); });
        },
    .graph_destroy = [](void*, int32_t, tg_graph graph) { return run("graph_destroy", [&] { destroy_graph(graph); }); },
    .graph_set_argument =
        [](void*, int32_t, tg_graph graph, uint32_t command, uint32_t argument, const tg_arg* value) {
          return run("graph_set_argument", [&] { set_argument(*graph, command, argument, *value); });
        },
    .graph_launch =
        [](void*, int32_t device, tg_stream stream, tg_graph graph) {
          return run_command("graph_launch", [&] { launch(stream_of(device, stream), *graph); });
        },

    // OpenCL has no network: collectives go through the host.
    .group_id = nullptr,
    .group_create = nullptr,
    .group_destroy = nullptr,
    .all_reduce = nullptr,
    .reduce_scatter = nullptr,
    .all_gather = nullptr,
    .broadcast = nullptr,

    .reserve =
        [](void*, int32_t device, uint64_t bytes, void** address) {
          return run("reserve", [&] { *address = device_at(device).memory->reserve(bytes); });
        },
    .commit = [](void*, int32_t device, void* address,
                 uint64_t bytes) { return run("commit", [&] { device_at(device).memory->commit(address, bytes); }); },
    .decommit =
        [](void*, int32_t device, void* address, uint64_t bytes) {
          return run("decommit", [&] { device_at(device).memory->decommit(address, bytes); });
        },

    .program_supports =
        [](void*, int32_t device, const tg_program_source* source, uint32_t*) {
          return run("program_supports", [&] { check_program(device_at(device), *source); });
        },
    .program_create =
        [](void*, int32_t device, const tg_program_source* source, tg_program* out, tg_program_info* info,
           const char** log) {
          thread_log.clear();
          const tg_status status = run("program_create", [&] {
            *out = prepare_program(device_at(device), *source, thread_log);
            info->flags = 0;
            info->scratch_bytes = 0;
          });
          if (log != nullptr) *log = thread_log.c_str();
          return status;
        },
    .program_destroy = [](void*,
                          tg_program program) { return run("program_destroy", [&] { destroy_program(program); }); },
    .program_run =
        [](void*, int32_t device, tg_stream stream, const tg_run* what) {
          return run_command("program_run", [&] { run_program(stream_of(device, stream), *what); });
        },
    .program_binary = nullptr,
    .program_load = nullptr,
};

}  // namespace

OCL_EXPORT const tg_driver* torchgraft_driver(void) { return &table; }

// For tests: see error.h. Returns 0, or 1 if the text was not understood.
OCL_EXPORT int torchgraft_opencl_fail(const char* specification) {
  return inject_faults(specification != nullptr ? specification : "") ? 0 : 1;
}

// Before the first device_count: OpenCL libraries, separated by ':', that are tried when the system's has no device.
OCL_EXPORT void torchgraft_opencl_fallback_libraries(const char* paths) {
  set_fallback_libraries(paths != nullptr ? paths : "");
}

// For torchgraft_opencl/interop.py: OpenCL's own objects, borrowed. They return a tg_status, and the table's last_error
// says what went wrong.
OCL_EXPORT tg_status torchgraft_opencl_device(int32_t device, cl_context* context, cl_device_id* id, int32_t* model) {
  return run("torchgraft_opencl_device", [&] {
    Device& d = device_at(device);
    *context = d.context();
    *id = d.id;
    *model = static_cast<int32_t>(d.memory->model);
  });
}

OCL_EXPORT tg_status torchgraft_opencl_queue(int32_t device, tg_stream stream, cl_command_queue* queue) {
  return run("torchgraft_opencl_queue", [&] { *queue = share(stream_of(device, stream)); });
}

OCL_EXPORT tg_status torchgraft_opencl_place(int32_t device, const void* address, uint64_t bytes, cl_mem* buffer,
                                             uint64_t* offset) {
  return run("torchgraft_opencl_place", [&] {
    const Memory::Place place = device_at(device).memory->find(address, bytes);
    *buffer = place.buffer;
    *offset = place.offset;
  });
}

OCL_EXPORT tg_status torchgraft_opencl_adopt(int32_t device, cl_mem buffer, uint64_t bytes, void** address) {
  return run("torchgraft_opencl_adopt", [&] { *address = device_at(device).memory->adopt(buffer, bytes); });
}

OCL_EXPORT tg_status torchgraft_opencl_release(int32_t device, void* address) {
  return run("torchgraft_opencl_release", [&] { device_at(device).memory->deallocate(address); });
}

OCL_EXPORT const char* torchgraft_opencl_last_error() { return last_error(); }

// What was found and what was refused, as lines of text (see Journal in device.h); opens the devices. After a failure
// it is what had been met until then.
OCL_EXPORT const char* torchgraft_opencl_journal(void) {
  run("torchgraft_opencl_journal", [] { devices(); });
  return driver().journal.text().c_str();
}

// How each device runs small launches, a line each: its name, a word and what there is to say of it, separated by tabs
// (see HostExecutor::describe). Valid in the calling thread until its next call.
OCL_EXPORT const char* torchgraft_opencl_small_launches(void) {
  thread_local Journal ways;
  ways = {};
  run("torchgraft_opencl_small_launches", [] {
    for (const auto& device : devices()) {
      const auto [way, why] = device->executor != nullptr ? device->executor->describe()
                                                          : std::pair<std::string, std::string>("workers", "");
      ways.add({device->properties.name, way, why});
    }
  });
  return ways.text().c_str();
}

}  // namespace ocl
