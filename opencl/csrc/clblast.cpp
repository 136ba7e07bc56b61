#include "clblast.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "environment.h"
#include "error.h"
#include "program.h"

namespace ocl {
namespace {

// ---- the library ----

// Of clblast_c.h; sizes, offsets and strides are in elements, and a matrix's pitch is BLAS's leading dimension.
enum : int { kColumnMajor = 102, kAsItIs = 111, kTransposed = 112 };

template <class T>
struct Routines {
  int (*gemm)(int layout, int a_transposed, int b_transposed, size_t m, size_t n, size_t k, T alpha, cl_mem a,
              size_t a_offset, size_t a_pitch, cl_mem b, size_t b_offset, size_t b_pitch, T beta, cl_mem c,
              size_t c_offset, size_t c_pitch, cl_command_queue* queue, cl_event* event);
  int (*batched)(int layout, int a_transposed, int b_transposed, size_t m, size_t n, size_t k, T alpha, cl_mem a,
                 size_t a_offset, size_t a_pitch, size_t a_stride, cl_mem b, size_t b_offset, size_t b_pitch,
                 size_t b_stride, T beta, cl_mem c, size_t c_offset, size_t c_pitch, size_t c_stride, size_t batch,
                 cl_command_queue* queue, cl_event* event);
};

struct Library {
  std::string missing;  // why it cannot be used; empty if it can
  void* handle = nullptr;
  Routines<float> singles{};
  Routines<double> doubles{};

  template <class T>
  const Routines<T>& routines() const {
    if constexpr (std::is_same_v<T, float>) {
      return singles;
    } else {
      return doubles;
    }
  }
};

const Library& library() {
  static const Library& opened = *[] {
    auto* const found = new Library;
    found->handle = dlopen("libclblast.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (found->handle == nullptr) {
      const char* const reason = dlerror();
      found->missing = reason != nullptr ? reason : "libclblast.so.1 cannot be loaded";
      return found;
    }
    const auto assign = [&]<class Function>(Function& function, const char* name) {
      function = reinterpret_cast<Function>(dlsym(found->handle, name));
      if (function == nullptr) found->missing = std::string("libclblast.so.1 has no ") + name;
    };
    assign(found->singles.gemm, "CLBlastSgemm");
    assign(found->doubles.gemm, "CLBlastDgemm");
    assign(found->singles.batched, "CLBlastSgemmStridedBatched");
    assign(found->doubles.batched, "CLBlastDgemmStridedBatched");
    return found;
  }();
  return opened;
}

// CLBlast calls the OpenCL that it is linked with, and objects of another may be nothing to that.
bool shares_opencl(const Device& device) {
  return dlsym(library().handle, "clCreateBuffer") == reinterpret_cast<void*>(device.api->clCreateBuffer);
}

// "off", "tuned", "always", or nothing.
std::string wish() { return find_variable("TORCHGRAFT_OPENCL_CLBLAST").value_or(""); }

bool is_wanted(const Device& device) {
  const std::string asked = wish();
  return asked != "off" && !(asked.empty() && device.is_cpu);
}

// Empty if it can.
std::string why_not(const Device& device) {
  if ((device.properties.capabilities & TG_CAP_COMPILER) == 0) return "the device has no compiler";
  // OpenCL may keep copies of what buffers over other memory of the host contain.
  if (device.memory->model == MemoryModel::kHost) return "it needs TORCHGRAFT_OPENCL_MEMORY=svm, coarse or buffer here";
  if (!library().missing.empty()) return library().missing;
  return shares_opencl(device) ? "" : "it uses another OpenCL library than the device";
}

// ---- what is asked ----

[[noreturn]] void refuse(const std::string& why) { throw Failure(TG_ERROR_UNSUPPORTED, "CLBlast: " + why); }

// CLBlast counts elements in 32 bits, and fills matrices up to multiples of at most so many rows and columns.
constexpr size_t kMost = std::numeric_limits<int32_t>::max(), kFilledUp = 256;

// Of a batch of matrices in memory: `inner` elements side by side, `outer` times.
struct Matrix {
  bool by_rows = true;  // these are rows, not columns
  size_t inner = 1, outer = 1, pitch = 1, stride = 1, span = 1;

