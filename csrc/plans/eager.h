// A Python function of an op's arguments in the place of a plan's steps.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Export.h>

#include <functional>
#include <optional>

namespace torch::jit {
// Declared in torch/csrc/jit/python/pybind_utils.h, which is the slowest header of all.
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue ivalue);
TORCH_PYTHON_API c10::IValue toIValue(pybind11::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
}  // namespace torch::jit

namespace torchgraft {

std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)> eager_function(pybind11::function function);

// As torch carries Python's exceptions through C++, so that autograd's threads hand them on too.
[[noreturn]] void carry(pybind11::error_already_set& error);

}  // namespace torchgraft
