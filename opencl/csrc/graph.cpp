#include "graph.h"

#include <algorithm>
#include <string>
#include <utility>

#include "clblast.h"
#include "transfer.h"

// The opaque type of the driver's contract.
struct tg_graph_ {
  ocl::Device* const device;
  std::shared_ptr<ocl::GraphCommands> commands;  // shared with what an executor has still to run
};

namespace ocl {
namespace {

// A run's arguments: its addresses, then its scratch.
std::shared_ptr<const Arguments> addresses_of(const tg_run& run) {
  Arguments made;
  const auto add = [&](void* address) { made.push_back({.is_pointer = 1, .size = 0, .value = {.pointer = address}}); };
  std::for_each(run.addresses, run.addresses + run.address_count, add);
  add(run.scratch);
  return std::make_shared<const Arguments>(std::move(made));
}

void run_again(tg_stream_& stream, const GraphCommand& command) {
  std::vector<void*> addresses;
  for (const tg_arg& each : *command.current()) addresses.push_back(each.value.pointer);
  const auto count = static_cast<uint32_t>(addresses.size() - 1);
  run_program(stream, {sizeof(tg_run), count, command.program, addresses.data(), addresses.back()});
}

void run(tg_stream_& stream, const GraphCommand& command) {
  tg_command what = command.what;
  switch (what.kind) {
    case TG_COMMAND_LAUNCH:
      what.launch.args = command.current()->data();
      launch(stream, what.launch);
      break;
    case TG_COMMAND_RUN:
      run_again(stream, command);
      break;
    case TG_COMMAND_COPY:
      copy(stream, what.destination, what.source, what.bytes, static_cast<tg_copy_kind>(what.copy_kind), false);
      break;
    default:
      fill(stream, what.destination, what.pattern, what.pattern_bytes, what.bytes);
  }
}

}  // namespace

tg_graph create_graph(Device& device, const tg_command* commands, uint32_t count) {
  auto made = std::make_shared<GraphCommands>(count);
  for (uint32_t i = 0; i < count; ++i) {
    GraphCommand& command = (*made)[i];
    command.what = commands[i];
    if (command.what.kind == TG_COMMAND_RUN) {
      const tg_run& run = *static_cast<const tg_run*>(std::exchange(command.what.source, nullptr));
      command.program = run.program;
      command.arguments = addresses_of(run);
    }
    if (command.what.kind != TG_COMMAND_LAUNCH) continue;
    tg_launch& launch = command.what.launch;
    command.kernel.reset(clone_kernel(*launch.kernel));
    command.arguments = std::make_shared<const Arguments>(launch.args, launch.args + launch.arg_count);
    launch.kernel = command.kernel.get();
    launch.args = nullptr;
  }
  return new tg_graph_{&device, std::move(made)};
}

void destroy_graph(tg_graph graph) { delete graph; }

void set_argument(tg_graph_& graph, uint32_t index, uint32_t argument, const tg_arg& value) {
  const auto has = [&](const GraphCommand& command) {
    return command.arguments != nullptr && argument < command.arguments->size();
  };
  if (index >= graph.commands->size() || !has((*graph.commands)[index]))
    fail_invalid("a graph has no argument " + std::to_string(argument) + " of a command " + std::to_string(index));
  GraphCommand& command = (*graph.commands)[index];
  // An executor may still need the arguments before. Where nobody does, nobody comes to: they are had from here.
  if (command.changed == nullptr || command.changed.use_count() != 1)
    command.changed = std::make_shared<Arguments>(*command.current());
  (*command.changed)[argument] = value;
}

void launch(tg_stream_& stream, tg_graph_& graph) {
  if (graph.device != stream.device) fail_invalid("a graph belongs to another device than its stream");
  // For the pace of waits a replay counts as one launch.
  const uint32_t launches = stream.since_wait.load(std::memory_order_relaxed);
  HostExecutor* const executor = stream.device->executor.get();
  for (size_t next = 0; next < graph.commands->size();) {
    const size_t taken = executor != nullptr ? executor->replay(stream, graph.commands, next) : 0;
    if (taken == 0) run(stream, (*graph.commands)[next++]);
    next += taken;
  }
  stream.since_wait.store(launches + 1, std::memory_order_relaxed);
}

}  // namespace ocl
