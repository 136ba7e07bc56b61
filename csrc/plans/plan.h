// Plan once in Python, replay in C++: the kernel behind every planned op.
//
// A call is described by a key: dtypes, sizes and strides of its tensors and its static arguments. The first call with
// a key asks Python for a plan - what to allocate and which steps to run; later calls run the plan without Python and
// without the GIL.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "call.h"
#include "runtime/kernel.h"
#include "runtime/program.h"
#include "value.h"

namespace torchgraft {

// Where a launch's argument comes from when the plan is replayed.
struct ArgumentSource {
  enum Kind : uint8_t {
    Fixed,        // bytes or an address that the plan holds
    Pointer,      // a slot's address plus `offset` bytes
    Scalar,       // the call's dynamic scalar number `index`, converted to `type`
    TensorValue,  // the value of the zero-dim CPU tensor in slot `index`, converted to `type`
    Numel,        // number of elements of the call's tensors (contiguous plans), i64
    Chunk,        // how many of them one group takes, i64
    Seed,         // of the plan's Philox reservation, u64
    Offset,       // of the same, plus `offset` counters, u64
    ErrorWords    // the device's words for errors that kernels report
  } kind = Fixed;
  ValueType type = ValueType::I64;
  uint16_t index = 0;
  int64_t offset = 0;
};

struct LaunchArgument {
  ArgumentSource source;
  tg_arg fixed{};
  at::Tensor table;  // a constant on the device that `fixed` points into
};

// How elements are partitioned into work-groups; see codegen/pointwise.py for where the numbers come from.
struct Chunking {
  int64_t multiple = 1;    // a chunk is a multiple of this
  int64_t single = 0;      // up to so many elements go to one group
  int64_t per_group = 1;   // otherwise about so many to each,
  int64_t max_groups = 0;  // but no more groups than this (0: no bound)

  // How many groups there are, and how many elements each takes (the last one perhaps fewer).
  std::pair<int64_t, int64_t> divide(int64_t numel) const;
};

// The arguments of a step, of which some are known when the plan is run.
struct Arguments {
  struct Patch {
    uint16_t position;
    ArgumentSource source;
  };

  explicit Arguments(const std::vector<LaunchArgument>& arguments);

  std::vector<tg_arg> args;
  std::vector<Patch> patches;      // of those arguments that are not fixed
  std::vector<at::Tensor> tables;  // that fixed ones point into
  bool reports = false;            // the kernel may report an error
};

struct LaunchStep : Arguments {
  LaunchStep(std::shared_ptr<Kernel> kernel, const std::vector<size_t>& groups,
             const std::vector<LaunchArgument>& arguments, std::optional<Chunking> chunking, uint64_t bytes);

  std::shared_ptr<Kernel> kernel;
  std::array<size_t, 3> groups{1, 1, 1};
  std::optional<Chunking> chunking;  // the groups are found when the plan is run
  uint64_t bytes;                    // that the arguments span; with a chunking, for each element
};

// Its arguments are the addresses of a program's inputs and outputs, and behind them that of its scratch.
struct RunStep : Arguments {
  RunStep(std::shared_ptr<Program> program, const std::vector<LaunchArgument>& arguments);

  std::shared_ptr<Program> program;
};

// A place in a slot's memory.
struct Address {
  uint16_t slot;
  int64_t offset;  // bytes
};

struct CopyStep {
  Address destination, source;
  int64_t bytes;
};

struct FillStep {
  FillStep(Address destination, int64_t bytes, std::string_view pattern);

  Address destination;
  int64_t bytes;
  uint32_t pattern_bytes;
  std::array<unsigned char, 16> pattern{};
};

using Step = std::variant<CopyStep, FillStep, LaunchStep, RunStep>;

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
    enum Kind : uint8_t { Number, Scalar, Tensor } kind;  // a Tensor is a zero-dim one of the CPU
    uint16_t index;
    double number;

    double in(const Call& call) const;
  };
  Value subject;
  std::optional<Value> low, high;
  double modulus = 0;  // 0: none

  bool holds(const Call& call) const;
};

