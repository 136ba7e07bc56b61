/* What the driver's files share. */
#ifndef DRIVER_INTERNAL_H
#define DRIVER_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "torchgraft/driver.h"

#define UNUSED(argument) ((void)(argument))

/* ---- driver.c ---- */

/* Keeps the calling thread's message and returns the status. */
__attribute__((format(printf, 2, 3))) tg_status fail(tg_status status, const char* format, ...);

tg_status check_device(int32_t device);

/* ---- compiler.c: YOUR COMPILER ---- */

enum { LOG_BYTES = 16384 };

typedef struct compiler_info {
  int present;
  uint32_t simd_width;   /* registers hold so many float32 */
  char description[160]; /* its version and what it makes code for: whatever decides what comes out */
} compiler_info;

/* The same each time; asked for once, when devices are opened. */
const compiler_info* compiler(void);

/* Makes the device's binary of a source. The caller frees *binary; `log` gets what the compiler said. */
tg_status compile(const char* source, size_t source_bytes, const char* options, char** binary, size_t* binary_bytes,
                  char log[LOG_BYTES]);

/* ---- loader.c: YOUR LOADER ---- */

/* How a kernel in the dialect "c++" is called: it runs the work-groups numbered begin <= g < end, of groups[0] *
 * groups[1] * groups[2], the first dimension fastest. arguments[i] points to the value of the i-th argument. */
typedef void (*entry_point)(void* const* arguments, const unsigned long long groups[3], unsigned long long begin,
                            unsigned long long end);

tg_status load(const void* binary, size_t bytes, void** library);
tg_status find_kernel(void* library, const char* name, entry_point* out);
void unload(void* library);

/* ---- workers.c ---- */

uint32_t worker_count(void);

/* Runs all groups, on as many threads as it takes, and returns when they are done. */
void run_groups(entry_point kernel, void* const* arguments, const unsigned long long groups[3]);

/* ---- kernels.c: the members of the table, see torchgraft/driver.h ---- */

tg_status module_compile(void* context, int32_t device, const char* source, uint64_t source_bytes, const char* options,
                         tg_module* out, const char** log);
tg_status module_load(void* context, int32_t device, const void* binary, uint64_t bytes, tg_module* out,
                      const char** log);
tg_status module_binary(void* context, tg_module module, void* buffer, uint64_t* bytes);
tg_status module_destroy(void* context, tg_module module);
tg_status kernel_create(void* context, tg_module module, const char* name, tg_kernel* out);
tg_status kernel_destroy(void* context, tg_kernel kernel);
tg_status launch(void* context, int32_t device, tg_stream stream, const tg_launch* launch);

#endif
