#include "python_driver.h"

#include <pybind11/stl.h>

#include <cstring>
#include <string>

namespace py = pybind11;

namespace torchgraft {
namespace {

struct PythonDriver {
  tg_driver table{};
  PyObject* object = nullptr;  // never released: the interpreter may end before the last use of the table
  std::string name;
};

thread_local std::string last_error;
thread_local std::string compile_log;

tg_status fail(tg_status status, std::string message) {
  last_error = std::move(message);
  return status;
}

// An object's text as UTF-8. What was decoded with "surrogateescape", as a compiler's words may be, becomes the bytes
// that it was, or question marks where only UTF-8 will do.
std::string text_of(const py::object& value, bool as_it_was = false) {
  const py::str text(value);
  PyObject* bytes = as_it_was ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape") : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
    bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "replace");
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

// "ValueError: no such thing (in allocate, my_driver.py:12)"
std::string describe(const py::error_already_set& error) {
  std::string text = py::str(error.type().attr("__name__"));
  if (std::string message = text_of(error.value()); !message.empty()) text += ": " + message;
  if (py::object trace = error.trace(); trace && !trace.is_none()) {
    while (!trace.attr("tb_next").is_none()) trace = trace.attr("tb_next");
    py::object code = trace.attr("tb_frame").attr("f_code");
    text += " (in " + std::string(py::str(code.attr("co_name"))) + ", " +
            std::string(py::str(code.attr("co_filename"))) + ":" + std::string(py::str(trace.attr("tb_lineno"))) + ")";
  }
  return text;
}

tg_status translate(py::error_already_set& error) {
  fail(TG_ERROR, describe(error));
  if (error.matches(PyExc_MemoryError)) return TG_ERROR_OUT_OF_MEMORY;
  if (error.matches(PyExc_NotImplementedError)) return TG_ERROR_UNSUPPORTED;
  // The main thread raises it once more, when the call of torch has returned.
  if (error.matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt();
    return TG_ERROR;
  }
  if (!py::hasattr(error.type(), "torchgraft_status")) return TG_ERROR;
  auto status = static_cast<tg_status>(error.type().attr("torchgraft_status").cast<int>());
  if (status == TG_ERROR_COMPILE) compile_log = text_of(error.value(), true);
  return status;
}

// While the interpreter ends only the thread that ends it may run Python; another would be stopped for ever.
bool python_may_run() {
  if (!Py_IsInitialized()) return false;
#if PY_VERSION_HEX >= 0x030D0000
  bool ending = Py_IsFinalizing();
#else
  bool ending = _Py_IsFinalizing();
#endif
  return !ending || PyGILState_Check();
}

// Runs `body(object)` with the GIL; whatever it throws becomes a status. An exception that the thread is already
// handling (a tensor freed while a traceback unwinds) is kept.
template <class Body>
tg_status call(void* context, Body body) noexcept {
  if (!python_may_run()) return fail(TG_ERROR, "the Python interpreter has ended");
  py::gil_scoped_acquire gil;
  py::error_scope pending;
  try {
    auto* driver = static_cast<PythonDriver*>(context);
    if constexpr (std::is_same_v<decltype(body(py::handle())), tg_status>) {
      return body(py::handle(driver->object));
    } else {
      body(py::handle(driver->object));
      return TG_OK;
    }
  } catch (py::error_already_set& error) {
    try {
      return translate(error);
    } catch (const std::exception& again) {
      return fail(TG_ERROR, std::string("an exception that cannot be described: ") + again.what());
    }
  } catch (const std::exception& error) {
    return fail(TG_ERROR, error.what());
  }
}

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }
void* address(const py::object& number) { return reinterpret_cast<void*>(number.cast<uintptr_t>()); }

// A handle is an owned reference to any Python object.
template <class Handle>
Handle to_handle(py::object object) {
  return reinterpret_cast<Handle>(object.release().ptr());
}
template <class Handle>
py::handle from_handle(Handle handle) {
  return py::handle(reinterpret_cast<PyObject*>(handle));
}

// Calls the method that destroys the object, and lets go of it even if that fails.
template <class Handle, class Body>
tg_status destroy(void* context, Handle handle, Body body) {
  return call(context, [&](py::handle driver) {
    py::object owned = py::reinterpret_steal<py::object>(from_handle(handle));
    body(driver, owned);
  });
}

template <size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::strncpy(field, text.c_str(), N - 1);
  field[N - 1] = '\0';
}

