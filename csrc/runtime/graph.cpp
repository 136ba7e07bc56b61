#include "graph.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>

#include "command.h"
#include "kernel.h"
#include "stream.h"

namespace torchgraft {
namespace {

std::atomic<uint64_t> next_pool{1};
std::atomic<uint64_t> graphs_alive{0}, nodes_alive{0}, all_replays{0};

std::string device_name(c10::DeviceIndex index) { return backend_name() + ":" + std::to_string(index); }

tg_status submit_command(const Device& device, tg_stream stream, const DeviceCommand& recorded) {
  const tg_command& command = recorded.command;
  switch (command.kind) {
    case TG_COMMAND_LAUNCH:
      return submit_launch(device, stream, command.launch, recorded.kernel->name());
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
    case TG_COMMAND_COPY:
      return "replaying a graph: copy";
    default:
      return "replaying a graph: fill memory";
  }
}

}  // namespace

// A recording that is ready to be run: runs of commands, each perhaps a graph of the driver's, and what lies between.
class GraphProgram {
 public:
  GraphProgram(Device& device, Recording& recording) : device_(device), recording_(recording) {
    for (uint32_t i = 0; i < recording.marks; ++i) marks_.emplace_back(create_event(device.index, /*timing=*/false));
    for (uint16_t i = 1; i < recording.branches; ++i) streams_.push_back(new_stream(device.index, 0));
    find_runs();
    if (device.driver->graph_create != nullptr) make_driver_graphs();
  }
  ~GraphProgram() {
    if (in_bad_fork()) return;
    for (const Run& run : runs_)
      if (run.graph != nullptr) device_.driver->graph_destroy(device_.driver->context, device_.ordinal, run.graph);
  }
  GraphProgram(const GraphProgram&) = delete;
  GraphProgram& operator=(const GraphProgram&) = delete;

  void replay(c10::Stream current) {
    follow_last_replay(current);
    draw_random_numbers();
    last_stream_ = current;
    for (const Run& run : runs_) {
      const c10::Stream stream = stream_of(run.branch, current);
      if (run.count == 0)
        pass(recording_.nodes[run.first], stream);
      else
        submit(run, stream_handle(device_.index, stream.id()));
    }
    if (recording_.errors != nullptr) note_replay(device_.index, current.id(), recording_.errors);
  }

  // Until the last replay is done.
  void wait() {
    if (!last_stream_) return;
    tg_stream stream = stream_handle(device_.index, last_stream_->id());
    device_.driver->stream_synchronize(device_.driver->context, device_.ordinal, stream);
  }

 private:
  // Neighbouring commands of one branch; or, with a count of 0, one node that is no command.
  struct Run {
    uint16_t branch;
    uint32_t first, count;
    tg_graph graph = nullptr;  // the driver's; NULL: command by command
  };

  const DeviceCommand& command(uint32_t node) const { return std::get<DeviceCommand>(recording_.nodes[node].action); }
  DeviceCommand& command(uint32_t node) { return std::get<DeviceCommand>(recording_.nodes[node].action); }

  void find_runs() {
    for (uint32_t i = 0; i < recording_.nodes.size(); ++i) {
      const Node& node = recording_.nodes[i];
      const bool is_command = std::holds_alternative<DeviceCommand>(node.action);
      if (is_command && !runs_.empty() && runs_.back().count != 0 && runs_.back().branch == node.branch)
        ++runs_.back().count;
      else
        runs_.push_back({node.branch, i, is_command ? 1u : 0u});
    }
  }

  void make_driver_graphs() {
    std::vector<tg_command> commands;
    for (Run& run : runs_) {
      if (run.count == 0) continue;
      commands.clear();
      for (uint32_t i = 0; i < run.count; ++i) commands.push_back(command(run.first + i).command);
      check(device_,
            device_.driver->graph_create(device_.driver->context, device_.ordinal, commands.data(), run.count,
                                         &run.graph),
            "making a graph");
    }
  }

  c10::Stream stream_of(uint16_t branch, c10::Stream current) const {
    return branch == 0 ? current : streams_[branch - 1];
  }

  // Two replays use the same memory, so they run one after the other.
  void follow_last_replay(c10::Stream current) {
    if (!last_stream_ || *last_stream_ == current) return;
    if (!last_replay_) last_replay_.reset(create_event(device_.index, /*timing=*/false));
    record_event(*last_replay_, *last_stream_);
    wait_event(*last_replay_, current);
  }

