/* The driver of skeleton devices: filling it in is all that is left to do.
 *
 * It works as it is, on memory and cores of the host. Replace the bodies, a function at a time; `pytest` keeps telling
 * which rules hold. Kernels have files of their own: compiler.c and loader.c are the places for yours, kernels.c gives
 * what they make to torchgraft, workers.c runs it. The contract is include/torchgraft/driver.h. In short:
 *
 *  - Functions are called from any thread, without the Python GIL; the driver does its own locking.
 *  - Addresses are numbers, and any address inside an allocation is as good as its start.
 *  - A function returns TG_OK, or a status with a message for last_error. A failed call changes nothing.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

enum {
  DEVICES = 1,    /* two work as well; the tests then copy between them, too */
  ALIGNMENT = 64, /* bytes */
  MAX_PATTERN = 16,
  FILL_PIECE = 1 << 14,  /* bytes: a power of two that stays in the cache */
  MAX_WORK_GROUP = 1024, /* work-items: loops in the kernel, so that there is no limit of the device's own */
};
static const uint64_t TOTAL_MEMORY = 4ull << 30; /* bytes of each device */
static const uint64_t LOCAL_MEMORY = 256 << 10;  /* bytes of a work-group: on the stack of its thread */

/* ---- Errors ---- */

/* Each thread has its own message. */
static _Thread_local char message[512];

tg_status fail(tg_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  return status;
}

static const char* last_error(void* context) {
  UNUSED(context);
  return message;
}

/* ---- Devices ---- */

static atomic_uint_fast64_t used[DEVICES]; /* bytes */

tg_status check_device(int32_t device) {
  if (device >= 0 && device < DEVICES) return TG_OK;
  return fail(TG_ERROR_INVALID, "there is no device %d; there are %d", (int)device, (int)DEVICES);
}

/* Opens the devices at its first call and says how many there are. Without a device that is 0, with TG_OK; last_error
 * may then say why. */
static tg_status device_count(void* context, int32_t* count) {
  UNUSED(context);
  compiler();
  *count = DEVICES;
  return TG_OK;
}

/* What is known of a device: always the same. The capabilities are promises, see torchgraft/driver.h. Without a
 * compiler ops run on the CPU. A caller built with an older header has a shorter structure, hence the copy of no more
 * than fits. */
static tg_status device_properties(void* context, int32_t device, tg_device_properties* out) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_device_properties properties = {
      .struct_size = out->struct_size,
      .kind = TG_DEVICE_CPU,
      .capabilities = TG_CAP_UNIFIED_MEMORY | TG_CAP_EVENT_TIMING,
      .total_memory = TOTAL_MEMORY,
      .max_allocation = TOTAL_MEMORY,
      .local_memory = LOCAL_MEMORY,
      .compute_units = worker_count(),
      .max_work_group_size = MAX_WORK_GROUP,
      .simd_width = compiler()->simd_width,
      .address_align = ALIGNMENT,
      .name = "Skeleton on host memory",
  };
  if (compiler()->present) {
    properties.capabilities |= TG_CAP_COMPILER | TG_CAP_FLOAT64;
    strcpy(properties.dialect, "c++");
  }
  snprintf(properties.driver_version, sizeof(properties.driver_version), "0.1.0, %s", compiler()->description);
  size_t size = out->struct_size < sizeof(properties) ? out->struct_size : sizeof(properties);
  memcpy(out, &properties, size);
  return TG_OK;
}

/* Waits for all work on all streams of the device. Here there is never any. */
static tg_status device_synchronize(void* context, int32_t device) {
  UNUSED(context);
  return check_device(device);
}

static tg_status memory_info(void* context, int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  *free_bytes = TOTAL_MEMORY - atomic_load(&used[device]);
  *total_bytes = TOTAL_MEMORY;
  return TG_OK;
}

/* ---- Memory ---- */

/* Lies in front of each allocation, in as many bytes as keep the alignment. */
typedef struct allocation {
  uint64_t bytes;
} allocation;

static allocation* allocation_of(void* address) { return (allocation*)((char*)address - ALIGNMENT); }

/* Takes `bytes` of the device's memory, if they are free. */
static int reserve(int32_t device, uint64_t bytes) {
  uint_fast64_t before = atomic_load(&used[device]);
  do {
    if (bytes > TOTAL_MEMORY - before) return 0;
  } while (!atomic_compare_exchange_weak(&used[device], &before, before + bytes));
  return 1;
}

