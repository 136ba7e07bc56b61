// The driver: the table of torchgraft/driver.h over device.h and operators.h.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "operators.h"

struct tg_program_ {
  std::string name;
  npu::Program program;
  std::vector<bool> is_number;  // of inputs
};

namespace npu {

Source::Source(const tg_program_source& source) : name(source.name) {
  const auto tensors = [](const tg_tensor* given, uint32_t count) {
    std::vector<Tensor> made(count);
    for (uint32_t i = 0; i < count; ++i) {
      const tg_tensor& each = *tg_tensor_at(given, i);
      made[i].element = each.element;
      if (each.element == 0) continue;
      made[i].is_number = (each.flags & TG_TENSOR_NUMBER) != 0;
      made[i].sizes.assign(each.sizes, each.sizes + each.dims);
      made[i].strides.assign(each.strides, each.strides + each.dims);
    }
    return made;
  };
  inputs = tensors(source.inputs, source.input_count);
  outputs = tensors(source.outputs, source.output_count);
  for (uint32_t i = 0; i < source.attribute_count; ++i) {
    const tg_attribute& each = *tg_attribute_at(source.attributes, i);
    attributes_[each.name] = {each.kind == TG_ATTRIBUTE_INTEGER,
                              each.integer,
                              each.number,
                              each.text != nullptr ? each.text : "",
                              {each.integers, each.integers + each.count}};
  }
}

const Source::Attribute& Source::find(const char* key) const {
  const auto found = attributes_.find(key);
  if (found == attributes_.end()) refuse(name + " is to have the attribute " + key);
  return found->second;
}

namespace {

thread_local std::string last_error;

template <class Body>
tg_status run(int32_t device, Body&& body) noexcept {
  try {
    if (device != 0) throw Failure(TG_ERROR_INVALID, "there is no device " + std::to_string(device));
    body();
    return TG_OK;
  } catch (const Failure& failure) {
    last_error = failure.what();
    return failure.status;
  } catch (const std::bad_alloc&) {
    last_error = "no memory is left";
    return TG_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error = error.what();
    return TG_ERROR;
  }
}

// All streams, for device_synchronize.
std::mutex streams_mutex;
std::set<tg_stream> streams;

uint64_t total_memory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

void repeat(char* to, const char* pattern, uint32_t size, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += size) std::memcpy(to + i, pattern, size);
}

void check_format(const tg_program_source& source) {
  if (std::strcmp(source.format, "operator") != 0) refuse("the device takes operators, and no graphs");
}

// What oneDNN does not do is for others to do.
Program prepared(const Source& source, std::vector<uint32_t>* wishes) {
  try {
    return prepare(source, wishes);
  } catch (const Failure&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    refuse("oneDNN: " + std::string(error.what()));
  }
}

const tg_driver table = {
    .abi_version = TG_DRIVER_ABI,
    .struct_size = sizeof(tg_driver),
    .name = "onednn",
    .context = nullptr,
    .last_error = [](void*) { return last_error.c_str(); },

    .device_count =
        [](void*, int32_t* count) {
          *count = 1;
          return TG_OK;
        },
    .device_properties =
        [](void*, int32_t device, tg_device_properties* out) {
          return run(device, [&] {
            tg_device_properties p{};
            p.struct_size = out->struct_size;
            p.kind = TG_DEVICE_ACCELERATOR;
            p.capabilities = TG_CAP_PROGRAMS | TG_CAP_EVENT_TIMING;
            p.total_memory = p.max_allocation = total_memory();
            p.compute_units = p.max_work_group_size = p.simd_width = 1;
            p.address_align = 64;
            std::strcpy(p.name, "oneDNN as an accelerator");
            std::strcpy(p.driver_version, "1");
            std::memcpy(out, &p, std::min<size_t>(out->struct_size, sizeof p));
          });
        },
    .device_synchronize =
        [](void*, int32_t device) {
          return run(device, [] {
            const std::lock_guard lock(streams_mutex);
            std::exception_ptr first;
            for (tg_stream each : streams) {
              try {
                each->synchronize();
              } catch (const Failure&) {
                if (first == nullptr) first = std::current_exception();
              }
            }
            if (first != nullptr) std::rethrow_exception(first);
          });
        },
    .memory_info =
        [](void*, int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
          return run(device, [&] { *free_bytes = *total_bytes = total_memory(); });
        },

    .allocate =
        [](void*, int32_t device, uint64_t bytes, void** address) {
          return run(device, [&] {
            if (bytes > total_memory()) throw std::bad_alloc();
            void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
            if (memory == nullptr) throw std::bad_alloc();
            *address = on_device(memory);
          });
        },
    .deallocate = [](void*, int32_t device,
                     void* address) { return run(device, [&] { std::free(on_host(address)); }); },
    .host_allocate = nullptr,
    .host_deallocate = nullptr,

    .copy =
        [](void*, int32_t device, tg_stream stream, void* destination, const void* source, uint64_t bytes,
           tg_copy_kind kind, int32_t blocking) {
          return run(device, [&] {
            char* to = kind == TG_COPY_DEVICE_TO_HOST ? static_cast<char*>(destination) : on_host(destination);
            const char* by = kind == TG_COPY_HOST_TO_DEVICE ? static_cast<const char*>(source) : on_host(source);
            stream->submit([=] { std::memmove(to, by, bytes); });
            if (blocking != 0) stream->synchronize();
          });
        },
    .copy_peer = nullptr,
    .fill =
        [](void*, int32_t device, tg_stream stream, void* destination, const void* pattern, uint32_t size,
           uint64_t bytes) {
          return run(device, [&] {
            const std::string repeated(static_cast<const char*>(pattern), size);
            stream->submit([=] { repeat(on_host(destination), repeated.data(), size, bytes); });
          });
        },

    .stream_create =
        [](void*, int32_t device, int32_t, tg_stream* out) {
          return run(device, [&] {
            *out = new tg_stream_;
            const std::lock_guard lock(streams_mutex);
            streams.insert(*out);
          });
        },
    .stream_destroy =
        [](void*, int32_t device, tg_stream stream) {
          return run(device, [&] {
            {
              const std::lock_guard lock(streams_mutex);
              streams.erase(stream);
            }
            delete stream;
          });
        },
    .stream_synchronize = [](void*, int32_t device,
                             tg_stream stream) { return run(device, [&] { stream->synchronize(); }); },
    .stream_query =
        [](void*, int32_t device, tg_stream stream) {
          bool idle = false;
          const tg_status status = run(device, [&] { idle = stream->is_idle(); });
          return status != TG_OK || idle ? status : TG_NOT_READY;
        },

    .event_create = [](void*, int32_t device, int32_t,
                       tg_event* out) { return run(device, [&] { *out = new tg_event_; }); },
    .event_destroy = [](void*, int32_t device, tg_event event) { return run(device, [&] { delete event; }); },
    .event_record =
        [](void*, int32_t device, tg_event event, tg_stream stream) {
          return run(device, [&] {
            auto mark = std::make_shared<Mark>();
            stream->submit([mark] { mark->pass(); });
            const std::lock_guard lock(event->mutex);
            event->mark = std::move(mark);
          });
        },
    .event_wait =
        [](void*, int32_t device, tg_event event, tg_stream stream) {
          return run(device, [&] {
            if (const auto mark = event->get()) stream->submit([mark] { mark->wait(); });
          });
        },
    .event_query =
        [](void*, int32_t device, tg_event event) {
          const auto mark = event->get();
          return mark == nullptr || mark->passed() ? TG_OK : TG_NOT_READY;
        },
    .event_synchronize =
        [](void*, int32_t device, tg_event event) {
          return run(device, [&] {
            if (const auto mark = event->get()) mark->wait();
          });
        },
    .event_elapsed =
        [](void*, int32_t device, tg_event start, tg_event end, double* milliseconds) {
          return run(device, [&] {
            const auto first = start->get(), last = end->get();
            if (first == nullptr || last == nullptr || !first->passed() || !last->passed())
              throw Failure(TG_ERROR_INVALID, "time was asked of an event that has not passed");
            *milliseconds = std::chrono::duration<double, std::milli>(last->time() - first->time()).count();
          });
        },

    .module_compile = nullptr,
    .module_load = nullptr,
    .module_binary = nullptr,
    .module_destroy = nullptr,
    .kernel_create = nullptr,
    .kernel_destroy = nullptr,
    .launch = nullptr,

    .event_time_next = nullptr,
    .event_times = nullptr,
    .device_time = nullptr,
    .event_synchronize_for =
        [](void*, int32_t device, tg_event event, uint64_t nanoseconds) {
          const auto mark = event->get();
          return mark == nullptr || mark->wait_for(std::chrono::nanoseconds(nanoseconds)) ? TG_OK : TG_NOT_READY;
        },

    .graph_create = nullptr,
    .graph_destroy = nullptr,
    .graph_set_argument = nullptr,
    .graph_launch = nullptr,
    .group_id = nullptr,
    .group_create = nullptr,
    .group_destroy = nullptr,
    .all_reduce = nullptr,
    .reduce_scatter = nullptr,
    .all_gather = nullptr,
    .broadcast = nullptr,
    .reserve = nullptr,
    .commit = nullptr,
    .decommit = nullptr,

    .program_supports =
        [](void*, int32_t device, const tg_program_source* source, uint32_t* wishes) {
          return run(device, [&] {
            check_format(*source);
            std::vector<uint32_t> wished(source->input_count + source->output_count, TG_WISH_NONE);
            prepared(Source(*source), &wished);
            std::copy(wished.begin(), wished.end(), wishes);
          });
        },
    .program_create =
        [](void*, int32_t device, const tg_program_source* source, tg_program* out, tg_program_info* info,
           const char** log) {
          *log = nullptr;
          return run(device, [&] {
            check_format(*source);
            const Source read(*source);
            auto made = std::make_unique<tg_program_>();
            made->name = read.name;
            made->program = prepared(read, nullptr);
            for (const Tensor& each : read.inputs) made->is_number.push_back(each.is_number);
            info->flags = 0;
            info->scratch_bytes = made->program.scratch_bytes;
            *out = made.release();
          });
        },
    .program_destroy =
        [](void*, tg_program program) {
          delete program;  // what is still to run has a copy of its function
          return TG_OK;
        },
    .program_run =
        [](void*, int32_t device, tg_stream stream, const tg_run* given) {
          return run(device, [&] {
            // Numbers are read now.
            struct Kept {
              Run run;
              std::vector<int64_t> numbers;
            };
            auto kept = std::make_shared<Kept>();
            const std::vector<bool>& is_number = given->program->is_number;
            kept->numbers.resize(given->address_count);
            for (uint32_t i = 0; i < given->address_count; ++i) {
              if (i < is_number.size() && is_number[i]) {
                std::memcpy(&kept->numbers[i], given->addresses[i], sizeof(int64_t));
                kept->run.places.push_back(&kept->numbers[i]);
              } else {
                kept->run.places.push_back(on_host(given->addresses[i]));
              }
            }
            kept->run.scratch = on_host(given->scratch);
            stream->submit([kept, name = given->program->name, function = given->program->program.run] {
              try {
                function(kept->run);
              } catch (const std::exception& error) {
                throw Failure(TG_ERROR, "operator " + name + ": " + error.what());
              }
            });
          });
        },
    .program_binary = nullptr,
    .program_load = nullptr,
};

}  // namespace
}  // namespace npu

extern "C" __attribute__((visibility("default"))) const tg_driver* torchgraft_driver(void) { return &npu::table; }
