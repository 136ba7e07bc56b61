// What a plan consists of, as Python makes it: records, whose arguments are checked when they are made.

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "plans/eager.h"
#include "plans/plan.h"
#include "python_numbers.h"

namespace py = pybind11;

namespace torchgraft {
namespace {

using Sizes = std::vector<int64_t>;

// ---- launches ----

LaunchArgument constant(const std::string& type_name, py::handle number) {
  LaunchArgument argument;
  const ValueType type = value_type(type_name);
  const std::string what = "a number of type " + type_name;
  const bool truth = type == ValueType::B8;  // any number has one
  const NumberKind kind = truth ? NumberKind::Complex : number_kind(type);
  const c10::Scalar value = number_from_python(number, kind, what);
  if (kind == NumberKind::Integer)
    store_checked(argument.fixed, type, value);
  else  // what a float cannot hold is infinite
    store_cast(argument.fixed, type, value);
  return argument;
}

LaunchArgument table(const at::Tensor& tensor, int64_t offset) {
  LaunchArgument argument{.table = tensor};
  store_pointer(argument.fixed, static_cast<char*>(tensor.data_ptr()) + offset);
  return argument;
}

LaunchArgument null_pointer() {
  LaunchArgument argument;
  store_pointer(argument.fixed, nullptr);
  return argument;
}

LaunchArgument from(ArgumentSource::Kind kind, ValueType type = ValueType::I64, uint16_t index = 0,
                    int64_t offset = 0) {
  return {.source = {kind, type, index, offset}};
}

void bind_launch_argument(py::module_& m) {
  py::class_<LaunchArgument>(m, "LaunchArgument")
      .def_static("constant", torch::wrap_pybind_function(&constant), py::arg("type"), py::arg("number"))
      .def_static("null", &null_pointer)
      .def_static("table", torch::wrap_pybind_function(&table), py::arg("tensor"), py::arg("offset"))
      .def_static(
          "pointer", [](uint16_t slot, int64_t offset) { return from(ArgumentSource::Pointer, {}, slot, offset); },
          py::arg("slot"), py::arg("offset"))
      .def_static("scalar", torch::wrap_pybind_function([](uint16_t index, const std::string& type) {
                    return from(ArgumentSource::Scalar, value_type(type), index);
                  }),
                  py::arg("index"), py::arg("type"))
      .def_static("tensor_value", torch::wrap_pybind_function([](uint16_t slot, const std::string& type) {
                    return from(ArgumentSource::TensorValue, value_type(type), slot);
                  }),
                  py::arg("slot"), py::arg("type"))
      .def_static("numel", [] { return from(ArgumentSource::Numel); })
      .def_static("chunk", [] { return from(ArgumentSource::Chunk); })
      .def_static("seed", [] { return from(ArgumentSource::Seed); })
      .def_static(
          "offset", [](int64_t add) { return from(ArgumentSource::Offset, {}, 0, add); }, py::arg("add"))
      .def_static("error_words", [] { return from(ArgumentSource::ErrorWords); });
}

Chunking make_chunking(int64_t multiple, int64_t single, int64_t per_group, int64_t max_groups) {
  TORCH_CHECK_VALUE(multiple > 0, "multiple must be positive, not ", multiple);
  TORCH_CHECK_VALUE(single >= 0, "single must not be negative, but is ", single);
  TORCH_CHECK_VALUE(per_group > 0, "per_group must be positive, not ", per_group);
  TORCH_CHECK_VALUE(max_groups >= 0, "max_groups must not be negative, but is ", max_groups);
  return {multiple, single, per_group, max_groups};
}

void bind_chunking(py::module_& m) {
  py::class_<Chunking>(m, "Chunking")
      .def(py::init(torch::wrap_pybind_function(&make_chunking)), py::arg("multiple"), py::arg("single"),
           py::arg("per_group"), py::arg("max_groups"))
      .def_readonly("multiple", &Chunking::multiple)
      .def_readonly("single", &Chunking::single)
      .def_readonly("per_group", &Chunking::per_group)
      .def_readonly("max_groups", &Chunking::max_groups)
      .def("divide", torch::wrap_pybind_function([](const Chunking& chunking, int64_t numel) {
             TORCH_CHECK_VALUE(numel >= 0, "numel must not be negative, but is ", numel);
             return chunking.divide(numel);
           }),
           py::arg("numel"));
}

void bind_steps(py::module_& m) {
  py::class_<LaunchStep>(m, "LaunchStep")
      .def(py::init(torch::wrap_pybind_function(
               [](std::shared_ptr<Kernel> kernel, const std::vector<size_t>& groups,
                  const std::vector<LaunchArgument>& arguments, std::optional<Chunking> chunking,
                  uint64_t bytes) { return LaunchStep(std::move(kernel), groups, arguments, chunking, bytes); })),
           py::arg("kernel").none(false), py::arg("groups"), py::arg("arguments"), py::arg("chunking") = py::none(),
           py::arg("nbytes") = 0);
  py::class_<RunStep>(m, "RunStep")
      .def(py::init(torch::wrap_pybind_function(
               [](std::shared_ptr<Program> program, const std::vector<LaunchArgument>& addresses) {
                 return RunStep(std::move(program), addresses);
               })),
           py::arg("program").none(false), py::arg("addresses"));
  py::class_<Address>(m, "Address")
      .def(py::init([](uint16_t slot, int64_t offset) { return Address{slot, offset}; }), py::arg("slot"),
           py::arg("offset"));
  py::class_<CopyStep>(m, "CopyStep")
      .def(py::init([](Address destination, Address source, int64_t nbytes) {
             return CopyStep{destination, source, nbytes};
           }),
           py::arg("destination"), py::arg("source"), py::arg("nbytes"));
  py::class_<FillStep>(m, "FillStep")
      .def(py::init(torch::wrap_pybind_function([](Address destination, int64_t nbytes, const py::bytes& pattern) {
             return FillStep(destination, nbytes, std::string(pattern));
           })),
           py::arg("destination"), py::arg("nbytes"), py::arg("pattern"));
}

// ---- results ----

c10::IValue constant_result(const std::variant<bool, int64_t, double>& value) {
  return std::visit([](auto number) { return c10::IValue(number); }, value);
}

void bind_output(py::module_& m) {
  py::class_<Output>(m, "Output")
      .def_static(
          "argument", [](uint16_t slot) { return Output{.kind = Output::Argument, .argument = slot}; }, py::arg("slot"))
      .def_static(
          "new",
          [](uint16_t slot, Sizes sizes, Sizes strides, at::ScalarType dtype) {
            return Output{.kind = Output::New,
                          .slot = slot,
                          .dtype = dtype,
                          .sizes = std::move(sizes),
                          .strides = std::move(strides)};
          },
          py::arg("slot"), py::arg("sizes"), py::arg("strides"), py::arg("dtype"))
      .def_static(
          "like",
          [](uint16_t slot, uint16_t argument, at::ScalarType dtype) {
            return Output{.kind = Output::LikeArgument, .slot = slot, .argument = argument, .dtype = dtype};
          },
          py::arg("slot"), py::arg("argument"), py::arg("dtype"))
      .def_static(
          "view",
          [](uint16_t argument, Sizes sizes, Sizes strides, int64_t offset) {
            return Output{.kind = Output::View,
                          .argument = argument,
                          .sizes = std::move(sizes),
                          .strides = std::move(strides),
                          .offset = offset};
          },
          py::arg("argument"), py::arg("sizes"), py::arg("strides"), py::arg("offset"))
      .def_static(
          "constant",
          [](const std::variant<bool, int64_t, double>& value) {
            return Output{.kind = Output::Constant, .constant = constant_result(value)};
          },
          py::arg("value"))
      .def_static(
          "list", [](std::vector<Output> items) { return Output{.kind = Output::List, .items = std::move(items)}; },
          py::arg("items"))
      .def_static("undefined", [] { return Output{}; });
  py::class_<Resize>(m, "Resize")
      .def(py::init([](uint16_t argument, Sizes sizes, Sizes strides) {
             return Resize{argument, std::move(sizes), std::move(strides)};
           }),
           py::arg("argument"), py::arg("sizes"), py::arg("strides"));
}

// ---- for which calls ----

void bind_guards(py::module_& m) {
  using Value = Guard::Value;
  py::class_<Value>(m, "GuardValue")
      .def_static(
          "number", [](double number) { return Value{Value::Number, 0, number}; }, py::arg("number"))
      .def_static(
          "scalar", [](uint16_t index) { return Value{Value::Scalar, index, 0}; }, py::arg("index"))
      .def_static("tensor", [](uint16_t slot) { return Value{Value::Tensor, slot, 0}; }, py::arg("slot"));
  py::class_<Guard>(m, "Guard")
      .def_static(
          "within",
          [](Value subject, std::optional<Value> low, std::optional<Value> high) { return Guard{subject, low, high}; },
          py::arg("subject"), py::arg("low"), py::arg("high"))
      .def_static(
          "no_multiple", [](Value subject, double modulus) { return Guard{.subject = subject, .modulus = modulus}; },
          py::arg("subject"), py::arg("modulus"));
}

// ---- plans ----

std::shared_ptr<Plan> make_plan(std::string op, std::vector<Output> outputs, std::vector<Resize> resizes,
                                std::vector<Step> steps, std::vector<Address> temporaries, int64_t arena_bytes,
                                uint16_t slots, uint64_t philox_count, std::vector<Guard> guards) {
  auto plan = std::make_shared<Plan>();
  plan->op = std::move(op);
  plan->outputs = std::move(outputs);
  plan->resizes = std::move(resizes);
  plan->steps = std::move(steps);
  plan->temporaries = std::move(temporaries);
  plan->arena_bytes = arena_bytes;
  plan->slots = slots;
  plan->philox_count = philox_count;
  plan->guards = std::move(guards);
  plan->complete();
  return plan;
}

std::shared_ptr<Plan> make_eager_plan(std::string op, py::function function, py::object refusal) {
  auto plan = std::make_shared<Plan>();
  plan->op = std::move(op);
  plan->eager = eager_function(std::move(function), std::move(refusal));
  return plan;
}

std::shared_ptr<Plan> make_fallback_plan(std::string op, std::string reason,
                                         std::vector<std::vector<int64_t>> result_strides) {
  auto plan = std::make_shared<Plan>();
  plan->op = std::move(op);
  plan->fallback = true;
  plan->reason = std::move(reason);
  plan->result_strides = std::move(result_strides);
  return plan;
}

void bind_plan(py::module_& m) {
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def(py::init(torch::wrap_pybind_function(&make_plan)), py::arg("op"), py::kw_only(), py::arg("outputs"),
           py::arg("resizes"), py::arg("steps"), py::arg("temporaries"), py::arg("arena_bytes"), py::arg("slots"),
           py::arg("philox_count"), py::arg("guards"))
      .def_static("eager", &make_eager_plan, py::arg("op"), py::arg("function"), py::arg("refusal"))
      .def_static("fallback", &make_fallback_plan, py::arg("op"), py::arg("reason"),
                  py::arg("result_strides") = std::vector<std::vector<int64_t>>())
      .def_readonly("op", &Plan::op)
      .def("describe", &Plan::describe, py::arg("source") = false);
}

}  // namespace

void bind_records(py::module_& m) {
  bind_launch_argument(m);
  bind_chunking(m);
  bind_steps(m);
  bind_output(m);
  bind_guards(m);
  bind_plan(m);
}

}  // namespace torchgraft
