// A device's memory: how an address, which torchgraft treats as a number, becomes something OpenCL accepts.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <ranges>
#include <shared_mutex>
#include <vector>

#include "opencl_api.h"

namespace ocl {

struct Device;

enum class MemoryModel {
  kHost,    // a CPU that takes any host address: the driver's own pages, huge ones where they help
  kSvm,     // shared virtual memory
  kBuffer,  // cl_mem objects behind reserved addresses: nothing is mapped there, they only tell the buffers apart
};

class Memory {
 public:
  static constexpr uint32_t kAlign = 128;

  // Where an address lies; `buffer` is NULL for the address NULL.
  struct Place {
    cl_mem buffer;
    size_t offset;
  };

  Memory(Device& device, MemoryModel model) : model(model), device_(device) {}

  void* allocate(uint64_t bytes);
  void deallocate(void* address);

  // Only in the model kHost: addresses, and memory for parts of them; see torchgraft/driver.h.
  void* reserve(uint64_t bytes);
  void commit(void* address, uint64_t bytes);
  void decommit(void* address, uint64_t bytes);

  uint64_t allocated() const { return allocated_.load(std::memory_order_relaxed); }

  // Only in the model kBuffer: the buffer of an address inside an allocation of which `bytes` bytes follow.
  Place find(const void* address, uint64_t bytes = 1) const;

  // The same in the model kSvm, too: by a buffer over the allocation, made when it is first asked for and kept as long.
  // OpenCL says of such a buffer that the shared memory is its storage, and leaves undefined what commands do with two
  // that overlap (clCreateBuffer).
  Place find_buffer(const void* address, uint64_t bytes);

  // Only in the model kBuffer: an address for somebody else's buffer, which is kept until the address is deallocated.
  void* adopt(cl_mem buffer, uint64_t bytes);

  // Host memory from which the device copies quickly and without blocking.
  void* allocate_pinned(uint64_t bytes);
  void deallocate_pinned(void* address);

  const MemoryModel model;

 private:
  struct Allocation {
    uint64_t bytes;
    cl_mem buffer;
  };
  using Table = std::map<uintptr_t, Allocation>;
  using Parts = std::vector<bool>;  // of TG_MEMORY_PART: whether they have memory
  struct Range {
    uint64_t bytes;
    Parts committed;
  };

  void count(uint64_t bytes);
  Allocation take(Table& table, void* address);
  bool free_range(void* address);
  std::ranges::subrange<Parts::iterator> parts(void* address, uint64_t bytes, bool committed);

  Device& device_;
  std::atomic<uint64_t> allocated_ = 0;
  mutable std::shared_mutex mutex_;
  Table device_allocations_, pinned_allocations_;  // under mutex_
  std::map<uintptr_t, Range> ranges_;              // under mutex_
};

}  // namespace ocl
