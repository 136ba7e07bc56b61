#include "command.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Copy.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "memory/host_allocator.h"

namespace torchgraft {
namespace {

// From this size on a copy or a fill of one thread takes longer than a command. A device on the host's own cores is
// given one: torch's threads, with which they would share the work, keep a core busy for a millisecond after it, and
// the kernel that follows would wait for that core.
constexpr uint64_t kCommand = uint64_t{128} << 10;
// From this size on torch's threads share the work.
constexpr uint64_t kShared = uint64_t{512} << 10;
// From this size on the driver knows better: stores that bypass the caches, threads of its own.
constexpr uint64_t kLarge = uint64_t{32} << 20;

// Memory as a CPU tensor of integers.
at::Tensor tensor_over(void* data, uint64_t bytes, c10::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::from_blob(data, {static_cast<int64_t>(bytes / c10::elementSize(dtype))}, dtype);
}

template <typename T>
void fill_with(void* destination, const void* pattern, uint64_t bytes) {
  T value;
  std::memcpy(&value, pattern, sizeof value);
  if (bytes < kShared) {
    // All but the first are copies of them, which the C library makes by the widest registers.
    T* const to = static_cast<T*>(destination);
    const size_t count = bytes / sizeof value, block = std::min(count, 1024 / sizeof value);
    std::fill_n(to, block, value);
    for (size_t i = block; i < count; i += block) std::memcpy(to + i, to, std::min(block, count - i) * sizeof value);
  } else {
    at::Tensor memory = tensor_over(destination, bytes, c10::CppTypeToScalarType<T>::value);
    at::native::fill_(memory, value);
  }
}

}  // namespace

bool captured_copy(const Device& device, tg_stream stream, void* destination, const void* source, uint64_t bytes,
                   tg_copy_kind kind, bool blocking) {
  const Captured captured = capture_of(device.index, stream);
  if (!captured) return false;
  const bool to_host = kind == TG_COPY_DEVICE_TO_HOST;
  if (blocking || (kind != TG_COPY_DEVICE_TO_DEVICE && !is_pinned(to_host ? destination : source)))
    refuse_in_capture(device.index, captured.stream,
                      to_host ? "a copy to the host other than non_blocking=True to pinned memory"
                              : "a copy from host memory other than non_blocking=True from pinned memory");
  captured->copy(captured.stream, destination, source, bytes, kind);
  return true;
}

bool captured_fill(const Device& device, tg_stream stream, void* destination, const void* pattern,
                   uint32_t pattern_bytes, uint64_t bytes) {
  const Captured captured = capture_of(device.index, stream);
  if (!captured) return false;
  captured->fill(captured.stream, destination, pattern, pattern_bytes, bytes);
  return true;
}

bool takes_host(const Device& device, tg_stream stream, uint64_t bytes, bool blocking) {
  const bool own_cores = device.properties.kind != TG_DEVICE_CPU;
  return device.has(TG_CAP_UNIFIED_MEMORY) && bytes < (own_cores ? kLarge : kCommand) && !collecting() &&
         (blocking || !own_cores) &&
         device.driver->stream_query(device.driver->context, device.ordinal, stream) == TG_OK;
}

void host_copy(void* destination, const void* source, uint64_t bytes) {
  if (bytes < kShared) {
    std::memmove(destination, source, bytes);
    return;
  }
  const c10::ScalarType type = bytes % sizeof(int64_t) == 0 ? at::kLong : at::kByte;
  at::native::copy_ignoring_overlaps(tensor_over(destination, bytes, type),
                                     tensor_over(const_cast<void*>(source), bytes, type));
}

bool host_fill(void* destination, const void* pattern, uint32_t pattern_bytes, uint64_t bytes) {
  if (reinterpret_cast<uintptr_t>(destination) % pattern_bytes != 0) return false;
  switch (pattern_bytes) {
    case 1:
      fill_with<uint8_t>(destination, pattern, bytes);
      break;
    case 2:
      fill_with<int16_t>(destination, pattern, bytes);
      break;
    case 4:
      fill_with<int32_t>(destination, pattern, bytes);
      break;
    case 8:
      fill_with<int64_t>(destination, pattern, bytes);
      break;
    default:
      return false;
  }
  return true;
}

}  // namespace torchgraft
