// Plan once in Python, replay in C++: the kernel behind every planned op.
//
// A call is described by a key: dtypes, sizes and strides of its tensors and its static arguments. The first call with
// a key asks Python for a plan - what to allocate and which steps to run; later calls run the plan without Python and
// without the GIL.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "../runtime/kernel.h"

namespace torchgraft {

// Where a launch's argument comes from when the plan is replayed.
enum class ArgSource : uint8_t {
  Constant,     // bytes fixed in the plan
  Pointer,      // a slot's address plus `offset` bytes
  Scalar,       // the call's dynamic scalar number `index`, converted to `type`
  TensorValue,  // the value of the zero-dim CPU tensor in slot `index`, converted to `type`
  Numel,        // number of elements of the call's tensors (contiguous plans)
  Chunk,        // how many of them one group takes
  Seed,         // of the plan's Philox reservation
  Offset,       // of the same, plus `offset` counters
  ErrorWords    // the device's words for errors that kernels report
};

enum class ValueType : uint8_t { F64, F32, I64, I32, I16, I8, U8, B8, C64, C128, U32, U64 };

struct LaunchArg {
  ArgSource source;
  ValueType type = ValueType::I64;
  uint16_t index = 0;
  int64_t offset = 0;
};

// How the elements of a contiguous plan are dealt out to work-groups; see codegen/pointwise.py for where the numbers
// come from.
struct Chunking {
  int64_t multiple = 0;    // a chunk is a multiple of this; 0: the grid is fixed
  int64_t single = 0;      // up to so many elements go to one group
  int64_t per_group = 1;   // otherwise about so many to each,
  int64_t max_groups = 0;  // but no more groups than this (0: no bound)

  int64_t chunk(int64_t numel) const {
    if (numel <= single) return (numel + multiple - 1) / multiple * multiple;
    int64_t groups = (numel + per_group - 1) / per_group;
    if (max_groups != 0) groups = std::min(groups, max_groups);
    int64_t chunk = (numel + groups - 1) / groups;
    return (chunk + multiple - 1) / multiple * multiple;
  }
};

struct LaunchStep {
  std::shared_ptr<Kernel> kernel;
  std::array<size_t, 3> groups{1, 1, 1};
  Chunking chunking;
  std::vector<tg_arg> args;
  std::vector<std::pair<uint16_t, LaunchArg>> patches;  // argument number, source; only those that are not constant
  bool reports = false;                                 // the kernel may report an error
};

struct CopyStep {
  uint16_t destination, source;
  int64_t destination_offset, source_offset, bytes;
};

struct FillStep {
  uint16_t slot;
  int64_t offset, bytes;
  uint32_t pattern_bytes;
  std::array<unsigned char, 16> pattern;
};

using Step = std::variant<LaunchStep, CopyStep, FillStep>;

// One result of the op. Slots number the call's tensor arguments first (lists flattened), then new outputs, then
// temporaries.
struct Output {
  enum Kind : uint8_t { Argument, New, LikeArgument, View, Undefined, Constant, List } kind = Undefined;
  uint16_t slot = 0;      // New, LikeArgument
  uint16_t argument = 0;  // Argument, LikeArgument, View
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  // View: elements
  c10::IValue constant;
  std::vector<Output> items;  // List
};

struct Resize {
  uint16_t argument;
  std::vector<int64_t> sizes, strides;
};

// For which values of a number among the arguments the plan is made: those within bounds, or that are no multiple of a
// modulus. Other values are planned anew, so that torch's own check or the planner may refuse them.
struct Guard {
  struct Value {
    enum Kind : uint8_t { None, Number, Scalar, Tensor } kind = None;  // a Tensor is a zero-dim one of the CPU
    uint16_t index = 0;
    double number = 0;
  };
  Value subject, low, high;
  double modulus = 0;  // 0: none
};

struct Plan {
  std::string op;
  std::vector<Output> outputs;
  std::vector<Resize> resizes;  // of out= arguments
  std::vector<Step> steps;
  std::vector<std::pair<uint16_t, int64_t>> temporaries;  // slot, byte offset in the arena
  int64_t arena_bytes = 0;
  uint16_t slots = 0;
  uint64_t philox_count = 0;
  std::vector<Guard> guards;
  std::vector<at::Tensor> tables;  // constants on the device that launches point into
  bool fallback = false;           // this key goes to the CPU
  std::string reason;              // why
  // Instead of steps: a function that runs other ops, for results whose shape depends on data. Replaces the arguments
  // by the results.
  std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)> eager;