const char* get_last_error(void*) { return last_error.c_str(); }

tg_status device_count(void* context, int32_t* count) {
  last_error.clear();
  return call(context, [&](py::handle driver) { *count = driver.attr("device_count")().cast<int32_t>(); });
}

tg_status device_properties(void* context, int32_t device, tg_device_properties* out) {
  return call(context, [&](py::handle driver) {
    py::object p = driver.attr("device_properties")(device);
    uint32_t struct_size = out->struct_size;
    *out = {};
    out->struct_size = struct_size;
    out->kind = p.attr("kind").cast<uint32_t>();
    out->capabilities = p.attr("capabilities").cast<uint64_t>();
    out->total_memory = p.attr("total_memory").cast<uint64_t>();
    out->max_allocation = p.attr("max_allocation").cast<uint64_t>();
    if (out->max_allocation == 0) out->max_allocation = out->total_memory;
    out->local_memory = p.attr("local_memory").cast<uint64_t>();
    out->compute_units = p.attr("compute_units").cast<uint32_t>();
    out->max_work_group_size = p.attr("max_work_group_size").cast<uint32_t>();
    out->simd_width = p.attr("simd_width").cast<uint32_t>();
    out->address_align = p.attr("address_align").cast<uint32_t>();
    out->clock_mhz = p.attr("clock_mhz").cast<uint32_t>();
    put_text(out->name, py::str(p.attr("name")));
    put_text(out->vendor, py::str(p.attr("vendor")));
    put_text(out->driver_version, py::str(p.attr("driver_version")));
    put_text(out->platform, py::str(p.attr("platform")));
    put_text(out->dialect, py::str(p.attr("dialect")));
    put_text(out->uuid, py::str(p.attr("uuid")));
    std::string formats;
    for (const auto& each : py::tuple(py::getattr(driver, "program_formats", py::tuple())))
      formats += (formats.empty() ? "" : " ") + each.cast<std::string>();
    put_text(out->program_formats, formats);
  });
}

tg_status device_synchronize(void* context, int32_t device) {
  return call(context, [&](py::handle driver) { driver.attr("device_synchronize")(device); });
}

tg_status memory_info(void* context, int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return call(context, [&](py::handle driver) {
    std::tie(*free_bytes, *total_bytes) = driver.attr("memory_info")(device).cast<std::pair<uint64_t, uint64_t>>();
  });
}

tg_status allocate(void* context, int32_t device, uint64_t bytes, void** out) {
  return call(context, [&](py::handle driver) { *out = address(driver.attr("allocate")(device, bytes)); });
}
tg_status deallocate(void* context, int32_t device, void* memory) {
  return call(context, [&](py::handle driver) { driver.attr("deallocate")(device, number(memory)); });
}
tg_status host_allocate(void* context, int32_t device, uint64_t bytes, void** out) {
  return call(context, [&](py::handle driver) { *out = address(driver.attr("host_allocate")(device, bytes)); });
}
tg_status host_deallocate(void* context, int32_t device, void* memory) {
  return call(context, [&](py::handle driver) { driver.attr("host_deallocate")(device, number(memory)); });
}

tg_status reserve(void* context, int32_t device, uint64_t bytes, void** out) {
  return call(context, [&](py::handle driver) { *out = address(driver.attr("reserve")(device, bytes)); });
}
tg_status commit(void* context, int32_t device, void* memory, uint64_t bytes) {
  return call(context, [&](py::handle driver) { driver.attr("commit")(device, number(memory), bytes); });
}
tg_status decommit(void* context, int32_t device, void* memory, uint64_t bytes) {
  return call(context, [&](py::handle driver) { driver.attr("decommit")(device, number(memory), bytes); });
}

