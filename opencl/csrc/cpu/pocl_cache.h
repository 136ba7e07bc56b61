// The folder of PoCL's own cache. PoCL unpacks and compiles every kernel in it: without one that it can write it has no
// devices, and without space in it no kernels.
#pragma once

#include <optional>
#include <string>

namespace ocl {

// While this exists, POCL_CACHE_DIR names a folder that works: PoCL reads the variable once, when its devices are first
// asked for. Afterwards it is again what it was, so that processes that are started choose their own.
class PoclCache {
 public:
  // Looks whether PoCL's own choice can be used, and if not, makes a temporary folder, private to the user, which is
  // removed when the process ends.
  PoclCache();
  ~PoclCache();
  PoclCache(const PoclCache&) = delete;
  PoclCache& operator=(const PoclCache&) = delete;

  // There is no PoCL: the temporary folder is removed now.
  void forget();

  const std::string& own() const { return own_; }          // the folder that PoCL chooses
  const std::string& problem() const { return problem_; }  // why it cannot be used; empty if it can
  const std::string& used() const { return used_; }        // empty if there is none
  bool named_by_user() const { return !variable_.value_or("").empty(); }

  // What a user should know: that a folder which they named is not used, or that there is none. Otherwise empty.
  std::string warning() const;

 private:
  std::optional<std::string> variable_;  // as it was
  std::string own_, problem_, used_;
};

}  // namespace ocl
