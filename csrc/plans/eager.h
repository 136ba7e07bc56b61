// A Python function of an op's arguments in the place of a plan's steps.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Export.h>

#include <functional>
#include <optional>
#include <string>

namespace torch::jit {
// Declared in torch/csrc/jit/python/pybind_utils.h, which is the slowest header of all.
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue ivalue);
TORCH_PYTHON_API c10::IValue toIValue(pybind11::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
}  // namespace torch::jit

namespace torchgraft {

// Replaces an op's arguments by the results. Returns why it refuses the call, and has then left the arguments as they
// are.
using EagerFunction = std::function<std::optional<std::string>(const c10::OperatorHandle&, torch::jit::Stack*)>;

// `refusal` is a Python function that is given what the function raises: it returns a text if that is a refusal, or
// None. Without it (None) there is no refusal.
EagerFunction eager_function(pybind11::function function, pybind11::object refusal);

// As torch carries Python's exceptions through C++, so that autograd's threads hand them on too.
[[noreturn]] void carry(pybind11::error_already_set& error);

}  // namespace torchgraft