struct Plan {
  std::string op;
  std::vector<Output> outputs;
  std::vector<Resize> resizes;  // of out= arguments
  std::vector<Step> steps;
  std::vector<Address> temporaries;  // in the arena
  int64_t arena_bytes = 0;
  uint16_t slots = 0;
  uint64_t philox_count = 0;
  std::vector<Guard> guards;
  std::vector<at::Tensor> tables;  // that its launches point into, each once
  size_t table_bytes = 0;
  bool fallback = false;  // this key goes to the CPU
  std::string reason;     // why
  // How results lie in memory that the CPU may lay out otherwise, where the op's meta function has been asked.
  std::vector<std::vector<int64_t>> result_strides;
  // Instead of steps: a function that runs other ops, for results whose shape depends on data. It may refuse a call,
  // which `otherwise` then serves: made at the first such call.
  std::function<std::optional<std::string>(const c10::OperatorHandle&, torch::jit::Stack*)> eager;
  std::atomic<std::shared_ptr<Plan>> otherwise;

  std::atomic<uint64_t> hits{0};
  std::atomic<uint64_t> last_used{0};

  // Keeps what steps point into, and refuses slots that the plan has not.
  void complete();
  void keep(const std::vector<at::Tensor>& tables);
  bool serves(const Call& call) const;
  std::string describe(bool source) const;
};

// One planned op: its schema, its plans.
class PlannedOp {
 public:
  // `before` is what this one takes the place of; its counts go on.
  PlannedOp(const c10::OperatorHandle& op, CpuTensors cpu_tensors, bool pointwise, const PlannedOp* before);

  void run(torch::jit::Stack* stack);
  // The same for values that own no tensors, of an op with one result. One that is an argument may be left out (None).
  c10::IValue run_borrowed(c10::ArrayRef<c10::IValue> arguments, bool wants_arguments);

  const std::string& name() const { return name_; }
  std::vector<std::shared_ptr<const Plan>> plans() const;
  uint64_t hits() const;
  uint64_t misses() const { return misses_.load(std::memory_order_relaxed); }
  void clear();

 private:
  void run(std::shared_ptr<Plan> plan, const Call& call, torch::jit::Stack* stack);
  void run_on_cpu(const Plan& plan, const std::string& reason, torch::jit::Stack* stack) const;
  std::shared_ptr<Plan> plan_of(const Call& call);
  // What serves a call that the plan's function refuses, and `refused` functions in all.
  std::shared_ptr<Plan> other_plan(Plan& plan, const Call& call, uint32_t refused);
  std::shared_ptr<Plan> find(const Key& key) const;
  std::shared_ptr<Plan> make(const Call& call);
  void insert(const Key& key, const std::shared_ptr<Plan>& plan);
  void drop_older_half(std::vector<std::shared_ptr<Plan>>& dropped);  // those used longest ago
  void retire(const Plan& plan);                                      // its counts, when it leaves `plans_`

  c10::OperatorHandle op_;
  std::string name_;
  Signature signature_;
  std::atomic<uint64_t> touched_{0};  // scalars whose value is part of the key
  std::atomic<uint64_t> misses_{0}, retired_hits_{0};
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Plan>, KeyHash, KeyEqual> plans_;
  size_t table_bytes_ = 0;  // of `plans_`
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

// Registers `name` ("aten::add.Tensor") for PrivateUse1, or only makes it known to the core if `dispatch` is false.
// A name that is planned already is planned anew from now on.
void register_planned_op(const std::string& name, CpuTensors cpu_tensors, bool pointwise, bool dispatch);
std::vector<PlannedOp*> planned_ops();
// What a name ("aten::_copy_from") stands for, now or later.
const PlannedName& planned_name(std::string_view name);

void set_plan_capacity(size_t plans_per_op);

// Implemented by the bindings: asks Python. Returns the plan and the scalars that the planner read. The first `refused`
// functions that are for the call have refused it.
std::pair<std::shared_ptr<Plan>, uint64_t> request_plan(const std::string& op, const Call& call, uint32_t refused);

}  // namespace torchgraft
