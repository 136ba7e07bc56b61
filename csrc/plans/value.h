// Numbers and addresses on their way into a kernel's arguments: the one place that makes them a tg_arg.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <torchgraft/driver.h>

#include <cstring>
#include <string>

namespace torchgraft {

// What a kernel's parameter takes that is no pointer.
enum class ValueType : uint8_t { F64, F32, I64, I32, I16, I8, U8, B8, C64, C128, U16, U32, U64 };

// Of the names that parameters have ("f32", "i64"). f16 and bf16 are passed as float: kernels compute in it.
ValueType value_type(const std::string& name);

// Which numbers a type takes; each kind takes those before it too.
enum class NumberKind : uint8_t { Integer, Real, Complex };
NumberKind number_kind(ValueType type);

// Whether the type can hold an integer; unlike in torch's own checks, negative ones do not fit unsigned types.
bool holds(ValueType type, const c10::Scalar& integer);

// A number of a call must fit, as on the CPU; the exception is Scalar::to's own.
void store_checked(tg_arg& arg, ValueType type, const c10::Scalar& number);
// What C++'s conversion makes of a number.
void store_cast(tg_arg& arg, ValueType type, const c10::Scalar& number);
// A zero-dim tensor of the CPU is cast like any tensor: without a check.
void store_value_of(tg_arg& arg, ValueType type, const at::Tensor& tensor);

template <typename T>
void store(tg_arg& arg, T value) {
  static_assert(sizeof(T) <= sizeof(arg.value.bytes));
  arg.is_pointer = 0;
  arg.size = sizeof(T);
  std::memcpy(arg.value.bytes, &value, sizeof(T));
}

inline void store_pointer(tg_arg& arg, void* pointer) {
  arg.is_pointer = 1;
  arg.size = sizeof(void*);
  arg.value.pointer = pointer;
}

}  // namespace torchgraft