tg_status copy(void* context, int32_t device, tg_stream stream, void* destination, const void* source, uint64_t bytes,
               tg_copy_kind kind, int32_t blocking) {
  return call(context, [&](py::handle driver) {
    driver.attr("copy")(device, from_handle(stream), number(destination), number(source), bytes, static_cast<int>(kind),
                        blocking != 0);
  });
}
tg_status copy_peer(void* context, int32_t destination_device, void* destination, int32_t source_device,
                    const void* source, uint64_t bytes, tg_stream stream) {
  return call(context, [&](py::handle driver) {
    driver.attr("copy_peer")(destination_device, number(destination), source_device, number(source), bytes,
                             from_handle(stream));
  });
}
tg_status fill(void* context, int32_t device, tg_stream stream, void* destination, const void* pattern,
               uint32_t pattern_bytes, uint64_t bytes) {
  return call(context, [&](py::handle driver) {
    driver.attr("fill")(device, from_handle(stream), number(destination),
                        py::bytes(static_cast<const char*>(pattern), pattern_bytes), bytes);
  });
}

tg_status stream_create(void* context, int32_t device, int32_t priority, tg_stream* out) {
  return call(context,
              [&](py::handle driver) { *out = to_handle<tg_stream>(driver.attr("stream_create")(device, priority)); });
}
tg_status stream_destroy(void* context, int32_t device, tg_stream stream) {
  return destroy(context, stream,
                 [&](py::handle driver, py::object& object) { driver.attr("stream_destroy")(device, object); });
}
tg_status stream_synchronize(void* context, int32_t device, tg_stream stream) {
  return call(context, [&](py::handle driver) { driver.attr("stream_synchronize")(device, from_handle(stream)); });
}
tg_status stream_query(void* context, int32_t device, tg_stream stream) {
  return call(context, [&](py::handle driver) {
    return driver.attr("stream_query")(device, from_handle(stream)).cast<bool>() ? TG_OK : TG_NOT_READY;
  });
}

tg_status event_create(void* context, int32_t device, int32_t timing, tg_event* out) {
  return call(context,
              [&](py::handle driver) { *out = to_handle<tg_event>(driver.attr("event_create")(device, timing != 0)); });
}
tg_status event_destroy(void* context, int32_t device, tg_event event) {
  return destroy(context, event,
                 [&](py::handle driver, py::object& object) { driver.attr("event_destroy")(device, object); });
}
tg_status event_record(void* context, int32_t device, tg_event event, tg_stream stream) {
  return call(context,
              [&](py::handle driver) { driver.attr("event_record")(device, from_handle(event), from_handle(stream)); });
}
tg_status event_wait(void* context, int32_t device, tg_event event, tg_stream stream) {
  return call(context,
              [&](py::handle driver) { driver.attr("event_wait")(device, from_handle(event), from_handle(stream)); });
}
tg_status event_query(void* context, int32_t device, tg_event event) {
  return call(context, [&](py::handle driver) {
    return driver.attr("event_query")(device, from_handle(event)).cast<bool>() ? TG_OK : TG_NOT_READY;
  });
}
tg_status event_synchronize(void* context, int32_t device, tg_event event) {
  return call(context, [&](py::handle driver) { driver.attr("event_synchronize")(device, from_handle(event)); });
}
tg_status event_elapsed(void* context, int32_t device, tg_event start, tg_event end, double* milliseconds) {
  return call(context, [&](py::handle driver) {
    *milliseconds = driver.attr("event_elapsed")(device, from_handle(start), from_handle(end)).cast<double>();
  });
}

// Sets *log to what the compiler said, whether it succeeded or not.
template <class Body>
tg_status compile(void* context, const char** log, Body body) {
  compile_log.clear();
  tg_status status = call(context, body);
  if (log) *log = compile_log.empty() ? nullptr : compile_log.c_str();
  return status;
}

