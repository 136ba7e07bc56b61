// What torchgraft/fallback.py needs of the fallback.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/fallback.h"
#include "bindings.h"
#include "plans/eager.h"
#include "runtime/place.h"

namespace torchgraft {

namespace {

// "aten::add.out"
c10::OperatorName operator_name(const std::string& name) {
  const size_t dot = name.find('.');
  return {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

}  // namespace

void bind_fallback(pybind11::module_& m) {
  namespace py = pybind11;

  m.def("fallback_set_mode", [](int mode) { set_fallback_mode(static_cast<FallbackMode>(mode)); }, py::arg("mode"));
  m.def("fallback_mode", [] { return static_cast<int>(fallback_mode()); });
  m.def("fallback_report", [] {
    py::list rows;
    for (FallbackRecord& record : fallback_report())
      rows.append(py::make_tuple(record.op, record.calls, record.bytes_to_host, record.bytes_to_device, record.seconds,
                                 record.places, record.reasons));
    return rows;
  });
  m.def("fallback_reset", &reset_fallback_report, py::arg("warnings"));
  m.def(
      "set_host_kernel",
      [](const std::string& name, py::function function) {
        set_host_kernel(operator_name(name), eager_function(std::move(function), py::none()));
      },
      py::arg("name"), py::arg("function"));
  m.def("register_host_op", [](const std::string& name) { register_host_op(operator_name(name)); }, py::arg("name"));
  m.def("fallback_record_places", &record_fallback_places, py::arg("every_call"));
  m.def(
      "fallback_set_hooks",
      [](const py::object& place, const py::object& warn) {
        // Kept for ever: the interpreter may be gone when C++ destroys its globals.
        auto* held_place = new py::object(place);
        auto* held_warn = new py::object(warn);
        set_user_place([held_place]() -> std::string {
          if (!Py_IsInitialized()) return {};
          py::gil_scoped_acquire gil;
          return py::cast<std::string>((*held_place)());
        });
        set_fallback_warning([held_warn](const std::string& message, bool of_op) {
          if (!Py_IsInitialized()) return true;
          py::gil_scoped_acquire gil;
          return py::cast<bool>((*held_warn)(message, of_op));
        });
      },
      py::arg("place"), py::arg("warn"));
}

}  // namespace torchgraft
