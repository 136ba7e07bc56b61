// Devices, memory, streams, events and random numbers: everything that is not an operator. bindings.h declares
// what shows it to Python.
#pragma once

namespace torchgraft {

// Puts our guard, allocators and hooks into PyTorch's places for PrivateUse1. Idempotent.
void install_runtime();

}  // namespace torchgraft