tg_status module_compile(void* context, int32_t device, const char* source, uint64_t source_bytes, const char* options,
                         tg_module* out, const char** log) {
  return compile(context, log, [&](py::handle driver) {
    *out = to_handle<tg_module>(
        driver.attr("module_compile")(device, py::str(source, source_bytes), py::str(options ? options : "")));
  });
}
tg_status module_load(void* context, int32_t device, const void* binary, uint64_t bytes, tg_module* out,
                      const char** log) {
  return compile(context, log, [&](py::handle driver) {
    *out = to_handle<tg_module>(driver.attr("module_load")(device, py::bytes(static_cast<const char*>(binary), bytes)));
  });
}
tg_status module_binary(void* context, tg_module module, void* buffer, uint64_t* bytes) {
  return call(context, [&](py::handle driver) {
    std::string binary = driver.attr("module_binary")(from_handle(module)).cast<py::bytes>();
    if (buffer) std::memcpy(buffer, binary.data(), std::min<size_t>(*bytes, binary.size()));
    *bytes = binary.size();
  });
}
tg_status module_destroy(void* context, tg_module module) {
  return destroy(context, module,
                 [&](py::handle driver, py::object& object) { driver.attr("module_destroy")(object); });
}
tg_status kernel_create(void* context, tg_module module, const char* name, tg_kernel* out) {
  return call(context, [&](py::handle driver) {
    *out = to_handle<tg_kernel>(driver.attr("kernel_create")(from_handle(module), name));
  });
}
tg_status kernel_destroy(void* context, tg_kernel kernel) {
  return destroy(context, kernel,
                 [&](py::handle driver, py::object& object) { driver.attr("kernel_destroy")(object); });
}
py::object argument_object(const tg_arg& argument) {
  if (argument.is_pointer) return py::int_(number(argument.value.pointer));
  return py::bytes(reinterpret_cast<const char*>(argument.value.bytes), argument.size);
}

// What the method gets after the device and the stream.
py::tuple launch_arguments(const tg_launch& launch) {
  py::tuple groups(launch.dims), local(launch.dims);
  for (uint32_t d = 0; d < launch.dims; ++d) {
    groups[d] = launch.groups[d];
    local[d] = launch.local[d];
  }
  py::list args;
  for (uint32_t i = 0; i < launch.arg_count; ++i) args.append(argument_object(launch.args[i]));
  return py::make_tuple(from_handle(launch.kernel), groups, local, args);
}

tg_status launch(void* context, int32_t device, tg_stream stream, const tg_launch* launch) {
  return call(context, [&](py::handle driver) {
    driver.attr("launch")(device, from_handle(stream), *launch_arguments(*launch));
  });
}

// ---- programs ----

const char* element_name(int32_t element);

py::object tensor_object(const tg_tensor& tensor) {
  if (tensor.element == 0) return py::none();
  const auto numbers = [&](const int64_t* given) {
    py::tuple made(tensor.dims);
    for (uint32_t d = 0; d < tensor.dims; ++d) made[d] = given[d];
    return made;
  };
  return py::module_::import("torchgraft.driver")
      .attr("ProgramTensor")(element_name(static_cast<int32_t>(tensor.element)), numbers(tensor.sizes),
                             numbers(tensor.strides), (tensor.flags & TG_TENSOR_NUMBER) != 0);
}

py::object attribute_object(const tg_attribute& attribute) {
  switch (attribute.kind) {
    case TG_ATTRIBUTE_INTEGER:
      return py::int_(attribute.integer);
    case TG_ATTRIBUTE_NUMBER:
      return py::float_(attribute.number);
    case TG_ATTRIBUTE_TEXT:
      return py::str(attribute.text);
    default: {
      py::tuple made(attribute.count);
      for (uint32_t i = 0; i < attribute.count; ++i) made[i] = attribute.integers[i];
      return made;
    }
  }
}

