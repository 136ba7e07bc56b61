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

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "aten/dispatch.h"
#include "bindings.h"
#include "plans/reports.h"
#include "python_numbers.h"
#include "runtime/functions.h"
#include "runtime/kernel.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace torchgraft {
namespace {

struct Parameter {
  std::string where;                    // what it is in messages
  std::optional<ValueType> number;      // none for a pointer
  std::vector<c10::ScalarType> dtypes;  // that a pointer may be given; none: any
  bool written = false;
};

class Launcher {
 public:
  Launcher(std::string name, const py::list& parameters, py::object make, bool reports)
      : name_(std::move(name)), make_(std::move(make)), reports_(reports), kernels_(kMaxDevices) {
    for (py::handle each : parameters) {
      auto [argument, text, type, dtypes, written] =
          each.cast<std::tuple<std::string, std::string, std::string, py::list, bool>>();
      Parameter parameter{.where = c10::str("argument ", parameters_.size() + 1, " ('", text, "') of kernel ", name_),
                          .written = written};
      if (!type.empty()) parameter.number = value_type(type);
      for (py::handle dtype : dtypes) parameter.dtypes.push_back(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type);
      parameters_.push_back(std::move(parameter));
    }
  }

  void operator()(const std::vector<size_t>& groups, const std::vector<size_t>& local, const py::args& given) {
    raise_if_forked();
    TORCH_CHECK_TYPE(given.size() == parameters_.size(), "kernel ", name_, " takes ", parameters_.size(),
                     " arguments, not ", given.size());
    c10::SmallVector<tg_arg, 16> args(parameters_.size() + reports_);
    c10::DeviceIndex device = -1;  // the tensors'
    uint64_t bytes = 0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      std::memset(&args[i], 0, sizeof(tg_arg));
      if (parameters_[i].number)
        put_number(args[i], i, given[i]);
      else
        put_pointer(args[i], i, given[i], device, bytes);
    }
    if (device < 0) device = current_device();
    std::shared_ptr<Kernel>& kernel = kernels_[size_t(device)];
    if (kernel == nullptr) kernel = make_(int(device)).cast<std::shared_ptr<Kernel>>();
    check_group(local, device);
    Grid grid{uint32_t(groups.size())};
    std::copy(groups.begin(), groups.end(), grid.groups.begin());
    std::copy(local.begin(), local.end(), grid.local.begin());
    grid.bytes = bytes;
    for (size_t i = 0; i < parameters_.size(); ++i)  // so that autograd notices what has changed since it was saved
      if (parameters_[i].written && !given[i].is_none())
        THPVariable_Unpack(given[i].ptr()).unsafeGetTensorImpl()->bump_version();
    py::gil_scoped_release release;
    if (reports_)
      launch_reporting(*kernel, device, grid, args);
    else
      launch(*kernel, current_stream_handle(device), grid, args, "");
  }

  // Whether the memory that one of the tensors is part of overlaps that of another which is written.
  bool share_memory(const py::args& given) const {
    std::vector<std::pair<const char*, const char*>> spans(given.size(), {nullptr, nullptr});
    for (size_t i = 0; i < std::min(given.size(), parameters_.size()); ++i) {
      if (parameters_[i].number || !THPVariable_Check(given[i].ptr())) continue;
      const c10::Storage& storage = THPVariable_Unpack(given[i].ptr()).storage();
      const char* begin = static_cast<const char*>(storage.data());
      spans[i] = {begin, begin + storage.nbytes()};
    }
    for (size_t i = 0; i < spans.size(); ++i)
      for (size_t j = 0; j < spans.size() && parameters_[i].written; ++j)
        if (i != j && spans[i].first < spans[j].second && spans[j].first < spans[i].second) return true;
    return false;
  }

 private:
  void launch_reporting(const Kernel& kernel, c10::DeviceIndex index, const Grid& grid,
                        c10::SmallVector<tg_arg, 16>& args) const {
    const c10::Stream stream = current_stream(index);
    const Captured captured = capturing() ? capture_of(index, stream.id()) : Captured();
    Reports reports(get_device(index), stream, captured);
    std::memset(&args.back(), 0, sizeof(tg_arg));
    store_pointer(args.back(), reports.words(name_));
    launch(kernel, stream_handle(index, stream.id()), grid, args, "");
    reports.submitted();
    reports.raise();
  }

