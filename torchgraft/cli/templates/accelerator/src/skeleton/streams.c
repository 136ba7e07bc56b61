/* Streams and events: a thread runs the work of each stream, in the order of submission.
 *
 * A device with queues of its own has its own streams, and this file becomes calls of its library. What it must keep
 * of what is written here: work may fail after the call that submitted it, and the next wait for the stream says so,
 * once.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

/* One lock for all queues and marks; work itself runs without it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* work is done, or a mark has passed */
static uint64_t submitted;                                /* pieces of work, in all streams */

typedef struct item {
  struct item* next;
  uint64_t number; /* of its submission */
  work function;
  max_align_t argument[];
} item;

struct tg_stream_ {
  tg_stream next; /* of all */
  int32_t device;
  int closing;
  item *first, *last; /* the first may be running */
  pthread_t thread;
  pthread_cond_t more;
  tg_status failure; /* that nobody has been told of */
  char message[512];
};
static tg_stream streams;

/* ---- Streams ---- */

static void* run_stream(void* given) {
  tg_stream stream = given;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!stream->first && !stream->closing) pthread_cond_wait(&stream->more, &lock);
    item* item = stream->first;
    if (!item) break;
    pthread_mutex_unlock(&lock);
    tg_status status = item->function(item->argument);
    pthread_mutex_lock(&lock);
    if (status != TG_OK && stream->failure == TG_OK) {
      stream->failure = status;
      snprintf(stream->message, sizeof(stream->message), "%s", last_message());
    }
    stream->first = item->next;
    if (!stream->first) stream->last = NULL;
    free(item);
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

tg_status submit(tg_stream stream, work function, const void* argument, size_t bytes) {
  item* item = malloc(sizeof(*item) + bytes);
  if (!item) return fail(TG_ERROR_OUT_OF_MEMORY, "the host has no memory left");
  item->next = NULL;
  item->function = function;
  memcpy(item->argument, argument, bytes);
  pthread_mutex_lock(&lock);
  item->number = ++submitted;
  if (stream->last) {
    stream->last->next = item;
  } else {
    stream->first = item;
  }
  stream->last = item;
  pthread_cond_signal(&stream->more);
  pthread_mutex_unlock(&lock);
  return TG_OK;
}

/* With the lock. */
static int has_work(tg_stream stream, uint64_t until) { return stream->first && stream->first->number <= until; }

static tg_status tell_failure(tg_stream stream) {
  tg_status status = stream->failure;
  stream->failure = TG_OK;
  return status == TG_OK ? TG_OK : fail(status, "%s", stream->message);
}

/* Lower priorities are more urgent, 0 is the default; a hint. */
tg_status stream_create(void* context, int32_t device, int32_t priority, tg_stream* out) {
  UNUSED(context);
  UNUSED(priority);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_stream stream = calloc(1, sizeof(*stream));
  if (!stream) return fail(TG_ERROR, "the host has no memory left");
  stream->device = device;
  pthread_cond_init(&stream->more, NULL);
  if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0) {
    pthread_cond_destroy(&stream->more);
    free(stream);
    return fail(TG_ERROR, "the host has no thread left");
  }
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  *out = stream;
  return TG_OK;
}

/* What has been submitted is still done. */
tg_status stream_destroy(void* context, int32_t device, tg_stream stream) {
  UNUSED(context);
  UNUSED(device);
  pthread_mutex_lock(&lock);
  stream->closing = 1;
  pthread_cond_signal(&stream->more);
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  pthread_mutex_lock(&lock);
  tg_stream* place = &streams;
  while (*place != stream) place = &(*place)->next;
  *place = stream->next;
  pthread_mutex_unlock(&lock);
  pthread_cond_destroy(&stream->more);
  free(stream);
  return TG_OK;
}

/* Waits for all work of the stream that has been submitted by now. */
tg_status stream_synchronize(void* context, int32_t device, tg_stream stream) {
  UNUSED(context);
  UNUSED(device);
  pthread_mutex_lock(&lock);
  for (uint64_t until = submitted; has_work(stream, until);) pthread_cond_wait(&changed, &lock);
  tg_status status = tell_failure(stream);
  pthread_mutex_unlock(&lock);
  return status;
}

/* TG_OK: nothing is left to do; TG_NOT_READY: something is. Does not wait. */
tg_status stream_query(void* context, int32_t device, tg_stream stream) {
  UNUSED(context);
  UNUSED(device);
  pthread_mutex_lock(&lock);
  tg_status status = stream->first ? TG_NOT_READY : tell_failure(stream);
  pthread_mutex_unlock(&lock);
  return status;
}

