// The plan engine as Python sees it: kernels are compiled, plans are described and made, statistics are read.

#include <pybind11/complex.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include "../bindings.h"
#include "plan.h"

namespace py = pybind11;

namespace torch::jit {
// Declared in torch/csrc/jit/python/pybind_utils.h, which is the slowest header of all.
TORCH_PYTHON_API py::object toPyObject(c10::IValue ivalue);
TORCH_PYTHON_API c10::IValue toIValue(py::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
}  // namespace torch::jit

namespace torchgraft {

namespace {

py::object* python_planner = nullptr;

c10::ScalarType scalar_type(py::handle dtype) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

ValueType value_type(const std::string& name) {
  static const std::unordered_map<std::string, ValueType> types{
      {"f64", ValueType::F64}, {"f32", ValueType::F32}, {"f16", ValueType::F32}, {"bf16", ValueType::F32},
      {"i64", ValueType::I64}, {"i32", ValueType::I32}, {"i16", ValueType::I16}, {"i8", ValueType::I8},
      {"u8", ValueType::U8},   {"b8", ValueType::B8},   {"c64", ValueType::C64}, {"c128", ValueType::C128},
      {"u32", ValueType::U32}, {"u64", ValueType::U64}};
  auto it = types.find(name);
  TORCH_CHECK_VALUE(it != types.end(), "no value type is called ", name);
  return it->second;
}

tg_arg constant(ValueType type, py::handle number) {
  tg_arg arg{};
  auto put = [&arg](auto value) {
    arg.size = sizeof(value);
    std::memcpy(arg.value.bytes, &value, sizeof(value));
  };
  switch (type) {
    case ValueType::F64:
      put(number.cast<double>());
      break;
    case ValueType::F32:
      put(static_cast<float>(number.cast<double>()));
      break;
    case ValueType::C64: {
      auto value = number.cast<std::complex<double>>();
      put(std::complex<float>(value));
      break;
    }
    case ValueType::C128: {
      put(number.cast<std::complex<double>>());
      break;
    }
    case ValueType::U64:
      put(number.cast<uint64_t>());
      break;
    case ValueType::U32:
      put(static_cast<uint32_t>(number.cast<uint64_t>()));
      break;
    case ValueType::I64:
      put(number.cast<int64_t>());
      break;
    case ValueType::I32:
      put(number.cast<int32_t>());
      break;
    case ValueType::I16:
      put(number.cast<int16_t>());
      break;
    case ValueType::I8:
      put(static_cast<int8_t>(number.cast<int64_t>()));
      break;
    case ValueType::U8:
      put(static_cast<uint8_t>(number.cast<int64_t>()));
      break;
    case ValueType::B8:
      put(static_cast<uint8_t>(number.cast<bool>()));
      break;
  }
  return arg;
}

void add_argument(LaunchStep& step, const py::tuple& description) {
  auto kind = description[0].cast<std::string>();
  LaunchArg source{};
  tg_arg fixed{};
  if (kind == "constant") {
    step.args.push_back(constant(value_type(description[1].cast<std::string>()), description[2]));
    return;
  }
  if (kind == "null") {
    fixed.is_pointer = 1;
    fixed.size = sizeof(void*);
    step.args.push_back(fixed);
    return;
  }
  if (kind == "table") {
    fixed.is_pointer = 1;
    fixed.size = sizeof(void*);
    fixed.value.pointer =
        static_cast<char*>(THPVariable_Unpack(description[1].ptr()).data_ptr()) + description[2].cast<int64_t>();
    step.args.push_back(fixed);
    return;
  }
  if (kind == "pointer") {
    source.source = ArgSource::Pointer;
    source.index = description[1].cast<uint16_t>();
    source.offset = description[2].cast<int64_t>();
  } else if (kind == "scalar" || kind == "tensor") {
    source.source = kind == "scalar" ? ArgSource::Scalar : ArgSource::TensorValue;
    source.index = description[1].cast<uint16_t>();
    source.type = value_type(description[2].cast<std::string>());
  } else if (kind == "numel" || kind == "chunk") {
    source.source = kind == "numel" ? ArgSource::Numel : ArgSource::Chunk;
    source.type = value_type(description[1].cast<std::string>());
  } else if (kind == "seed") {
    source.source = ArgSource::Seed;
  } else if (kind == "offset") {
    source.source = ArgSource::Offset;
    source.offset = description[1].cast<int64_t>();
  } else if (kind == "errors") {
    source.source = ArgSource::ErrorWords;
    step.reports = true;
  } else {
    TORCH_CHECK_VALUE(false, "no launch argument is of kind ", kind);
  }
  step.patches.emplace_back(uint16_t(step.args.size()), source);
  step.args.push_back(fixed);
}

Step make_step(const py::tuple& description) {
  auto kind = description[0].cast<std::string>();
  if (kind == "launch") {
    LaunchStep step;
    step.kernel = description[1].cast<std::shared_ptr<Kernel>>();
    auto groups = description[2].cast<std::vector<size_t>>();
    TORCH_CHECK_VALUE(groups.size() <= 3, "a launch has at most three dimensions");
    std::copy(groups.begin(), groups.end(), step.groups.begin());
    if (!description[3].is_none()) {
      auto [multiple, single, per_group, max_groups] =
          description[3].cast<std::tuple<int64_t, int64_t, int64_t, int64_t>>();
      step.chunking = {multiple, single, per_group, max_groups};
    }
    for (py::handle arg : description[4]) add_argument(step, arg.cast<py::tuple>());
    return step;
  }
  if (kind == "copy") {
    return CopyStep{description[1].cast<uint16_t>(), description[3].cast<uint16_t>(), description[2].cast<int64_t>(),
                    description[4].cast<int64_t>(), description[5].cast<int64_t>()};
  }
  TORCH_CHECK_VALUE(kind == "fill", "no step is of kind ", kind);
  FillStep step{};
  step.slot = description[1].cast<uint16_t>();
  step.offset = description[2].cast<int64_t>();
  step.bytes = description[3].cast<int64_t>();
  auto pattern = description[4].cast<std::string>();
  TORCH_CHECK_VALUE(pattern.size() <= step.pattern.size(), "a fill's pattern has at most 16 bytes");
  step.pattern_bytes = uint32_t(pattern.size());
  std::copy(pattern.begin(), pattern.end(), step.pattern.begin());
  return step;
}

Output make_output(const py::tuple& description) {
  auto kind = description[0].cast<std::string>();
  Output output;
  if (kind == "argument") {
    output.kind = Output::Argument;
    output.argument = description[1].cast<uint16_t>();
  } else if (kind == "new") {
    output.kind = Output::New;
    output.slot = description[1].cast<uint16_t>();
    output.sizes = description[2].cast<std::vector<int64_t>>();
    output.strides = description[3].cast<std::vector<int64_t>>();
    output.dtype = scalar_type(description[4]);
  } else if (kind == "like") {
    output.kind = Output::LikeArgument;
    output.slot = description[1].cast<uint16_t>();
    output.argument = description[2].cast<uint16_t>();
    output.dtype = scalar_type(description[3]);
  } else if (kind == "view") {
    output.kind = Output::View;
    output.argument = description[1].cast<uint16_t>();
    output.sizes = description[2].cast<std::vector<int64_t>>();
    output.strides = description[3].cast<std::vector<int64_t>>();
    output.offset = description[4].cast<int64_t>();
  } else if (kind == "constant") {
    output.kind = Output::Constant;
    py::object value = description[1];
    if (py::isinstance<py::bool_>(value))
      output.constant = value.cast<bool>();
    else if (py::isinstance<py::int_>(value))
      output.constant = value.cast<int64_t>();
    else
      output.constant = value.cast<double>();
  } else if (kind == "list") {
    output.kind = Output::List;
    for (py::handle item : description[1]) output.items.push_back(make_output(item.cast<py::tuple>()));
  } else {
    TORCH_CHECK_VALUE(kind == "undefined", "no output is of kind ", kind);
  }
  return output;
}

// As torch carries Python's exceptions through C++, so that autograd's threads hand them on too.
[[noreturn]] void carry(py::error_already_set& error) {
  error.restore();
  python_error carried;
  carried.persist();
  throw carried;
}

// A Python function of the op's arguments in the place of a plan's steps.
struct EagerFunction {
  std::shared_ptr<py::object> function;

