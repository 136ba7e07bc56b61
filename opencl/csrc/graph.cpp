#include "graph.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch.h"
#include "host_memory.h"
#include "program.h"
#include "transfer.h"

namespace ocl {
namespace {

using Arguments = std::vector<tg_arg>;

struct Command {
  tg_command what;                             // without arguments
  std::shared_ptr<const Arguments> arguments;  // of a launch, as it was made
  std::shared_ptr<Arguments> changed;          // instead of these; others may read them once they are shared
  std::shared_ptr<const Arguments> last;       // with which it was run here; guarded by the turn
  // Of a launch: a kernel object of its own, whose arguments are set where they change.
  std::unique_ptr<tg_kernel_, void (*)(tg_kernel)> kernel{nullptr, destroy_kernel};
};
using Commands = std::vector<Command>;

}  // namespace
}  // namespace ocl

// The opaque type of the driver's contract.
struct tg_graph_ {
  ocl::Device* const device;
  std::shared_ptr<ocl::Commands> commands;  // shared with what workers have still to run
};

namespace ocl {
namespace {

// ---- small commands that follow each other ----

void run_here(CallerDevice::Turn& turn, Command& command, const std::shared_ptr<const Arguments>& arguments) {
  const tg_command& what = command.what;
  if (what.kind == TG_COMMAND_COPY) {
    host_copy(what.destination, what.source, what.bytes);
  } else if (what.kind == TG_COMMAND_FILL) {
    host_fill(what.destination, what.pattern, what.pattern_bytes, what.bytes);
  } else {
    tg_launch launch = what.launch;
    launch.args = arguments->data();
    turn.run(launch, /*unchanged=*/command.last == arguments);
    if (command.last != arguments) command.last = arguments;
  }
}

struct Stretch {
  tg_stream stream;
  std::shared_ptr<Commands> commands;
  size_t first, last;
  std::vector<std::pair<size_t, std::shared_ptr<const Arguments>>> changed{};  // as they were when it was handed over

  void run() const {
    CallerDevice::Turn turn(*stream->device->caller_device);
    auto next = changed.begin();
    for (size_t i = first; i < last; ++i) {
      Command& command = (*commands)[i];
      const bool is_changed = next != changed.end() && next->first == i;
      run_here(turn, command, is_changed ? (next++)->second : command.arguments);
    }
  }
};

// Less than two would be no gain.
constexpr size_t kLeast = 2;

// Nanoseconds that a small command takes a worker; nothing for others.
std::optional<uint32_t> small_cost(Device& device, const tg_command& command) {
  constexpr uint64_t kSmallTransfer = uint64_t{128} << 10;
  constexpr uint64_t kBytesPerNanosecond = 8;
  if (command.kind == TG_COMMAND_LAUNCH) return device.caller_device->takes(command.launch);
  if (command.bytes > kSmallTransfer) return std::nullopt;
  return static_cast<uint32_t>(command.bytes / kBytesPerNanosecond);
}

void hand_over(tg_stream_& stream, const std::shared_ptr<Commands>& commands, size_t first, size_t last) {
  auto stretch = std::make_unique<Stretch>(&stream, commands, first, last);
  for (size_t i = first; i < last; ++i)
    if ((*commands)[i].changed != nullptr) stretch->changed.emplace_back(i, (*commands)[i].changed);
  submit_job(stream, std::move(stretch));
}

std::shared_ptr<const Arguments> current(const Command& command) {
  return command.changed != nullptr ? command.changed : command.arguments;
}

// Where the calling thread is about to wait, handing over would take as long, or nobody else would do the work, it may
// as well do it itself. False if the stream has other work, or another thread is there.
bool run_at_once(tg_stream_& stream, Commands& commands, size_t first, size_t last, uint64_t cost) {
  CallerDevice& caller = *stream.device->caller_device;
  const bool pays = caller.is_all() || waits_soon(stream) || cost <= caller.wake_nanoseconds();
  if (!pays || !is_idle(stream)) return false;
  CallerDevice::Turn turn(caller, std::try_to_lock);
  if (!turn) return false;
  std::lock_guard lock(stream.mutex);
  if (stream.busy.load(std::memory_order_relaxed)) return false;  // another thread was quicker
  for (; first < last; ++first) run_here(turn, commands[first], current(commands[first]));
  return true;
}

void run_alone(tg_stream_& stream, const Command& command) {
  tg_command what = command.what;
  switch (what.kind) {
    case TG_COMMAND_LAUNCH:
      what.launch.args = current(command)->data();
      launch(stream, what.launch);
      break;
    case TG_COMMAND_COPY:
      copy(stream, what.destination, what.source, what.bytes, static_cast<tg_copy_kind>(what.copy_kind), false);
      break;
    default:
      fill(stream, what.destination, what.pattern, what.pattern_bytes, what.bytes);
  }
}

}  // namespace

// ---- the driver's functions ----

tg_graph create_graph(Device& device, const tg_command* commands, uint32_t count) {
  auto made = std::make_shared<Commands>(count);
  for (uint32_t i = 0; i < count; ++i) {
    Command& command = (*made)[i];
    command.what = commands[i];
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
  const auto has = [&](const Command& command) {
    return command.arguments != nullptr && argument < command.arguments->size();
  };
  if (index >= graph.commands->size() || !has((*graph.commands)[index]))
    fail_invalid("a graph has no argument " + std::to_string(argument) + " of a command " + std::to_string(index));
  Command& command = (*graph.commands)[index];
  // Workers may still need the arguments before. Where nobody does, nobody comes to: they have them from here.
  if (command.changed == nullptr || command.changed.use_count() != 1)
    command.changed = std::make_shared<Arguments>(*current(command));
  (*command.changed)[argument] = value;
}

void launch(tg_stream_& stream, tg_graph_& graph) {
  if (graph.device != stream.device) fail_invalid("a graph belongs to another device than its stream");
  Commands& commands = *graph.commands;
  // For the pace of waits a replay counts as one launch.
  const uint32_t launches = stream.since_wait.load(std::memory_order_relaxed);
  const bool batches =
      graph.device->caller_device != nullptr && graph.device->has_native_kernels && graph.device->unified();
  for (size_t first = 0; first < commands.size();) {
    size_t last = first;
    uint64_t cost = 0;
    for (; batches && last < commands.size(); ++last) {
      const std::optional<uint32_t> more = small_cost(*graph.device, commands[last].what);
      if (!more) break;
      cost += *more;
    }
    if (last - first < kLeast) {
      run_alone(stream, commands[first++]);
      continue;
    }
    if (!run_at_once(stream, commands, first, last, cost)) hand_over(stream, graph.commands, first, last);
    first = last;
  }
  stream.since_wait.store(launches + 1, std::memory_order_relaxed);
}

}  // namespace ocl
