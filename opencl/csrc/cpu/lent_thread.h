// A thread that waits in OpenCL while the program waits elsewhere.
//
// Intel's runtime for CPUs has a thread less than the device has units. It counts on the one that waits for results,
// and has it run kernels meanwhile: on two cores that is half of the speed. But OpenCL's waits end when the work is
// done, and not when a user presses Ctrl-C, so the program waits otherwise (`wait_for` in event.h), and this thread
// takes its place.
#pragma once

#include <condition_variable>
#include <mutex>

#include "opencl_api.h"

namespace ocl {

class LentThread {
 public:
  explicit LentThread(const Api& api) : api_(api) {}
  LentThread(const LentThread&) = delete;
  LentThread& operator=(const LentThread&) = delete;

  // Has the thread wait for the command, after the one that it is waiting for: of several that are asked for meanwhile,
  // for the last. Whether it fails is nothing to this thread. It begins at the first call, and ends with the process.
  void wait_for(cl_event command);

 private:
  void run();

  const Api& api_;
  std::mutex mutex_;
  std::condition_variable asked_;
  cl_event next_ = nullptr;  // owned
  bool begun_ = false;
};

}  // namespace ocl
