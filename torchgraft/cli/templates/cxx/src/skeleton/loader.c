/* The loader of binaries: of shared libraries, into this process.
 *
 * YOUR LOADER HERE. A device of its own is sent the binary, and answers with whatever names a kernel there: put that
 * into these three functions, and its way of starting a kernel into launch() of kernels.c.
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* Whether it is a whole one: dlopen maps what the headers name, and dies of what is not there. The table of sections is
 * what linkers write last. */
static int is_library(const void* binary, size_t bytes) {
  ElfW(Ehdr) header;
  if (bytes < sizeof(header)) return 0;
  memcpy(&header, binary, sizeof(header));
  uint64_t end = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
  return memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_shoff < bytes && end <= bytes;
}

static int write_all(int file, const char* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t written = write(file, data, bytes);
    if (written < 0 && errno != EINTR) return 0;
    if (written > 0) {
      data += written;
      bytes -= (size_t)written;
    }
  }
  return 1;
}

/* By way of a temporary file. Its name is never used again in this process: what has a name that is loaded already
 * would not be loaded again. */
tg_status load(const void* binary, size_t bytes, void** library) {
  static atomic_uint count;
  if (!is_library(binary, bytes)) return fail(TG_ERROR_INVALID, "%zu bytes are no shared library", bytes);
  const char* parent = getenv("TMPDIR");
  char path[512];
  int length = snprintf(path, sizeof(path), "%s/skeleton-%u-XXXXXX.so", parent && *parent ? parent : "/tmp",
                        atomic_fetch_add(&count, 1));
  int file = length < (int)sizeof(path) ? mkstemps(path, 3) : -1;
  if (file < 0) return fail(TG_ERROR, "no temporary file for a kernel: %s", strerror(errno));
  int written = write_all(file, binary, bytes);
  if (close(file) != 0 || !written) {
    unlink(path);
    return fail(TG_ERROR, "%s cannot be written: %s", path, strerror(errno));
  }
  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  unlink(path);
  return *library ? TG_OK : fail(TG_ERROR_INVALID, "%s", dlerror());
}

/* Of the library itself: dlsym also looks in those that it needs, and the C library has many names. */
tg_status find_kernel(void* library, const char* name, entry_point* out) {
  void* found = dlsym(library, name);
  struct link_map* map = NULL;
  Dl_info where;
  if (!found || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !dladdr(found, &where) ||
      (uintptr_t)where.dli_fbase != (uintptr_t)map->l_addr) {
    return fail(TG_ERROR_INVALID, "the module has no kernel %s", name);
  }
  memcpy(out, &found, sizeof(found)); /* C has no conversion of an object's address to a function's */
  return TG_OK;
}

void unload(void* library) { dlclose(library); }
