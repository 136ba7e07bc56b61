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

/* The calling thread's message. */
const char* last_message(void);

tg_status check_device(int32_t device);

/* Where the host finds the device's memory: for the make-believe device, which is the host. */
void* on_host(const void* address);

/* ---- streams.c ---- */

/* A piece of work, in the stream's thread. What it returns with `fail` is told by the next wait for the stream. */
typedef tg_status (*work)(void* argument);

/* Appends work to a stream; the argument's bytes are copied. */
tg_status submit(tg_stream stream, work function, const void* argument, size_t bytes);

/* ---- streams.c: the members of the table, see torchgraft/driver.h ---- */

tg_status device_synchronize(void* context, int32_t device);
tg_status stream_create(void* context, int32_t device, int32_t priority, tg_stream* out);
tg_status stream_destroy(void* context, int32_t device, tg_stream stream);
tg_status stream_synchronize(void* context, int32_t device, tg_stream stream);
tg_status stream_query(void* context, int32_t device, tg_stream stream);
tg_status event_create(void* context, int32_t device, int32_t timing, tg_event* out);
tg_status event_destroy(void* context, int32_t device, tg_event event);
tg_status event_record(void* context, int32_t device, tg_event event, tg_stream stream);
tg_status event_wait(void* context, int32_t device, tg_event event, tg_stream stream);
tg_status event_query(void* context, int32_t device, tg_event event);
tg_status event_synchronize(void* context, int32_t device, tg_event event);
tg_status event_elapsed(void* context, int32_t device, tg_event start, tg_event end, double* milliseconds);

#endif
