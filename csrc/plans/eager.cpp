#include "eager.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <memory>

namespace py = pybind11;

namespace torchgraft {
namespace {

std::shared_ptr<py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* owned) {
            py::gil_scoped_acquire gil;
            delete owned;
          }};
}

struct PythonFunction {
  std::shared_ptr<py::object> function, refusal;

  std::optional<std::string> operator()(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
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
      if (std::optional<std::string> reason = reason_of(error)) return reason;
      carry(error);
    }
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : results) stack->push_back(std::move(result));
    return std::nullopt;
  }

  std::optional<std::string> reason_of(const py::error_already_set& error) const {
    if (refusal->is_none()) return std::nullopt;
    try {
      return (*refusal)(error.value()).cast<std::optional<std::string>>();
    } catch (py::error_already_set& other) {
      carry(other);
    }
  }
};

}  // namespace

EagerFunction eager_function(py::function function, py::object refusal) {
  return PythonFunction{held(std::move(function)), held(std::move(refusal))};
}

void carry(py::error_already_set& error) {
  error.restore();
  python_error carried;
  carried.persist();
  throw carried;
}

}  // namespace torchgraft
