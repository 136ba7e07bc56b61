// What device-agnostic C++ code of torch asks of an accelerator.
#pragma once

namespace torchgraft {

// Called once by install_runtime().
void register_hooks();

}  // namespace torchgraft
