/* The compiler of kernels: the system's C++ compiler ($CXX, or c++), for the machine that this runs on.
 *
 * YOUR COMPILER HERE. A device of its own has a cross-compiler: put its command into compile(), and its version and
 * target into compiler(). If it is a library and not a program, all of this file but those two functions goes. The
 * sources are C++ as torchgraft's dialect "c++" writes it; internal.h has the function that each of them exports.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

extern char** environ;

/* ---- Files ---- */

enum { PATH_BYTES = 512 };

/* A private folder for one run of the compiler. */
typedef struct folder {
  char path[PATH_BYTES];
  char source[PATH_BYTES + 16], binary[PATH_BYTES + 16], log[PATH_BYTES + 16];
} folder;

static int make_folder(folder* out) {
  const char* parent = getenv("TMPDIR");
  int length = snprintf(out->path, PATH_BYTES, "%s/skeleton-XXXXXX", parent && *parent ? parent : "/tmp");
  if (length >= PATH_BYTES || !mkdtemp(out->path)) return 0;
  snprintf(out->source, sizeof(out->source), "%s/kernel.cpp", out->path);
  snprintf(out->binary, sizeof(out->binary), "%s/kernel.so", out->path);
  snprintf(out->log, sizeof(out->log), "%s/log", out->path);
  return 1;
}

static void remove_folder(const folder* folder) {
  unlink(folder->source);
  unlink(folder->binary);
  unlink(folder->log);
  rmdir(folder->path);
}

static int write_file(const char* path, const char* content, size_t bytes) {
  FILE* file = fopen(path, "we");
  if (!file) return 0;
  int written = fwrite(content, 1, bytes, file) == bytes;
  return (fclose(file) == 0) && written;
}

/* The whole file, with a zero behind it; NULL if there is none. */
static char* read_file(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "re");
  if (!file) return NULL;
  struct stat about;
  char* content = fstat(fileno(file), &about) == 0 ? malloc((size_t)about.st_size + 1) : NULL;
  if (content) {
    *bytes = fread(content, 1, (size_t)about.st_size, file);
    content[*bytes] = '\0';
  }
  fclose(file);
  return content;
}

/* ---- Programs ---- */

enum { MAX_WORDS = 256 };

/* Never given to a shell: each word arrives as it is. */
typedef struct command {
  int count;
  char* words[MAX_WORDS + 1]; /* and a NULL */
} command;

static void add_word(command* command, const char* word) {
  if (command->count < MAX_WORDS) command->words[command->count++] = (char*)word;
}

/* Cuts a text into words at its spaces. */
static void add_words(command* command, char* text) {
  char* rest = NULL;
  for (char* word = strtok_r(text, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
    add_word(command, word);
  }
}

/* The compiler's own words; CXX may have options, too. Its messages are asked for in English and ASCII. */
static void add_compiler(command* command, char* environment) {
  add_word(command, "env");
  add_word(command, "LC_ALL=C");
  add_words(command, environment);
  if (command->count == 2) add_word(command, "c++");
}

static char* copied(const char* text) { return strdup(text ? text : ""); }

/* Runs a program, what it prints going to a file, and says whether it went well. It is in a process group of its own:
 * Ctrl-C is for the program that this driver is part of. */
static int run(command* command, const char* output) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  sigset_t none, ignored_by_python;
  sigemptyset(&none);
  sigemptyset(&ignored_by_python);
  sigaddset(&ignored_by_python, SIGPIPE);
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &ignored_by_python);
  pid_t pid = 0;
  int error = posix_spawnp(&pid, command->words[0], &files, &attributes, command->words, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error) return 0;
  int status = 0;
  pid_t ended;
  do ended = waitpid(pid, &status, 0);
  while (ended < 0 && errno == EINTR);
  /* Somebody else may have waited for it, or nobody may: then what it has written must tell. */
  return ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- The compiler ---- */

static compiler_info info;
static pthread_once_t asked = PTHREAD_ONCE_INIT;

/* FNV-1a. */
static uint64_t hash(const char* text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (; *text; ++text) value = (value ^ (unsigned char)*text) * 0x100000001b3u;
  return value;
}

/* Its version is the first line of `c++ --version`; the macros that it defines for -march=native are the CPU's
 * features, and more. */
static void ask(void) {
  folder folder;
  if (!make_folder(&folder)) return;
  char* environment = copied(getenv("CXX"));
  size_t bytes = 0;
  command version = {0}, features = {0};
  add_compiler(&version, environment);
  features = version;
  add_word(&version, "--version");
  char* words = copied("-march=native -x c++ -dM -E /dev/null");
  add_words(&features, words);
  char* name = run(&version, folder.log) ? read_file(folder.log, &bytes) : NULL;
  char* macros = run(&features, folder.log) ? read_file(folder.log, &bytes) : NULL;
  if (name && macros) {
    name[strcspn(name, "\n")] = '\0';
    info.present = 1;
    info.simd_width = strstr(macros, "__AVX512F__") ? 16 : strstr(macros, "__AVX__") ? 8 : 4;
    snprintf(info.description, sizeof(info.description), "%.100s, features %016llx", name,
             (unsigned long long)hash(macros));
  } else {
    info.simd_width = 1;
    snprintf(info.description, sizeof(info.description), "no C++ compiler (CXX, or c++)");
  }
  free(name);
  free(macros);
  free(words);
  free(environment);
  remove_folder(&folder);
}

const compiler_info* compiler(void) {
  pthread_once(&asked, ask);
  return &info;
}

/* Sources may have any bytes, and the log repeats them; a message is text, though. */
static void read_log(const char* path, char log[LOG_BYTES]) {
  FILE* file = fopen(path, "re");
  size_t bytes = file ? fread(log, 1, LOG_BYTES - 1, file) : 0;
  if (file) fclose(file);
  log[bytes] = '\0';
  for (size_t i = 0; i < bytes; ++i) {
    if (log[i] == '\0' || (unsigned char)log[i] > 0x7e) log[i] = '?';
  }
}

tg_status compile(const char* source, size_t source_bytes, const char* options, char** binary, size_t* binary_bytes,
                  char log[LOG_BYTES]) {
  if (!compiler()->present) return fail(TG_ERROR_UNSUPPORTED, "there is %s", compiler()->description);
  folder folder;
  if (!make_folder(&folder)) return fail(TG_ERROR, "no folder for temporary files: %s", strerror(errno));
  char *environment = copied(getenv("CXX")), *split = copied(options);
  command command = {0};
  add_compiler(&command, environment);
  /* What the kernels want of a compiler of C++ is in the dialect's options; here stands what makes a binary. A library
   * that is loaded beside others has its own functions first. */
  add_words(&command, split);
  add_word(&command, "-shared");
  add_word(&command, "-fPIC");
  add_word(&command, "-Wl,-Bsymbolic");
  add_word(&command, "-o");
  add_word(&command, folder.binary);
  add_word(&command, folder.source);
  tg_status status = TG_OK;
  if (command.count == MAX_WORDS) {
    status = fail(TG_ERROR_INVALID, "more than %d words of options for the compiler", MAX_WORDS);
  } else if (!write_file(folder.source, source, source_bytes)) {
    status = fail(TG_ERROR, "%s cannot be written: %s", folder.source, strerror(errno));
  } else {
    *binary = run(&command, folder.log) ? read_file(folder.binary, binary_bytes) : NULL;
    read_log(folder.log, log);
    if (!*binary) status = fail(TG_ERROR_COMPILE, "the compiler refused the source");
  }
  remove_folder(&folder);
  free(split);
  free(environment);
  return status;
}
