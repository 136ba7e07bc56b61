/* The threads that run kernels: one for each core, the calling one among them. */
#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include "internal.h"

enum { RANGES_EACH = 4 }; /* of groups, for each thread: they need not all take the same time */

/* A launch. It lives on the stack of the thread that made it, until nobody helps any more. */
typedef struct job {
  entry_point kernel;
  void* const* arguments;
  const unsigned long long* groups;
  unsigned long long total, step;
  atomic_ullong next;
  unsigned helpers; /* under `lock`, like all that follows */
  struct job* following;
} job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static job* jobs;

static pthread_once_t started = PTHREAD_ONCE_INIT;
static uint32_t threads = 1; /* the calling one among them */

static pthread_once_t counted = PTHREAD_ONCE_INIT;
static uint32_t cores = 1;

static void count_cores(void) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cores = (uint32_t)CPU_COUNT(&allowed);
}

/* As many as this process may use when it asks first: a device's properties do not change. */
uint32_t worker_count(void) {
  pthread_once(&counted, count_cores);
  return cores;
}

/* Takes ranges of groups until none is left. */
static void take_part(job* job) {
  for (;;) {
    unsigned long long begin = atomic_fetch_add(&job->next, job->step);
    if (begin >= job->total) return;
    unsigned long long end = job->total - begin < job->step ? job->total : begin + job->step;
    job->kernel(job->arguments, job->groups, begin, end);
  }
}

static job* job_with_work(void) {
  job* each = jobs;
  while (each && atomic_load(&each->next) >= each->total) each = each->following;
  return each;
}

static void* help(void* unused) {
  UNUSED(unused);
  pthread_mutex_lock(&lock);
  for (;;) {
    job* job = job_with_work();
    if (!job) {
      pthread_cond_wait(&work, &lock);
      continue;
    }
    ++job->helpers;
    pthread_mutex_unlock(&lock);
    take_part(job);
    pthread_mutex_lock(&lock);
    if (--job->helpers == 0) pthread_cond_broadcast(&left);
  }
  return NULL;
}

/* Signals are the program's own threads' business, but for those that a kernel itself may cause. */
static void start(void) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t wanted = worker_count(); threads < wanted; ++threads) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, NULL) != 0) break; /* then there are fewer */
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void publish(job* job) {
  pthread_mutex_lock(&lock);
  job->following = jobs;
  jobs = job;
  pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&lock);
}

static void withdraw(job* mine) {
  pthread_mutex_lock(&lock);
  job** place = &jobs;
  while (*place != mine) place = &(*place)->following;
  *place = mine->following;
  while (mine->helpers > 0) pthread_cond_wait(&left, &lock);
  pthread_mutex_unlock(&lock);
}

void run_groups(entry_point kernel, void* const* arguments, const unsigned long long groups[3]) {
  unsigned long long total = groups[0] * groups[1] * groups[2];
  if (total == 1) { /* not worth waking anybody */
    kernel(arguments, groups, 0, 1);
    return;
  }
  pthread_once(&started, start);
  unsigned long long ranges = (unsigned long long)threads * RANGES_EACH;
  job job = {
      .kernel = kernel, .arguments = arguments, .groups = groups, .total = total, .step = (total - 1) / ranges + 1};
  publish(&job);
  take_part(&job);
  withdraw(&job);
}