  std::atomic<uint64_t> hits{0};
  std::atomic<uint64_t> last_used{0};

  std::string describe(bool source) const;
};

// What is read from an op's schema once.
enum class ArgumentKind : uint8_t { Tensor, TensorList, Scalar, ScalarList, Generator, Static };

// What a planned op does with CPU tensors among its arguments.
enum class CpuTensors : uint8_t {
  Value,     // zero-dim ones are read as scalars when the plan is replayed
  Upload,    // zero-dim ones are copied to the device first
  UploadAll  // in lists (indices) any are
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

struct Call;

// One planned op: its schema, its plans.
class PlannedOp {
 public:
  // `before` is what this one takes the place of; its counts go on.
  PlannedOp(c10::OperatorHandle op, CpuTensors cpu_tensors, bool pointwise, const PlannedOp* before);

  void run(torch::jit::Stack* stack);

  const std::string& name() const { return name_; }
  std::vector<std::shared_ptr<const Plan>> plans() const;
  uint64_t hits() const;
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }
  void clear();

 private:
  friend struct Call;
  std::shared_ptr<Plan> find(const Key& key) const;
  std::shared_ptr<Plan> make(Call& call, torch::jit::Stack* stack);
  void insert(const Key& key, const std::shared_ptr<Plan>& plan);

  c10::OperatorHandle op_;
  std::string name_;
  CpuTensors cpu_tensors_;
  bool pointwise_;
  std::vector<ArgumentKind> kinds_;
  std::vector<uint16_t> written_;     // arguments that the op writes
  std::atomic<uint64_t> touched_{0};  // scalars whose value is part of the key
  std::atomic<uint64_t> misses_{0}, retired_hits_{0};
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Plan>, KeyHash, KeyEqual> plans_;
};

// What a name stands for now; its planner may be replaced while the op is in use.
struct PlannedName {
  std::atomic<PlannedOp*> op{nullptr};
  bool dispatched = false;
};

// The kernel that the dispatcher sees.
struct PlanKernel final : c10::OperatorKernel {
  explicit PlanKernel(const PlannedName* name) : name(name) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    name->op.load(std::memory_order_acquire)->run(stack);
  }
  const PlannedName* name;
};

// Registers `name` ("aten::add.Tensor") for PrivateUse1, or only makes it known to run_plan if `dispatch` is false.
// A name that is planned already is planned anew from now on.
void register_planned_op(const std::string& name, CpuTensors cpu_tensors, bool pointwise, bool dispatch);
std::vector<PlannedOp*> planned_ops();

// Global switches that decide what planners do; part of every key.
void set_plan_epoch(uint64_t epoch);
void set_plan_capacity(size_t plans_per_op);

// How the tensors that a call writes lie to its other tensors.
struct Overlap {
  bool full = false;     // one is also an input
  bool partial = false;  // one shares some of its elements with an input
  bool unclear = false;  // one lies in an input's memory in steps, like x[::2] and x[1::2]
};

// Implemented by the bindings: asks Python. Returns the plan and the scalars that the planner read.
struct PlanRequest {
  const std::string& op;
  torch::jit::Stack* stack;
  size_t argument_count;
  c10::DeviceIndex device;
  bool contiguous;
  Overlap overlap;
};
std::pair<std::shared_ptr<Plan>, uint64_t> request_plan(const PlanRequest& request);

}  // namespace torchgraft
