#include "python_numbers.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

namespace py = pybind11;

namespace torchgraft {
namespace {

[[noreturn]] void raise_is_no(const char* kind, py::handle given, const std::string& what) {
  PyErr_Clear();
  TORCH_CHECK_TYPE(false, what, " is ", kind, ", not ", Py_TYPE(given.ptr())->tp_name);
}

c10::Scalar integer(py::handle given, const std::string& what) {
  if (!PyIndex_Check(given.ptr())) raise_is_no("an integer", given, what);
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0) return {int64_t{value}};
  const unsigned long long large = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) raise_cannot_hold(number, what);
  return {uint64_t{large}};
}

c10::Scalar real(py::handle given, const std::string& what) {
  const double value = PyFloat_AsDouble(given.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) raise_is_no("a number", given, what);
  return {value};
}

c10::Scalar complex(py::handle given, const std::string& what) {
  const Py_complex value = PyComplex_AsCComplex(given.ptr());
  if (value.real == -1.0 && PyErr_Occurred() != nullptr) raise_is_no("a complex number", given, what);
  return {c10::complex<double>(value.real, value.imag)};
}

}  // namespace

c10::Scalar number_from_python(py::handle given, NumberKind kind, const std::string& what) {
  switch (kind) {
    case NumberKind::Integer:
      return integer(given, what);
    case NumberKind::Real:
      return real(given, what);
    case NumberKind::Complex:
      return complex(given, what);
  }
  return {};
}

void raise_cannot_hold(py::handle number, const std::string& what) {
  PyErr_Clear();
  PyErr_SetString(PyExc_OverflowError, (what + " cannot hold " + py::str(number).cast<std::string>()).c_str());
  throw py::error_already_set();
}

}  // namespace torchgraft
