// A driver whose functions are the methods of a Python object (see torchgraft/driver.py).
#pragma once

#include <pybind11/pybind11.h>
#include <torchgraft/driver.h>

namespace torchgraft {

// The table lives for ever and keeps the object alive. Call with the GIL.
const tg_driver* wrap_python_driver(pybind11::object driver);

}  // namespace torchgraft
