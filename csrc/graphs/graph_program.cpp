#include "graph_program.h"

#include <c10/util/ScopeExit.h>

#include "runtime/command.h"
#include "runtime/kernel.h"
#include "runtime/program.h"

namespace torchgraft {
namespace {

tg_status submit_command(const Device& device, tg_stream stream, const DeviceCommand& recorded) {
  const tg_command& command = recorded.command;
  switch (command.kind) {
    case TG_COMMAND_LAUNCH:
      return submit_launch(device, stream, command.launch, recorded.kernel->name());
    case TG_COMMAND_RUN:
      return recorded.program->submit(stream, recorded.arguments);
    case TG_COMMAND_COPY:
      return submit_copy(device, stream, command.destination, command.source, command.bytes,
                         static_cast<tg_copy_kind>(command.copy_kind), /*blocking=*/false);
    default:
      return submit_fill(device, stream, command.destination, command.pattern, command.pattern_bytes, command.bytes);
  }
}

std::string command_text(const DeviceCommand& recorded, const std::string& op) {
  switch (recorded.command.kind) {
    case TG_COMMAND_LAUNCH:
      return "replaying a graph: launch kernel " + recorded.kernel->name() + (op.empty() ? "" : " of " + op);
    case TG_COMMAND_RUN:
      return "replaying a graph: run program " + recorded.program->name() + (op.empty() ? "" : " of " + op);
    case TG_COMMAND_COPY:
      return "replaying a graph: copy";
    default:
      return "replaying a graph: fill memory";
  }
}

}  // namespace

GraphProgram::GraphProgram(Device& device, Recording& recording, Memory memory)
    : device_(device), recording_(recording), memory_(memory) {
  for (uint32_t i = 0; i < recording.marks; ++i) marks_.emplace_back(create_event(device.index, /*timing=*/false));
  for (uint16_t i = 1; i < recording.branches; ++i) streams_.push_back(new_stream(device.index, 0));
  find_runs();
  if (device.driver->graph_create != nullptr) make_driver_graphs();
}

GraphProgram::~GraphProgram() {
  if (in_bad_fork()) return;
  for (const Run& run : runs_)
    if (run.graph != nullptr) device_.driver->graph_destroy(device_.driver->context, device_.ordinal, run.graph);
}

void GraphProgram::replay(c10::Stream current) {
  if (memory_ == GraphsOwn || recording_.errors != nullptr) follow_last_replay(current);
  draw_random_numbers();
  last_stream_ = current;
  used_.set(static_cast<size_t>(current.id()));
  for (const Run& run : runs_) {
    const c10::Stream stream = stream_of(run.branch, current);
    if (run.count == 0)
      pass(recording_.nodes[run.first], stream);
    else
      submit(run, stream_handle(device_.index, stream.id()));
  }
}

void GraphProgram::wait() {
  for (c10::StreamId id = 0; id < kMaxStreams; ++id)
    if (used_.test(static_cast<size_t>(id)))
      device_.driver->stream_synchronize(device_.driver->context, device_.ordinal, stream_handle(device_.index, id));
}

// Drivers can change the addresses of launches and runs, and not those of copies and fills.
bool GraphProgram::can_be_drivers(uint32_t node) const {
  const auto* recorded = std::get_if<DeviceCommand>(&recording_.nodes[node].action);
  if (recorded == nullptr) return false;
  const uint32_t kind = recorded->command.kind;
  return memory_ == GraphsOwn || kind == TG_COMMAND_LAUNCH || kind == TG_COMMAND_RUN;
}

void GraphProgram::find_runs() {
  for (uint32_t i = 0; i < recording_.nodes.size(); ++i) {
    const Node& node = recording_.nodes[i];
    const bool joins = can_be_drivers(i) && i != 0 && can_be_drivers(i - 1) && runs_.back().branch == node.branch;
    if (joins)
      ++runs_.back().count;
    else
      runs_.push_back({node.branch, i, std::holds_alternative<DeviceCommand>(node.action) ? 1u : 0u});
    run_of_.push_back(static_cast<uint32_t>(runs_.size() - 1));
  }
}

void GraphProgram::make_driver_graphs() {
  std::vector<tg_command> commands;
  for (Run& run : runs_) {
    if (!can_be_drivers(run.first)) continue;
    commands.clear();
    for (uint32_t i = 0; i < run.count; ++i) commands.push_back(command(run.first + i).command);
    check(
        device_,
        device_.driver->graph_create(device_.driver->context, device_.ordinal, commands.data(), run.count, &run.graph),
        "making a graph");
  }
}

c10::Stream GraphProgram::stream_of(uint16_t branch, c10::Stream current) const {
  return branch == 0 ? current : streams_[branch - 1];
}

// Two replays use the same memory, so they run one after the other.
void GraphProgram::follow_last_replay(c10::Stream current) {
  if (!last_stream_ || *last_stream_ == current) return;
  if (!last_replay_) last_replay_.reset(create_event(device_.index, /*timing=*/false));
  record_event(*last_replay_, *last_stream_);
  wait_event(*last_replay_, current);
}

void GraphProgram::draw_random_numbers() {
  if (recording_.randoms.empty()) return;
  std::vector<std::pair<uint64_t, uint64_t>> drawn;
  for (const auto& [state, count] : recording_.generators) drawn.push_back(state->reserve(count));
  for (const auto& [node, from] : recording_.randoms) {
    const auto [seed, first] = drawn[from.generator];
    tg_arg value = command(node).arguments[from.argument];
    value.value.u64 = from.is_seed ? seed : first + from.offset;
    set_argument(node, from.argument, value);
  }
}

void GraphProgram::set_argument(uint32_t node, uint32_t argument, const tg_arg& value) {
  const Run& run = runs_[run_of_[node]];
  if (run.graph != nullptr)
    check(device_,
          device_.driver->graph_set_argument(device_.driver->context, device_.ordinal, run.graph, node - run.first,
                                             argument, &value),
          "setting an argument of a graph");
  command(node).set(argument, value);
}

void GraphProgram::set(const Pointer& pointer, void* address) {
  if (pointer.kind == Pointer::OfHost) {
    const auto& function = std::get<HostFunction>(recording_.nodes[pointer.node].action);
    const c10::Device device(c10::DeviceType::PrivateUse1, device_.index);
    return function.memory[pointer.argument].storage.set_data_ptr_noswap(at::DataPtr(address, device));
  }
  DeviceCommand& recorded = command(pointer.node);
  switch (pointer.kind) {
    case Pointer::Destination:
      recorded.command.destination = address;
      break;
    case Pointer::Source:
      recorded.command.source = address;
      break;
    case Pointer::Argument: {
      tg_arg value = recorded.arguments[pointer.argument];
      value.value.pointer = address;
      set_argument(pointer.node, pointer.argument, value);
      break;
    }
    case Pointer::OfHost:
      break;
  }
}

// A profile shows each command.
void GraphProgram::submit(const Run& run, tg_stream stream) {
  if (run.graph != nullptr && !collecting()) {
    check(device_, device_.driver->graph_launch(device_.driver->context, device_.ordinal, stream, run.graph),
          "replaying a graph");
    return;
  }
  for (uint32_t i = run.first; i < run.first + run.count; ++i) {
    const tg_status status = submit_command(device_, stream, command(i));
    if (status != TG_OK) [[unlikely]]
      raise_status(device_, status, command_text(command(i), recording_.nodes[i].op).c_str());
  }
}

void GraphProgram::pass(const Node& node, c10::Stream stream) {
  if (const auto* mark = std::get_if<Mark>(&node.action)) {
    record_event(*marks_[mark->number], stream);
  } else if (const auto* wait = std::get_if<WaitForMark>(&node.action)) {
    wait_event(*marks_[wait->number], stream);
  } else {
    const c10::Stream before = exchange_stream(stream);
    const auto back = c10::make_scope_exit([&] { exchange_stream(before); });
    std::get<HostFunction>(node.action).run();
  }
}

}  // namespace torchgraft