  bool is_packed() const { return pitch == inner && stride == inner * outer; }
};

struct Product {
  uint32_t element = 0;
  size_t batch = 1, m = 1, n = 1, k = 1;
  double alpha = 1, beta = 0;
  Matrix a, b, c;
  int64_t d[3] = {};  // strides of D: batch, rows, columns

  size_t element_bytes() const { return element == TG_ELEMENT_F64 ? sizeof(double) : sizeof(float); }
};

Matrix read_matrix(const tg_tensor& tensor, size_t batch, const char* name) {
  const int64_t rows = tensor.sizes[tensor.dims - 2], columns = tensor.sizes[tensor.dims - 1];
  const int64_t row = tensor.strides[tensor.dims - 2], column = tensor.strides[tensor.dims - 1];
  Matrix made;
  // A dimension of one element may have any stride.
  const auto lies = [&](int64_t inner, int64_t step, int64_t outer, int64_t pitch) {
    if ((inner != 1 && step != 1) || (outer != 1 && pitch < inner)) return false;
    made.inner = static_cast<size_t>(inner), made.outer = static_cast<size_t>(outer);
    made.pitch = static_cast<size_t>(outer == 1 ? inner : pitch);
    return true;
  };
  made.by_rows = lies(columns, column, rows, row);
  if (!made.by_rows && !lies(rows, row, columns, column))
    refuse(std::string(name) + " has neither its rows nor its columns side by side");
  made.stride = batch == 1 ? made.inner * made.outer : static_cast<size_t>(tensor.strides[0]);
  made.span = made.pitch * (made.outer - 1) + made.inner + made.stride * (batch - 1);
  const double filled_up = static_cast<double>(made.inner + kFilledUp) * static_cast<double>(made.outer + kFilledUp);
  if (made.span > kMost || filled_up * static_cast<double>(batch) > static_cast<double>(kMost))
    refuse(std::string(name) + " has too many elements to be counted in 32 bits");
  return made;
}

double read_number(const tg_program_source& source, const char* name) {
  for (uint32_t i = 0; i < source.attribute_count; ++i) {
    const tg_attribute& each = *tg_attribute_at(source.attributes, i);
    if (std::strcmp(each.name, name) == 0)
      return each.kind == TG_ATTRIBUTE_INTEGER ? static_cast<double>(each.integer) : each.number;
  }
  fail_invalid(std::string("matmul is to have the attribute ") + name);
}

Product read_product(const Device& device, const tg_program_source& source) {
  if ((device.properties.capabilities & TG_CAP_PROGRAMS) == 0) refuse("the device has no operators");
  if (std::strcmp(source.format, "operator") != 0) refuse("it has operators, and takes no graphs");
  if (std::strcmp(source.name, "matmul") != 0) refuse("it has matmul alone");
  if (source.input_count != 3 || source.output_count != 1) fail_invalid("matmul has three inputs and an output");
  const tg_tensor &a = *tg_tensor_at(source.inputs, 0), &b = *tg_tensor_at(source.inputs, 1),
                  &d = *tg_tensor_at(source.inputs, 2), &c = source.outputs[0];
  Product made;
  made.element = c.element;
  made.alpha = read_number(source, "alpha");
  made.beta = d.element != 0 ? read_number(source, "beta") : 0;
  if (c.element == TG_ELEMENT_F16 || c.element == TG_ELEMENT_BF16) refuse("it would sum 16-bit floats in 16 bits");
  if (c.element != TG_ELEMENT_F32 && c.element != TG_ELEMENT_F64) refuse("it multiplies floats alone");
  if (c.element == TG_ELEMENT_F64 && (device.properties.capabilities & TG_CAP_FLOAT64) == 0) refuse("no float64");
  if (a.element != c.element || b.element != c.element || (d.element != 0 && d.element != c.element))
    refuse("elements of several types");
  const uint32_t dims = c.dims;
  if ((dims != 2 && dims != 3) || a.dims != dims || b.dims != dims || (d.element != 0 && d.dims != dims))
    fail_invalid("matmul is of matrices, or of batches of them");
  const auto size = [&](const tg_tensor& t, uint32_t last) { return static_cast<size_t>(t.sizes[dims - 1 - last]); };
  made.batch = dims == 3 ? size(c, 2) : 1;
  made.m = size(c, 1), made.n = size(c, 0), made.k = size(a, 0);
  if (made.batch == 0 || made.m == 0 || made.n == 0 || made.k == 0) refuse("no elements");
  if (size(a, 1) != made.m || size(b, 1) != made.k || size(b, 0) != made.n ||
      (dims == 3 && (size(a, 2) != made.batch || size(b, 2) != made.batch)))
    fail_invalid("the sizes of matmul's matrices do not fit");
  made.a = read_matrix(a, made.batch, "A");
  made.b = read_matrix(b, made.batch, "B");
  made.c = read_matrix(c, made.batch, "C");
  if (d.element != 0) std::copy(d.strides, d.strides + dims, made.d + 3 - dims);
  return made;
}

// ---- the run ----

struct Release {
  const Api* api;
  void operator()(cl_mem buffer) const { api->clReleaseMemObject(buffer); }
};
struct Operand {
  std::unique_ptr<cl_mem_, Release> buffer;
  size_t offset;
};

// By a part of the buffer that begins near the matrix: its offset then fits 32 bits, and is mostly 0, with which
// CLBlast can do without copies. Where there can be no such part, as of a part, by all.
Operand make_operand(const Device& device, void* address, const Matrix& matrix, size_t element) {
  const Api& api = *device.api;
  const uint64_t bytes = matrix.span * element;
  const Memory::Place place = device.memory->find_buffer(address, bytes);
  uint64_t before = place.offset % device.properties.address_align;
  const cl_buffer_region region{place.offset - before, before + bytes};
  cl_int status = CL_SUCCESS;
  cl_mem buffer =
      api.clCreateSubBuffer(place.buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
  if (buffer == nullptr || status != CL_SUCCESS) {
    check(api.clRetainMemObject(place.buffer), "clRetainMemObject");
    buffer = place.buffer, before = place.offset;
  }
  Operand made{{buffer, Release{&api}}, before / element};
  if (before % element != 0) fail_invalid("a matrix begins within an element");
  if (made.offset + matrix.span > kMost) {
    fail_invalid(
        "CLBlast counts elements in 32 bits, and a matrix is further inside its memory; TORCHGRAFT_OPENCL_CLBLAST=off "
        "leaves products to other kernels");
  }
  return made;
}

// Where it is sure that its large batches are computed by copies or lie as these would, CLBlast takes them together. It
// does not look at the offset and the stride of matrices that it thinks it can read in place (1.5.3 to 1.7.0). Products
// of fewer multiplications are small in its table for any device.
bool takes_batch(const Product& p, const Operand& a, const Operand& b, const Operand& c) {
  constexpr size_t kSmall = 64;
  if (p.m * p.n * p.k < kSmall * kSmall * kSmall) return true;
  const auto is_sure = [](const Matrix& matrix, const Operand& at) {
    return matrix.pitch != matrix.inner || (at.offset == 0 && matrix.is_packed());
  };
  return is_sure(p.a, a) && is_sure(p.b, b) && is_sure(p.c, c);
}

template <class Enqueue>
void submit_gemm(tg_stream_& stream, const char* name, Enqueue&& enqueue) {
  const cl_int status = try_submit(stream, enqueue);
  constexpr cl_int kOfClblast = -1000;  // and below; others are OpenCL's
  if (status <= kOfClblast)
    throw Failure(TG_ERROR, std::string(name) + ": status " + std::to_string(status) + " of CLBlastStatusCode");
  check(status, name);
}

template <class T>
void multiply(tg_stream_& stream, const Product& p, void* const* addresses) {
  const Device& device = *stream.device;
  const Operand a = make_operand(device, addresses[0], p.a, sizeof(T));
  const Operand b = make_operand(device, addresses[1], p.b, sizeof(T));
  const Operand c = make_operand(device, addresses[3], p.c, sizeof(T));
  // Where C lies by rows, C^T = B^T A^T lies by columns, and so do the transposed factors that lie by rows.
  const bool turned = p.c.by_rows;
  const Matrix &x = turned ? p.b : p.a, &y = turned ? p.a : p.b;
  const Operand &x_at = turned ? b : a, &y_at = turned ? a : b;
  const size_t m = turned ? p.n : p.m, n = turned ? p.m : p.n;
  const auto transposed = [&](const Matrix& matrix) { return matrix.by_rows == turned ? kAsItIs : kTransposed; };
  const T alpha = static_cast<T>(p.alpha), beta = static_cast<T>(p.beta);
  const Routines<T>& routines = library().routines<T>();
  if (p.batch > 1 && takes_batch(p, a, b, c)) {
    submit_gemm(stream, "CLBlast's batched gemm", [&](cl_command_queue queue, cl_event* event) {
      return routines.batched(kColumnMajor, transposed(x), transposed(y), m, n, p.k, alpha, x_at.buffer.get(),
                              x_at.offset, x.pitch, x.stride, y_at.buffer.get(), y_at.offset, y.pitch, y.stride, beta,
                              c.buffer.get(), c.offset, p.c.pitch, p.c.stride, p.batch, &queue, event);
    });
    return;
  }
  for (size_t i = 0; i < p.batch; ++i) {
    submit_gemm(stream, "CLBlast's gemm", [&](cl_command_queue queue, cl_event* event) {
      return routines.gemm(kColumnMajor, transposed(x), transposed(y), m, n, p.k, alpha, x_at.buffer.get(),
                           x_at.offset + i * x.stride, x.pitch, y_at.buffer.get(), y_at.offset + i * y.stride, y.pitch,
                           beta, c.buffer.get(), c.offset + i * p.c.stride, p.c.pitch, &queue, event);
    });
  }
}

void multiply(tg_stream_& stream, const Product& p, void* const* addresses) {
  if (p.element == TG_ELEMENT_F64) {
    multiply<double>(stream, p, addresses);
  } else {
    multiply<float>(stream, p, addresses);
  }
}

// CLBlast adds to what C has: D is brought there first, whatever its strides.
constexpr const char* kSpread = R"(
__kernel void tg_spread(__global TYPE* to, OFFSET(to) const __global TYPE* from, OFFSET(from) long size, long to_step,
                        long to_pitch, long to_stride, long step, long pitch, long stride) {
  const long i = get_global_id(0), j = get_global_id(1), b = get_global_id(2);
  if (i < size)
    to[START(to) + i * to_step + j * to_pitch + b * to_stride] = from[START(from) + i * step + j * pitch + b * stride];
}
)";

tg_kernel make_spread(Device& device, size_t element, std::string& log) {
  const bool offsets = device.memory->model == MemoryModel::kBuffer;
  const std::string source =
      std::string("#define TYPE ") + (element == sizeof(double) ? "ulong" : "uint") +
      (offsets ? "\n#define OFFSET(x) ulong x##_offset,\n#define START(x) x##_offset / sizeof(*x)"
               : "\n#define OFFSET(x)\n#define START(x) 0") +
      kSpread;
  const std::unique_ptr<tg_module_, void (*)(tg_module)> module{compile(device, source, "-cl-std=CL1.2", log),
                                                                destroy_module};
  return create_kernel(*module, "tg_spread");
}

void spread(tg_stream_& stream, tg_kernel kernel, const Product& p, void* const* addresses) {
  tg_arg arguments[9] = {};
  arguments[0].is_pointer = arguments[1].is_pointer = 1;
  arguments[0].value.pointer = addresses[3];
  arguments[1].value.pointer = addresses[2];
  const int inner = p.c.by_rows ? 2 : 1, outer = 3 - inner;
  const auto pitch = static_cast<int64_t>(p.c.pitch), stride = static_cast<int64_t>(p.c.stride);
  const int64_t numbers[] = {static_cast<int64_t>(p.c.inner), 1, pitch, stride, p.d[inner], p.d[outer], p.d[0]};
  for (size_t i = 0; i < std::size(numbers); ++i) {
    arguments[i + 2].size = sizeof numbers[i];
    arguments[i + 2].value.i64 = numbers[i];
  }
  const size_t group = std::min<size_t>(64, stream.device->properties.max_work_group_size);
  launch(stream, {kernel,
                  3,
                  static_cast<uint32_t>(std::size(arguments)),
                  {(p.c.inner + group - 1) / group, p.c.outer, p.batch},
                  {group, 1, 1},
                  arguments,
                  0});
}

// ---- what has to be compiled first ----

// Multiplies one element.
void try_out(Device& device, const Product& wanted) {
  Product one;
  one.element = wanted.element;
  one.batch = wanted.batch > 1 ? 2 : 1;
  one.a.span = one.b.span = one.c.span = one.batch;
  const uint64_t step = device.properties.address_align;
  const auto free = [&](void* memory) { device.memory->deallocate(memory); };
  const std::unique_ptr<void, decltype(free)> memory(device.memory->allocate(3 * step), free);
  auto* const first = static_cast<char*>(memory.get());
  void* const addresses[] = {first, first + step, nullptr, first + 2 * step};
  const auto end = [](tg_stream stream) {
    finish(*stream);
    destroy_stream(stream);
  };
  const std::unique_ptr<tg_stream_, decltype(end)> stream(create_stream(device, 0), end);
  multiply(*stream, one, addresses);
  wait(*stream);
}

// What is compiled once for each device and each kind of product.
struct Compiled {
  std::mutex mutex;  // also keeps CLBlast, which fills its tables at its first call, from two of these
  std::map<std::tuple<const Device*, uint32_t, bool>, std::string> tried;  // why it failed, by element, batched
  std::map<std::pair<const Device*, size_t>, tg_kernel> spreads;
};

Compiled& compiled() {
  static Compiled& instance = *new Compiled;
  return instance;
}

}  // namespace
}  // namespace ocl