/* `bytes` is never 0; the address is a multiple of address_align. TG_ERROR_OUT_OF_MEMORY makes torchgraft free its
 * cache and try again. It caches, so that this need not be quick. */
static tg_status allocate(void* context, int32_t device, uint64_t bytes, void** address) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  if (!reserve(device, bytes)) {
    return fail(TG_ERROR_OUT_OF_MEMORY, "%llu bytes were asked for, %llu are free", (unsigned long long)bytes,
                (unsigned long long)(TOTAL_MEMORY - atomic_load(&used[device])));
  }
  void* memory = NULL;
  if (posix_memalign(&memory, ALIGNMENT, bytes + ALIGNMENT) != 0) {
    atomic_fetch_sub(&used[device], bytes);
    return fail(TG_ERROR_OUT_OF_MEMORY, "the host has no %llu bytes left", (unsigned long long)bytes);
  }
  *address = (char*)memory + ALIGNMENT;
  allocation_of(*address)->bytes = bytes;
  return TG_OK;
}

/* Called only when no submitted work uses the memory. */
static tg_status deallocate(void* context, int32_t device, void* address) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  atomic_fetch_sub(&used[device], allocation_of(address)->bytes);
  free(allocation_of(address));
  return TG_OK;
}

/* Pinned host memory: the device can copy from it while the host goes on. Optional, together with host_deallocate. */
static tg_status host_allocate(void* context, int32_t device, uint64_t bytes, void** address) {
  UNUSED(context);
  UNUSED(device);
  void* memory = malloc(bytes);
  if (!memory) return fail(TG_ERROR_OUT_OF_MEMORY, "the host has no %llu bytes left", (unsigned long long)bytes);
  *address = memory;
  return TG_OK;
}

static tg_status host_deallocate(void* context, int32_t device, void* address) {
  UNUSED(context);
  UNUSED(device);
  free(address);
  return TG_OK;
}

/* ---- Copies ---- */

/* After all earlier work of the stream. `kind` says which of the addresses belong to the host. */
static tg_status copy(void* context, int32_t device, tg_stream stream, void* destination, const void* source,
                      uint64_t bytes, tg_copy_kind kind, int32_t blocking) {
  UNUSED(context);
  UNUSED(stream);
  UNUSED(kind);
  UNUSED(blocking); /* it is done when this returns, whether that was asked for or not */
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  memmove(destination, source, bytes);
  return TG_OK;
}

/* Between two devices, on a stream of the destination's. Optional: without it such copies go by way of the host. */
static tg_status copy_peer(void* context, int32_t destination_device, void* destination, int32_t source_device,
                           const void* source, uint64_t bytes, tg_stream stream) {
  UNUSED(source_device);
  return copy(context, destination_device, stream, destination, source, bytes, TG_COPY_DEVICE_TO_DEVICE, 0);
}

/* Repeats a pattern of 1, 2, 4, 8 or 16 bytes; torch.zeros and torch.full come here. */
static tg_status fill(void* context, int32_t device, tg_stream stream, void* destination, const void* pattern,
                      uint32_t pattern_bytes, uint64_t bytes) {
  UNUSED(context);
  UNUSED(stream);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  int known = pattern_bytes != 0 && pattern_bytes <= MAX_PATTERN && (pattern_bytes & (pattern_bytes - 1)) == 0;
  if (!known || bytes % pattern_bytes != 0) {
    return fail(TG_ERROR_INVALID, "%llu bytes cannot be filled with a pattern of %u", (unsigned long long)bytes,
                (unsigned)pattern_bytes);
  }
  char* out = destination;
  memcpy(out, pattern, bytes < pattern_bytes ? bytes : pattern_bytes);
  for (uint64_t done = pattern_bytes, piece; done < bytes; done += piece) { /* what is there already, twice as much */
    piece = done < FILL_PIECE ? done : FILL_PIECE;
    if (piece > bytes - done) piece = bytes - done;
    memcpy(out + done, out, piece);
  }
  return TG_OK;
}

/* ---- Streams ----
 *
 * Work submitted to one stream runs in the order of submission. This device has done its work when a call returns, so
 * that nothing is ever in a stream. A device that queues its work makes all of these true of the queue. */

struct tg_stream_ {
  int32_t device;
  int32_t priority;
};

