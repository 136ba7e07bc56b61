// Graphs: commands that a stream is given again and again.
#pragma once

#include <memory>
#include <vector>

#include "device.h"
#include "program.h"
#include "stream.h"

namespace ocl {

using Arguments = std::vector<tg_arg>;

struct GraphCommand {
  tg_command what;                             // without arguments
  std::shared_ptr<const Arguments> arguments;  // of a launch, or a run's addresses, as it was made
  std::shared_ptr<Arguments> changed;          // instead of these; others may read them once they are shared
  std::shared_ptr<const Arguments> last;       // the executor's: with which it has run the command
  tg_program program = nullptr;                // of a run
  // Of a launch: a kernel object of its own, whose arguments are set where they change.
  std::unique_ptr<tg_kernel_, void (*)(tg_kernel)> kernel{nullptr, destroy_kernel};

  std::shared_ptr<const Arguments> current() const { return changed != nullptr ? changed : arguments; }
};
using GraphCommands = std::vector<GraphCommand>;

tg_graph create_graph(Device& device, const tg_command* commands, uint32_t count);
void destroy_graph(tg_graph graph);
void set_argument(tg_graph_& graph, uint32_t command, uint32_t argument, const tg_arg& value);
void launch(tg_stream_& stream, tg_graph_& graph);

}  // namespace ocl
