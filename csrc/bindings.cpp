#include "bindings.h"

#include "dispatch/register.h"
#include "runtime/runtime.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of torchgraft: runtime, dispatch and plans.";
  torchgraft::bind_runtime(m);
  torchgraft::bind_fallback(m);
  torchgraft::bind_plans(m);
  m.def("install_kernels", [] {
    torchgraft::register_factories();
    torchgraft::register_views();
    torchgraft::register_copy();
    torchgraft::register_fallback();
    torchgraft::register_autocast();
    torchgraft::register_attention();
  });
}
