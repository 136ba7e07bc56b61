#include "work_group.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <memory>
#include <string_view>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace ocl {
namespace {

// ---- PoCL's binaries (pocl_binary.c, read for 3.1) ----

constexpr std::string_view kWord{"poclbin", 8};
constexpr size_t kVersionOffset = 16, kFlagsOffset = 24, kHashOffset = 36, kHashLength = 40;
// Of PoCL 3.1. Later versions have other numbers, and other contexts.
constexpr uint32_t kVersion = 9;
// A flag: subnormal numbers count as zero.
constexpr uint64_t kFlushes = 1;

template <class T>
T number_at(const std::vector<unsigned char>& binary, size_t offset) {
  T value{};
  std::memcpy(&value, binary.data() + offset, sizeof value);
  return value;
}

// ---- what a group is given (pocl_context.h, read for 3.1) ----

struct Context {
  uint64_t groups[3], offset[3], local[3];
  char* printed;
  uint32_t* printed_bytes;
  uint32_t print_capacity;
  uint32_t dims;
};

// Of a launch, in each thread that runs groups of it.
constexpr uint32_t kPrintCapacity = 65536;

// An argument, or a pointer, where code may read it as any type.
struct alignas(sizeof(tg_arg::value)) Argument {
  unsigned char bytes[sizeof(tg_arg::value)];
};

struct Work {
  WorkGroup function;
  const void* const* arguments;
  Context context;
  std::atomic<bool>* printed;
};

// As PoCL runs kernels: rounding to nearest, with subnormal numbers, whatever the calling thread has set.
class UsualArithmetic {
 public:
#ifdef __SSE2__
  UsualArithmetic() : before_(_mm_getcsr()) {
    if ((before_ & ~kFlags) != kUsual) _mm_setcsr(kUsual);
  }
  ~UsualArithmetic() {
    if ((before_ & ~kFlags) != kUsual) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kFlags = 0x3f, kUsual = 0x1f80;
  const unsigned before_;
#else
  UsualArithmetic() { std::feholdexcept(&before_), std::fesetenv(FE_DFL_ENV); }
  ~UsualArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
#endif
};

void run_part(const void* pointer, size_t begin, size_t end) {
  thread_local const std::unique_ptr<char[]> buffer(new char[kPrintCapacity]);
  const Work& work = *static_cast<const Work*>(pointer);
  Context context = work.context;
  uint32_t printed = 0;
  context.printed = buffer.get();
  context.printed_bytes = &printed;
  const size_t row = context.groups[0], slice = row * context.groups[1];
  {
    const UsualArithmetic usual;
    for (size_t i = begin; i < end; ++i) work.function(work.arguments, &context, i % row, i % slice / row, i / slice);
  }
  if (printed == 0) [[likely]]
    return;
  work.printed->store(true, std::memory_order_relaxed);
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, buffer.get(), printed);
}

struct Search {
  const std::string& path_end;
  std::string path;
};

int compare_path(dl_phdr_info* object, size_t, void* argument) {
  Search& search = *static_cast<Search*>(argument);
  const std::string_view path = object->dlpi_name != nullptr ? object->dlpi_name : "";
  if (!path.ends_with(search.path_end)) return 0;
  search.path = path;
  return 1;
}

}  // namespace

std::string code_of(const std::vector<unsigned char>& binary, const std::string& kernel) {
  if (binary.size() < kHashOffset + kHashLength || std::memcmp(binary.data(), kWord.data(), kWord.size()) != 0)
    return "";
  if (number_at<uint32_t>(binary, kVersionOffset) != kVersion ||
      (number_at<uint64_t>(binary, kFlagsOffset) & kFlushes) != 0)
    return "";
  const std::string folder(reinterpret_cast<const char*>(binary.data()) + kHashOffset, kHashLength);
  // "0-0-0" has the code for groups of any size, or of the one that the kernel's text requires.
  return "/" + folder + "/" + kernel + "/0-0-0/" + kernel + ".so";
}

LoadedObject find_object(const std::string& path_end) {
  const auto close = [](void* object) { dlclose(object); };
  Search search{path_end, ""};
  if (path_end.empty() || dl_iterate_phdr(compare_path, &search) == 0) return {nullptr, close};
  return {dlopen(search.path.c_str(), RTLD_NOW | RTLD_NOLOAD), close};
}

WorkGroup find_work_group(const LoadedObject& object, const std::string& kernel) {
  if (object == nullptr) return nullptr;
  return reinterpret_cast<WorkGroup>(dlsym(object.get(), ("_pocl_kernel_" + kernel + "_workgroup").c_str()));
}

bool run_groups(WorkGroup function, const tg_launch& launch, ThreadTeam* team, bool wake) {
  std::array<Argument, kMostArguments> values;
  std::array<const void*, kMostArguments> arguments;
  for (uint32_t i = 0; i < launch.arg_count; ++i) {
    std::memcpy(values[i].bytes, &launch.args[i].value, sizeof values[i].bytes);
    arguments[i] = values[i].bytes;
  }
  std::atomic<bool> printed = false;
  Work work{function, arguments.data(), {}, &printed};
  size_t count = 1;
  for (uint32_t d = 0; d < 3; ++d) {
    work.context.groups[d] = d < launch.dims ? launch.groups[d] : 1;
    work.context.local[d] = d < launch.dims ? launch.local[d] : 1;
    count *= work.context.groups[d];
  }
  work.context.print_capacity = kPrintCapacity;
  work.context.dims = launch.dims;
  if (team != nullptr) {
    team->share(run_part, &work, count, wake);
  } else {
    run_part(&work, 0, count);
  }
  return printed.load(std::memory_order_relaxed);
}

}  // namespace ocl
