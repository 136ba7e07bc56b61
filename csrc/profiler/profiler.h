// The device in torch.profiler: what activity.h collects, and the events of the older profiler.
#pragma once

#include <cstdint>

namespace torchgraft {

// Tells torch of the device. Called once by install_runtime(), before or after the first profile of the process.
void register_profiler();

// By which the profiler knows the calling thread.
int32_t profiled_thread_id();

}  // namespace torchgraft
