#include "symbolic_memory.h"

#include <algorithm>

#include "allocator.h"

namespace torchgraft {
namespace {

// No process has memory there: 64-bit processors refuse such addresses.
constexpr uintptr_t kFirstAddress = uintptr_t{0x42} << 56;

}  // namespace

struct SymbolicMemory::Owned {
  std::shared_ptr<SymbolicMemory> memory;
  size_t block;

  static void release(void* context) {
    const std::unique_ptr<Owned> owned(static_cast<Owned*>(context));
    std::lock_guard lock(owned->memory->mutex_);
    Block& block = owned->memory->blocks_[owned->block];
    block.last = owned->memory->commands_.load(std::memory_order_relaxed);
    block.alive = false;
  }
};

c10::DataPtr SymbolicMemory::allocate(size_t bytes, c10::Device device) {
  std::lock_guard lock(mutex_);
  // As well aligned as real memory and no better, or plans would rely on it; with a gap behind each block.
  const auto end_of = [](const Block& block) { return block.address + block.bytes; };
  const uintptr_t end = blocks_.empty() ? kFirstAddress : end_of(blocks_.back());
  const uintptr_t address = (end / (2 * kGranule) + 1) * (2 * kGranule) + kGranule;
  auto owned = std::make_unique<Owned>(shared_from_this(), blocks_.size());
  const uint32_t now = commands_.load(std::memory_order_relaxed);
  blocks_.push_back({address, bytes, now, now, true});
  return {reinterpret_cast<void*>(address), owned.release(), &Owned::release, device};
}

std::vector<SymbolicMemory::Block> SymbolicMemory::blocks() const {
  std::lock_guard lock(mutex_);
  return blocks_;
}

std::optional<SymbolicMemory::Place> SymbolicMemory::find(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard lock(mutex_);
  auto behind = std::ranges::upper_bound(blocks_, address, {}, &Block::address);
  if (behind == blocks_.begin()) return std::nullopt;
  const Block& block = *--behind;
  if (address > block.address + block.bytes) return std::nullopt;
  return Place{static_cast<uint32_t>(behind - blocks_.begin()), address - block.address};
}

}  // namespace torchgraft
