#include "device.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "device_selection.h"

namespace torchgraft {
namespace {

enum Phase : int { kClosed, kOpening, kOpened };

// Never destroyed: tensors are freed after static destructors have begun.
struct Registry {
  std::mutex mutex;
  std::vector<const tg_driver*> added;    // as they were given to us
  std::vector<const tg_driver*> drivers;  // the same, completed
  std::vector<FoundDevice> found;         // this and the next are fixed from kOpened on
  std::vector<Device> devices;
  std::string errors;
  std::string name = "privateuseone";
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

// What the hot paths read, beside the registry so that they need not pass its guard.
std::atomic<int> phase{kClosed};
std::atomic<bool> forked{false};
Device* devices = nullptr;
c10::DeviceIndex opened_count = 0;
thread_local bool opening_in_this_thread = false;

// A lock held by another thread of the parent stays locked in the child for ever, so in the child everything that would
// take one looks at this flag first.
void after_fork_in_child() {
  if (phase.load() != kClosed) forked.store(true);
}

const char* driver_error(const tg_driver* driver) {
  const char* text = driver->last_error(driver->context);
  return text && *text ? text : "the driver gave no reason";
}

void append_error(std::string& errors, const std::string& text) {
  if (!errors.empty()) errors += '\n';
  errors += text;
}

void append_error(std::string& errors, const tg_driver* driver, const std::string& text) {
  append_error(errors, std::string(driver->name) + ": " + text);
}

// What the properties claim must be there.
const char* missing_for(const tg_driver* driver, uint64_t capabilities) {
  if ((capabilities & TG_CAP_COMPILER) && !driver->launch) return "TG_CAP_COMPILER but no kernel functions";
  if ((capabilities & TG_CAP_PROGRAMS) && !driver->program_run) return "TG_CAP_PROGRAMS but no functions for programs";
  if ((capabilities & TG_CAP_EVENT_TIMING) && !driver->event_elapsed) return "TG_CAP_EVENT_TIMING but no event_elapsed";
  return nullptr;
}

void open_driver(Registry& r, const tg_driver* driver) {
  int32_t found = 0;
  if (driver->device_count(driver->context, &found) != TG_OK)
    return append_error(r.errors, driver, driver_error(driver));
  if (found <= 0) return append_error(r.errors, driver, std::string("no devices (") + driver_error(driver) + ")");
  for (int32_t ordinal = 0; ordinal < found; ++ordinal) {
    Device device{driver, ordinal, -1, {}};
    device.properties.struct_size = sizeof(tg_device_properties);
    auto where = "device " + std::to_string(ordinal) + ": ";
    if (driver->device_properties(driver->context, ordinal, &device.properties) != TG_OK) {
      append_error(r.errors, driver, where + driver_error(driver));
    } else if (const char* missing = missing_for(driver, device.properties.capabilities)) {
      append_error(r.errors, driver, where + "it claims " + missing);
    } else {
      r.found.push_back({device});
    }
  }
}

// Numbers those of the found devices that are used.
void choose_devices(Registry& r) {
  mark_duplicates(r.found);
  Selection selection = select_devices(r.found, std::getenv("TORCHGRAFT_DEVICES"));
  if (!selection.errors.empty()) append_error(r.errors, selection.errors);
  if (selection.chosen.size() > static_cast<size_t>(kMaxDevices)) {
    append_error(r.errors, "more than " + std::to_string(kMaxDevices) +
                               " devices; the rest is left out (TORCHGRAFT_DEVICES chooses others)");
    selection.chosen.resize(kMaxDevices);
  }
  for (size_t position : selection.chosen) {
    Device& device = r.found[position].device;
    device.index = static_cast<c10::DeviceIndex>(r.devices.size());
    r.devices.push_back(device);
  }
}

c10::DeviceIndex open_devices() noexcept {
  if (opening_in_this_thread) return 0;  // a driver that asks, while it is opened
  Registry& r = registry();
  GilSafeLock lock(r.mutex);
  if (phase.load() == kOpened) return opened_count;
  opening_in_this_thread = true;
  phase.store(kOpening);
  try {
    for (const tg_driver* driver : r.drivers) open_driver(r, driver);
    if (r.drivers.empty()) r.errors = "no driver has been added";
    choose_devices(r);
  } catch (const std::exception& e) {
    r.errors += e.what();
  }
  devices = r.devices.data();
  opened_count = static_cast<c10::DeviceIndex>(r.devices.size());
  phase.store(kOpened, std::memory_order_release);
  opening_in_this_thread = false;
  return opened_count;
}

std::string device_name(const Device& device) { return backend_name() + ":" + std::to_string(device.index); }

// A driver's table, with NULL for the members that the header of the driver's time did not have; throws what is wrong
// with it.
tg_driver checked_table(const tg_driver* driver) {
  TORCH_CHECK(driver, "add_driver: the table of the driver is NULL");
  TORCH_CHECK(driver->abi_version == TG_DRIVER_ABI, "add_driver: the driver was built for version ",
              driver->abi_version, " of torchgraft/driver.h; this torchgraft speaks version ", TG_DRIVER_ABI);
  TORCH_CHECK(driver->struct_size >= TG_DRIVER_MIN_SIZE, "add_driver: the driver's table has ", driver->struct_size,
              " bytes, this torchgraft needs ", TG_DRIVER_MIN_SIZE, "; set struct_size to sizeof(tg_driver)");
  tg_driver table{};
  std::memcpy(&table, driver, std::min<size_t>(driver->struct_size, sizeof table));
  driver = &table;
#define TG_REQUIRE(member)                                                               \
  TORCH_CHECK(driver->member, "add_driver: driver '", driver->name ? driver->name : "?", \
              "' lacks the member `" #member "`")
  TG_REQUIRE(name);
  TG_REQUIRE(last_error);
  TG_REQUIRE(device_count);
  TG_REQUIRE(device_properties);
  TG_REQUIRE(device_synchronize);
  TG_REQUIRE(memory_info);
  TG_REQUIRE(allocate);
  TG_REQUIRE(deallocate);
  TG_REQUIRE(copy);
  TG_REQUIRE(fill);
  TG_REQUIRE(stream_create);
  TG_REQUIRE(stream_destroy);
  TG_REQUIRE(stream_synchronize);
  TG_REQUIRE(stream_query);
  TG_REQUIRE(event_create);
  TG_REQUIRE(event_destroy);
  TG_REQUIRE(event_record);
  TG_REQUIRE(event_wait);
  TG_REQUIRE(event_query);
  TG_REQUIRE(event_synchronize);
  if (driver->host_allocate || driver->host_deallocate) {
    TG_REQUIRE(host_allocate);
    TG_REQUIRE(host_deallocate);
  }
  if (driver->module_compile || driver->module_load || driver->module_binary || driver->module_destroy ||
      driver->kernel_create || driver->kernel_destroy || driver->launch) {
    TG_REQUIRE(module_compile);
    TG_REQUIRE(module_load);
    TG_REQUIRE(module_binary);
    TG_REQUIRE(module_destroy);
    TG_REQUIRE(kernel_create);
    TG_REQUIRE(kernel_destroy);
    TG_REQUIRE(launch);
  }
  if (driver->event_time_next || driver->event_times || driver->device_time) {
    TG_REQUIRE(event_time_next);
    TG_REQUIRE(event_times);
    TG_REQUIRE(device_time);
  }
  if (driver->graph_create || driver->graph_destroy || driver->graph_set_argument || driver->graph_launch) {
    TG_REQUIRE(graph_create);
    TG_REQUIRE(graph_destroy);
    TG_REQUIRE(graph_set_argument);
    TG_REQUIRE(graph_launch);
  }
  if (driver->group_id || driver->group_create || driver->group_destroy || driver->all_reduce ||
      driver->reduce_scatter || driver->all_gather || driver->broadcast) {
    TG_REQUIRE(group_id);
    TG_REQUIRE(group_create);
    TG_REQUIRE(group_destroy);
    TG_REQUIRE(all_reduce);
    TG_REQUIRE(reduce_scatter);
    TG_REQUIRE(all_gather);
    TG_REQUIRE(broadcast);
  }
  if (driver->program_supports || driver->program_create || driver->program_destroy || driver->program_run) {
    TG_REQUIRE(program_supports);
    TG_REQUIRE(program_create);
    TG_REQUIRE(program_destroy);
    TG_REQUIRE(program_run);
  }
  if (driver->program_binary || driver->program_load) {
    TG_REQUIRE(program_create);
    TG_REQUIRE(program_binary);
    TG_REQUIRE(program_load);
  }
  if (driver->reserve || driver->commit || driver->decommit) {
    TG_REQUIRE(reserve);
    TG_REQUIRE(commit);
    TG_REQUIRE(decommit);
  }
#undef TG_REQUIRE
  return table;
}

}  // namespace

void add_driver(const tg_driver* given) {
  const tg_driver table = checked_table(given);
  raise_if_forked();
  Registry& r = registry();
  GilSafeLock lock(r.mutex);
  TORCH_CHECK(phase.load() == kClosed, "add_driver: driver '", table.name, "' comes too late, the devices of ", r.name,
              " have already been counted; add drivers before the first use of the device");
  TORCH_CHECK(std::find(r.added.begin(), r.added.end(), given) == r.added.end(), "add_driver: driver '", table.name,
              "' has already been added");
  r.added.push_back(given);
  // A copy is used until the process ends.
  r.drivers.push_back(given->struct_size >= sizeof table ? given : new tg_driver(table));
}

const tg_driver* load_driver(const std::string& path, const std::string& symbol) {
  // Never closed: the table lives as long as the library.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "cannot load the driver ", path, ": ", dlerror());
  auto entry = reinterpret_cast<tg_driver_entry>(dlsym(library, symbol.c_str()));
  TORCH_CHECK(entry, "the driver ", path, " does not export the function ", symbol, "()");
  const tg_driver* driver = entry();
  TORCH_CHECK(driver, symbol, "() of the driver ", path, " returned NULL");
  checked_table(driver);
  return driver;
}

const std::string& backend_name() { return registry().name; }
void set_backend_name(const std::string& name) { registry().name = name; }

c10::DeviceIndex device_count() noexcept {
  if (phase.load(std::memory_order_acquire) == kOpened) [[likely]]
    return opened_count;
  if (forked.load(std::memory_order_relaxed)) return 0;  // forked while the parent was opening
  return open_devices();
}

bool devices_opened() noexcept { return phase.load(std::memory_order_acquire) == kOpened; }

std::string device_errors() {
  if (in_bad_fork()) return {};
  device_count();
  return registry().errors;
}

const std::vector<FoundDevice>& found_devices() {
  raise_if_forked();
  device_count();
  return registry().found;
}

Device& get_device(c10::DeviceIndex index) {
  if (forked.load(std::memory_order_relaxed)) [[unlikely]]
    raise_if_forked();
  c10::DeviceIndex available = device_count();
  if (index < 0 || index >= available) [[unlikely]] {
    std::string errors = device_errors();
    TORCH_CHECK(false, "The device index is out of range: there is no ", backend_name(), ":", static_cast<int>(index),
                ", ", static_cast<int>(available), available == 1 ? " device is" : " devices are", " available",
                errors.empty() ? "" : "; ", errors);
  }
  return devices[index];
}

void raise_status(const Device& device, tg_status status, const char* what) {
  c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  std::string text = device_name(device) + ": " + what + " failed: " + driver_error(device.driver);
  switch (status) {
    case TG_ERROR_OUT_OF_MEMORY:
      throw c10::OutOfMemoryError(here, text);
    case TG_ERROR_UNSUPPORTED:
      throw c10::NotImplementedError(here, text);
    case TG_ERROR_INVALID:
    case TG_ERROR_COMPILE:
      throw c10::Error(here, text);
    default:
      throw c10::AcceleratorError(here, static_cast<int32_t>(status), text);
  }
}

WithoutPython::WithoutPython() {
  if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
}

WithoutPython::~WithoutPython() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

GilSafeLock::GilSafeLock(std::mutex& mutex) : mutex_(mutex) {
  if (mutex_.try_lock()) return;
  if (!Py_IsInitialized() || !PyGILState_Check()) {
    mutex_.lock();
    return;
  }
  // Whoever holds the mutex may be waiting for the GIL.
  PyThreadState* state = PyEval_SaveThread();
  mutex_.lock();
  PyEval_RestoreThread(state);
}

bool in_bad_fork() noexcept { return forked.load(std::memory_order_relaxed); }

void raise_if_forked() {
  if (!in_bad_fork()) return;
  const std::string& name = backend_name();
  TORCH_CHECK(false, "Cannot re-initialize ", name, " in forked subprocess. To use ", name,
              " with multiprocessing, you must use the 'spawn' start method");
}

void watch_forks() {
  static int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  TORCH_CHECK(registered == 0, "pthread_atfork failed");
}

}  // namespace torchgraft
