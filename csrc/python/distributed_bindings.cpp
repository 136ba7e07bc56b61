#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "distributed/backend.h"

namespace py = pybind11;

namespace torchgraft {

void bind_distributed(py::module_& m) {
  m.def(
      "distributed_backend",
      [](const c10::intrusive_ptr<c10d::Backend>& inner, const c10::intrusive_ptr<c10d::Store>& store,
         std::string name) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<GraftBackend>(inner, store, std::move(name));
      },
      py::arg("inner"), py::arg("store"), py::arg("name"), py::call_guard<py::gil_scoped_release>());
  m.def("distributed_traffic", [] {
    const Traffic now = traffic();
    return py::dict(py::arg("calls") = now.calls, py::arg("queued") = now.queued, py::arg("copies") = now.copies,
                    py::arg("copied_bytes") = now.copied_bytes);
  });
}

}  // namespace torchgraft
