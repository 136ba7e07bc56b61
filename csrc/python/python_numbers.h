// Numbers that Python gives for a kernel's parameters.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "plans/value.h"

namespace torchgraft {

// A number as one of a kind. `what` is for whom it is, as messages name it.
// Raises TypeError where it is none, and OverflowError for an integer of more than 64 bits.
c10::Scalar number_from_python(pybind11::handle given, NumberKind kind, const std::string& what);

[[noreturn]] void raise_cannot_hold(pybind11::handle number, const std::string& what);

}  // namespace torchgraft
