// The team of a device, which several threads may ask: one at a time.
#pragma once

#include <cstddef>
#include <mutex>

#include "host_clock.h"
#include "stream.h"
#include "thread_team.h"

namespace ocl {

struct SharedTeam {
  explicit SharedTeam(unsigned threads) : team(threads) {}

  // Has the team do work of so many parts if the stream is idle and nobody else has the team; otherwise does nothing
  // and returns false.
  bool share_if_idle(tg_stream_& stream, const HostClock& clock, ThreadTeam::Part part, const void* work, size_t count);

  ThreadTeam team;
  std::mutex mutex;  // whoever asks the team has it
};

}  // namespace ocl
