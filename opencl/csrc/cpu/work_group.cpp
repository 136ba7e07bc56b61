#include "work_group.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace ocl {
namespace {

// What a group is given (pocl_context.h). The structures of 3.1, of 4.0 to 6.0 and of 7.0 to 7.2 in one: a field that
// one of them has is padding in the others, or lies behind their end.
struct Context {
  uint64_t groups[3], offset[3], local[3];
  char* printed;
  uint32_t* printed_bytes;
  uint32_t print_capacity;
  uint32_t dims_of_3;  // 3.1's
  void* variables;     // from 4.0 on; kernels that have some are not called
  uint32_t dims;       // from 4.0 on
  uint32_t failed;     // from 7.0 on, written by the kernel
};
static_assert(offsetof(Context, dims_of_3) == 92 && offsetof(Context, variables) == 96 &&
              offsetof(Context, dims) == 104 && offsetof(Context, failed) == 108 && sizeof(Context) == 112);

// An argument, or a pointer, where code may read it as any type.
struct alignas(sizeof(tg_arg::value)) Argument {
  unsigned char bytes[sizeof(tg_arg::value)];
};

struct Work {
  WorkGroup function;
  const void* const* arguments;
  Context context;
  std::atomic<bool>* failed;
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
  const Work& work = *static_cast<const Work*>(pointer);
  Context context = work.context;
  // Kernels that print are not called; there is no room for what one would.
  char no_text = 0;
  uint32_t no_bytes = 0;
  context.printed = &no_text;
  context.printed_bytes = &no_bytes;
  const size_t row = context.groups[0], slice = row * context.groups[1];
  {
    const UsualArithmetic usual;
    for (size_t i = begin; i < end; ++i) work.function(work.arguments, &context, i % row, i % slice / row, i / slice);
  }
  if (context.failed != 0) [[unlikely]]
    work.failed->store(true, std::memory_order_relaxed);
}

struct Search {
  const std::string& folder;
  std::vector<std::string> paths;
};

// "0-0-0" has the code for groups of any size, or of the one that the kernel's text requires. What is before and behind
// it is the kernel's name, which later releases shorten.
int collect_paths(dl_phdr_info* object, size_t, void* argument) {
  Search& search = *static_cast<Search*>(argument);
  const std::string_view path = object->dlpi_name != nullptr ? object->dlpi_name : "";
  const size_t folder = path.find(search.folder);
  if (folder != path.npos && path.find("/0-0-0/", folder + search.folder.size()) != path.npos)
    search.paths.emplace_back(path);
  return 0;
}

}  // namespace

Code find_code(const std::string& folder, const std::string& kernel) {
  Search search{folder, {}};
  if (!folder.empty()) dl_iterate_phdr(collect_paths, &search);
  for (const std::string& path : search.paths) {
    LoadedObject object(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD), [](void* each) { dlclose(each); });
    void* const function =
        object != nullptr ? dlsym(object.get(), ("_pocl_kernel_" + kernel + "_workgroup").c_str()) : nullptr;
    if (function != nullptr) return {std::move(object), reinterpret_cast<WorkGroup>(function)};
  }
  return {};
}

bool run_groups(WorkGroup function, const tg_launch& launch, ThreadTeam* team, bool wake) {
  std::array<Argument, kMostArguments> values;
  std::array<const void*, kMostArguments> arguments;
  for (uint32_t i = 0; i < launch.arg_count; ++i) {
    std::memcpy(values[i].bytes, &launch.args[i].value, sizeof values[i].bytes);
    arguments[i] = values[i].bytes;
  }
  std::atomic<bool> failed = false;
  Work work{function, arguments.data(), {}, &failed};
  size_t count = 1;
  for (uint32_t d = 0; d < 3; ++d) {
    work.context.groups[d] = d < launch.dims ? launch.groups[d] : 1;
    work.context.local[d] = d < launch.dims ? launch.local[d] : 1;
    count *= work.context.groups[d];
  }
  work.context.dims = work.context.dims_of_3 = launch.dims;
  if (team != nullptr) {
    team->share(run_part, &work, count, wake);
  } else {
    run_part(&work, 0, count);
  }
  return !failed.load(std::memory_order_relaxed);
}

}  // namespace ocl
