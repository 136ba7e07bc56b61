/* Modules and kernels: what the compiler made, loaded and run. */
#define _POSIX_C_SOURCE 200809L

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What torchgraft reads after module_compile and module_load: each thread has its own. */
static _Thread_local char diagnostics[LOG_BYTES];

/* ---- Modules ---- */

/* Lives as long as the last of its users: its handle and its kernels. */
struct tg_module_ {
  atomic_uint users;
  void* library;
  size_t bytes;
  char* binary; /* for torchgraft's cache on disk */
};

static void release(tg_module module) {
  if (atomic_fetch_sub(&module->users, 1) > 1) return;
  unload(module->library);
  free(module->binary);
  free(module);
}

/* Loads a binary, which then belongs to the module; otherwise it is freed. */
static tg_status make_module(char* binary, size_t bytes, tg_module* out) {
  tg_module module = malloc(sizeof(*module));
  tg_status status = module ? load(binary, bytes, &module->library) : fail(TG_ERROR, "the host has no memory left");
  if (status != TG_OK) {
    free(module);
    free(binary);
    return status;
  }
  atomic_init(&module->users, 1);
  module->binary = binary;
  module->bytes = bytes;
  *out = module;
  return TG_OK;
}

/* `options` come from the dialect. The log is what the compiler said, also where it only warned. */
tg_status module_compile(void* context, int32_t device, const char* source, uint64_t source_bytes, const char* options,
                         tg_module* out, const char** log) {
  UNUSED(context);
  if (log) *log = diagnostics;
  diagnostics[0] = '\0';
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  char* binary = NULL;
  size_t bytes = 0;
  status = compile(source, source_bytes, options, &binary, &bytes, diagnostics);
  if (status != TG_OK) return status;
  status = make_module(binary, bytes, out);
  /* What links but does not load has names that nobody defines. */
  if (status == TG_ERROR_INVALID) status = TG_ERROR_COMPILE;
  return status;
}

/* A module of what module_binary gave, perhaps to another process. */
tg_status module_load(void* context, int32_t device, const void* binary, uint64_t bytes, tg_module* out,
                      const char** log) {
  UNUSED(context);
  if (log) *log = NULL;
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  char* copy = malloc(bytes ? bytes : 1);
  if (!copy) return fail(TG_ERROR, "the host has no memory left");
  memcpy(copy, binary, bytes);
  return make_module(copy, bytes, out);
}

/* Called twice: for the size, and for the bytes. */
tg_status module_binary(void* context, tg_module module, void* buffer, uint64_t* bytes) {
  UNUSED(context);
  if (buffer) memcpy(buffer, module->binary, *bytes < module->bytes ? *bytes : module->bytes);
  *bytes = module->bytes;
  return TG_OK;
}

tg_status module_destroy(void* context, tg_module module) {
  UNUSED(context);
  release(module);
  return TG_OK;
}

/* ---- Kernels ---- */

struct tg_kernel_ {
  tg_module module;
  entry_point entry;
};

tg_status kernel_create(void* context, tg_module module, const char* name, tg_kernel* out) {
  UNUSED(context);
  tg_kernel kernel = malloc(sizeof(*kernel));
  if (!kernel) return fail(TG_ERROR, "the host has no memory left");
  tg_status status = find_kernel(module->library, name, &kernel->entry);
  if (status != TG_OK) {
    free(kernel);
    return status;
  }
  atomic_fetch_add(&module->users, 1);
  kernel->module = module;
  *out = kernel;
  return TG_OK;
}

/* The last of its launches is done. */
tg_status kernel_destroy(void* context, tg_kernel kernel) {
  UNUSED(context);
  release(kernel->module);
  free(kernel);
  return TG_OK;
}

enum { FEW_ARGUMENTS = 64 };

/* After all earlier work of the stream. Here it is done when this returns, so that the arguments can stay where they
 * are; a device that queues its work copies them. The work-items of a group (launch->local) are the kernel's own
 * affair: the dialect "c++" writes loops for them. */
tg_status launch(void* context, int32_t device, tg_stream stream, const tg_launch* launch) {
  UNUSED(context);
  UNUSED(stream);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  if (launch->dims < 1 || launch->dims > 3) return fail(TG_ERROR_INVALID, "%u dimensions", (unsigned)launch->dims);
  unsigned long long groups[3] = {1, 1, 1};
  for (uint32_t d = 0; d < launch->dims; ++d) {
    groups[d] = launch->groups[d];
  }
  void* few[FEW_ARGUMENTS];
  void** arguments = launch->arg_count <= FEW_ARGUMENTS ? few : malloc(launch->arg_count * sizeof(void*));
  if (!arguments) return fail(TG_ERROR, "the host has no memory left");
  for (uint32_t i = 0; i < launch->arg_count; ++i) arguments[i] = (void*)&launch->args[i].value;
  run_groups(launch->kernel->entry, arguments, groups);
  if (arguments != few) free(arguments);
  return TG_OK;
}
