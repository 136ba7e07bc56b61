// Graphs: what a stream was given, recorded once and replayed by one loop: no dispatcher, no look-up of plans, no
// allocation, no Python.
#pragma once

#include <ATen/core/GraphImplInterface.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capture.h"
#include "memory/allocator.h"
#include "runtime/event.h"

namespace torchgraft {

struct GraphNode {
  std::string kind, op, name;  // "launch", "copy", "fill", "record", "wait", "function"
  uint16_t branch;
  std::array<size_t, 3> groups{}, local{};  // launch
  uint64_t bytes = 0;                       // copy, fill; of a launch what its arguments span, 0 if unknown
};

class GraphProgram;

// Safe from any thread: replays come one after the other, also on the device.
class Graph {
 public:
  // With `keep`, instantiate() is called by the user, or by the first replay.
  explicit Graph(bool keep);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // On the current stream of the current device. {0, 0}: a pool of its own. All throw RuntimeError where they come in
  // a wrong order, and changes nothing then.
  void capture_begin(c10::MempoolId_t pool);
  // Throws what made the capture fail; either way it is over.
  void capture_end();
  void instantiate();
  // On the current stream of the graph's device; does not wait.
  void replay();
  // Forgets the recording and leaves the pool. Waits for a replay that is under way.
  void reset();

  c10::MempoolId_t pool() const;
  std::vector<GraphNode> nodes() const;
  uint64_t replays() const;

 private:
  void leave() noexcept;
  // With the mutex held.
  void make_program();

  const bool keep_;
  mutable std::mutex mutex_;  // taken by GilSafeLock
  std::shared_ptr<Capture> capture_;
  std::optional<c10::DeviceIndex> device_;  // whose pool it is in
  c10::MempoolId_t pool_{0, 0};
  bool recorded_ = false;
  Recording recording_;
  std::unique_ptr<GraphProgram> program_;
  uint64_t replays_ = 0;
};

// A pool's id for graphs to share.
c10::MempoolId_t new_graph_pool();

// How many graphs there are, how many nodes they have, and how often graphs were replayed in this process.
struct GraphCounts {
  uint64_t graphs, nodes, replays;
};
GraphCounts graph_counts();

// As a picture in Graphviz' language.
std::string graph_as_dot(const std::vector<GraphNode>& nodes);

// Makes torch.accelerator.Graph work; to be called once the backend has its name.
void register_graphs();

}  // namespace torchgraft
