// Capture: what streams are given is recorded in place of being run.
//
// A capture begins on one stream. Another joins when it waits for an event that was recorded in the capture, and has to
// be waited for before the end. Commands come here from command.h and kernel.h, marks and waits from event.h, memory is
// the graph's own (allocator.h), and whatever would need results that do not exist yet is refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>
#include <torchgraft/driver.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "memory/symbolic_memory.h"
#include "runtime/assertions.h"
#include "runtime/generator.h"

namespace torchgraft {

class Kernel;
class Program;

struct DeviceCommand {
  // What a run's `command.source` points to.
  struct Run {
    tg_run record;
    std::vector<void*> addresses;
  };

  tg_command command;
  std::shared_ptr<const Kernel> kernel;    // of a launch
  std::vector<tg_arg> arguments;           // that `command.launch` points to; of a run its addresses and scratch
  std::shared_ptr<const Program> program;  // of a run
  std::unique_ptr<Run> run;

  // Gives a launch or a run another argument.
  void set(uint32_t argument, const tg_arg& value);
};
struct Mark {  // which other streams' waits refer to by its number
  uint32_t number;
};
struct WaitForMark {
  uint32_t number;
};
// What a device without a compiler has the host do, once the stream is done with what came before.
struct HostFunction {
  // Of tensors that it uses; where that lies, in place of an address in symbolic memory, is told before it is run.
  struct Memory {
    c10::Storage storage;
    const void* address;
  };
  std::function<void()> run;
  std::vector<Memory> memory;
};

struct Node {
  uint16_t branch;  // the stream's number in the capture; 0 is where it began
  std::string op;   // who wanted it; may be empty
  std::variant<DeviceCommand, Mark, WaitForMark, HostFunction> action;
};

// Where a launch or a run takes random numbers from, which every replay draws anew.
struct RandomArgument {
  uint32_t argument;
  bool is_seed;
  uint64_t offset;  // counters after the first of the generator's share
  uint32_t generator;
};

struct Recording {
  struct Random {
    uint32_t node;
    RandomArgument from;
  };
  struct Generator {
    std::shared_ptr<PhiloxState> state;
    uint64_t count;  // counters that one replay takes
  };

  std::vector<Node> nodes;
  uint16_t branches = 1;
  uint32_t marks = 0;
  std::vector<Random> randoms;
  std::vector<Generator> generators;
  std::shared_ptr<GraphErrors> errors;  // of kernels that may report some; NULL if there are none
  std::vector<c10::Storage> kept;       // that commands point into
};

// Safe from any thread.
class Capture {
 public:
  // Its memory comes from the pool, or is symbolic.
  Capture(c10::Stream origin, c10::MempoolId_t pool) : origin_(origin), pool_(pool), branches_{{origin.id()}} {}
  Capture(c10::Stream origin, std::shared_ptr<SymbolicMemory> memory)
      : origin_(origin), pool_{0, 0}, symbolic_memory_(std::move(memory)), branches_{{origin.id()}} {}

  c10::Stream origin() const { return origin_; }
  c10::MempoolId_t pool() const { return pool_; }
  const std::shared_ptr<SymbolicMemory>& symbolic_memory() const { return symbolic_memory_; }

  void launch(c10::StreamId stream, const tg_launch& launch, std::shared_ptr<const Kernel> kernel, std::string op,
              c10::ArrayRef<RandomArgument> randoms);
  // `addresses` as of Program::submit.
  void run(c10::StreamId stream, std::shared_ptr<const Program> program, c10::ArrayRef<tg_arg> addresses,
           std::string op, c10::ArrayRef<RandomArgument> randoms);
  void copy(c10::StreamId stream, void* destination, const void* source, uint64_t bytes, tg_copy_kind kind);
  void fill(c10::StreamId stream, void* destination, const void* pattern, uint32_t pattern_bytes, uint64_t bytes);
  // `tensors` are those that it uses on the device, and nobody else.
  void function(c10::StreamId stream, std::string op, std::function<void()> run,
                const std::vector<at::Tensor>& tensors);

  // Returns the mark's number.
  uint32_t mark(c10::StreamId stream);
  // The stream joins the capture if it is not in it.
  void wait(c10::StreamId stream, uint32_t mark);

  // The generator's number, and the first of `count` counters of its share.
  std::pair<uint32_t, uint64_t> draw(const std::shared_ptr<PhiloxState>& generator, uint64_t count);
  // Error words for one more kernel of `op`.
  void* error_words(const std::string& op);
  // The graph keeps it alive.
  void keep(c10::Storage storage);

  // Whether it is over; guarded by the table of streams.
  bool over = false;

  // Notes why there will be no graph.
  void fail(const std::string& why);
  // What was recorded; throws if the capture has failed, or a stream that joined was not waited for.
  Recording take();

 private:
  struct Branch {
    c10::StreamId stream;
    uint64_t commands = 0;
    std::vector<uint64_t> seen{};  // how many commands of each branch are known to come before
  };

  uint16_t branch_of(c10::StreamId stream);  // which joins if it is not in the capture
  Node& add(c10::StreamId stream, std::string op, decltype(Node::action) action);
  void draw_for_next(c10::ArrayRef<RandomArgument> randoms);  // the node that is added next
  Node& append(uint16_t branch, std::string op, decltype(Node::action) action);
  void see(Branch& branch, const std::vector<uint64_t>& seen);

  const c10::Stream origin_;
  const c10::MempoolId_t pool_;
  const std::shared_ptr<SymbolicMemory> symbolic_memory_;  // NULL: there is a pool
  std::mutex words_mutex_;  // taken by GilSafeLock, before the other: guards recording_.errors
  std::mutex mutex_;        // guards what follows; never held across a call of the driver
  bool taken_ = false;
  Recording recording_;
  std::vector<Branch> branches_;
  std::vector<std::vector<uint64_t>> marks_;  // what each mark's branch had seen
  std::string failure_;
};

namespace detail {
extern std::atomic<int> captures;
extern thread_local int captures_suspended;
}  // namespace detail

// Whether anything is being captured in this process, which commands ask before they look up their stream.
inline bool capturing() noexcept { return detail::captures.load(std::memory_order_relaxed) != 0; }

struct Captured {
  std::shared_ptr<Capture> capture;
  c10::StreamId stream = 0;

  explicit operator bool() const noexcept { return capture != nullptr; }
  Capture* operator->() const noexcept { return capture.get(); }
};
// The capture that a stream is in, if any.
Captured capture_of(c10::DeviceIndex index, c10::StreamId stream);
Captured capture_of(c10::DeviceIndex index, tg_stream stream);
Captured capture_of_current(c10::DeviceIndex index);

// Throws RuntimeError if the stream is being captured, which cannot hold `what` ("a wait for the stream"). There will
// be no graph then.
void refuse_in_capture(c10::DeviceIndex index, c10::StreamId stream, const std::string& what);

// The stream joins the capture; throws if it is in another.
void enter_capture(const std::shared_ptr<Capture>& capture, c10::StreamId stream);
void begin_capture(const std::shared_ptr<Capture>& capture);
void end_capture(const std::shared_ptr<Capture>& capture) noexcept;

// What the thread gives to streams is run meanwhile: tables that a plan needs are made once, not by each replay.
class CaptureSuspended {
 public:
  CaptureSuspended() { ++detail::captures_suspended; }
  ~CaptureSuspended() { --detail::captures_suspended; }
  CaptureSuspended(const CaptureSuspended&) = delete;
  CaptureSuspended& operator=(const CaptureSuspended&) = delete;
};

}  // namespace torchgraft
