#include "lent_thread.h"

#include <system_error>
#include <thread>
#include <utility>

#include "signals_blocked.h"

namespace ocl {

void LentThread::wait_for(cl_event command) {
  api_.clRetainEvent(command);
  cl_event passed_over = command;
  {
    std::lock_guard lock(mutex_);
    if (!begun_) {
      const SignalsBlocked blocked;
      try {
        std::thread(&LentThread::run, this).detach();
        begun_ = true;
      } catch (const std::system_error&) {
        // No more threads: the runtime's own do the work.
      }
    }
    if (begun_) passed_over = std::exchange(next_, command);
  }
  asked_.notify_one();
  if (passed_over != nullptr) api_.clReleaseEvent(passed_over);
}

void LentThread::run() {
  while (true) {
    std::unique_lock lock(mutex_);
    asked_.wait(lock, [this] { return next_ != nullptr; });
    const cl_event command = std::exchange(next_, nullptr);
    lock.unlock();
    static_cast<void>(api_.clWaitForEvents(1, &command));  // whoever waits for results asks what became of it
    api_.clReleaseEvent(command);
  }
}

}  // namespace ocl
