// Compiled kernels.
#pragma once

#include <c10/util/ArrayRef.h>

#include <array>
#include <memory>
#include <string>

#include "device.h"
#include "graphs/capture.h"

namespace torchgraft {

// A compiled program on one device; lives as long as any of its kernels.
class Module {
 public:
  // Returns null and the compiler's log if the source is refused; throws for any other failure.
  static std::shared_ptr<Module> compile(Device& device, const std::string& source, const std::string& options,
                                         std::string* log);
  // The same for a binary that an earlier process saved: a refused binary gives null.
  static std::shared_ptr<Module> load(Device& device, const std::string& binary, std::string* log);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  std::string binary() const;  // empty where the driver has none
  Device& device() const { return device_; }
  tg_module handle() const { return handle_; }

 private:
  Module(Device& device, tg_module handle) : device_(device), handle_(handle) {}
  Device& device_;
  tg_module handle_;
};

class Kernel : public std::enable_shared_from_this<Kernel> {
 public:
  Kernel(std::shared_ptr<Module> module, std::string name, std::string source, std::array<size_t, 3> local,
         uint32_t dims);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  Device& device() const { return module_->device(); }
  tg_kernel handle() const { return handle_; }
  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }
  const std::array<size_t, 3>& local() const { return local_; }
  uint32_t dims() const { return dims_; }

 private:
  std::shared_ptr<Module> module_;
  std::string name_, source_;
  std::array<size_t, 3> local_;
  uint32_t dims_;
  tg_kernel handle_ = nullptr;
};

// Work-groups, and work-items of each, in `dims` dimensions; 1 in the others.
struct Grid {
  uint32_t dims = 1;
  std::array<size_t, 3> groups{1, 1, 1}, local{1, 1, 1};
  uint64_t bytes = 0;  // of memory that the arguments span; 0: unknown
};

// Puts a kernel on a stream of its device: the one way by which kernels are launched. `op` is who wants it, for
// messages; empty for a launch of the user's own. `randoms` are those arguments that a captured launch takes anew.
void launch(const Kernel& kernel, tg_stream stream, const Grid& grid, c10::ArrayRef<tg_arg> args, const std::string& op,
            c10::ArrayRef<RandomArgument> randoms = {});

}  // namespace torchgraft
