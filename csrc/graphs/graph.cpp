#include "graph.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>

#include "graph_program.h"
#include "runtime/kernel.h"
#include "runtime/program.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

std::atomic<uint64_t> next_pool{1};
std::atomic<uint64_t> graphs_alive{0}, nodes_alive{0}, all_replays{0};

std::string device_name(c10::DeviceIndex index) { return backend_name() + ":" + std::to_string(index); }

}  // namespace

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
  const CaptureSuspended running;  // another thread may capture on a stream that this one uses
  program_->replay(stream);
  if (recording_.errors != nullptr) note_replay(*device_, stream.id(), recording_.errors);
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
  if (program_ != nullptr && !in_bad_fork()) {
    const WithoutPython released;
    program_->wait();
  }
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
    } else if (command.kind == TG_COMMAND_RUN) {
      seen.kind = "run";
      seen.name = recorded->program->name();
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
