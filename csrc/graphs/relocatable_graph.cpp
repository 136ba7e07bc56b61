#include "relocatable_graph.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "memory/allocator.h"
#include "runtime/assertions.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

uint64_t rounded(uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

at::Tensor tensor_in(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides, int64_t offset) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

}  // namespace

RelocatableGraph::~RelocatableGraph() {
  abandon();
  if (program_ == nullptr || in_bad_fork()) return;
  const WithoutPython released;
  program_->wait();  // what its kernels use is given back
}

// ---- it is recorded ----

void RelocatableGraph::begin(const std::vector<at::Tensor>& inputs) {
  const c10::DeviceIndex index = inputs.empty() ? current_device() : inputs.front().device().index();
  for (const at::Tensor& tensor : inputs) {
    const uintptr_t first = number(tensor.data_ptr());
    const uint64_t bytes =
        tensor.numel() == 0 ? 0 : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
    const uintptr_t storage = number(tensor.storage().data());
    inputs_.push_back({tensor, first, first + bytes, storage, storage + tensor.storage().nbytes()});
  }
  find_overlaps();
  origin_ = current_stream(index);
  memory_ = std::make_shared<SymbolicMemory>();
  auto capture = std::make_shared<Capture>(*origin_, memory_);
  begin_capture(capture);
  capture_ = std::move(capture);
}

// An address within inputs that overlap is told from the first of them.
void RelocatableGraph::find_overlaps() {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].first != inputs_[i].behind) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](uint32_t i) { return inputs_[i].first; });
  uint32_t leader = 0;
  uintptr_t behind = 0;  // of all since the leader
  for (const uint32_t i : order) {
    if (behind <= inputs_[i].first)
      leader = i;
    else
      overlaps_.push_back({leader, i, static_cast<int64_t>(inputs_[i].first - inputs_[leader].first)});
    behind = std::max(behind, inputs_[i].behind);
  }
}

void RelocatableGraph::abandon() noexcept {
  if (capture_ == nullptr) return;
  end_capture(capture_);
  free_after_capture(origin_->device_index());
  capture_.reset();
  inputs_.clear();
}

void RelocatableGraph::end(const std::vector<at::Tensor>& results) {
  const std::shared_ptr<Capture> capture = std::exchange(capture_, nullptr);
  end_capture(capture);
  free_after_capture(origin_->device_index());
  recording_ = capture->take();
  blocks_ = memory_->blocks();
  places_.resize(blocks_.size());
  describe(results);
  lay_out_temporaries();
  find_relocations();
  for (Input& input : inputs_) input.tensor.reset();
  memory_.reset();
  program_ = std::make_unique<GraphProgram>(get_device(origin_->device_index()), recording_, GraphProgram::Callers);
  addresses_.resize(relocations_.size(), nullptr);
}

void RelocatableGraph::describe(const std::vector<at::Tensor>& results) {
  for (size_t i = 0; i < results.size(); ++i) results_.push_back(described(results[i], results, i));
  for (size_t i = 0; i < blocks_.size(); ++i)
    TORCH_CHECK(!blocks_[i].alive || places_[i], "something keeps a tensor that is made in it");
}

RelocatableGraph::Result RelocatableGraph::described(const at::Tensor& result, const std::vector<at::Tensor>& results,
                                                     size_t number_of_result) {
  if (!result.defined()) return {Result::Nothing};
  for (uint32_t i = 0; i < number_of_result; ++i)
    if (results[i].is_same(result)) return {Result::Earlier, i};
  for (uint32_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].tensor.is_same(result)) return {Result::Input, i};
  TORCH_CHECK(result.layout() == c10::kStrided && !result.is_conj() && !result.is_neg() &&
                  !result.unsafeGetTensorImpl()->is_python_dispatch(),
              "one of its results is no plain tensor");
  Result found{Result::Constant, 0, result.scalar_type(), result.sizes().vec(), result.strides().vec()};
  const auto item = static_cast<int64_t>(result.itemsize());
  for (uint32_t i = 0; i < inputs_.size(); ++i) {
    const at::Tensor& input = inputs_[i].tensor;
    if (!input.storage().is_alias_of(result.storage())) continue;
    const auto bytes = static_cast<int64_t>(number(result.data_ptr()) - number(input.data_ptr()));
    if (bytes % item != 0 || input.storage_offset() * static_cast<int64_t>(input.itemsize()) % item != 0) continue;
    found.kind = Result::ViewOfInput;
    found.index = i;
    found.offset = bytes / item;
    return found;
  }
  if (result.storage().nbytes() == 0) {
    found.kind = Result::New;
    found.index = static_cast<uint32_t>(new_bytes_.size());
    new_bytes_.push_back(0);
    return found;
  }
  // Where a tensor without elements begins means nothing.
  const void* begins = result.numel() == 0 ? result.storage().data() : result.data_ptr();
  if (const auto place = memory_->find(begins)) {
    found.kind = Result::New;
    found.index = new_memory_of(place->block);
    found.offset = static_cast<int64_t>(place->offset) / item;
    return found;
  }
  found.constant = result;
  return found;
}

