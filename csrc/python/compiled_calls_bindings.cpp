// Calls of a compiled program, from Python and back without more of it: see torchgraft/inductor/replay.py.
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <bit>

#include "bindings.h"
#include "graphs/relocatable_graph.h"
#include "memory/allocator.h"
#include "runtime/assertions.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace torchgraft {
namespace {

std::atomic<uint64_t> graphs_alive{0}, replays{0};

// What is known of calls with arguments of one kind.
struct KnownCall {
  std::vector<int64_t> key;
  uint64_t last_use = 0;
  bool is_refused = false;
  std::shared_ptr<RelocatableGraph> graph;
  py::tuple results;  // what a call returns, with None for each tensor
  std::vector<size_t> tensors;

  ~KnownCall() {
    if (graph != nullptr) graphs_alive.fetch_sub(1, std::memory_order_relaxed);
  }
};

// The tensors and numbers that a program is called with, and what of them its commands depend on. Sizes that change
// may do so often, so that the last few are kept.
class CompiledCalls {
 public:
  // What the program returns, and the list is emptied; or None, and nothing is changed.
  py::object run(const py::list& arguments) {
    Arguments given;
    if (!describe(arguments, given)) return py::none();
    KnownCall* known = find(given.key);
    if (known == nullptr || known->graph == nullptr) return py::none();
    if (capturing() && capture_of_current(given.device)) return py::none();
    // Other threads may forget it while this one runs it.
    const std::shared_ptr<RelocatableGraph> graph = known->graph;
    const py::tuple results = known->results;
    const std::vector<size_t> places = known->tensors;
    std::optional<std::vector<at::Tensor>> made;
    {
      const py::gil_scoped_release free;
      made = graph->run(given.tensors);
    }
    if (!made) return py::none();
    replays.fetch_add(1, std::memory_order_relaxed);
    if (PyList_SetSlice(arguments.ptr(), 0, PyList_GET_SIZE(arguments.ptr()), nullptr) != 0)
      throw py::error_already_set();
    return filled(results, places, std::move(*made));
  }

  // Whether the call is to be recorded, which the second of its kind is.
  bool wants_recording(const py::list& arguments) {
    Arguments given;
    if (!describe(arguments, given) || (capturing() && capture_of_current(given.device))) return false;
    if (const KnownCall* known = find(given.key)) return !known->is_refused && known->graph == nullptr;
    std::unique_ptr<KnownCall> forgotten;  // which lets Python go while it waits, so last, when the list is whole
    if (calls_.size() == kMost) {
      const auto oldest = std::ranges::min_element(calls_, {}, [](const auto& call) { return call->last_use; });
      forgotten = std::move(*oldest);
      calls_.erase(oldest);
    }
    calls_.push_back(std::make_unique<KnownCall>());
    calls_.back()->key = std::move(given.key);
    calls_.back()->last_use = ++uses_;
    return false;
  }

  // Of the arguments with which it was recorded.
  void keep(const py::list& arguments, std::shared_ptr<RelocatableGraph> graph, const py::sequence& results) {
    KnownCall* known = found(arguments);
    if (known == nullptr || known->graph != nullptr) return;
    py::tuple others(results.size());
    known->tensors.clear();
    for (size_t i = 0; i < results.size(); ++i) {
      const py::object result = results[i];
      const bool is_tensor = THPVariable_Check(result.ptr());
      if (is_tensor) known->tensors.push_back(i);
      others[i] = is_tensor ? py::none() : result;
    }
    known->results = std::move(others);
    known->graph = std::move(graph);
    graphs_alive.fetch_add(1, std::memory_order_relaxed);
  }
  void refuse(const py::list& arguments) {
    if (KnownCall* known = found(arguments)) known->is_refused = true;
  }

 private:
  static constexpr size_t kMost = 64;

  struct Arguments {
    c10::SmallVector<at::Tensor, 32> tensors;
    std::vector<int64_t> key;
    c10::DeviceIndex device = -1;
  };

