#include "interruption.h"

#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include "event.h"

namespace torchgraft {
namespace {

constexpr uint64_t kPiece = 100'000'000;  // nanoseconds

// Runs the handlers of the signals that have come; throws what they raise (KeyboardInterrupt), as torch carries
// Python's exceptions through C++.
void run_signal_handlers() {
  if (!Py_IsInitialized()) return;
  PyGILState_STATE state = PyGILState_Ensure();
  // An exception that is on its way already comes first.
  const bool raised = PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0;
  python_error error;
  if (raised) error.persist();
  PyGILState_Release(state);
  if (raised) throw error;
}

}  // namespace

bool can_interrupt(const Device& device) noexcept {
  // Python runs the handlers of signals in the main thread alone.
  thread_local const bool in_main_thread = gettid() == getpid();
  return in_main_thread && device.driver->event_synchronize_for;
}

tg_status wait_interruptibly(const Device& device, tg_event event) {
  const tg_driver* driver = device.driver;
  if (!can_interrupt(device)) return driver->event_synchronize(driver->context, device.ordinal, event);
  while (true) {
    const tg_status status = driver->event_synchronize_for(driver->context, device.ordinal, event, kPiece);
    if (status != TG_NOT_READY) return status;
    run_signal_handlers();
  }
}

tg_status wait_interruptibly(const Device& device, tg_stream stream) {
  const tg_driver* driver = device.driver;
  if (!can_interrupt(device)) return driver->stream_synchronize(driver->context, device.ordinal, stream);
  tg_status status = driver->stream_query(driver->context, device.ordinal, stream);
  if (status != TG_NOT_READY) return status;
  const EventPtr mark(create_event(device.index, /*timing=*/false));
  status = driver->event_record(driver->context, device.ordinal, mark->handle, stream);
  return status == TG_OK ? wait_interruptibly(device, mark->handle) : status;
}

}  // namespace torchgraft
