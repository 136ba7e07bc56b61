#include "executor.h"

#include "batch.h"
#include "program.h"
#include "stretch.h"
#include "transfers.h"

namespace ocl {
namespace {

// Whether queues can be made whose commands the calling thread runs.
bool has_local_queues(const Device& device) {
  return device.api->clCreateCommandQueueWithProperties != nullptr &&
         text(*device.api, device.id, CL_DEVICE_EXTENSIONS).find("cl_intel_exec_by_local_thread") != std::string::npos;
}

}  // namespace

CpuExecutor::CpuExecutor(Device& device, const Platform& platform, cl_device_id other, HostMode mode)
    : device_(device),
      team_(mode >= HostMode::kTeam ? ThreadTeam::suitable_size(device.properties.compute_units) : 1),
      lent_thread_(is_intel(device) ? std::make_unique<LentThread>(*device.api) : nullptr) {
  // Launches are run with addresses as they are.
  if (device.memory->model != MemoryModel::kHost || (other == nullptr && !has_local_queues(device))) return;
  caller_ = std::make_unique<CallerDevice>(device, other != nullptr ? &platform : nullptr,
                                           other != nullptr ? other : device.id, mode, lent_thread_ != nullptr, team_,
                                           clock_);
}

bool CpuExecutor::launch(tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch) {
  return caller_ != nullptr && (caller_->launch(stream, kernel, launch) || hand_over(stream, *caller_, launch));
}

bool CpuExecutor::copy(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, bool blocking) {
  return copy_by_host(stream, team_, clock_, destination, source, bytes, blocking);
}

bool CpuExecutor::fill(tg_stream_& stream, void* destination, const unsigned char* pattern, uint32_t pattern_bytes,
                       uint64_t bytes) {
  return fill_by_host(stream, team_, clock_, destination, pattern, pattern_bytes, bytes);
}

size_t CpuExecutor::replay(tg_stream_& stream, const std::shared_ptr<GraphCommands>& commands, size_t first) {
  const bool can = caller_ != nullptr && device_.has_native_kernels && device_.unified();
  return can ? replay_stretch(stream, *caller_, commands, first) : 0;
}

std::unique_ptr<ExecutorState> CpuExecutor::make_kernel_state() {
  return caller_ != nullptr ? std::make_unique<CallerKernel>(*device_.api) : nullptr;
}

void CpuExecutor::note_queued(tg_kernel_& kernel, const tg_launch& launch) {
  if (caller_ != nullptr) caller_->note_queued(kernel, launch);
}

void CpuExecutor::note_wait(cl_event command) {
  if (lent_thread_ != nullptr) lent_thread_->wait_for(command);
}

void CpuExecutor::note_timing() { clock_.find(device_); }

std::pair<std::string, std::string> CpuExecutor::describe() {
  return caller_ != nullptr ? caller_->describe() : std::pair<std::string, std::string>("workers", "");
}

}  // namespace ocl
