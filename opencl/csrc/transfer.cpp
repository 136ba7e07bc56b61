#include "transfer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "program.h"

namespace ocl {
namespace {

// Copies and fills up to this size in an idle stream are done by the calling thread, where memory is unified: it takes
// less time than waking a worker.
constexpr uint64_t kInline = uint64_t{128} << 10;

void fill_here(void* destination, const unsigned char* pattern, uint32_t pattern_bytes, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += pattern_bytes)
    std::memcpy(static_cast<char*>(destination) + i, pattern, pattern_bytes);
}

// Fills by a kernel of the driver's own, in pieces of 16 bytes: a GPU's own command took twice as long. False if the
// pieces do not fit, or the device has no compiler.
bool fill_by_kernel(tg_stream_& stream, void* destination, const unsigned char* pattern, uint32_t pattern_bytes,
                    uint64_t bytes) {
  constexpr uint64_t kPiece = 16;
  constexpr size_t kGroup = 256;
  const tg_kernel kernel = stream.device->fill_kernel();
  if (kernel == nullptr || bytes % kPiece != 0 || reinterpret_cast<uintptr_t>(destination) % kPiece != 0) return false;
  const Memory& memory = *stream.device->memory;
  if (memory.model == MemoryModel::kBuffer) memory.find(destination, bytes);  // all of them are there
  tg_arg arguments[3] = {};
  arguments[0].is_pointer = 1;
  arguments[0].value.pointer = destination;
  arguments[1].size = sizeof(uint64_t);
  arguments[1].value.u64 = bytes / kPiece;
  arguments[2].size = kPiece;
  fill_here(arguments[2].value.bytes, pattern, pattern_bytes, kPiece);
  tg_launch fill{kernel, 1, 3, {(bytes / kPiece + kGroup - 1) / kGroup, 1, 1}, {kGroup, 1, 1}, arguments, bytes};
  launch(stream, fill);
  return true;
}

void copy_svm(tg_stream_& stream, void* destination, const void* source, uint64_t bytes) {
  submit(stream, "clEnqueueSVMMemcpy", [&](cl_command_queue queue, cl_event* event) {
    return stream.device->api->clEnqueueSVMMemcpy(queue, CL_FALSE, destination, source, bytes, 0, nullptr, event);
  });
}

void copy_unified(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, bool blocking) {
  HostExecutor* const executor = stream.device->executor.get();
  if (blocking) wait(stream);
  if (executor != nullptr && executor->copy(stream, destination, source, bytes, blocking)) return;
  if (blocking || (bytes <= kInline && is_idle(stream))) {
    std::memmove(destination, source, bytes);
  } else {
    copy_svm(stream, destination, source, bytes);
  }
}

void copy_buffer(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, tg_copy_kind kind) {
  const Api& api = *stream.device->api;
  const Memory& memory = *stream.device->memory;
  const Memory::Place to = kind == TG_COPY_DEVICE_TO_HOST ? Memory::Place{} : memory.find(destination, bytes);
  const Memory::Place from = kind == TG_COPY_HOST_TO_DEVICE ? Memory::Place{} : memory.find(source, bytes);
  switch (kind) {
    case TG_COPY_HOST_TO_DEVICE:
      submit(stream, "clEnqueueWriteBuffer", [&](cl_command_queue queue, cl_event* event) {
        return api.clEnqueueWriteBuffer(queue, to.buffer, CL_FALSE, to.offset, bytes, source, 0, nullptr, event);
      });
      break;
    case TG_COPY_DEVICE_TO_HOST:
      submit(stream, "clEnqueueReadBuffer", [&](cl_command_queue queue, cl_event* event) {
        return api.clEnqueueReadBuffer(queue, from.buffer, CL_FALSE, from.offset, bytes, destination, 0, nullptr,
                                       event);
      });
      break;
    case TG_COPY_DEVICE_TO_DEVICE:
      submit(stream, "clEnqueueCopyBuffer", [&](cl_command_queue queue, cl_event* event) {
        return api.clEnqueueCopyBuffer(queue, from.buffer, to.buffer, from.offset, to.offset, bytes, 0, nullptr, event);
      });
      break;
  }
}

}  // namespace

