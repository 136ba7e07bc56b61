#include "bindings.h"

#include <torch/version.h>

#include "aten/register.h"
#include "runtime/runtime.h"

// `torchgraft doctor` reads it out of the file, where the core does not load.
extern "C" __attribute__((used, visibility("default"))) const char torchgraft_core_is_for[] =
    "torchgraft core for torch " TORCH_VERSION ";";

namespace {

// The layout of torch's classes changes from one minor version to the next. Usually the core then does not load for
// want of some symbol; where it does, using it would crash.
void check_torch_version() {
  const std::string minor = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  const std::string running = pybind11::str(pybind11::module_::import("torch").attr("__version__"));
  if (running.compare(0, minor.size(), minor) != 0)
    throw pybind11::import_error("the core was compiled for torch " TORCH_VERSION ", and this is " + running);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  check_torch_version();
  m.doc() = "The C++ core of torchgraft: runtime, dispatch and plans.";
  torchgraft::bind_runtime(m);
  torchgraft::bind_graphs(m);
  torchgraft::bind_fallback(m);
  torchgraft::bind_plans(m);
  torchgraft::bind_compiled_calls(m);
  torchgraft::bind_author(m);
  torchgraft::bind_distributed(m);
  m.def("install_kernels", [] {
    torchgraft::register_factories();
    torchgraft::register_views();
    torchgraft::register_copy();
    torchgraft::register_fill();
    torchgraft::register_sparse();
    torchgraft::register_nested();
    torchgraft::register_fallback();  // for what is left
    torchgraft::register_autocast();
    torchgraft::register_attention();
    torchgraft::register_cross_entropy();
  });
}
