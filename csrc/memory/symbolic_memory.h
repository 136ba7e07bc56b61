// Memory that is only addresses.
//
// A capture whose graph is to run with other memory each time allocates it: nothing lies there, since captured commands
// do not run, and from an address in a command it is known which block is meant, and where in it.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace torchgraft {

// Safe from any thread.
class SymbolicMemory : public std::enable_shared_from_this<SymbolicMemory> {
 public:
  struct Block {
    uintptr_t address;
    uint64_t bytes;
    // It is used by none but the commands [first, last) of the capture.
    uint32_t first, last;
    bool alive;  // there is a tensor in it
  };
  struct Place {
    uint32_t block;
    uint64_t offset;
  };

  // For use with the devices' allocator; keeps this alive.
  c10::DataPtr allocate(size_t bytes, c10::Device device);
  // One more command has been captured.
  void count_command() { commands_.fetch_add(1, std::memory_order_relaxed); }

  std::vector<Block> blocks() const;
  // The block in which an address lies; one behind its end counts too.
  std::optional<Place> find(const void* address) const;

 private:
  struct Owned;

  std::atomic<uint32_t> commands_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Block> blocks_;
};

}  // namespace torchgraft
