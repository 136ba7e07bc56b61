// The executor of a CPU device: what is made here, put together.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "caller_device.h"
#include "host_clock.h"
#include "host_executor.h"
#include "host_mode.h"
#include "lent_thread.h"
#include "shared_team.h"

namespace ocl {

class CpuExecutor final : public HostExecutor {
 public:
  // `other`, of the platform, is a device that runs launches in the calling thread; NULL if there is none.
  CpuExecutor(Device& device, const Platform& platform, cl_device_id other, HostMode mode);

  bool launch(tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch) override;
  bool copy(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, bool blocking) override;
  bool fill(tg_stream_& stream, void* destination, const unsigned char* pattern, uint32_t pattern_bytes,
            uint64_t bytes) override;
  size_t replay(tg_stream_& stream, const std::shared_ptr<std::vector<GraphCommand>>& commands, size_t first) override;

  std::unique_ptr<ExecutorState> make_kernel_state() override;
  void note_queued(tg_kernel_& kernel, const tg_launch& launch) override;
  void note_wait(cl_event command) override;
  void note_timing() override;
  std::pair<std::string, std::string> describe() override;

 private:
  Device& device_;
  HostClock clock_;
  SharedTeam team_;
  std::unique_ptr<LentThread> lent_thread_;  // where the implementation counts on threads that wait
  std::unique_ptr<CallerDevice> caller_;     // for small launches, where the implementation has a way
};

}  // namespace ocl