/* The same for all streams of the device. Others may come and go meanwhile. */
tg_status device_synchronize(void* context, int32_t device) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  pthread_mutex_lock(&lock);
  uint64_t until = submitted;
  tg_stream each = streams;
  while (each) {
    if (each->device == device && has_work(each, until)) {
      pthread_cond_wait(&changed, &lock);
      each = streams;
    } else {
      each = each->next;
    }
  }
  for (each = streams; each && status == TG_OK; each = each->next) {
    if (each->device == device) status = tell_failure(each);
  }
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- Events ---- */

/* What is put into a stream. An event may be recorded again, or destroyed, before it has passed. */
typedef struct mark {
  int users; /* the event, and pieces of work */
  int passed;
  struct timespec time;
} mark;

struct tg_event_ {
  int32_t timing;
  mark* mark; /* of the last recording */
};

/* With the lock. */
static void release(mark* mark) {
  if (mark && --mark->users == 0) free(mark);
}

static tg_status pass(void* argument) {
  mark* mark = *(struct mark**)argument;
  pthread_mutex_lock(&lock);
  clock_gettime(CLOCK_MONOTONIC, &mark->time);
  mark->passed = 1;
  release(mark);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return TG_OK;
}

static tg_status wait_for(void* argument) {
  mark* mark = *(struct mark**)argument;
  pthread_mutex_lock(&lock);
  while (!mark->passed) pthread_cond_wait(&changed, &lock);
  release(mark);
  pthread_mutex_unlock(&lock);
  return TG_OK;
}

static mark* use_mark(tg_event event) {
  pthread_mutex_lock(&lock);
  mark* mark = event->mark;
  if (mark) ++mark->users;
  pthread_mutex_unlock(&lock);
  return mark;
}

/* A mark that can be put into a stream; with `timing`, event_elapsed may be asked for it. */
tg_status event_create(void* context, int32_t device, int32_t timing, tg_event* out) {
  UNUSED(context);
  tg_status status = check_device(device);
  if (status != TG_OK) return status;
  tg_event event = calloc(1, sizeof(*event));
  if (!event) return fail(TG_ERROR, "the host has no memory left");
  event->timing = timing;
  *out = event;
  return TG_OK;
}

tg_status event_destroy(void* context, int32_t device, tg_event event) {
  UNUSED(context);
  UNUSED(device);
  pthread_mutex_lock(&lock);
  release(event->mark);
  pthread_mutex_unlock(&lock);
  free(event);
  return TG_OK;
}

/* Marks the present end of the stream. The last time counts. */
tg_status event_record(void* context, int32_t device, tg_event event, tg_stream stream) {
  UNUSED(context);
  UNUSED(device);
  mark* mark = calloc(1, sizeof(*mark));
  if (!mark) return fail(TG_ERROR, "the host has no memory left");
  mark->users = 2;
  tg_status status = submit(stream, pass, &mark, sizeof(mark));
  if (status != TG_OK) {
    free(mark);
    return status;
  }
  pthread_mutex_lock(&lock);
  release(event->mark);
  event->mark = mark;
  pthread_mutex_unlock(&lock);
  return TG_OK;
}

/* Later work of the stream waits for the event; the host does not. */
tg_status event_wait(void* context, int32_t device, tg_event event, tg_stream stream) {
  UNUSED(context);
  UNUSED(device);
  mark* mark = use_mark(event);
  if (!mark) return TG_OK;
  tg_status status = submit(stream, wait_for, &mark, sizeof(mark));
  if (status == TG_OK) return TG_OK;
  pthread_mutex_lock(&lock);
  release(mark);
  pthread_mutex_unlock(&lock);
  return status;
}

/* TG_OK: all work before the mark is done; TG_NOT_READY: it is not. Does not wait. */
tg_status event_query(void* context, int32_t device, tg_event event) {
  UNUSED(context);
  UNUSED(device);
  pthread_mutex_lock(&lock);
  int waits = event->mark && !event->mark->passed;
  pthread_mutex_unlock(&lock);
  return waits ? TG_NOT_READY : TG_OK;
}

/* The host waits for the event. */
tg_status event_synchronize(void* context, int32_t device, tg_event event) {
  UNUSED(context);
  UNUSED(device);
  mark* mark = use_mark(event);
  return mark ? wait_for(&mark) : TG_OK;
}

/* By the device's clock; negative if `end` came first. Optional, with TG_CAP_EVENT_TIMING. */
tg_status event_elapsed(void* context, int32_t device, tg_event start, tg_event end, double* milliseconds) {
  UNUSED(context);
  UNUSED(device);
  if (!start->timing || !end->timing) return fail(TG_ERROR_INVALID, "an event was made without timing");
  pthread_mutex_lock(&lock);
  int passed = start->mark && start->mark->passed && end->mark && end->mark->passed;
  if (passed) {
    const struct timespec *a = &start->mark->time, *b = &end->mark->time;
    *milliseconds = (double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) / 1e6;
  }
  pthread_mutex_unlock(&lock);
  return passed ? TG_OK : fail(TG_ERROR_INVALID, "both events must have been recorded, and have passed");
}
