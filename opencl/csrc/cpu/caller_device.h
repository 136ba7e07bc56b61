// Small launches in the calling thread.
//
// To wake a worker and to wait for it costs PoCL 20 us and Intel's runtime 7, where a small kernel takes one. PoCL has
// a second device on the CPU ("basic", later "cpu-minimal") that runs a launch in the thread that makes it, and has run
// it when the call returns; of Intel's runtime queues of the same device do so that are made for it. That stands behind
// the device that users see: a launch that is small goes there while its stream has nothing to do, so that the order of
// a stream's commands stays what it is. PoCL's devices both take any address of the host.
//
// Launches that are not so small are shared with other threads (thread_team.h). Once PoCL's machine code of a kernel is
// known it is called without that device (work_group.h); where it is queues, each thread has some of its own, for
// pieces of the launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "direct_calls.h"
#include "host_clock.h"
#include "host_executor.h"
#include "host_mode.h"
#include "launch_costs.h"
#include "opencl_api.h"
#include "shared_team.h"
#include "torchgraft/driver.h"
#include "work_group.h"

namespace ocl {

// A kernel's machine code, where it can be called without PoCL, and the launches that it is known to be right for: PoCL
// has accepted one with such arguments and such groups. Written with the team's mutex held, before `function`.
struct KernelCode {
  std::atomic<bool> learned = false;  // what follows
  std::vector<tg_arg> accepted;
  size_t local[3] = {};
  std::atomic<uint32_t> searches = 0;
  LoadedObject object{nullptr, nullptr};
  std::atomic<WorkGroup> function = nullptr;
  bool ran = false;  // guarded by the team's mutex

  // Whether the function may be called for a launch.
  bool runs(const tg_launch& launch) const;
};

// A kernel's other self, made at its first small launch. Guarded by the team's mutex, its costs excepted.
struct CallerKernel final : ExecutorState {
  explicit CallerKernel(const Api& api) : api(api) {}
  ~CallerKernel() override {
    if (kernel != nullptr) api.clReleaseKernel(kernel);
  }

  const Api& api;
  cl_kernel kernel = nullptr;         // owned
  std::atomic<bool> refused = false;  // the other device does not take the program
  std::atomic<bool> ready = false;    // it has taken it
  uint32_t divisible = 0;             // along which dimensions its launches may be divided; known once it is ready
  std::vector<tg_arg> set;            // the arguments that the kernel has now
  LaunchCosts costs;                  // of launches by one thread
  LaunchCosts shared_costs;           // of those that the team has shared
  KernelCode code;
};

class CallerDevice {
 public:
  // `other` is the device that runs launches in the calling thread: one of the platform, or with none given the device
  // itself, by queues made for it. `lends_thread`: whether the implementation counts on threads that wait.
  CallerDevice(Device& device, const Platform* platform, cl_device_id other, HostMode mode, bool lends_thread,
               SharedTeam& team, const HostClock& clock);

  // As HostExecutor's.
  std::pair<std::string, std::string> describe();
  // Runs a launch if that pays and its stream is idle; otherwise does nothing and returns false.
  bool launch(tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch);
  // Notes that the workers were given a launch, which is how kernels are found to be right.
  void note_queued(tg_kernel_& kernel, const tg_launch& launch);
  // Nanoseconds that a launch is expected to take here; nothing if several workers would have it done earlier, their
  // waking counted, or if the kernel has not been run here yet.
  std::optional<uint32_t> takes(const tg_launch& launch);
  // Whether nobody but the calling thread and its helpers would do what is handed over to workers. They would only
  // begin later, and what the program does meanwhile takes the same processors' time.
  bool is_all() const { return is_other() && team_is_all(); }
  uint32_t wake_nanoseconds() const { return wake_nanoseconds_.load(std::memory_order_relaxed); }
  // The calling thread's turn: no other thread's launches are run meanwhile. The first waits for it; the second has it
  // at once or not at all, as `operator bool` tells.
  class Turn {
   public:
    explicit Turn(CallerDevice& device) : device_(device), lock_(device.team_.mutex) {}
    Turn(CallerDevice& device, std::try_to_lock_t at_once) : device_(device), lock_(device.team_.mutex, at_once) {}
    explicit operator bool() const { return lock_.owns_lock() && device_.suits_thread(); }
    // Throws if this device cannot run the launch. With `unchanged` the kernel has been run with the same arguments.
    void run(const tg_launch& launch, bool unchanged = false);

   private:
    CallerDevice& device_;
    std::unique_lock<std::mutex> lock_;
  };

 private:
  // By whom a launch is run.
  enum class Way { kWorkers, kByOpenCL, kAlone, kTogether };

  bool suits_thread() const;
  bool is_other() const { return platform_ != nullptr; }
  static CallerKernel& own(const tg_kernel_& kernel);
  static CallerKernel& original(const tg_kernel_& kernel);
  void learn(tg_kernel_& kernel, const tg_launch& launch);
  bool may_call();
  void find_code(tg_kernel_& kernel);
  bool needs_preparing(const tg_kernel_& kernel) const;
  void prepare(tg_kernel_& kernel);
  bool divides(const tg_kernel_& kernel, const tg_launch& launch) const;
  bool needs_code(CallerKernel& original) const;
  Way choose(const tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch);
  bool team_is_all() const { return team_.team.size() >= units_; }
  uint32_t most_together() const;
  void note_least(uint32_t nanoseconds);
  void run_code(CallerKernel& original, const tg_launch& launch, ThreadTeam* team);
  void run_divided(tg_kernel_& kernel, const tg_launch& launch);
  cl_command_queue make_queue(cl_bitfield properties, cl_int& status) const;
  void run_by_opencl(tg_kernel_& kernel, const tg_launch& launch, bool known);
  bool open();
  uint64_t binary_number(uint64_t own);
  cl_program load(tg_kernel_& kernel);
  cl_program program_of(cl_kernel kernel) const;
  cl_kernel kernel_of(tg_kernel_& kernel);

  Device& device_;
  const Api& api_;
  const cl_platform_id platform_;  // of another device; NULL if it is the same
  const cl_device_id id_;
  const uint32_t units_;
  const bool lends_thread_;
  const HostClock& clock_;
  // Its mutex guards what follows. One launch at a time: another thread's would be run by whoever is there, and be seen
  // as done.
  SharedTeam& team_;
  DirectCalls direct_;
  std::atomic<bool> calls_nothing_ = false;  // by machine code: it must not be

  bool opened_ = false, usable_ = false;
  cl_context context_ = nullptr;
  cl_command_queue queues_[2] = {};  // without and with times
  std::vector<cl_command_queue> piece_queues_;
  uint64_t binary_number_ = 0;
  // What it costs to wake a worker and to wait for it. Small is what takes less.
  std::atomic<uint32_t> wake_nanoseconds_{20000};
  std::atomic<uint32_t> least_nanoseconds_{1000};
};

}  // namespace ocl