// The opaque type of the driver's contract.
struct tg_program_ {
  ocl::Device* device;
  ocl::Product product;
  tg_kernel spread;  // NULL where nothing is added
};

namespace ocl {

void check_clblast_wish() {
  const std::string asked = wish();
  for (const char* known : {"", "off", "tuned", "always"})
    if (asked == known) return;
  fail_invalid("TORCHGRAFT_OPENCL_CLBLAST is '" + asked + "': it may be off, tuned or always");
}

void add_clblast(Device& device) {
  if (!is_wanted(device) || !why_not(device).empty()) return;
  device.properties.capabilities |= TG_CAP_PROGRAMS;
  if (wish() != "always") device.properties.capabilities |= TG_CAP_KERNELS_FIRST;
}

std::string why_no_clblast(const Device& device) { return is_wanted(device) ? why_not(device) : ""; }

void check_program(const Device& device, const tg_program_source& source) { read_product(device, source); }

tg_program prepare_program(Device& device, const tg_program_source& source, std::string& log) {
  auto made = std::make_unique<tg_program_>(&device, read_product(device, source), nullptr);
  const Product& product = made->product;
  Compiled& all = compiled();
  std::lock_guard lock(all.mutex);
  const auto key = std::make_tuple(&device, product.element, product.batch > 1);
  if (!all.tried.contains(key)) {
    try {
      try_out(device, product);
      all.tried[key] = "";
    } catch (const Failure& failure) {
      if (failure.status == TG_ERROR_OUT_OF_MEMORY) throw;  // another time there may be some
      all.tried[key] = failure.what();
    }
  }
  if (const std::string& why = all.tried[key]; !why.empty()) throw Failure(TG_ERROR_COMPILE, why);
  if (product.beta != 0) {
    tg_kernel& kernel = all.spreads[{&device, product.element_bytes()}];
    if (kernel == nullptr) kernel = make_spread(device, product.element_bytes(), log);
    made->spread = kernel;
  }
  return made.release();
}

void destroy_program(tg_program program) { delete program; }

void run_program(tg_stream_& stream, const tg_run& run) {
  const tg_program_& program = *run.program;
  if (program.device != stream.device) fail_invalid("a program belongs to another device than its stream");
  if (run.address_count != 4) fail_invalid("matmul has four addresses");
  if (is_timed(*stream.device)) {  // from here on, not from the last of CLBlast's kernels
    submit(stream, "clEnqueueMarkerWithWaitList", [&](cl_command_queue queue, cl_event* event) {
      return stream.device->api->clEnqueueMarkerWithWaitList(queue, 0, nullptr, event);
    });
  }
  if (program.spread != nullptr) spread(stream, program.spread, program.product, run.addresses);
  multiply(stream, program.product, run.addresses);
}

}  // namespace ocl
