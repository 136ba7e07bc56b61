#include "stretch.h"

#include <optional>
#include <utility>
#include <vector>

#include "host_memory.h"
#include "native_job.h"

namespace ocl {
namespace {

void run_here(CallerDevice::Turn& turn, GraphCommand& command, const std::shared_ptr<const Arguments>& arguments) {
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
  CallerDevice& caller;
  std::shared_ptr<GraphCommands> commands;
  size_t first, last;
  std::vector<std::pair<size_t, std::shared_ptr<const Arguments>>> changed{};  // as they were when it was handed over

  void run() const {
    CallerDevice::Turn turn(caller);
    auto next = changed.begin();
    for (size_t i = first; i < last; ++i) {
      GraphCommand& command = (*commands)[i];
      const bool is_changed = next != changed.end() && next->first == i;
      run_here(turn, command, is_changed ? (next++)->second : command.arguments);
    }
  }
};

// Less than two would be no gain.
constexpr size_t kLeast = 2;

// Nanoseconds that a small command takes a worker; nothing for others.
std::optional<uint32_t> small_cost(CallerDevice& caller, const tg_command& command) {
  constexpr uint64_t kSmallTransfer = uint64_t{128} << 10;
  constexpr uint64_t kBytesPerNanosecond = 8;
  if (command.kind == TG_COMMAND_LAUNCH) return caller.takes(command.launch);
  if (command.kind == TG_COMMAND_RUN || command.bytes > kSmallTransfer) return std::nullopt;
  return static_cast<uint32_t>(command.bytes / kBytesPerNanosecond);
}

void hand_over(tg_stream_& stream, CallerDevice& caller, const std::shared_ptr<GraphCommands>& commands, size_t first,
               size_t last) {
  auto stretch = std::make_unique<Stretch>(&stream, caller, commands, first, last);
  for (size_t i = first; i < last; ++i)
    if ((*commands)[i].changed != nullptr) stretch->changed.emplace_back(i, (*commands)[i].changed);
  submit_job(stream, std::move(stretch));
}

// Where the calling thread is about to wait, handing over would take as long, or nobody else would do the work, it may
// as well do it itself. False if the stream has other work, or another thread is there.
bool run_at_once(tg_stream_& stream, CallerDevice& caller, GraphCommands& commands, size_t first, size_t last,
                 uint64_t cost) {
  const bool pays = caller.is_all() || waits_soon(stream) || cost <= caller.wake_nanoseconds();
  if (!pays || !is_idle(stream)) return false;
  CallerDevice::Turn turn(caller, std::try_to_lock);
  if (!turn) return false;
  std::lock_guard lock(stream.mutex);
  if (stream.busy.load(std::memory_order_relaxed)) return false;  // another thread was quicker
  for (; first < last; ++first) run_here(turn, commands[first], commands[first].current());
  return true;
}

}  // namespace

size_t replay_stretch(tg_stream_& stream, CallerDevice& caller, const std::shared_ptr<GraphCommands>& commands,
                      size_t first) {
  size_t last = first;
  uint64_t cost = 0;
  for (; last < commands->size(); ++last) {
    const std::optional<uint32_t> more = small_cost(caller, (*commands)[last].what);
    if (!more) break;
    cost += *more;
  }
  if (last - first < kLeast) return 0;
  if (!run_at_once(stream, caller, *commands, first, last, cost)) hand_over(stream, caller, commands, first, last);
  return last - first;
}

}  // namespace ocl