  void draw_random_numbers() {
    if (recording_.randoms.empty()) return;
    std::vector<std::pair<uint64_t, uint64_t>> drawn;
    for (const auto& [state, count] : recording_.generators) drawn.push_back(state->reserve(count));
    auto run = runs_.begin();
    for (const auto& [node, from] : recording_.randoms) {
      const auto [seed, first] = drawn[from.generator];
      tg_arg& argument = command(node).arguments[from.argument];
      argument.value.u64 = from.is_seed ? seed : first + from.offset;
      while (node >= run->first + std::max(run->count, 1u)) ++run;
      if (run->graph == nullptr) continue;
      check(device_,
            device_.driver->graph_set_argument(device_.driver->context, device_.ordinal, run->graph, node - run->first,
                                               from.argument, &argument),
            "setting an argument of a graph");
    }
  }

  // A profile shows each command.
  void submit(const Run& run, tg_stream stream) {
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

  void pass(const Node& node, c10::Stream stream) {
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

  Device& device_;
  Recording& recording_;
  std::vector<EventPtr> marks_;
  std::vector<c10::Stream> streams_;  // of the branches from 1 on
  std::vector<Run> runs_;
  std::optional<c10::Stream> last_stream_;
  EventPtr last_replay_;
};

// ---- the life of a graph ----

Graph::Graph(bool keep) : keep_(keep) { graphs_alive.fetch_add(1, std::memory_order_relaxed); }

Graph::~Graph() {
  try {
    reset();
  } catch (const std::exception& error) {
    TORCH_WARN(backend_name(), ": a graph's memory could not be given back: ", error.what());
  }
  graphs_alive.fetch_sub(1, std::memory_order_relaxed);
}

void Graph::capture_begin(c10::MempoolId_t pool) {
  const c10::DeviceIndex index = get_device(current_device()).index;
  const c10::Stream stream = current_stream(index);
  stream_handle(index, stream.id());
  GilSafeLock lock(mutex_);
  TORCH_CHECK(capture_ == nullptr, "this graph is being captured already: call capture_end first");
  TORCH_CHECK(!recorded_, "this graph has been captured already: call reset() before it is captured anew");
  if (pool == c10::MempoolId_t{0, 0}) pool = {next_pool.fetch_add(1), 0};
  auto capture = std::make_shared<Capture>(stream, pool);
  enter_pool(index, pool);
  try {
    begin_capture(capture);
  } catch (...) {
    leave_pool(index, pool);
    throw;
  }
  capture_ = std::move(capture);
  device_ = index;
  pool_ = pool;
}

void Graph::capture_end() {
  GilSafeLock lock(mutex_);
  TORCH_CHECK(capture_ != nullptr, "this graph is not being captured: call capture_begin first");
  const c10::Stream origin = capture_->origin(), stream = current_stream(origin.device_index());
  TORCH_CHECK(stream == origin, "a capture ends on the stream on which it began: that is ", origin.id(), " of ",
              device_name(origin.device_index()), ", and the current one is ", stream.id());
  const std::shared_ptr<Capture> capture = std::exchange(capture_, nullptr);
  end_capture(capture);
  free_after_capture(*device_);
  try {
    recording_ = capture->take();
    recorded_ = true;
    nodes_alive.fetch_add(recording_.nodes.size(), std::memory_order_relaxed);
    if (!keep_) make_program();
  } catch (...) {
    leave();
    throw;
  }
}

void Graph::make_program() {
  TORCH_CHECK(recorded_, "there is no graph yet: capture_begin and capture_end come first");
  program_ = std::make_unique<GraphProgram>(get_device(*device_), recording_);
}

void Graph::instantiate() {
  GilSafeLock lock(mutex_);
  make_program();
}

void Graph::replay() {
  raise_if_forked();
  GilSafeLock lock(mutex_);
  TORCH_CHECK(recorded_, "there is no graph to replay: it has not been captured, or it was reset");
  const c10::Stream stream = current_stream(*device_);
  refuse_in_capture(*device_, stream.id(), "the replay of another graph");
  if (program_ == nullptr) make_program();
  program_->replay(stream);
  ++replays_;
  all_replays.fetch_add(1, std::memory_order_relaxed);
}

void Graph::leave() noexcept {
  program_.reset();
  if (recorded_) nodes_alive.fetch_sub(recording_.nodes.size(), std::memory_order_relaxed);
  recorded_ = false;
  recording_ = Recording();
  if (device_) leave_pool(*device_, pool_);
  device_.reset();
}

void Graph::reset() {
  GilSafeLock lock(mutex_);
  if (capture_ != nullptr) end_capture(std::exchange(capture_, nullptr));
  if (device_) free_after_capture(*device_);
  if (program_ != nullptr && !in_bad_fork()) program_->wait();
  leave();
}

c10::MempoolId_t Graph::pool() const {
  GilSafeLock lock(mutex_);
  TORCH_CHECK(device_, "a graph has a pool from capture_begin on");
  return pool_;
}

uint64_t Graph::replays() const {
  GilSafeLock lock(mutex_);
  return replays_;
}

// ---- what graphs look like ----

namespace {

GraphNode described(const Node& node) {
  GraphNode seen{.branch = node.branch};
  seen.op = node.op;
  if (const auto* recorded = std::get_if<DeviceCommand>(&node.action)) {
    const tg_command& command = recorded->command;
    if (command.kind == TG_COMMAND_LAUNCH) {
      seen.kind = "launch";
      seen.name = recorded->kernel->name();
      std::copy_n(command.launch.groups, 3, seen.groups.begin());
      std::copy_n(command.launch.local, 3, seen.local.begin());
      seen.bytes = command.launch.bytes;
    } else {
      seen.kind = command.kind == TG_COMMAND_COPY ? "copy" : "fill";
      seen.bytes = command.bytes;
    }
  } else if (const auto* mark = std::get_if<Mark>(&node.action)) {
    seen.kind = "record";
    seen.name = "event " + std::to_string(mark->number);
  } else if (const auto* wait = std::get_if<WaitForMark>(&node.action)) {
    seen.kind = "wait";
    seen.name = "event " + std::to_string(wait->number);
  } else {
    seen.kind = "function";
  }
  return seen;
}

std::string label(const GraphNode& node) {
  std::string text = node.kind;
  if (!node.name.empty()) text += " " + node.name;
  if (!node.op.empty()) text += "\\n" + node.op;
  if (node.kind == "launch") text += c10::str("\\n", c10::Join(" x ", node.groups), " groups");
  if (node.bytes != 0) text += c10::str("\\n", node.bytes, " bytes");
  return text;
}

}  // namespace

std::vector<GraphNode> Graph::nodes() const {
  GilSafeLock lock(mutex_);
  std::vector<GraphNode> all;
  for (const Node& node : recording_.nodes) all.push_back(described(node));
  return all;
}

std::string graph_as_dot(const std::vector<GraphNode>& nodes) {
  std::ostringstream out;
  out << "digraph {\n  node [shape=box, fontname=monospace];\n";
  std::vector<std::optional<size_t>> last;  // of each branch
  std::vector<std::pair<std::string, size_t>> records;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = nodes[i];
    out << "  n" << i << " [label=\"" << label(node) << "\"];\n";
    if (last.size() <= node.branch) last.resize(node.branch + size_t{1});
    if (last[node.branch]) out << "  n" << *last[node.branch] << " -> n" << i << ";\n";
    last[node.branch] = i;
    if (node.kind == "record") records.emplace_back(node.name, i);
    if (node.kind == "wait")
      for (const auto& [name, from] : records)
        if (name == node.name) out << "  n" << from << " -> n" << i << ";\n";
  }
  out << "}\n";
  return out.str();
}

c10::MempoolId_t new_graph_pool() { return {0, next_pool.fetch_add(1)}; }

GraphCounts graph_counts() {
  return {graphs_alive.load(std::memory_order_relaxed), nodes_alive.load(std::memory_order_relaxed),
          all_replays.load(std::memory_order_relaxed)};
}

// ---- torch.accelerator.Graph ----

namespace {

class AcceleratorGraph final : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs& arguments) : graph_(arguments.keep_graph) {}

  // Nothing that a capture does disturbs other threads, so the modes, which say what those may do, are all the same.
  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override { graph_.capture_begin(pool); }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override { graph_.instantiate(); }
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  at::MempoolId_t pool() const override { return graph_.pool(); }
  void enable_debug_mode() override {}  // what is dumped is kept in any case
  void debug_dump(const std::string& path) override {
    std::ofstream file(path);
    file << graph_as_dot(graph_.nodes());
    TORCH_CHECK(file.good(), "cannot write the graph to ", path);
  }

 private:
  Graph graph_;
};

}  // namespace

void register_graphs() {
  const std::string key = c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false);
  if (at::GraphImplRegistry()->Has(key)) return;
  at::GraphImplRegistry()->Register(key, [](const at::GraphImplArgs& arguments) {
    return std::unique_ptr<at::GraphImplInterface>(new AcceleratorGraph(arguments));
  });
}

}  // namespace torchgraft