  // False if there are others than plain tensors of one device, numbers and None, or if somebody watches ops.
  static bool describe(const py::list& arguments, Arguments& given) {
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return false;
    const Py_ssize_t count = PyList_GET_SIZE(arguments.ptr());
    given.tensors.reserve(size_t(count));
    given.key.reserve(size_t(count) * 6);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* argument = PyList_GET_ITEM(arguments.ptr(), i);
      if (THPVariable_Check(argument)) {
        const at::Tensor& tensor = THPVariable_Unpack(argument);
        if (!is_plain(tensor)) return false;
        if (given.tensors.empty()) given.device = tensor.device().index();
        if (tensor.device().index() != given.device) return false;
        append(given.key, tensor);
        given.tensors.push_back(tensor);
      } else if (PyLong_CheckExact(argument)) {
        int overflow = 0;
        given.key.push_back(kNumber);
        given.key.push_back(PyLong_AsLongLongAndOverflow(argument, &overflow));
        if (overflow != 0) return false;
      } else if (PyFloat_CheckExact(argument)) {
        given.key.push_back(kNumber + 1);
        given.key.push_back(std::bit_cast<int64_t>(PyFloat_AS_DOUBLE(argument)));
      } else if (argument == Py_None) {  // what an op without results is said to give
        given.key.push_back(kNothing);
      } else {
        return false;
      }
    }
    return !given.tensors.empty();
  }

  static bool is_plain(const at::Tensor& tensor) {
    constexpr c10::DispatchKeySet others({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                          c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                          c10::DispatchKey::ZeroTensor});
    return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1 &&
           tensor.layout() == c10::kStrided && !tensor.key_set().has_any(others);
  }

  static constexpr int64_t kNumber = -2, kNothing = -3;

  static void append(std::vector<int64_t>& key, const at::Tensor& tensor) {
    // Plans ask for no better alignment than that of the allocator.
    const auto alignment = std::countr_zero(reinterpret_cast<uintptr_t>(tensor.data_ptr()) | kGranule);
    const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
    key.push_back(int64_t(tensor.scalar_type()) | int64_t(alignment) << 8 | int64_t(sizes.size()) << 16);
    key.insert(key.end(), sizes.begin(), sizes.end());
    key.insert(key.end(), strides.begin(), strides.end());
  }

  KnownCall* find(const std::vector<int64_t>& key) {
    for (const auto& call : calls_)
      if (call->key == key) {
        call->last_use = ++uses_;
        return call.get();
      }
    return nullptr;
  }

  KnownCall* found(const py::list& arguments) {
    Arguments given;
    return describe(arguments, given) ? find(given.key) : nullptr;
  }

  static py::object filled(const py::tuple& results, const std::vector<size_t>& places,
                           std::vector<at::Tensor> tensors) {
    py::tuple all(results.size());
    for (size_t i = 0; i < results.size(); ++i) all[i] = results[i];
    for (size_t i = 0; i < places.size(); ++i)
      all[places[i]] = py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensors[i])));
    return all;
  }

  // Guarded by the GIL.
  std::vector<std::unique_ptr<KnownCall>> calls_;
  uint64_t uses_ = 0;
};

// Words for the errors of a kernel, kept with what the current stream's capture becomes.
at::Tensor captured_error_words(const std::string& op, c10::DeviceIndex index) {
  const Captured captured = capture_of_current(index);
  TORCH_CHECK(captured, "nothing is being captured");
  const c10::Device device(c10::DeviceType::PrivateUse1, index);
  return at::from_blob(captured->error_words(op), {4}, {1}, [](void*) {}, at::device(device).dtype(at::kInt), device);
}

}  // namespace

void bind_compiled_calls(py::module_& m) {
  py::class_<RelocatableGraph, std::shared_ptr<RelocatableGraph>>(m, "RelocatableGraph")
      .def(py::init<>())
      .def("begin", torch::wrap_pybind_function_no_gil(&RelocatableGraph::begin))
      .def("end", torch::wrap_pybind_function_no_gil(&RelocatableGraph::end))
      .def("abandon", [](RelocatableGraph& graph) { graph.abandon(); });
  py::class_<CompiledCalls>(m, "CompiledCalls")
      .def(py::init<>())
      .def("run", torch::wrap_pybind_function(&CompiledCalls::run))
      .def("wants_recording", &CompiledCalls::wants_recording)
      .def("keep", &CompiledCalls::keep)
      .def("refuse", &CompiledCalls::refuse);
  m.def("compiled_counts", [] {
    return py::make_tuple(graphs_alive.load(std::memory_order_relaxed), replays.load(std::memory_order_relaxed));
  });
  m.def("captured_error_words", torch::wrap_pybind_function(&captured_error_words));
  m.def("error_codes", &error_codes);
}

}  // namespace torchgraft
