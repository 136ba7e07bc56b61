// What torch's device guards, torch.Stream and torch.Event call.
#pragma once

namespace torchgraft {

// Called once by install_runtime().
void register_guard();

}  // namespace torchgraft
