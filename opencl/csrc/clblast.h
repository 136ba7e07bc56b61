// Products of matrices by CLBlast, whose kernels are tuned for many GPUs, where its library is found: the operator
// `matmul` of docs/operators.md. Nothing is linked, and no header of it is needed to build.
#pragma once

#include <string>

#include "device.h"
#include "stream.h"

namespace ocl {

// Throws where TORCHGRAFT_OPENCL_CLBLAST has none of its values.
void check_clblast_wish();
// Adds to a device's capabilities what comes of CLBlast.
void add_clblast(Device& device);
// Why a device has none of its operators though it is to have them; empty if nothing is amiss.
std::string why_no_clblast(const Device& device);

// Throws TG_ERROR_UNSUPPORTED, with the reason, where CLBlast has not what is asked for.
void check_program(const Device& device, const tg_program_source& source);
// Also has CLBlast compile its kernels, at the first program of a kind. The compiler's messages are left in `log`.
tg_program prepare_program(Device& device, const tg_program_source& source, std::string& log);
void destroy_program(tg_program program);
void run_program(tg_stream_& stream, const tg_run& run);

}  // namespace ocl