uint32_t RelocatableGraph::new_memory_of(uint32_t block) {
  if (!places_[block]) {
    places_[block] = Place{static_cast<uint32_t>(inputs_.size() + new_bytes_.size()), 0};
    new_bytes_.push_back(blocks_[block].bytes);
  }
  return places_[block]->slot - static_cast<uint32_t>(inputs_.size());
}

// The largest first, each as far down as those allow that are in use at the same time.
void RelocatableGraph::lay_out_temporaries() {
  // What commands of several streams do at the same time their order does not say.
  const bool ordered = recording_.branches == 1;
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i < blocks_.size(); ++i)
    if (!places_[i] && (blocks_[i].first < blocks_[i].last || !ordered)) blocks.push_back(i);
  std::ranges::stable_sort(blocks, std::greater(), [&](uint32_t i) { return blocks_[i].bytes; });
  const auto slot = static_cast<uint32_t>(inputs_.size() + new_bytes_.size());
  std::vector<std::pair<uint64_t, uint32_t>> laid;  // offset and block, in the order of the offsets
  for (const uint32_t block : blocks) {
    const SymbolicMemory::Block& its = blocks_[block];
    const uint64_t bytes = rounded(its.bytes);
    uint64_t offset = 0;
    for (const auto& [taken, other] : laid) {
      const SymbolicMemory::Block& others = blocks_[other];
      if (ordered && (others.last <= its.first || its.last <= others.first)) continue;
      if (offset + bytes <= taken) break;
      offset = std::max(offset, taken + rounded(others.bytes));
    }
    laid.insert(std::ranges::upper_bound(laid, std::pair(offset, block)), {offset, block});
    places_[block] = Place{slot, static_cast<int64_t>(offset)};
    temporary_bytes_ = std::max(temporary_bytes_, offset + bytes);
  }
}

std::optional<RelocatableGraph::Place> RelocatableGraph::place_of(const void* address) const {
  if (address == nullptr) return std::nullopt;
  const uintptr_t where = number(address);
  if (const auto place = memory_->find(address)) {
    const std::optional<Place>& block = places_[place->block];
    TORCH_INTERNAL_ASSERT(block, "a command uses memory that was free");
    return Place{block->slot, block->offset + static_cast<int64_t>(place->offset)};
  }
  for (uint32_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].first <= where && where < inputs_[i].behind)
      return Place{i, static_cast<int64_t>(where - inputs_[i].first)};
  for (const Input& input : inputs_)
    TORCH_CHECK(where < input.storage || input.storage_end <= where, "it reaches beyond one of its inputs");
  return std::nullopt;  // a constant
}

void RelocatableGraph::find_relocations() {
  relocations_.resize(inputs_.size() + new_bytes_.size() + 1);
  const auto add = [&](GraphProgram::Pointer pointer, const void* address) {
    if (const auto place = place_of(address)) relocations_[place->slot].push_back({pointer, place->offset});
  };
  for (uint32_t i = 0; i < recording_.nodes.size(); ++i) {
    if (const auto* function = std::get_if<HostFunction>(&recording_.nodes[i].action))
      for (uint32_t j = 0; j < function->memory.size(); ++j) {
        const void* address = function->memory[j].address;
        TORCH_CHECK(place_of(address), recording_.nodes[i].op, " uses a constant");
        add({i, GraphProgram::Pointer::OfHost, j}, address);
      }
    const auto* recorded = std::get_if<DeviceCommand>(&recording_.nodes[i].action);
    if (recorded == nullptr) continue;
    for (uint32_t j = 0; j < recorded->arguments.size(); ++j)
      if (recorded->arguments[j].is_pointer != 0)
        add({i, GraphProgram::Pointer::Argument, j}, recorded->arguments[j].value.pointer);
    if (recorded->command.kind == TG_COMMAND_LAUNCH || recorded->command.kind == TG_COMMAND_RUN) continue;
    add({i, GraphProgram::Pointer::Destination}, recorded->command.destination);
    if (recorded->command.kind == TG_COMMAND_COPY) add({i, GraphProgram::Pointer::Source}, recorded->command.source);
  }
}

