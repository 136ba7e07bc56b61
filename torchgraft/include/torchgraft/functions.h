/* For functions of one's own, in C or C++, that give work to the device by its maker's API: what a plan would see to.
 *
 * A library that uses them defines TORCHGRAFT_FUNCTIONS in one of its files, before this header, and is loaded by
 * torchgraft.load_library(path). Tensors' addresses are those of Tensor.data_ptr(). No function here throws; all may be
 * called from any thread, with or without the GIL. */
#ifndef TORCHGRAFT_FUNCTIONS_H
#define TORCHGRAFT_FUNCTIONS_H

#include "driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives work to a stream and does not wait; what it is given is valid during the call. Returns NULL, or what went
 * wrong. */
typedef const char* (*torchgraft_function)(tg_stream stream, void* const* addresses, uint32_t count, const void* data);

typedef struct torchgraft_functions {
  uint32_t struct_size;
  uint32_t version;
  tg_stream (*stream)(int32_t device);
  const char* (*submit)(int32_t device, const char* name, torchgraft_function function, void* const* addresses,
                        uint32_t count, const void* data, uint64_t data_bytes);
  void* (*scratch)(int32_t device, uint64_t bytes);
  const char* (*error)(void);
} torchgraft_functions;

#define TORCHGRAFT_FUNCTIONS_VERSION 1u

#if defined(_WIN32)
#define TORCHGRAFT_SHOWN __declspec(dllexport)
#define TORCHGRAFT_HIDDEN
#else
#define TORCHGRAFT_SHOWN __attribute__((visibility("default")))
#define TORCHGRAFT_HIDDEN __attribute__((visibility("hidden")))
#endif

#ifdef TORCHGRAFT_FUNCTIONS
TORCHGRAFT_HIDDEN const torchgraft_functions* torchgraft_table = NULL;
TORCHGRAFT_SHOWN int torchgraft_use(const torchgraft_functions* table) {
  if (table->version != TORCHGRAFT_FUNCTIONS_VERSION || table->struct_size < sizeof *table) return 1;
  torchgraft_table = table;
  return 0;
}
#else
extern TORCHGRAFT_HIDDEN const torchgraft_functions* torchgraft_table;
#endif

/* The stream that is the current one of the device, by its index in PyTorch. NULL, and the capture fails, where it is
 * being captured: work that is given to the handle would be done once, and no replay would do it; torchgraft_submit is
 * right then. */
static inline tg_stream torchgraft_stream(int32_t device) { return torchgraft_table->stream(device); }

/* Has a function give its work to the device's current stream, now, or, where that is being captured, at each replay of
 * the graph, with the same addresses and a copy of the data. Profiles show it by its name. Returns NULL, or what went
 * wrong, until the thread's next call. */
static inline const char* torchgraft_submit(int32_t device, const char* name, torchgraft_function function,
                                            void* const* addresses, uint32_t count, const void* data,
                                            uint64_t data_bytes) {
  return torchgraft_table->submit(device, name, function, addresses, count, data, data_bytes);
}

/* Memory of the device for the calling thread's next torchgraft_submit on it, aligned as allocations are; it comes from
 * the caching allocator, and is nobody else's until that work is done. NULL, with the reason in torchgraft_error, where
 * there is none. */
static inline void* torchgraft_scratch(int32_t device, uint64_t bytes) {
  return torchgraft_table->scratch(device, bytes);
}

/* What went wrong in the thread's last call of the others; empty if nothing did. */
static inline const char* torchgraft_error(void) { return torchgraft_table->error(); }

#ifdef __cplusplus
}
#endif
#endif
