// Graphs with addresses by slot: what was recorded once runs with other inputs each time, and gives new results.
//
// What a compiled program gives a stream is recorded with memory that is only addresses (symbolic_memory.h). From these
// and from the addresses of the inputs it is known which slot each address in a command means: an input, a result, or
// the block of memory that holds all temporaries, laid out by when they are in use. A call fills the slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capture.h"
#include "graph_program.h"

namespace torchgraft {

// Safe from any thread once it is recorded.
class RelocatableGraph {
 public:
  RelocatableGraph() = default;
  ~RelocatableGraph();
  RelocatableGraph(const RelocatableGraph&) = delete;
  RelocatableGraph& operator=(const RelocatableGraph&) = delete;

  // What the current stream of the inputs' device is given from now on is recorded.
  void begin(const std::vector<at::Tensor>& inputs);
  // Results may be inputs, views of them, and undefined. Throws RuntimeError with what cannot be recorded; either way
  // it is over.
  void end(const std::vector<at::Tensor>& results);
  void abandon() noexcept;

  // On the current stream; the inputs have the sizes, strides, dtypes and alignment of those that were recorded. Does
  // not wait, except on a CPU for kernels that may report an error. Nothing is done, and nothing returned, if inputs
  // that overlapped when it was recorded do not, or not so.
  std::optional<std::vector<at::Tensor>> run(c10::ArrayRef<at::Tensor> inputs);

 private:
  struct Input {
    at::Tensor tensor;  // while it is recorded
    uintptr_t first, behind;
    uintptr_t storage, storage_end;
  };
  struct Overlap {
    uint32_t input, other;
    int64_t distance;  // of their first bytes
  };
  // Slots are the inputs, then new memory, and last the temporaries.
  struct Place {
    uint32_t slot;
    int64_t offset;
  };
  struct Relocation {
    GraphProgram::Pointer pointer;
    int64_t offset;
  };
  struct Result {
    enum Kind : uint8_t { Nothing, Input, ViewOfInput, New, Earlier, Constant } kind;
    uint32_t index = 0;  // of the input, of the new memory, of the earlier result
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes{}, strides{};
    int64_t offset = 0;  // in elements: in the new memory, or from where the input begins
    at::Tensor constant{};
  };

  void find_overlaps();
  void describe(const std::vector<at::Tensor>& results);
  Result described(const at::Tensor& result, const std::vector<at::Tensor>& results, size_t number);
  uint32_t new_memory_of(uint32_t block);
  void lay_out_temporaries();
  std::optional<Place> place_of(const void* address) const;
  void find_relocations();

  void run_program(c10::ArrayRef<char*> addresses);
  void relocate(uint32_t slot, char* address);
  std::vector<at::Tensor> made_results(c10::ArrayRef<at::Tensor> inputs, const std::vector<c10::Storage>& made) const;

  std::optional<c10::Stream> origin_;  // on which it was recorded
  std::shared_ptr<Capture> capture_;   // while it is recorded
  std::shared_ptr<SymbolicMemory> memory_;
  std::vector<SymbolicMemory::Block> blocks_;
  std::vector<std::optional<Place>> places_;  // of the blocks; none: no command uses it
  Recording recording_;
  std::vector<Input> inputs_;
  std::vector<Overlap> overlaps_;
  std::vector<Result> results_;
  std::vector<uint64_t> new_bytes_;  // of each new memory
  uint64_t temporary_bytes_ = 0;
  std::vector<std::vector<Relocation>> relocations_;  // by slot

  std::mutex mutex_;  // guards what follows
  std::unique_ptr<GraphProgram> program_;
  std::vector<char*> addresses_;  // that the program has now, by slot
};

}  // namespace torchgraft
