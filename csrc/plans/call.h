// A call of a planned op as its arguments show it: what its plan is found by, and what the plan is run on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

namespace torchgraft {

enum class ArgumentKind : uint8_t { Tensor, TensorList, Scalar, ScalarList, Generator, Static };

// What a planned op does with CPU tensors among its arguments.
enum class CpuTensors : uint8_t {
  Value,     // zero-dim ones are read as scalars when the plan is replayed
  Upload,    // zero-dim ones are copied to the device first
  UploadAll  // in lists (indices) any are
};

// What is known of an op before any call.
struct Signature {
  Signature(const c10::FunctionSchema& schema, CpuTensors cpu_tensors, bool pointwise);
  bool writes(size_t argument) const;

  std::vector<ArgumentKind> kinds;  // by argument
  std::vector<uint16_t> written;    // arguments that the op writes
  CpuTensors cpu_tensors;
  bool pointwise;
};

// Where an argument's tensors or scalars stand among the call's: `count` of them from number `first` on. Slots number a
// call's tensors, those that are left out too; scalars that are left out have no number.
struct Place {
  ArgumentKind kind;
  uint32_t first, count;
};

// How the tensors that a call writes lie to its other tensors.
struct Overlap {
  bool full = false;     // one is also an input
  bool partial = false;  // one shares some of its elements with an input
  bool unclear = false;  // one lies in an input's memory in steps, like x[::2] and x[1::2]
};

using Key = c10::SmallVector<uint64_t, 48>;

struct KeyHash {
  using is_transparent = void;
  size_t operator()(c10::ArrayRef<uint64_t> words) const noexcept {
    uint64_t hash = words.size();
    for (uint64_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

struct KeyEqual {
  using is_transparent = void;
  bool operator()(c10::ArrayRef<uint64_t> a, c10::ArrayRef<uint64_t> b) const noexcept { return a.equals(b); }
};

struct Call {
  // Flattens the arguments on the stack; CPU tensors that the op wants on the device are put there first.
  Call(const Signature& signature, torch::jit::Stack* stack);
  // The same for arguments that hold no CPU tensor which the op wants on the device.
  Call(const Signature& signature, c10::ArrayRef<c10::IValue> arguments);

  // `touched` says of which scalars the value counts, and not only the type.
  Key key(uint64_t touched) const;

  const Signature& signature;
  c10::ArrayRef<c10::IValue> arguments;
  c10::SmallVector<Place, 12> places;  // by argument
  c10::SmallVector<const at::Tensor*, 12> tensors;
  c10::SmallVector<const c10::IValue*, 8> scalars;
  const at::Tensor* first = nullptr;  // the first tensor on our device
  const c10::IValue* generator = nullptr;
  c10::DeviceIndex device = -1;
  bool contiguous = false;  // the plan may be one for all shapes
  Overlap overlap;

 private:
  void read(c10::ArrayRef<c10::IValue> given);
  void upload(torch::jit::Stack* stack) const;
  std::optional<c10::Device> upload_target(c10::ArrayRef<c10::IValue> values) const;
  bool wants_upload(const c10::IValue& value, bool in_list) const;
  c10::IValue uploaded(const c10::IValue& value, bool in_list, c10::DeviceIndex target) const;
  void flatten(size_t argument);
  void add(const at::Tensor& tensor);
  c10::DeviceIndex device_of_arguments() const;
  void compare_memory();
  void compare_memory(size_t written_slot);
  bool all_contiguous() const;
  uint64_t circumstances() const;
  void add_tensor(Key& key, const at::Tensor& tensor) const;
};

}  // namespace torchgraft
