// The plan engine as Python sees it: kernels are compiled, plans are asked for, statistics are read.

#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/register.h"
#include "bindings.h"
#include "plans/eager.h"
#include "plans/plan.h"

namespace py = pybind11;

namespace torchgraft {

namespace {

py::object* python_planner = nullptr;

CpuTensors cpu_tensors(const std::string& name) {
  if (name == "value") return CpuTensors::Value;
  if (name == "upload") return CpuTensors::Upload;
  TORCH_CHECK_VALUE(name == "upload_all", "cpu_tensors is \"value\", \"upload\" or \"upload_all\"");
  return CpuTensors::UploadAll;
}

py::object compile_module(c10::DeviceIndex device, const std::string& source, const std::string& options) {
  std::string log;
  std::shared_ptr<Module> module;
  {
    py::gil_scoped_release release;
    module = Module::compile(get_device(device), source, options, &log);
  }
  // Compilers quote sources and names of files, and speak the user's language in its encoding.
  const auto text = py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(log.data(), Py_ssize_t(log.size()), "replace"));
  return py::make_tuple(module == nullptr ? py::none() : py::cast(module), text);
}

py::object load_module(c10::DeviceIndex device, const std::string& binary) {
  std::shared_ptr<Module> module;
  {
    py::gil_scoped_release release;
    module = Module::load(get_device(device), binary, nullptr);
  }
  return module == nullptr ? py::none() : py::cast(module);
}

std::shared_ptr<Kernel> make_kernel(const std::shared_ptr<Module>& module, const std::string& name,
                                    const std::string& source, const std::vector<size_t>& local) {
  TORCH_CHECK_VALUE(!local.empty() && local.size() <= 3, "a work-group has one to three dimensions");
  std::array<size_t, 3> sizes{1, 1, 1};
  std::copy(local.begin(), local.end(), sizes.begin());
  return std::make_shared<Kernel>(module, name, source, sizes, uint32_t(local.size()));
}

// ---- elementwise ops, as torch's TensorIterator has them ----

c10::ScalarType promoted_dtype(const std::vector<at::Tensor>& operands) {
  at::native::ResultTypeState state = {};
  for (const at::Tensor& operand : operands) state = at::native::update_result_type_state(operand, state);
  return at::native::result_type(state);
}

at::Tensor elementwise_result(const std::vector<at::Tensor>& operands, c10::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype_and_device(dtype, at::kMeta);
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) config.add_const_input(operand);
  return config.build().output();
}

void bind_places(py::module_& m) {
  py::enum_<ArgumentKind>(m, "ArgumentKind")
      .value("Tensor", ArgumentKind::Tensor)
      .value("TensorList", ArgumentKind::TensorList)
      .value("Scalar", ArgumentKind::Scalar)
      .value("ScalarList", ArgumentKind::ScalarList)
      .value("Generator", ArgumentKind::Generator)
      .value("Static", ArgumentKind::Static);
  py::class_<Place>(m, "Place")
      .def_readonly("kind", &Place::kind)
      .def_readonly("first", &Place::first)
      .def_readonly("count", &Place::count);
}

}  // namespace

std::pair<std::shared_ptr<Plan>, uint64_t> request_plan(const std::string& op, const Call& call, uint32_t refused) {
  const CaptureSuspended suspended;  // the plan's tables are made now
  py::gil_scoped_acquire gil;
  try {
    TORCH_CHECK(python_planner != nullptr, "torchgraft has not been set up: call torchgraft.register first");
    py::list arguments, places;
    for (const c10::IValue& value : call.arguments) arguments.append(torch::jit::toPyObject(value));
    for (const Place& place : call.places) places.append(place);
    py::object answer = (*python_planner)(op, arguments, places, int(call.device), call.contiguous, call.overlap.full,
                                          call.overlap.partial, call.overlap.unclear, refused);
    auto pair = answer.cast<py::tuple>();
    return {pair[0].cast<std::shared_ptr<Plan>>(), pair[1].cast<uint64_t>()};
  } catch (py::error_already_set& error) {
    carry(error);
  }
}

void bind_plans(py::module_& m) {
  py::class_<Module, std::shared_ptr<Module>>(m, "Module").def("binary", [](const Module& module) -> py::object {
    std::string binary = module.binary();
    return binary.empty() ? py::object(py::none()) : py::object(py::bytes(binary));
  });
  py::class_<Kernel, std::shared_ptr<Kernel>>(m, "Kernel")
      .def_property_readonly("name", &Kernel::name)
      .def_property_readonly("source", &Kernel::source);
  bind_places(m);
  bind_programs(m);
  bind_records(m);

  m.def(
      "attention_prepare_by",
      [](const py::object& prepare) {
        auto* held = new py::object(prepare);  // for ever: the interpreter may be gone when C++ destroys its globals
        prepare_attention_by([held] {
          py::gil_scoped_acquire gil;
          (*held)();
        });
      },
      py::arg("prepare"));
  m.def("attention_operator_by", torch::wrap_pybind_function([](const py::object& serves) {
          auto* held = new py::object(serves);  // as above
          attention_operator_by([held](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                       const std::optional<at::Tensor>& mask, bool is_causal,
                                       std::optional<double> scale) {
            py::gil_scoped_acquire gil;
            try {
              return (*held)(query, key, value, mask, is_causal, scale).cast<bool>();
            } catch (py::error_already_set& error) {
              carry(error);
            }
          });
        }),
        py::arg("serves"));
  m.def("compile_module", &compile_module);
  m.def("load_module", &load_module);
  m.def("make_kernel", &make_kernel);
  m.def("set_planner", [](py::object planner) {
    if (python_planner == nullptr) python_planner = new py::object;  // outlives the interpreter's teardown
    *python_planner = std::move(planner);
  });
  m.def("register_planned_op", [](const std::string& name, const std::string& cpu, bool pointwise, bool dispatch) {
    register_planned_op(name, cpu_tensors(cpu), pointwise, dispatch);
  });
  // Torch has no way to say from Python that a zero-dim tensor stands for a number.
  m.def("set_wrapped_number", [](py::handle tensor) {
    TORCH_CHECK_TYPE(THPVariable_Check(tensor.ptr()), "expected a tensor");
    THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl()->set_wrapped_number(true);
  });
  m.def("promoted_dtype", torch::wrap_pybind_function(&promoted_dtype));
  m.def("elementwise_result", torch::wrap_pybind_function(&elementwise_result));
  m.def("set_plan_capacity", &set_plan_capacity);
  m.def("plan_counts", [] {
    std::vector<std::tuple<std::string, size_t, uint64_t, uint64_t>> out;
    for (PlannedOp* op : planned_ops()) out.emplace_back(op->name(), op->plans().size(), op->hits(), op->misses());
    return out;
  });
  m.def("plans_of", [](const std::string& name) {
    std::vector<std::shared_ptr<Plan>> out;
    for (PlannedOp* op : planned_ops())
      if (op->name() == name)
        for (const auto& plan : op->plans()) out.push_back(std::const_pointer_cast<Plan>(plan));
    return out;
  });
  m.def("clear_plans", [] {
    for (PlannedOp* op : planned_ops()) op->clear();
  });
}

}  // namespace torchgraft
