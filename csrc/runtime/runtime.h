// Devices, memory, streams, events and random numbers: everything that is not an operator.
#pragma once

#include <pybind11/pybind11.h>

namespace torchgraft {

// Puts our guard, allocators and hooks into PyTorch's places for PrivateUse1. Idempotent.
void install_runtime();

void bind_runtime(pybind11::module_& module);

}  // namespace torchgraft
