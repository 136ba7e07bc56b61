#include "graph.h"

#include <memory>
#include <string>
#include <vector>

#include "program.h"
#include "transfer.h"

// The opaque type of the driver's contract.
struct tg_graph_ {
  struct Command {
    tg_command what;
    std::vector<tg_arg> arguments;  // of a launch
    // Of a launch: a kernel object of its own, whose arguments are set once.
    std::unique_ptr<tg_kernel_, void (*)(tg_kernel)> kernel{nullptr, ocl::destroy_kernel};
  };

  explicit tg_graph_(ocl::Device& device) : device(&device) {}

  ocl::Device* const device;
  std::vector<Command> commands;
};

namespace ocl {

tg_graph create_graph(Device& device, const tg_command* commands, uint32_t count) {
  auto graph = std::make_unique<tg_graph_>(device);
  graph->commands.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    tg_graph_::Command& command = graph->commands.emplace_back();
    command.what = commands[i];
    if (command.what.kind != TG_COMMAND_LAUNCH) continue;
    tg_launch& launch = command.what.launch;
    command.kernel.reset(clone_kernel(*launch.kernel));
    command.arguments.assign(launch.args, launch.args + launch.arg_count);
    launch.kernel = command.kernel.get();
    launch.args = command.arguments.data();
  }
  return graph.release();
}

void destroy_graph(tg_graph graph) { delete graph; }

void set_argument(tg_graph_& graph, uint32_t command, uint32_t argument, const tg_arg& value) {
  if (command >= graph.commands.size() || argument >= graph.commands[command].arguments.size())
    fail_invalid("a graph has no argument " + std::to_string(argument) + " of a command " + std::to_string(command));
  graph.commands[command].arguments[argument] = value;
}

void launch(tg_stream_& stream, tg_graph_& graph) {
  if (graph.device != stream.device) fail_invalid("a graph belongs to another device than its stream");
  for (const tg_graph_::Command& command : graph.commands) {
    const tg_command& what = command.what;
    switch (what.kind) {
      case TG_COMMAND_LAUNCH:
        launch(stream, what.launch);
        break;
      case TG_COMMAND_COPY:
        copy(stream, what.destination, what.source, what.bytes, static_cast<tg_copy_kind>(what.copy_kind), false);
        break;
      default:
        fill(stream, what.destination, what.pattern, what.pattern_bytes, what.bytes);
    }
  }
}

}  // namespace ocl
