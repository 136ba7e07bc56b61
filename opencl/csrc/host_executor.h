// The seam between the driver and what makes work quick on devices that are the host's own processors.
//
// The driver is whole without it: everything is queued, as on any GPU. A device may have an executor, which is asked
// first. The only one is made in cpu/, for CPU devices; TORCHGRAFT_OPENCL_HOST=off leaves it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "opencl_api.h"
#include "torchgraft/driver.h"

namespace ocl {

struct Device;
struct GraphCommand;
class Journal;

// What an executor keeps with a kernel, or with the last command of a stream. Only the executor knows what it is.
struct ExecutorState {
  ExecutorState() = default;
  ExecutorState(const ExecutorState&) = delete;
  ExecutorState& operator=(const ExecutorState&) = delete;
  virtual ~ExecutorState() = default;
};

class HostExecutor {
 public:
  HostExecutor() = default;
  HostExecutor(const HostExecutor&) = delete;
  HostExecutor& operator=(const HostExecutor&) = delete;
  virtual ~HostExecutor() = default;

  // Each of these does the work in the stream's order, or has it done in a way of its own, and returns true; or does
  // nothing and returns false, and the driver queues it. Copies and fills are those of memory that is the host's too.
  virtual bool launch(tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch) = 0;
  virtual bool copy(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, bool blocking) = 0;
  virtual bool fill(tg_stream_& stream, void* destination, const unsigned char* pattern, uint32_t pattern_bytes,
                    uint64_t bytes) = 0;
  // Likewise for commands of a graph, from one on: how many of them it has taken.
  virtual size_t replay(tg_stream_& stream, const std::shared_ptr<std::vector<GraphCommand>>& commands,
                        size_t first) = 0;

  // What is to stand in a new kernel.
  virtual std::unique_ptr<ExecutorState> make_kernel_state() = 0;
  // Told that the driver has queued a launch.
  virtual void note_queued(tg_kernel_& kernel, const tg_launch& launch) = 0;
  // Told that the calling thread is going to wait for a command without OpenCL.
  virtual void note_wait(cl_event command) = 0;
  // Told that the calling thread is going to have its commands timed.
  virtual void note_timing() = 0;

  // How small launches are run, for `torchgraft doctor`: a word, and what there is to say of it. What has not been
  // tried yet is tried.
  //   direct   their machine code is called
  //   device   a second device of the implementation runs them
  //   queues   queues of the device's own that have the calling thread run them
  //   workers  the implementation's workers, as large ones
  virtual std::pair<std::string, std::string> describe() = 0;
};

// What implementations of OpenCL for CPUs need while devices are looked for. Exists once, from before the first library
// is opened until all devices are known.
class HostImplementations {
 public:
  // Sets the variables that they read. Throws where TORCHGRAFT_OPENCL_HOST has none of its values.
  HostImplementations();
  // Programs that this one starts later find the variables as they were.
  ~HostImplementations();
  HostImplementations(const HostImplementations&) = delete;
  HostImplementations& operator=(const HostImplementations&) = delete;

  // Whether a platform can work at all: to ask one that cannot for its devices may end the process.
  bool can_work(const Platform& platform);
  // Takes those out of a platform's devices that users are not to see.
  void hide(const Platform& platform, std::vector<cl_device_id>& ids);
  // Gives a platform's devices, which are the last so many, their executors.
  void equip(const Platform& platform, const std::vector<std::unique_ptr<Device>>& devices, size_t count);
  // Tells what was met: in the journal, to users whose settings are not used, and to those who have no device.
  void report(Journal& journal, bool any_devices, std::string& why_none);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Adds what the host's processor can do to a CPU device's capabilities.
void add_host_capabilities(Device& device, const std::string& platform_version);

}  // namespace ocl
