/* The driver of skeleton devices: filling it in is all that is left to do.
 *
 * It works as it is, on the host, and behaves as accelerators do: its addresses are not the host's, and its streams run
 * by themselves. Replace the bodies, a function at a time; `pytest` keeps telling which rules hold. streams.c has
 * streams and events.
 * operators.c has the operators: it is the place for your library. [operators]
 * The contract is include/torchgraft/driver.h. In short:
 *
 *  - Functions are called from any thread, without the Python GIL; the driver does its own locking.
 *  - Addresses are numbers, and any address inside an allocation is as good as its start.
 *  - A function returns TG_OK, or a status with a message for last_error. A failed call changes nothing.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "operators.h" /* [operators] */

enum {
  DEVICES = 1,    /* two work as well */
  ALIGNMENT = 64, /* bytes */
  MAX_PATTERN = 16,
};
static const uint64_t TOTAL_MEMORY = 4ull << 30; /* bytes of each device */

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

const char* last_message(void) { return message; }

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
  *count = DEVICES;
  return TG_OK;
}

/* What is known of a device: always the same. The capabilities are promises, see torchgraft/driver.h. driver_version
 * names whatever decides what becomes of a program: your library's version, too. A caller built with an older header
 * has a shorter structure, hence the copy of no more than fits. */
static tg_status device_properties(void* context, int32_t device, tg_device_properties* out) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_device_properties properties = {
      .struct_size = out->struct_size,
      .kind = TG_DEVICE_ACCELERATOR,
      .capabilities = TG_CAP_EVENT_TIMING,
      .total_memory = TOTAL_MEMORY,
      .max_allocation = TOTAL_MEMORY,
      .compute_units = 1,
      .max_work_group_size = 1,
      .simd_width = 1,
      .address_align = ALIGNMENT,
      .name = "Skeleton, which is the host",
      .driver_version = "0.1.0",
  };
  properties.capabilities |= TG_CAP_PROGRAMS | TG_CAP_FLOAT64; /* [operators] */
  size_t size = out->struct_size < sizeof(properties) ? out->struct_size : sizeof(properties);
  memcpy(out, &properties, size);
  return TG_OK;
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

/* The device's addresses lie so far from the host's that nobody can take one for the other. */
static const uintptr_t AWAY = (uintptr_t)1 << 46;

void* on_host(const void* address) { return address ? (void*)((uintptr_t)address - AWAY) : NULL; }

static void* on_device(void* address) { return (void*)((uintptr_t)address + AWAY); }

/* Lies in front of each allocation, in as many bytes as keep the alignment. */
typedef struct allocation {
  uint64_t bytes;
} allocation;

static allocation* allocation_of(void* address) { return (allocation*)((char*)on_host(address) - ALIGNMENT); }

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
  *address = on_device((char*)memory + ALIGNMENT);
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

typedef struct transfer {
  void* to;
  const void* from;
  uint64_t bytes;
} transfer;

static tg_status transfer_now(void* argument) {
  const transfer* given = argument;
  memmove(given->to, given->from, given->bytes);
  return TG_OK;
}

/* After all earlier work of the stream. `kind` says which of the addresses belong to the host. */
static tg_status copy(void* context, int32_t device, tg_stream stream, void* destination, const void* source,
                      uint64_t bytes, tg_copy_kind kind, int32_t blocking) {
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  transfer given = {
      .to = kind == TG_COPY_DEVICE_TO_HOST ? destination : on_host(destination),
      .from = kind == TG_COPY_HOST_TO_DEVICE ? source : on_host(source),
      .bytes = bytes,
  };
  status = submit(stream, transfer_now, &given, sizeof(given));
  return status == TG_OK && blocking ? stream_synchronize(context, device, stream) : status;
}

typedef struct filling {
  char* to;
  uint64_t bytes;
  uint32_t pattern_bytes;
  char pattern[MAX_PATTERN];
} filling;

static tg_status fill_now(void* argument) {
  const filling* given = argument;
  for (uint64_t i = 0; i < given->bytes; i += given->pattern_bytes) {
    memcpy(given->to + i, given->pattern, given->pattern_bytes);
  }
  return TG_OK;
}

/* Repeats a pattern of 1, 2, 4, 8 or 16 bytes; torch.zeros and torch.full come here. */
static tg_status fill(void* context, int32_t device, tg_stream stream, void* destination, const void* pattern,
                      uint32_t pattern_bytes, uint64_t bytes) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  int known = pattern_bytes != 0 && pattern_bytes <= MAX_PATTERN && (pattern_bytes & (pattern_bytes - 1)) == 0;
  if (!known || bytes % pattern_bytes != 0) {
    return fail(TG_ERROR_INVALID, "%llu bytes cannot be filled with a pattern of %u", (unsigned long long)bytes,
                (unsigned)pattern_bytes);
  }
  filling given = {.to = on_host(destination), .bytes = bytes, .pattern_bytes = pattern_bytes};
  memcpy(given.pattern, pattern, pattern_bytes);
  return submit(stream, fill_now, &given, sizeof(given));
}

/* ---- The table ----
 *
 * What is left out is NULL: torchgraft then does without. Ops that the device has nothing for run on the CPU;
 * torchgraft copies there and back, and counts it. */

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
    .program_supports = program_supports, /* [operators] */
    .program_create = program_create,     /* [operators] */
    .program_destroy = program_destroy,   /* [operators] */
    .program_run = program_run,           /* [operators] */
};

__attribute__((visibility("default"))) const tg_driver* torchgraft_driver(void) { return &table; }
