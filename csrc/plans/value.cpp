#include "value.h"

#include <c10/core/DynamicCast.h>
#include <c10/util/TypeCast.h>
#include <c10/util/overflows.h>

#include <unordered_map>

namespace torchgraft {
namespace {

// Calls `use.template operator()<T>()` with the C++ type of a ValueType.
template <typename Use>
auto with_type(ValueType type, Use&& use) {
  switch (type) {
    case ValueType::F64:
      return use.template operator()<double>();
    case ValueType::F32:
      return use.template operator()<float>();
    case ValueType::I64:
      return use.template operator()<int64_t>();
    case ValueType::I32:
      return use.template operator()<int32_t>();
    case ValueType::I16:
      return use.template operator()<int16_t>();
    case ValueType::I8:
      return use.template operator()<int8_t>();
    case ValueType::U8:
      return use.template operator()<uint8_t>();
    case ValueType::B8:
      return use.template operator()<bool>();
    case ValueType::C64:
      return use.template operator()<c10::complex<float>>();
    case ValueType::C128:
      return use.template operator()<c10::complex<double>>();
    case ValueType::U16:
      return use.template operator()<uint16_t>();
    case ValueType::U32:
      return use.template operator()<uint32_t>();
    case ValueType::U64:
      return use.template operator()<uint64_t>();
  }
  TORCH_INTERNAL_ASSERT(false, "no value type has the number ", int(type));
}

// Calls `use` with the number in the C++ type that the Scalar holds it in.
template <typename Use>
auto with_value(const c10::Scalar& number, Use&& use) {
  switch (number.type()) {
    case c10::ScalarType::Bool:
      return use(number.toBool());
    case c10::ScalarType::UInt64:  // those that int64_t cannot hold
      return use(number.toUInt64());
    case c10::ScalarType::Double:
      return use(number.toDouble());
    case c10::ScalarType::ComplexDouble:
      return use(number.toComplexDouble());
    default:
      return use(number.toLong());
  }
}

}  // namespace

ValueType value_type(const std::string& name) {
  static const std::unordered_map<std::string, ValueType> types{
      {"f64", ValueType::F64}, {"f32", ValueType::F32}, {"f16", ValueType::F32}, {"bf16", ValueType::F32},
      {"i64", ValueType::I64}, {"i32", ValueType::I32}, {"i16", ValueType::I16}, {"i8", ValueType::I8},
      {"u8", ValueType::U8},   {"b8", ValueType::B8},   {"c64", ValueType::C64}, {"c128", ValueType::C128},
      {"u16", ValueType::U16}, {"u32", ValueType::U32}, {"u64", ValueType::U64}};
  auto it = types.find(name);
  TORCH_CHECK_VALUE(it != types.end(), "no value type is called '", name, "'");
  return it->second;
}

NumberKind number_kind(ValueType type) {
  switch (type) {
    case ValueType::F64:
    case ValueType::F32:
      return NumberKind::Real;
    case ValueType::C64:
    case ValueType::C128:
      return NumberKind::Complex;
    default:
      return NumberKind::Integer;
  }
}

bool holds(ValueType type, const c10::Scalar& integer) {
  return with_type(type, [&]<typename T>() {
    return with_value(integer, [](auto value) { return !c10::overflows<T>(value, /*strict_unsigned=*/true); });
  });
}

void store_checked(tg_arg& arg, ValueType type, const c10::Scalar& number) {
  with_type(type, [&]<typename T>() { store(arg, number.to<T>()); });
}

void store_cast(tg_arg& arg, ValueType type, const c10::Scalar& number) {
  with_type(type, [&]<typename T>() { with_value(number, [&](auto value) { store(arg, c10::convert<T>(value)); }); });
}

void store_value_of(tg_arg& arg, ValueType type, const at::Tensor& tensor) {
  with_type(type,
            [&]<typename T>() { store(arg, c10::fetch_and_cast<T>(tensor.scalar_type(), tensor.const_data_ptr())); });
}

}  // namespace torchgraft
