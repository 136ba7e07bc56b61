// Programs as Python makes them: torchgraft/plans/operators.py.

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <map>

#include "bindings.h"
#include "runtime/program.h"

namespace py = pybind11;

namespace torchgraft {
namespace {

using Sizes = std::vector<int64_t>;
using Tensor = std::optional<std::tuple<uint32_t, Sizes, Sizes, bool>>;  // element, sizes, strides, is a number
using Value = std::variant<int64_t, double, std::string, Sizes>;

std::vector<ProgramSource::Tensor> tensors(std::vector<Tensor> given) {
  std::vector<ProgramSource::Tensor> made;
  for (Tensor& each : given) {
    made.emplace_back();
    ProgramSource::Tensor& tensor = made.back();
    if (each) std::tie(tensor.element, tensor.sizes, tensor.strides, tensor.is_number) = std::move(*each);
  }
  return made;
}

std::shared_ptr<ProgramSource> make_source(std::string format, std::string name, const py::bytes& bytes,
                                           std::map<std::string, Value> attributes, std::vector<Tensor> inputs,
                                           std::vector<Tensor> outputs) {
  std::vector<ProgramSource::Attribute> named;
  for (auto& [key, value] : attributes) named.push_back({key, std::move(value)});
  return std::make_shared<ProgramSource>(std::move(format), std::move(name), std::string(bytes), std::move(named),
                                         tensors(std::move(inputs)), tensors(std::move(outputs)));
}

// The wishes, or None and the reason.
py::tuple supports(c10::DeviceIndex device, const ProgramSource& source) {
  std::string reason;
  std::optional<std::vector<uint32_t>> wishes;
  {
    const py::gil_scoped_release released;
    wishes = Program::supports(get_device(device), source, reason);
  }
  return py::make_tuple(wishes, reason);
}

// The program, or None and the reason, and whether it should have worked.
py::tuple create(c10::DeviceIndex device, const ProgramSource& source) {
  std::string reason;
  bool refused = false;
  std::shared_ptr<Program> program;
  {
    const py::gil_scoped_release released;
    program = Program::create(get_device(device), source, reason, refused);
  }
  return py::make_tuple(program, reason, refused);
}

// The program, or None and the reason.
py::tuple load(c10::DeviceIndex device, const ProgramSource& source, const py::bytes& binary) {
  const std::string given(binary);
  std::string reason;
  std::shared_ptr<Program> program;
  {
    const py::gil_scoped_release released;
    program = Program::load(get_device(device), source, given, reason);
  }
  return py::make_tuple(program, reason);
}

std::optional<py::bytes> binary(const Program& program) {
  std::optional<std::string> read;
  {
    const py::gil_scoped_release released;
    read = program.binary();
  }
  return read ? std::optional<py::bytes>(*read) : std::nullopt;
}

bool keeps_programs(c10::DeviceIndex device) { return get_device(device).driver->program_load != nullptr; }

}  // namespace

void bind_programs(py::module_& m) {
  m.def("keeps_programs", torch::wrap_pybind_function(&keeps_programs), py::arg("device"));
  py::class_<ProgramSource, std::shared_ptr<ProgramSource>>(m, "ProgramSource")
      .def(py::init(torch::wrap_pybind_function(&make_source)), py::arg("format"), py::arg("name"), py::arg("data"),
           py::arg("attributes"), py::arg("inputs"), py::arg("outputs"));
  py::class_<Program, std::shared_ptr<Program>>(m, "Program")
      .def_static("supports", torch::wrap_pybind_function(&supports), py::arg("device"), py::arg("source"))
      .def_static("create", torch::wrap_pybind_function(&create), py::arg("device"), py::arg("source"))
      .def_static("load", torch::wrap_pybind_function(&load), py::arg("device"), py::arg("source"), py::arg("binary"))
      .def("binary", torch::wrap_pybind_function(&binary))
      .def_property_readonly("name", &Program::name)
      .def_property_readonly("scratch_bytes", &Program::scratch_bytes);
  m.def("program_runs", &program_runs);
}

}  // namespace torchgraft
