// A Python function of an op's arguments in the place of a plan's steps.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>

#include <functional>

namespace torchgraft {

std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)> eager_function(pybind11::function function);

// As torch carries Python's exceptions through C++, so that autograd's threads hand them on too.
[[noreturn]] void carry(pybind11::error_already_set& error);

}  // namespace torchgraft
