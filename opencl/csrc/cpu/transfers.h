// Copies and fills of memory that is the host's too.
#pragma once

#include <cstdint>

#include "host_clock.h"
#include "shared_team.h"
#include "stream.h"

namespace ocl {

// Both as HostExecutor's: in the calling thread, by the team, or by a function of the host's in the stream's order.
bool copy_by_host(tg_stream_& stream, SharedTeam& team, const HostClock& clock, void* destination, const void* source,
                  uint64_t bytes, bool blocking);
bool fill_by_host(tg_stream_& stream, SharedTeam& team, const HostClock& clock, void* destination,
                  const unsigned char* pattern, uint32_t pattern_bytes, uint64_t bytes);

}  // namespace ocl
