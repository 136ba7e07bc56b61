#include "eager.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <memory>

namespace py = pybind11;

namespace torchgraft {
namespace {

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

}  // namespace

std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)> eager_function(py::function function) {
  return EagerFunction(std::move(function));
}

void carry(py::error_already_set& error) {
  error.restore();
  python_error carried;
  carried.persist();
  throw carried;
}

}  // namespace torchgraft
