// What authors of ops call (torchgraft/raw_kernel.py, torchgraft/autocast.py): kernels launched by hand, whose
// arguments are all checked against the kernel's declaration before anything is launched; views for the host;
// autocast's policies.

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <complex>
#include <cstring>
#include <limits>

#include "../bindings.h"
#include "../runtime/kernel.h"
#include "../runtime/stream.h"
#include "dispatch.h"

namespace py = pybind11;

namespace torchgraft {
namespace {

struct Parameter {
  std::string name, text;
  char code = 0;                        // of a number, as in Python's struct; 0 for a pointer
  std::vector<c10::ScalarType> dtypes;  // that a pointer may be given; none: any
  bool written = false;
};

class Launcher {
 public:
  Launcher(std::string name, const py::list& parameters, py::object make)
      : name_(std::move(name)), make_(std::move(make)), kernels_(kMaxDevices) {
    for (py::handle each : parameters) {
      auto [argument, text, code, dtypes, written] =
          each.cast<std::tuple<std::string, std::string, std::string, py::list, bool>>();
      Parameter parameter{argument, text, code.empty() ? '\0' : code[0], {}, written};
      for (py::handle dtype : dtypes) parameter.dtypes.push_back(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
      parameters_.push_back(std::move(parameter));
    }
  }

  void operator()(const std::vector<size_t>& groups, const std::vector<size_t>& local, const py::args& given) {
    raise_if_forked();
    TORCH_CHECK_TYPE(given.size() == parameters_.size(), "kernel ", name_, " takes ", parameters_.size(),
                     " arguments, not ", given.size());
    c10::SmallVector<tg_arg, 16> args(parameters_.size());
    c10::DeviceIndex device = -1;  // the tensors'
    for (size_t i = 0; i < args.size(); ++i) {
      std::memset(&args[i], 0, sizeof(tg_arg));
      if (parameters_[i].code == 0)
        put_pointer(args[i], i, given[i], device);
      else
        put_number(args[i], i, given[i]);
    }
    if (device < 0) device = current_device();
    std::shared_ptr<Kernel>& kernel = kernels_[size_t(device)];
    if (kernel == nullptr) kernel = make_(int(device)).cast<std::shared_ptr<Kernel>>();
    Grid grid{uint32_t(groups.size())};
    std::copy(groups.begin(), groups.end(), grid.groups.begin());
    std::copy(local.begin(), local.end(), grid.local.begin());
    if (std::find(groups.begin(), groups.end(), 0) != groups.end()) return;
    for (size_t i = 0; i < args.size(); ++i)  // so that autograd notices what has changed since it was saved
      if (parameters_[i].written && !given[i].is_none())
        THPVariable_Unpack(given[i].ptr()).unsafeGetTensorImpl()->bump_version();
    py::gil_scoped_release release;
    launch(*kernel, current_stream_handle(device), grid, args, "");
  }

 private:
  std::string where(size_t i) const {
    return c10::str("argument ", i + 1, " ('", parameters_[i].text, "') of kernel ", name_);
  }

  static std::string kind(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

  void put_pointer(tg_arg& arg, size_t i, py::handle given, c10::DeviceIndex& device) const {
    const Parameter& parameter = parameters_[i];
    arg.is_pointer = 1;
    arg.size = sizeof(void*);
    if (given.is_none()) return;
    TORCH_CHECK_TYPE(THPVariable_Check(given.ptr()), where(i), " is a pointer: give a tensor or None, not ",
                     kind(given));
    const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
    TORCH_CHECK(tensor.is_privateuseone(), "Expected all tensors to be on the same device, but ", where(i),
                " is given a tensor on ", tensor.device(), ": move it with .to('", backend_name(), "')");
    if (device < 0) device = tensor.device().index();
    TORCH_CHECK(tensor.device().index() == device,
                "Expected all tensors to be on the same device, but found at least two devices, ", backend_name(), ":",
                int(device), " and ", tensor.device(), "! (", where(i), ")");
    TORCH_CHECK_TYPE(parameter.dtypes.empty() || std::find(parameter.dtypes.begin(), parameter.dtypes.end(),
                                                           tensor.scalar_type()) != parameter.dtypes.end(),
                     where(i), " cannot be given a tensor of ", tensor.scalar_type(), " elements");
    TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), where(i),
                " is given a tensor whose conjugation or negation is still to be done: call .resolve_conj() or "
                ".resolve_neg() first");
    arg.value.pointer = tensor.data_ptr();
  }

