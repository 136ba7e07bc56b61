#include "kernel.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "command.h"

namespace torchgraft {

namespace {

// Shared by compile and load: a refusal is an answer, anything else an error.
bool accepted(Device& device, tg_status status, const char* what, const char* text, std::string* log) {
  if (log != nullptr && text != nullptr) *log = text;
  if (status == TG_ERROR_COMPILE) {
    if (log != nullptr && log->empty()) *log = device.driver->last_error(device.driver->context);
    return false;
  }
  check(device, status, what);
  return true;
}

}  // namespace

std::shared_ptr<Module> Module::compile(Device& device, const std::string& source, const std::string& options,
                                        std::string* log) {
  TORCH_CHECK_NOT_IMPLEMENTED(device.has(TG_CAP_COMPILER), backend_name(), ":", int(device.index),
                              " has no kernel compiler");
  tg_module handle = nullptr;
  const char* text = nullptr;
  tg_status status = device.driver->module_compile(device.driver->context, device.ordinal, source.data(), source.size(),
                                                   options.c_str(), &handle, &text);
  if (!accepted(device, status, "compile a kernel", text, log)) return nullptr;
  return std::shared_ptr<Module>(new Module(device, handle));
}

std::shared_ptr<Module> Module::load(Device& device, const std::string& binary, std::string* log) {
  tg_module handle = nullptr;
  const char* text = nullptr;
  tg_status status =
      device.driver->module_load(device.driver->context, device.ordinal, binary.data(), binary.size(), &handle, &text);
  // A cached binary is only a hint: whatever is wrong with it, the source is compiled instead.
  if (status != TG_OK) {
    if (log != nullptr) *log = text != nullptr ? text : device.driver->last_error(device.driver->context);
    return nullptr;
  }
  return std::shared_ptr<Module>(new Module(device, handle));
}

Module::~Module() {
  if (!in_bad_fork()) device_.driver->module_destroy(device_.driver->context, handle_);
}

std::string Module::binary() const {
  const tg_driver* driver = device_.driver;
  uint64_t bytes = 0;
  tg_status status = driver->module_binary(driver->context, handle_, nullptr, &bytes);
  if (status == TG_ERROR_UNSUPPORTED || (status == TG_OK && bytes == 0)) return {};
  check(device_, status, "read a kernel's binary");
  std::string out(bytes, '\0');
  check(device_, driver->module_binary(driver->context, handle_, out.data(), &bytes), "read a kernel's binary");
  out.resize(bytes);
  return out;
}

Kernel::Kernel(std::shared_ptr<Module> module, std::string name, std::string source, std::array<size_t, 3> local,
               uint32_t dims)
    : module_(std::move(module)), name_(std::move(name)), source_(std::move(source)), local_(local), dims_(dims) {
  const Device& device = module_->device();
  check(device, device.driver->kernel_create(device.driver->context, module_->handle(), name_.c_str(), &handle_),
        "create a kernel");
}

Kernel::~Kernel() {
  if (handle_ != nullptr && !in_bad_fork()) device().driver->kernel_destroy(device().driver->context, handle_);
}

void launch(const Kernel& kernel, tg_stream stream, const Grid& grid, c10::ArrayRef<tg_arg> args, const std::string& op,
            c10::ArrayRef<RandomArgument> randoms) {
  const Device& device = kernel.device();
  tg_launch launch;
  launch.kernel = kernel.handle();
  launch.dims = grid.dims;
  launch.arg_count = uint32_t(args.size());
  std::copy(grid.groups.begin(), grid.groups.end(), launch.groups);
  std::copy(grid.local.begin(), grid.local.end(), launch.local);
  launch.args = args.data();
  launch.bytes = grid.bytes;
  if (capturing()) [[unlikely]]
    if (const Captured captured = capture_of(device.index, stream))
      return captured->launch(captured.stream, launch, kernel.shared_from_this(), op, randoms);
  tg_status status = submit_launch(device, stream, launch, kernel.name());
  if (status != TG_OK) [[unlikely]]
    raise_status(device, status, ("launch kernel " + kernel.name() + (op.empty() ? op : " of " + op)).c_str());
}

}  // namespace torchgraft