/* Lower priorities are more urgent, 0 is the default; a hint. */
static tg_status stream_create(void* context, int32_t device, int32_t priority, tg_stream* out) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_stream stream = malloc(sizeof(*stream));
  if (!stream) return fail(TG_ERROR, "the host has no memory left");
  *stream = (struct tg_stream_){.device = device, .priority = priority};
  *out = stream;
  return TG_OK;
}

static tg_status stream_destroy(void* context, int32_t device, tg_stream stream) {
  UNUSED(context);
  UNUSED(device);
  free(stream);
  return TG_OK;
}

/* Waits for all work of the stream. */
static tg_status stream_synchronize(void* context, int32_t device, tg_stream stream) {
  UNUSED(context);
  UNUSED(stream);
  return check_device(device);
}

/* TG_OK: nothing is left to do; TG_NOT_READY: something is. Does not wait. */
static tg_status stream_query(void* context, int32_t device, tg_stream stream) {
  UNUSED(context);
  UNUSED(stream);
  return check_device(device);
}

/* ---- Events ---- */

struct tg_event_ {
  int32_t timing;
  int32_t recorded;
  struct timespec time;
};

/* A mark that can be put into a stream; with `timing`, event_elapsed may be asked for it. */
static tg_status event_create(void* context, int32_t device, int32_t timing, tg_event* out) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_event event = calloc(1, sizeof(*event));
  if (!event) return fail(TG_ERROR, "the host has no memory left");
  event->timing = timing;
  *out = event;
  return TG_OK;
}

static tg_status event_destroy(void* context, int32_t device, tg_event event) {
  UNUSED(context);
  UNUSED(device);
  free(event);
  return TG_OK;
}

/* Marks the present end of the stream. An event may be recorded again; the last time counts. */
static tg_status event_record(void* context, int32_t device, tg_event event, tg_stream stream) {
  UNUSED(context);
  UNUSED(stream);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  event->recorded = 1;
  return TG_OK;
}

/* Later work of the stream waits for the event; the host does not. */
static tg_status event_wait(void* context, int32_t device, tg_event event, tg_stream stream) {
  UNUSED(context);
  UNUSED(event);
  UNUSED(stream);
  return check_device(device);
}

/* TG_OK: all work before the mark is done; TG_NOT_READY: it is not. Does not wait. */
static tg_status event_query(void* context, int32_t device, tg_event event) {
  UNUSED(context);
  UNUSED(event);
  return check_device(device);
}

/* The host waits for the event. */
static tg_status event_synchronize(void* context, int32_t device, tg_event event) {
  UNUSED(context);
  UNUSED(event);
  return check_device(device);
}

/* By the device's clock; negative if `end` came first. Optional, with TG_CAP_EVENT_TIMING. */
static tg_status event_elapsed(void* context, int32_t device, tg_event start, tg_event end, double* milliseconds) {
  UNUSED(context);
  UNUSED(device);
  if (!start->timing || !end->timing) return fail(TG_ERROR_INVALID, "an event was made without timing");
  if (!start->recorded || !end->recorded) return fail(TG_ERROR_INVALID, "both events must have been recorded");
  *milliseconds =
      (double)(end->time.tv_sec - start->time.tv_sec) * 1e3 + (double)(end->time.tv_nsec - start->time.tv_nsec) / 1e6;
  return TG_OK;
}

/* ---- The table ----
 *
 * What is left out is NULL. A device whose kernels are functions and no sources leaves out module_compile, module_load,
 * module_binary, module_destroy, kernel_create, kernel_destroy and launch (all, or none), with TG_CAP_COMPILER:
 * torchgraft.plans.composite makes an op of a function. Any other op then runs on the CPU; torchgraft copies there and
 * back (or, with TG_CAP_UNIFIED_MEMORY, does not) and counts it. */

static const tg_driver table = {
    .abi_version = TG_DRIVER_ABI,
    .struct_size = sizeof(tg_driver),
    .name = "skeleton",
    .last_error = last_error,
    .device_count = device_count,
    .device_properties = device_properties,
    .device_synchronize = device_synchronize,
    .memory_info = memory_info,
    .allocate = allocate,
    .deallocate = deallocate,
    .host_allocate = host_allocate,
    .host_deallocate = host_deallocate,
    .copy = copy,
    .copy_peer = copy_peer,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .module_compile = module_compile,
    .module_load = module_load,
    .module_binary = module_binary,
    .module_destroy = module_destroy,
    .kernel_create = kernel_create,
    .kernel_destroy = kernel_destroy,
    .launch = launch,
};

__attribute__((visibility("default"))) const tg_driver* torchgraft_driver(void) { return &table; }