py::object source_object(const tg_program_source& source) {
  py::dict attributes;
  for (uint32_t i = 0; i < source.attribute_count; ++i) {
    const tg_attribute* each = tg_attribute_at(source.attributes, i);
    attributes[each->name] = attribute_object(*each);
  }
  const auto tensors = [](const tg_tensor* given, uint32_t count) {
    py::tuple made(count);
    for (uint32_t i = 0; i < count; ++i) made[i] = tensor_object(*tg_tensor_at(given, i));
    return made;
  };
  return py::module_::import("torchgraft.driver")
      .attr("ProgramSource")(source.format, source.name,
                             py::bytes(static_cast<const char*>(source.bytes), source.byte_count), attributes,
                             tensors(source.inputs, source.input_count), tensors(source.outputs, source.output_count));
}

tg_status program_supports(void* context, int32_t device, const tg_program_source* source, uint32_t* wishes) {
  return call(context, [&](py::handle driver) {
    const py::object wished = driver.attr("program_supports")(device, source_object(*source));
    if (wished.is_none()) return;
    const auto given = wished.cast<std::vector<uint32_t>>();
    const size_t tensors = size_t{source->input_count} + source->output_count;
    if (given.size() != tensors) throw py::value_error("program_supports returns a wish for each tensor, or None");
    std::copy(given.begin(), given.end(), wishes);
  });
}

void put_program(const py::object& made, tg_program* out, tg_program_info* info) {
  py::object program;
  std::tie(program, info->scratch_bytes) = made.cast<std::pair<py::object, uint64_t>>();
  info->flags = 0;
  *out = to_handle<tg_program>(program);
}
tg_status program_create(void* context, int32_t device, const tg_program_source* source, tg_program* out,
                         tg_program_info* info, const char** log) {
  return compile(context, log, [&](py::handle driver) {
    put_program(driver.attr("program_create")(device, source_object(*source)), out, info);
  });
}
tg_status program_load(void* context, int32_t device, const tg_program_source* source, const void* binary,
                       uint64_t bytes, tg_program* out, tg_program_info* info, const char** log) {
  return compile(context, log, [&](py::handle driver) {
    const py::bytes given(static_cast<const char*>(binary), bytes);
    put_program(driver.attr("program_load")(device, source_object(*source), given), out, info);
  });
}
tg_status program_binary(void* context, tg_program program, void* buffer, uint64_t* bytes) {
  return call(context, [&](py::handle driver) {
    const std::string binary = driver.attr("program_binary")(from_handle(program)).cast<py::bytes>();
    if (buffer) std::memcpy(buffer, binary.data(), std::min<size_t>(*bytes, binary.size()));
    *bytes = binary.size();
  });
}

tg_status program_destroy(void* context, tg_program program) {
  return destroy(context, program,
                 [&](py::handle driver, py::object& object) { driver.attr("program_destroy")(object); });
}

// What the method gets after the device and the stream.
py::tuple run_arguments(const tg_run& run) {
  py::list addresses;
  for (uint32_t i = 0; i < run.address_count; ++i) addresses.append(number(run.addresses[i]));
  return py::make_tuple(from_handle(run.program), addresses, number(run.scratch));
}

tg_status program_run(void* context, int32_t device, tg_stream stream, const tg_run* run) {
  return call(context, [&](py::handle driver) {
    driver.attr("program_run")(device, from_handle(stream), *run_arguments(*run));
  });
}

py::tuple command_tuple(const tg_command& command) {
  switch (command.kind) {
    case TG_COMMAND_RUN:
      return py::make_tuple("program_run", run_arguments(*static_cast<const tg_run*>(command.source)));
    case TG_COMMAND_LAUNCH:
      return py::make_tuple("launch", launch_arguments(command.launch));
    case TG_COMMAND_COPY:
      return py::make_tuple("copy", py::make_tuple(number(command.destination), number(command.source), command.bytes,
                                                   command.copy_kind, false));
    default: {
      const py::bytes pattern(reinterpret_cast<const char*>(command.pattern), command.pattern_bytes);
      return py::make_tuple("fill", py::make_tuple(number(command.destination), pattern, command.bytes));
    }
  }
}

