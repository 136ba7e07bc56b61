// What torchgraft/device_module/graphs.py needs of graphs.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "graphs/graph.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace torchgraft {

void bind_graphs(py::module_& m) {
  py::class_<GraphNode>(m, "GraphNode")
      .def_readonly("kind", &GraphNode::kind)
      .def_readonly("op", &GraphNode::op)
      .def_readonly("name", &GraphNode::name)
      .def_readonly("branch", &GraphNode::branch)
      .def_readonly("groups", &GraphNode::groups)
      .def_readonly("local", &GraphNode::local)
      .def_readonly("nbytes", &GraphNode::bytes);

  // All that may wait, for the device or for another thread's replay, let the GIL go.
  const auto freely = [](auto method) { return torch::wrap_pybind_function_no_gil(method); };
  py::class_<Graph>(m, "Graph")
      .def(py::init<bool>(), py::arg("keep_graph"))
      .def("capture_begin", freely([](Graph& graph, c10::MempoolId_t pool) { graph.capture_begin(pool); }))
      .def("capture_end", freely([](Graph& graph) { graph.capture_end(); }))
      .def("instantiate", freely([](Graph& graph) { graph.instantiate(); }))
      .def("replay", freely([](Graph& graph) { graph.replay(); }))
      .def("reset", freely([](Graph& graph) { graph.reset(); }))
      .def("pool", freely([](Graph& graph) { return graph.pool(); }))
      .def("nodes", freely([](Graph& graph) { return graph.nodes(); }))
      .def("replays", freely([](Graph& graph) { return graph.replays(); }));
  m.def("graph_as_dot", &graph_as_dot);
  m.def("new_graph_pool", &new_graph_pool);
  m.attr("CAPTURE_STREAM") = kCaptureStream;
  m.def("graph_counts", [] {
    const GraphCounts counts = graph_counts();
    return py::make_tuple(counts.graphs, counts.nodes, counts.replays);
  });
  m.def("register_graphs", torch::wrap_pybind_function(&register_graphs));
  m.def("is_current_stream_capturing",
        [] { return devices_opened() && capturing() && bool(capture_of_current(current_device())); });
}

}  // namespace torchgraft