  void put_number(tg_arg& arg, size_t i, py::handle given) const {
    py::object number = py::reinterpret_borrow<py::object>(given);
    if (THPVariable_Check(given.ptr())) {
      const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
      TORCH_CHECK_TYPE(tensor.is_cpu() && tensor.dim() == 0, where(i), " is a number, not a tensor on ",
                       tensor.device(), " with ", tensor.dim(), " dimensions: read its value with .item()");
      number = number.attr("item")();
    }
    switch (parameters_[i].code) {
      case 'b':
        return put(arg, integer<int8_t>(i, number));
      case 'B':
        return put(arg, integer<uint8_t>(i, number));
      case '?':
        return put(arg, uint8_t(integer<int64_t>(i, number) != 0));
      case 'h':
        return put(arg, integer<int16_t>(i, number));
      case 'H':
        return put(arg, integer<uint16_t>(i, number));
      case 'i':
        return put(arg, integer<int32_t>(i, number));
      case 'I':
        return put(arg, integer<uint32_t>(i, number));
      case 'q':
        return put(arg, integer<int64_t>(i, number));
      case 'Q':
        return put(arg, integer<uint64_t>(i, number));
      case 'f':
        return put(arg, float(real(i, number)));
      case 'd':
        return put(arg, real(i, number));
      case 'F':
        return put(arg, std::complex<float>(pair(i, number)));
      case 'D':
        return put(arg, pair(i, number));
    }
    TORCH_CHECK_VALUE(false, "no number is passed as '", parameters_[i].code, "'");
  }

  template <typename T>
  static void put(tg_arg& arg, T value) {
    arg.size = sizeof(T);
    std::memcpy(arg.value.bytes, &value, sizeof(T));
  }

  template <typename T>
  T integer(size_t i, py::handle given) const {
    TORCH_CHECK_TYPE(PyIndex_Check(given.ptr()), where(i), " is an integer, not ", kind(given));
    auto number = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()));
    if (!number) throw py::error_already_set();
    bool fits = false;
    T value{};
    if constexpr (std::is_same_v<T, uint64_t>) {
      value = PyLong_AsUnsignedLongLong(number.ptr());
      fits = PyErr_Occurred() == nullptr;
      PyErr_Clear();
    } else {
      int overflow = 0;
      long long wide = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
      fits = overflow == 0 && wide >= static_cast<long long>(std::numeric_limits<T>::min()) &&
             wide <= static_cast<long long>(std::numeric_limits<T>::max());
      value = static_cast<T>(wide);
    }
    if (!fits) {
      PyErr_SetString(PyExc_OverflowError, (where(i) + " cannot hold " + py::str(number).cast<std::string>()).c_str());
      throw py::error_already_set();
    }
    return value;
  }

  double real(size_t i, py::handle given) const {
    double value = PyFloat_AsDouble(given.ptr());
    if (value == -1.0 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      TORCH_CHECK_TYPE(false, where(i), " is a number, not ", kind(given));
    }
    return value;
  }

  std::complex<double> pair(size_t i, py::handle given) const {
    Py_complex value = PyComplex_AsCComplex(given.ptr());
    if (value.real == -1.0 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      TORCH_CHECK_TYPE(false, where(i), " is a complex number, not ", kind(given));
    }
    return {value.real, value.imag};
  }

  std::string name_;
  std::vector<Parameter> parameters_;
  py::object make_;
  std::vector<std::shared_ptr<Kernel>> kernels_;  // by device; read and written with the GIL held
};

}  // namespace

void bind_author(py::module_& m) {
  py::class_<Launcher>(m, "Launcher")
      .def(py::init<std::string, const py::list&, py::object>())
      .def("__call__", torch::wrap_pybind_function(
                           [](Launcher& launcher, const std::vector<size_t>& groups, const std::vector<size_t>& local,
                              const py::args& arguments) { launcher(groups, local, arguments); }));
  m.def("register_autocast_policy", torch::wrap_pybind_function(&register_autocast_policy));
  m.def("host_view", torch::wrap_pybind_function([](const at::Tensor& tensor) {
          TORCH_CHECK_TYPE(tensor.is_privateuseone(), "expected a tensor on '", backend_name(), "', not on ",
                           tensor.device());
          return host_alias(tensor);
        }));
}

}  // namespace torchgraft
