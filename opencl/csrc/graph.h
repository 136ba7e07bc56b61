// Graphs: commands that a stream is given again and again.
#pragma once

#include "device.h"
#include "stream.h"
#include "torchgraft/driver.h"

namespace ocl {

tg_graph create_graph(Device& device, const tg_command* commands, uint32_t count);
void destroy_graph(tg_graph graph);
void set_argument(tg_graph_& graph, uint32_t command, uint32_t argument, const tg_arg& value);
void launch(tg_stream_& stream, tg_graph_& graph);

}  // namespace ocl
