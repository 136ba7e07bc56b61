#include "shared_team.h"

namespace ocl {

bool SharedTeam::share_if_idle(tg_stream_& stream, const HostClock& clock, ThreadTeam::Part part, const void* work,
                               size_t count) {
  if (!clock.can_time(*stream.device) || !is_idle(stream)) return false;
  const std::unique_lock alone(mutex, std::try_to_lock);
  if (!alone) return false;
  std::lock_guard lock(stream.mutex);
  if (stream.busy.load(std::memory_order_relaxed)) return false;  // another thread was quicker
  team.start();
  clock.run_timed(*stream.device, [&] { team.share(part, work, count, /*wake=*/true); });
  return true;
}

}  // namespace ocl