tg_status graph_create(void* context, int32_t device, const tg_command* commands, uint32_t count, tg_graph* out) {
  return call(context, [&](py::handle driver) {
    py::list list;
    for (uint32_t i = 0; i < count; ++i) list.append(command_tuple(commands[i]));
    *out = to_handle<tg_graph>(driver.attr("graph_create")(device, list));
  });
}
tg_status graph_destroy(void* context, int32_t device, tg_graph graph) {
  return destroy(context, graph,
                 [&](py::handle driver, py::object& object) { driver.attr("graph_destroy")(device, object); });
}
tg_status graph_set_argument(void* context, int32_t device, tg_graph graph, uint32_t command, uint32_t argument,
                             const tg_arg* value) {
  return call(context, [&](py::handle driver) {
    driver.attr("graph_set_argument")(device, from_handle(graph), command, argument, argument_object(*value));
  });
}
tg_status graph_launch(void* context, int32_t device, tg_stream stream, tg_graph graph) {
  return call(context,
              [&](py::handle driver) { driver.attr("graph_launch")(device, from_handle(stream), from_handle(graph)); });
}

tg_status event_time_next(void* context, int32_t device, tg_event event) {
  return call(context, [&](py::handle driver) { driver.attr("event_time_next")(device, from_handle(event)); });
}
tg_status event_synchronize_for(void* context, int32_t device, tg_event event, uint64_t nanoseconds) {
  return call(context, [&](py::handle driver) {
    const double seconds = static_cast<double>(nanoseconds) * 1e-9;
    return driver.attr("event_synchronize_for")(device, from_handle(event), seconds).cast<bool>() ? TG_OK
                                                                                                  : TG_NOT_READY;
  });
}

tg_status event_times(void* context, int32_t device, tg_event event, uint64_t* begin, uint64_t* end) {
  return call(context, [&](py::handle driver) {
    std::tie(*begin, *end) =
        driver.attr("event_times")(device, from_handle(event)).cast<std::pair<uint64_t, uint64_t>>();
  });
}
tg_status device_time(void* context, int32_t device, uint64_t* nanoseconds) {
  return call(context, [&](py::handle driver) { *nanoseconds = driver.attr("device_time")(device).cast<uint64_t>(); });
}

// ---- collectives ----

const char* element_name(int32_t element) {
  static constexpr std::array<const char*, 13> names = {"",      "uint8",     "int8",      "int16",   "int32",
                                                        "int64", "float16",   "bfloat16",  "float32", "float64",
                                                        "bool",  "complex64", "complex128"};
  return names.at(static_cast<size_t>(element));
}
const char* reduction_name(int32_t reduction) {
  static constexpr std::array<const char*, 5> names = {"", "sum", "product", "minimum", "maximum"};
  return names.at(static_cast<size_t>(reduction));
}

tg_status group_id(void* context, int32_t device, void* id, uint64_t* bytes) {
  return call(context, [&](py::handle driver) {
    const std::string made = driver.attr("group_id")(device).cast<py::bytes>();
    if (made.size() > *bytes) throw std::length_error("group_id has more than 256 bytes");
    std::memcpy(id, made.data(), made.size());
    *bytes = made.size();
  });
}
tg_status group_create(void* context, int32_t device, const void* id, uint64_t bytes, int32_t rank, int32_t size,
                       tg_group* out) {
  return call(context, [&](py::handle driver) {
    *out = to_handle<tg_group>(
        driver.attr("group_create")(device, py::bytes(static_cast<const char*>(id), bytes), rank, size));
  });
}
tg_status group_destroy(void* context, int32_t device, tg_group group) {
  return destroy(context, group,
                 [&](py::handle driver, py::object& object) { driver.attr("group_destroy")(device, object); });
}

