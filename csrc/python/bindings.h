// What each part offers to Python; bindings.cpp puts them together as torchgraft._C.
#pragma once

#include <pybind11/pybind11.h>

namespace torchgraft {

void bind_runtime(pybind11::module_& m);
void bind_graphs(pybind11::module_& m);
void bind_fallback(pybind11::module_& m);
void bind_plans(pybind11::module_& m);
void bind_programs(pybind11::module_& m);
void bind_records(pybind11::module_& m);  // what plans consist of
void bind_compiled_calls(pybind11::module_& m);
void bind_author(pybind11::module_& m);
void bind_distributed(pybind11::module_& m);

}  // namespace torchgraft