  void check_group(const std::vector<size_t>& local, c10::DeviceIndex index) const {
    const size_t most = get_device(index).properties.max_work_group_size;
    size_t room = most;
    for (size_t n : local) room /= n;
    TORCH_CHECK_VALUE(room > 0, "kernel ", name_, ": a work-group of ", c10::Join(" x ", local),
                      " work-items is larger than the ", most, " that ", backend_name(), ":", int(index),
                      " can run: launch more groups that are smaller");
  }

  static std::string kind(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

  void put_pointer(tg_arg& arg, size_t i, py::handle given, c10::DeviceIndex& device, uint64_t& bytes) const {
    const Parameter& parameter = parameters_[i];
    store_pointer(arg, nullptr);
    if (given.is_none()) return;
    TORCH_CHECK_TYPE(THPVariable_Check(given.ptr()), parameters_[i].where, " is a pointer: give a tensor or None, not ",
                     kind(given));
    const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
    TORCH_CHECK(tensor.is_privateuseone(), "Expected all tensors to be on the same device, but ", parameters_[i].where,
                " is given a tensor on ", tensor.device(), ": move it with .to('", backend_name(), "')");
    if (device < 0) device = tensor.device().index();
    TORCH_CHECK(tensor.device().index() == device,
                "Expected all tensors to be on the same device, but found at least two devices, ", backend_name(), ":",
                int(device), " and ", tensor.device(), "! (", parameters_[i].where, ")");
    TORCH_CHECK_TYPE(parameter.dtypes.empty() || std::find(parameter.dtypes.begin(), parameter.dtypes.end(),
                                                           tensor.scalar_type()) != parameter.dtypes.end(),
                     parameters_[i].where, " cannot be given a tensor of ", tensor.scalar_type(), " elements");
    TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), parameters_[i].where,
                " is given a tensor whose conjugation or negation is still to be done: call .resolve_conj() or "
                ".resolve_neg() first");
    store_pointer(arg, tensor.data_ptr());
    bytes += tensor.nbytes();
  }

  void put_number(tg_arg& arg, size_t i, py::handle given) const {
    py::object number = py::reinterpret_borrow<py::object>(given);
    if (THPVariable_Check(given.ptr())) {
      const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
      TORCH_CHECK_TYPE(tensor.is_cpu() && tensor.dim() == 0, parameters_[i].where, " is a number, not a tensor on ",
                       tensor.device(), " with ", tensor.dim(), " dimensions: read its value with .item()");
      number = number.attr("item")();
    }
    const ValueType type = *parameters_[i].number;
    const std::string& what = parameters_[i].where;
    const c10::Scalar value = number_from_python(number, number_kind(type), what);
    const bool checked = number_kind(type) == NumberKind::Integer && type != ValueType::B8;
    if (checked && !holds(type, value)) raise_cannot_hold(number, what);
    store_cast(arg, type, value);
  }

  std::string name_;
  std::vector<Parameter> parameters_;
  py::object make_;
  bool reports_;                                  // a parameter behind the others is the words for errors
  std::vector<std::shared_ptr<Kernel>> kernels_;  // by device; read and written with the GIL held
};

}  // namespace

void bind_author(py::module_& m) {
  m.def("author_functions", [] { return reinterpret_cast<uintptr_t>(author_functions()); });
  py::class_<Launcher>(m, "Launcher")
      .def(py::init<std::string, const py::list&, py::object, bool>(), py::arg("name"), py::arg("parameters"),
           py::arg("make"), py::arg("reports") = false)
      .def("__call__", torch::wrap_pybind_function(
                           [](Launcher& launcher, const std::vector<size_t>& groups, const std::vector<size_t>& local,
                              const py::args& arguments) { launcher(groups, local, arguments); }))
      .def("share_memory", torch::wrap_pybind_function([](const Launcher& launcher, const py::args& arguments) {
             return launcher.share_memory(arguments);
           }));
  m.def("register_autocast_policy", torch::wrap_pybind_function(&register_autocast_policy));
  m.def("host_view", torch::wrap_pybind_function([](const at::Tensor& tensor) {
          TORCH_CHECK_TYPE(tensor.is_privateuseone(), "expected a tensor on '", backend_name(), "', not on ",
                           tensor.device());
          return host_alias(tensor);
        }));
}

}  // namespace torchgraft
