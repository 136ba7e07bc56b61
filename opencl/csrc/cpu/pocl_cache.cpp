#include "pocl_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "environment.h"

namespace ocl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "POCL_CACHE_DIR";
constexpr const char* kPrefix = "torchgraft-pocl-";
constexpr size_t kNeededBytes = 1 << 20;  // some kernels
constexpr time_t kBeingMadeSeconds = 60;

std::string reason() { return std::strerror(errno); }

// Whether a file of some size can be written in a folder: permissions do not tell of quotas and full disks. Returns
// what fails, or an empty string.
std::string try_writing(const fs::path& folder) {
  std::string name = folder / ".torchgraft-XXXXXX";
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return reason();
  unlink(name.c_str());
  std::array<char, 4096> zeros{};
  std::string problem;
  for (size_t written = 0; written < kNeededBytes && problem.empty(); written += zeros.size()) {
    const ssize_t count = write(file, zeros.data(), zeros.size());
    if (count < 0) problem = reason();
    if (count >= 0 && static_cast<size_t>(count) < zeros.size()) problem = std::strerror(ENOSPC);
  }
  if (close(file) != 0 && problem.empty()) problem = reason();
  return problem;
}

// The folder itself, or the first above it that exists, in which it would be made.
fs::path existing(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored);
  while (!fs::exists(fs::symlink_status(path, ignored)) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// Why PoCL cannot keep its kernels in a folder, which need not exist; empty if it can. Nothing is left there.
std::string why_unusable(const std::string& folder) {
  const fs::path place = existing(folder);
  std::error_code ignored;
  if (!fs::is_directory(place, ignored)) return place.string() + ": it is not a folder";
  struct statvfs status{};
  if (statvfs(place.c_str(), &status) == 0 && (status.f_flag & ST_NOEXEC) != 0)
    return place.string() + ": what is in it may not be run (noexec)";
  const std::string problem = try_writing(place);
  return problem.empty() ? "" : place.string() + ": writing a file in it fails: " + problem;
}

// As PoCL chooses (pocl_cache_init_topdir in its sources), but for an empty POCL_CACHE_DIR, which makes it abort.
std::string own_folder(const std::optional<std::string>& named) {
  if (!named.value_or("").empty()) return *named;
  const std::string rest = find_variable("POCL_KERNEL_CACHE").value_or("1") == "0" ? "/pocl/uncached" : "/pocl/kcache";
  const std::string caches = find_variable("XDG_CACHE_HOME").value_or("");
  if (!caches.empty()) return caches + rest;
  const std::optional<std::string> home = find_variable("HOME");
  return home ? *home + "/.cache" + rest : "/tmp" + rest;
}

bool anybody_could_write(const std::optional<std::string>& named) {
  return named.value_or("").empty() && find_variable("XDG_CACHE_HOME").value_or("").empty() && !find_variable("HOME");
}

// Locks a temporary folder as long as this process lives, against others of this driver and against systemd's cleaning.
// Returns the descriptor, or -1 if another one has it.
int lock(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  if (descriptor >= 0) close(descriptor);
  return -1;
}

// Removes the folders of processes that were killed. One that is being made may not have been locked yet.
void remove_leftovers(const fs::path& base) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(base, ignored)) {
    if (entry.path().filename().string().rfind(kPrefix, 0) != 0) continue;
    struct stat status{};
    if (lstat(entry.path().c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) continue;
    if (status.st_mtime > std::time(nullptr) - kBeingMadeSeconds) continue;
    const int descriptor = lock(entry.path());
    if (descriptor < 0) continue;
    fs::remove_all(entry.path(), ignored);
    close(descriptor);
  }
}

struct Temporary {
  std::string path;
  pid_t owner = 0;
};

// Never destroyed: it is asked for when the process ends.
Temporary& temporary() {
  static Temporary& instance = *new Temporary;
  return instance;
}

void remove_temporary() {
  Temporary& mine = temporary();
  if (mine.path.empty() || mine.owner != getpid()) return;  // a forked process leaves it to its parent
  std::error_code ignored;
  fs::remove_all(mine.path, ignored);
  mine.path.clear();
}

// A new folder that only this user can enter; an empty string if none can be made.
std::string make_temporary() {
  for (const std::string& base : {find_variable("TMPDIR").value_or(""), std::string("/tmp"), std::string("/var/tmp")}) {
    std::error_code ignored;
    if (base.empty() || !fs::is_directory(base, ignored) || !why_unusable(base).empty()) continue;
    remove_leftovers(base);
    std::string path = fs::absolute(base, ignored) / (std::string(kPrefix) + "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) continue;
    lock(path);
    temporary() = {path, getpid()};
    static const bool removed_at_exit = std::atexit(remove_temporary) == 0;
    static_cast<void>(removed_at_exit);
    return path;
  }
  return "";
}

}  // namespace

PoclCache::PoclCache() : variable_(find_variable(kVariable)), own_(own_folder(variable_)) {
  problem_ = anybody_could_write(variable_)
                 ? own_ + ": neither HOME nor XDG_CACHE_HOME is set, and anybody could write in it"
                 : why_unusable(own_);
  used_ = problem_.empty() ? own_ : make_temporary();
  if (!used_.empty()) set_variable(kVariable, used_);
}

PoclCache::~PoclCache() {
  if (!used_.empty()) set_variable(kVariable, variable_);
}

void PoclCache::forget() { remove_temporary(); }

std::string PoclCache::warning() const {
  if (problem_.empty() || (!used_.empty() && !named_by_user())) return "";
  const std::string subject =
      named_by_user() ? "POCL_CACHE_DIR is '" + own_ + "'" : "PoCL's folder for its kernels is " + own_;
  const std::string rest = used_.empty()
                               ? ", and no temporary folder can be made either; set POCL_CACHE_DIR to a folder "
                                 "that can be written, on a disk that is not full"
                               : "; a temporary folder is used instead, until the process ends";
  return subject + ", and that cannot be used (" + problem_ + ")" + rest;
}

}  // namespace ocl