template <class... Arguments>
tg_status collective(void* context, const char* method, int32_t device, tg_group group, tg_stream stream,
                     Arguments... arguments) {
  return call(context, [&](py::handle driver) {
    driver.attr(method)(device, from_handle(group), from_handle(stream), arguments...);
  });
}
tg_status all_reduce(void* context, int32_t device, tg_group group, tg_stream stream, const void* source,
                     void* destination, uint64_t count, int32_t element, int32_t reduction) {
  return collective(context, "all_reduce", device, group, stream, number(source), number(destination), count,
                    element_name(element), reduction_name(reduction));
}
tg_status reduce_scatter(void* context, int32_t device, tg_group group, tg_stream stream, const void* source,
                         void* destination, uint64_t count, int32_t element, int32_t reduction) {
  return collective(context, "reduce_scatter", device, group, stream, number(source), number(destination), count,
                    element_name(element), reduction_name(reduction));
}
tg_status all_gather(void* context, int32_t device, tg_group group, tg_stream stream, const void* source,
                     void* destination, uint64_t bytes) {
  return collective(context, "all_gather", device, group, stream, number(source), number(destination), bytes);
}
tg_status broadcast(void* context, int32_t device, tg_group group, tg_stream stream, void* address, uint64_t bytes,
                    int32_t root) {
  return collective(context, "broadcast", device, group, stream, number(address), bytes, root);
}
// Whether the object's class has a method of its own, not the base class's that only says "I cannot".
bool provides(const py::object& driver, const char* method) {
  py::object found = py::getattr(py::type::of(driver), method, py::none());
  return !found.is_none() && !py::hasattr(found, "__torchgraft_optional__");
}

}  // namespace

const tg_driver* wrap_python_driver(py::object object) {
  auto* driver = new PythonDriver;
  driver->name = py::str(py::getattr(object, "name", py::str("python")));
  tg_driver& t = driver->table;
  t.abi_version = TG_DRIVER_ABI;
  t.struct_size = sizeof(tg_driver);
  t.name = driver->name.c_str();
  t.context = driver;
  t.last_error = get_last_error;

#define TG_METHOD(member) \
  if (provides(object, #member)) t.member = member
  TG_METHOD(device_count);
  TG_METHOD(device_properties);
  TG_METHOD(device_synchronize);
  TG_METHOD(memory_info);
  TG_METHOD(allocate);
  TG_METHOD(deallocate);
  TG_METHOD(host_allocate);
  TG_METHOD(host_deallocate);
  TG_METHOD(copy);
  TG_METHOD(copy_peer);
  TG_METHOD(fill);
  TG_METHOD(stream_create);
  TG_METHOD(stream_destroy);
  TG_METHOD(stream_synchronize);
  TG_METHOD(stream_query);
  TG_METHOD(event_create);
  TG_METHOD(event_destroy);
  TG_METHOD(event_record);
  TG_METHOD(event_wait);
  TG_METHOD(event_query);
  TG_METHOD(event_synchronize);
  TG_METHOD(event_elapsed);
  TG_METHOD(event_time_next);
  TG_METHOD(event_times);
  TG_METHOD(device_time);
  TG_METHOD(event_synchronize_for);
  TG_METHOD(graph_create);
  TG_METHOD(graph_destroy);
  TG_METHOD(graph_set_argument);
  TG_METHOD(graph_launch);
  TG_METHOD(group_id);
  TG_METHOD(group_create);
  TG_METHOD(group_destroy);
  TG_METHOD(all_reduce);
  TG_METHOD(reduce_scatter);
  TG_METHOD(all_gather);
  TG_METHOD(broadcast);
  TG_METHOD(reserve);
  TG_METHOD(commit);
  TG_METHOD(decommit);
  if (py::getattr(object, "has_compiler", py::bool_(false)).cast<bool>()) {
    t.module_compile = module_compile;
    t.module_load = module_load;
    t.module_binary = module_binary;
    t.module_destroy = module_destroy;
    t.kernel_create = kernel_create;
    t.kernel_destroy = kernel_destroy;
    t.launch = launch;
  }
  if (py::getattr(object, "has_programs", py::bool_(false)).cast<bool>()) {
    t.program_supports = program_supports;
    t.program_create = program_create;
    t.program_destroy = program_destroy;
    t.program_run = program_run;
    TG_METHOD(program_load);
    TG_METHOD(program_binary);
  }
#undef TG_METHOD
  driver->object = object.release().ptr();
  return &t;
}

}  // namespace torchgraft
