#include <torch/csrc/utils/pybind.h>

#include "../bindings.h"
#include "backend.h"

namespace py = pybind11;

namespace torchgraft {

void bind_distributed(py::module_& m) {
  m.def(
      "distributed_backend",
      [](const c10::intrusive_ptr<c10d::Backend>& inner, std::string name) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<GraftBackend>(inner, std::move(name));
      },
      py::arg("inner"), py::arg("name"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace torchgraft