// ---- it is run ----

std::optional<std::vector<at::Tensor>> RelocatableGraph::run(c10::ArrayRef<at::Tensor> inputs) {
  raise_if_forked();
  c10::SmallVector<char*, 32> addresses;
  for (const at::Tensor& input : inputs) addresses.push_back(static_cast<char*>(input.data_ptr()));
  for (const auto& [leader, other, distance] : overlaps_)
    if (addresses[other] - addresses[leader] != distance) return std::nullopt;
  const c10::DeviceIndex index = origin_->device_index();
  const CaptureSuspended running;  // another thread may capture on a stream that this one uses
  std::vector<c10::Storage> made;
  for (const uint64_t bytes : new_bytes_) {
    made.emplace_back(c10::Storage::use_byte_size_t(), bytes, allocate(index, bytes), device_allocator(),
                      /*resizable=*/true);
    addresses.push_back(static_cast<char*>(made.back().mutable_data()));
  }
  // Back to the pool at the end: later work on this stream runs after ours.
  const c10::DataPtr temporaries = allocate(index, temporary_bytes_);
  addresses.push_back(static_cast<char*>(temporaries.get()));
  run_program(addresses);
  return made_results(inputs, made);
}

void RelocatableGraph::run_program(c10::ArrayRef<char*> addresses) {
  Device& device = get_device(origin_->device_index());
  const c10::Stream stream = current_stream(device.index);
  GilSafeLock lock(mutex_);
  for (uint32_t slot = 0; slot < addresses.size(); ++slot)
    if (addresses[slot] != addresses_[slot]) relocate(slot, addresses[slot]);
  program_->replay(stream);
  if (recording_.errors == nullptr) return;
  // As for single ops: a CPU's calls wait for the kernels that may report an error, so that it is the call's.
  if (device.properties.kind != TG_DEVICE_CPU) return note_replay(device.index, stream.id(), recording_.errors);
  try {
    wait_for_stream(device, stream.id());
  } catch (...) {
    note_replay(device.index, stream.id(), recording_.errors);  // by Ctrl-C, say; the kernels may still report
    throw;
  }
  recording_.errors->raise(stream.id(), stream_handle(device.index, stream.id()));
}

void RelocatableGraph::relocate(uint32_t slot, char* address) {
  addresses_[slot] = nullptr;  // until all is done
  for (const Relocation& relocation : relocations_[slot])
    program_->set(relocation.pointer, address + relocation.offset);
  addresses_[slot] = address;
}

std::vector<at::Tensor> RelocatableGraph::made_results(c10::ArrayRef<at::Tensor> inputs,
                                                       const std::vector<c10::Storage>& made) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(results_.size());
  for (const Result& result : results_) {
    switch (result.kind) {
      case Result::Nothing:
        tensors.emplace_back();
        break;
      case Result::Input:
        tensors.push_back(inputs[result.index]);
        break;
      case Result::ViewOfInput: {
        const at::Tensor& input = inputs[result.index];
        const auto item = static_cast<int64_t>(c10::elementSize(result.dtype));
        const int64_t begins = input.storage_offset() * static_cast<int64_t>(input.itemsize()) / item;
        tensors.push_back(
            tensor_in(input.storage(), result.dtype, result.sizes, result.strides, begins + result.offset));
        break;
      }
      case Result::New:
        tensors.push_back(tensor_in(made[result.index], result.dtype, result.sizes, result.strides, result.offset));
        break;
      case Result::Earlier:
        tensors.push_back(tensors[result.index]);
        break;
      case Result::Constant:
        tensors.push_back(result.constant);
        break;
    }
  }
  return tensors;
}

}  // namespace torchgraft
