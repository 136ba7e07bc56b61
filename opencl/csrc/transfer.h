// Copies and fills.
#pragma once

#include <cstdint>

#include "stream.h"

namespace ocl {

void copy(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, tg_copy_kind kind, bool blocking);
void copy_peer(tg_stream_& stream, void* destination, Device& source_device, const void* source, uint64_t bytes);
void fill(tg_stream_& stream, void* destination, const void* pattern, uint32_t pattern_bytes, uint64_t bytes);

}  // namespace ocl