void copy(tg_stream_& stream, void* destination, const void* source, uint64_t bytes, tg_copy_kind kind, bool blocking) {
  if (kind < TG_COPY_HOST_TO_DEVICE || kind > TG_COPY_DEVICE_TO_DEVICE) fail_invalid("an unknown kind of copy");
  if (destination == nullptr || source == nullptr) fail_invalid("a copy from or to the address 0");
  throw_failure(stream);
  if (stream.device->unified()) {
    copy_unified(stream, destination, source, bytes, blocking);
    return;
  }
  if (stream.device->memory->model == MemoryModel::kBuffer) {
    copy_buffer(stream, destination, source, bytes, kind);
  } else {
    copy_svm(stream, destination, source, bytes);
  }
  if (blocking) wait(stream);
}

void copy_peer(tg_stream_& stream, void* destination, Device& source_device, const void* source, uint64_t bytes) {
  if (&source_device == stream.device) {
    copy(stream, destination, source, bytes, TG_COPY_DEVICE_TO_DEVICE, false);
  } else if (source_device.unified()) {
    copy(stream, destination, source, bytes, TG_COPY_HOST_TO_DEVICE, false);
  } else {
    // Through the host, a piece at a time.
    constexpr uint64_t kPiece = uint64_t{16} << 20;
    std::vector<char> piece(std::min(bytes, kPiece));
    tg_stream_& source_stream = *source_device.transfer_stream();
    for (uint64_t done = 0; done < bytes; done += kPiece) {
      const uint64_t size = std::min(kPiece, bytes - done);
      copy(source_stream, piece.data(), static_cast<const char*>(source) + done, size, TG_COPY_DEVICE_TO_HOST, true);
      copy(stream, static_cast<char*>(destination) + done, piece.data(), size, TG_COPY_HOST_TO_DEVICE, true);
    }
  }
}

void fill(tg_stream_& stream, void* destination, const void* pattern, uint32_t pattern_bytes, uint64_t bytes) {
  if (pattern_bytes == 0 || pattern_bytes > 16 || (pattern_bytes & (pattern_bytes - 1)) != 0 ||
      bytes % pattern_bytes != 0) {
    fail_invalid("a fill of " + std::to_string(bytes) + " bytes with a pattern of " + std::to_string(pattern_bytes));
  }
  if (destination == nullptr) fail_invalid("a fill of the address 0");
  throw_failure(stream);
  const Device& device = *stream.device;
  const auto* unit = static_cast<const unsigned char*>(pattern);
  if (device.unified()) {
    if (device.executor != nullptr && device.executor->fill(stream, destination, unit, pattern_bytes, bytes)) return;
    if (bytes <= kInline && is_idle(stream)) {
      fill_here(destination, unit, pattern_bytes, bytes);
      return;
    }
  }
  if (reinterpret_cast<uintptr_t>(destination) % pattern_bytes != 0) {
    fail_invalid("a fill of an address that is no multiple of the pattern's size");
  }
  if (fill_by_kernel(stream, destination, unit, pattern_bytes, bytes)) return;
  if (device.memory->model == MemoryModel::kBuffer) {
    const Memory::Place place = device.memory->find(destination, bytes);
    submit(stream, "clEnqueueFillBuffer", [&](cl_command_queue queue, cl_event* event) {
      return device.api->clEnqueueFillBuffer(queue, place.buffer, pattern, pattern_bytes, place.offset, bytes, 0,
                                             nullptr, event);
    });
  } else {
    submit(stream, "clEnqueueSVMMemFill", [&](cl_command_queue queue, cl_event* event) {
      return device.api->clEnqueueSVMMemFill(queue, destination, pattern, pattern_bytes, bytes, 0, nullptr, event);
    });
  }
}

}  // namespace ocl
