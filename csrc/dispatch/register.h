// The parts of dispatch, for whoever puts them together; free of torch's headers.
#pragma once

namespace torchgraft {

// Each registers its kernels for PrivateUse1; called once.
void register_factories();
void register_views();
void register_copy();
void register_fallback();
void register_autocast();
void register_attention();

}  // namespace torchgraft
