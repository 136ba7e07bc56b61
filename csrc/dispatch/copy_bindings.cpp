// What torchgraft/dlpack.py and torchgraft/upstream.py need of the copies.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "../bindings.h"
#include "../runtime/serialization.h"
#include "dispatch.h"

namespace torchgraft {

void bind_copy(pybind11::module_& m) {
  m.def("host_alias", torch::wrap_pybind_function_no_gil([](const at::Tensor& tensor) { return host_alias(tensor); }),
        "A CPU tensor over the memory of a tensor whose device has unified memory, after waiting for its stream.");
  m.def("carry_backend_meta", &carry_backend_meta, "Gives the second tensor, a copy of the first, the first's fields.");
}

}  // namespace torchgraft
