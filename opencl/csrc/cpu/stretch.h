// Small commands of a graph that follow each other: run one after the other by the calling thread, or by a worker as
// one command of the queue.
#pragma once

#include <cstddef>
#include <memory>

#include "caller_device.h"
#include "graph.h"
#include "stream.h"

namespace ocl {

// As HostExecutor::replay. The device's memory is the host's too.
size_t replay_stretch(tg_stream_& stream, CallerDevice& caller, const std::shared_ptr<GraphCommands>& commands,
                      size_t first);

}  // namespace ocl