  explicit EagerFunction(py::object callable)
      : function(new py::object(std::move(callable)), [](py::object* owned) {
          py::gil_scoped_acquire gil;
          delete owned;
        }) {}

  void operator()(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    const c10::FunctionSchema& schema = op.schema();
    size_t count = schema.arguments().size();
    torch::jit::Stack results;
    py::gil_scoped_acquire gil;
    try {
      py::tuple arguments(count);
      for (size_t i = 0; i < count; ++i) arguments[i] = torch::jit::toPyObject(torch::jit::peek(*stack, i, count));
      py::object answer = (*function)(*arguments);
      const auto& returns = schema.returns();
      if (returns.size() == 1) {
        results.push_back(torch::jit::toIValue(answer, returns[0].type(), std::nullopt));
      } else {
        auto several = answer.cast<py::tuple>();
        for (size_t i = 0; i < returns.size(); ++i)
          results.push_back(torch::jit::toIValue(several[i], returns[i].type(), std::nullopt));
      }
    } catch (py::error_already_set& error) {
      carry(error);
    }
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }
};

Guard::Value make_guard_value(py::handle description) {
  if (description.is_none()) return {};
  auto pair = description.cast<py::tuple>();
  const auto kind = pair[0].cast<std::string>();
  if (kind == "number") return {Guard::Value::Number, 0, pair[1].cast<double>()};
  return {kind == "scalar" ? Guard::Value::Scalar : Guard::Value::Tensor, pair[1].cast<uint16_t>(), 0};
}

std::shared_ptr<Plan> make_plan(const py::dict& description) {
  auto plan = std::make_shared<Plan>();
  plan->op = description["op"].cast<std::string>();
  if (description.contains("eager")) {
    plan->eager = EagerFunction(description["eager"]);
    return plan;
  }
  if (description.contains("fallback")) {
    plan->fallback = true;
    plan->reason = description["fallback"].cast<std::string>();
    return plan;
  }
  for (py::handle item : description["outputs"]) plan->outputs.push_back(make_output(item.cast<py::tuple>()));
  for (py::handle item : description["resizes"]) {
    auto parts = item.cast<py::tuple>();
    using Sizes = std::vector<int64_t>;
    plan->resizes.push_back({parts[0].cast<uint16_t>(), parts[1].cast<Sizes>(), parts[2].cast<Sizes>()});
  }
  for (py::handle item : description["steps"]) plan->steps.push_back(make_step(item.cast<py::tuple>()));
  plan->temporaries = description["temporaries"].cast<std::vector<std::pair<uint16_t, int64_t>>>();
  plan->arena_bytes = description["arena_bytes"].cast<int64_t>();
  plan->slots = description["slots"].cast<uint16_t>();
  plan->philox_count = description["philox_count"].cast<uint64_t>();
  for (py::handle item : description["tables"]) plan->tables.push_back(THPVariable_Unpack(item.ptr()));
  for (py::handle item : description["guards"]) {
    auto parts = item.cast<py::tuple>();
    plan->guards.push_back(
        {make_guard_value(parts[0]), make_guard_value(parts[1]), make_guard_value(parts[2]), parts[3].cast<double>()});
  }
  return plan;
}

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

}  // namespace

std::pair<std::shared_ptr<Plan>, uint64_t> request_plan(const PlanRequest& request) {
  py::gil_scoped_acquire gil;
  try {
    TORCH_CHECK(python_planner != nullptr, "torchgraft has not been set up: call torchgraft.register first");
    py::list arguments;
    for (const c10::IValue& value : torch::jit::last(*request.stack, request.argument_count))
      arguments.append(torch::jit::toPyObject(value));
    py::object answer = (*python_planner)(request.op, arguments, int(request.device), request.contiguous,
                                          request.overlap.full, request.overlap.partial, request.overlap.unclear);
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
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def(py::init(&make_plan))
      .def_readonly("op", &Plan::op)
      .def_readonly("fallback", &Plan::fallback)
      .def_readonly("reason", &Plan::reason)
      .def_property_readonly("hits", [](const Plan& plan) { return plan.hits.load(); })
      .def("describe", &Plan::describe, py::arg("source") = false);

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
  m.def("set_plan_epoch", &set_plan_epoch);
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
