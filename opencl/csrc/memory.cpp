#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "device.h"
#include "error.h"
#include "stream.h"

namespace ocl {
namespace {

constexpr uint64_t kHugePage = TG_MEMORY_PART;

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The first touch of fresh memory costs six times less with huge pages (64 MiB: 7 ms, not 44), and caches find more in
// the TLB.
void ask_for_huge_pages(uintptr_t begin, uint64_t bytes) {
#ifdef MADV_HUGEPAGE
  const uintptr_t first = round_up(begin, kHugePage), last = (begin + bytes) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

void* reserve_addresses(uint64_t bytes, int protection, int flags) {
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

// Mapped with room to spare, so that it can begin at a huge page; the rest is given back.
void* map_huge_pages(uint64_t size, int protection) {
  const uint64_t padded = size + kHugePage;
  void* mapped = reserve_addresses(padded, protection, MAP_NORESERVE);
  if (mapped == nullptr) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped), aligned = round_up(begin, kHugePage);
  if (aligned > begin) munmap(mapped, aligned - begin);
  if (begin + padded > aligned + size) munmap(reinterpret_cast<void*>(aligned + size), begin + padded - aligned - size);
  ask_for_huge_pages(aligned, size);
  return reinterpret_cast<void*>(aligned);
}

void* allocate_host(uint64_t bytes) {
  if (bytes < kHugePage) {
    void* address = nullptr;
    return posix_memalign(&address, Memory::kAlign, bytes) == 0 ? address : nullptr;
  }
  return map_huge_pages(round_up(bytes, kHugePage), PROT_READ | PROT_WRITE);
}

void free_host(void* address, uint64_t bytes) {
  if (bytes < kHugePage) {
    std::free(address);
  } else {
    munmap(address, round_up(bytes, kHugePage));
  }
}

std::string mebibytes(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

[[noreturn]] void fail_memory(const std::string& message) { throw Failure(TG_ERROR_OUT_OF_MEMORY, message); }

}  // namespace

// Implementations hand out memory that they do not have and fail, or are killed, when it is used. So the driver counts.
void Memory::count(uint64_t bytes) {
  const tg_device_properties& properties = device_.properties;
  if (bytes > properties.max_allocation) {
    fail_memory("an allocation of " + mebibytes(bytes) + " is above the device's largest, " +
                mebibytes(properties.max_allocation));
  }
  const uint64_t before = allocated_.fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes > properties.total_memory) {
    allocated_.fetch_sub(bytes, std::memory_order_relaxed);
    fail_memory(mebibytes(bytes) + " were asked for, and of the device's " + mebibytes(properties.total_memory) + " " +
                mebibytes(before) + " are in use");
  }
}

void* Memory::allocate(uint64_t bytes) {
  count(bytes);
  void* address = nullptr;
  cl_mem buffer = nullptr;
  try {
    const Api& api = *device_.api;
    switch (model) {
      case MemoryModel::kHost:
        address = allocate_host(bytes);
        if (address == nullptr) fail_memory("the system has no " + mebibytes(bytes) + " left");
        break;
      case MemoryModel::kSvm: {
        const cl_bitfield fine = device_.unified() ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0;
        address = api.clSVMAlloc(device_.context(), CL_MEM_READ_WRITE | fine, bytes, 0);
        if (address == nullptr) fail_memory("clSVMAlloc: no " + mebibytes(bytes) + " left");
        if (device_.is_cpu) ask_for_huge_pages(reinterpret_cast<uintptr_t>(address), bytes);
        break;
      }
      case MemoryModel::kBuffer: {
        cl_int status = CL_SUCCESS;
        buffer = api.clCreateBuffer(device_.context(), CL_MEM_READ_WRITE, bytes, nullptr, &status);
        if (status == CL_OUT_OF_RESOURCES) status = CL_MEM_OBJECT_ALLOCATION_FAILURE;
        if (status != CL_SUCCESS) fail_call("clCreateBuffer", status, mebibytes(bytes));
        address = reserve_addresses(bytes, PROT_NONE, MAP_NORESERVE);
        if (address == nullptr) {
          api.clReleaseMemObject(buffer);
          fail_memory("no addresses are left");
        }
        break;
      }
    }
  } catch (...) {
    allocated_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
  std::lock_guard lock(mutex_);
  device_allocations_[reinterpret_cast<uintptr_t>(address)] = {bytes, buffer};
  return address;
}

void* Memory::adopt(cl_mem buffer, uint64_t bytes) {
  if (model != MemoryModel::kBuffer) fail_invalid("this device's memory is no buffers, so it has no use for one");
  void* address = reserve_addresses(bytes, PROT_NONE, MAP_NORESERVE);
  if (address == nullptr) fail_memory("no addresses are left");
  const cl_int status = device_.api->clRetainMemObject(buffer);
  if (status != CL_SUCCESS) {
    munmap(address, bytes);
    fail_call("clRetainMemObject", status);
  }
  allocated_.fetch_add(bytes, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  device_allocations_[reinterpret_cast<uintptr_t>(address)] = {bytes, buffer};
  return address;
}

Memory::Allocation Memory::take(Table& table, void* address) {
  std::lock_guard lock(mutex_);
  const auto found = table.find(reinterpret_cast<uintptr_t>(address));
  if (found == table.end()) fail_invalid("an address was freed that is not the beginning of an allocation");
  const Allocation allocation = found->second;
  table.erase(found);
  return allocation;
}

void* Memory::reserve(uint64_t bytes) {
  if (model != MemoryModel::kHost) throw Failure(TG_ERROR_UNSUPPORTED, "this device's memory does not grow in place");
  if (bytes % TG_MEMORY_PART != 0) fail_invalid("reserve: the size is no multiple of 2 MiB");
  void* address = map_huge_pages(bytes, PROT_NONE);
  if (address == nullptr) fail_memory("the system has no " + mebibytes(bytes) + " of addresses left");
  std::lock_guard lock(mutex_);
  ranges_[reinterpret_cast<uintptr_t>(address)] = {bytes, std::vector<bool>(bytes / TG_MEMORY_PART)};
  return address;
}

// The parts from an address on; throws where not all of them have memory, or have none. Called with the mutex held.
std::ranges::subrange<Memory::Parts::iterator> Memory::parts(void* address, uint64_t bytes, bool committed) {
  const uintptr_t number = reinterpret_cast<uintptr_t>(address);
  const auto after = ranges_.upper_bound(number);
  if (after == ranges_.begin()) fail_invalid("an address lies in no reserved range");
  auto& [begin, range] = *std::prev(after);
  const uint64_t offset = number - begin;
  if (offset % TG_MEMORY_PART != 0 || bytes % TG_MEMORY_PART != 0 || offset + bytes > range.bytes) {
    fail_invalid("what was given is no part of a reserved range, in units of 2 MiB");
  }
  const auto first = range.committed.begin() + static_cast<ptrdiff_t>(offset / TG_MEMORY_PART);
  const auto last = first + static_cast<ptrdiff_t>(bytes / TG_MEMORY_PART);
  if (std::find(first, last, !committed) != last) {
    fail_invalid(committed ? "a part of a range has no memory" : "a part of a range has its memory already");
  }
  return {first, last};
}

void Memory::commit(void* address, uint64_t bytes) {
  count(bytes);
  try {
    std::lock_guard lock(mutex_);
    const auto fresh = parts(address, bytes, false);
    if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
      fail_memory("the system has no " + mebibytes(bytes) + " left");
    }
    std::fill(fresh.begin(), fresh.end(), true);
  } catch (...) {
    allocated_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
}

void Memory::decommit(void* address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto lost = parts(address, bytes, true);
  madvise(address, bytes, MADV_DONTNEED);
  mprotect(address, bytes, PROT_NONE);
  std::fill(lost.begin(), lost.end(), false);
  allocated_.fetch_sub(bytes, std::memory_order_relaxed);
}

bool Memory::free_range(void* address) {
  decltype(ranges_)::node_type node;
  {
    std::lock_guard lock(mutex_);
    node = ranges_.extract(reinterpret_cast<uintptr_t>(address));
  }
  if (node.empty()) return false;
  const Range& range = node.mapped();
  munmap(address, range.bytes);
  const auto parts = std::count(range.committed.begin(), range.committed.end(), true);
  allocated_.fetch_sub(static_cast<uint64_t>(parts) * TG_MEMORY_PART, std::memory_order_relaxed);
  return true;
}

void Memory::deallocate(void* address) {
  if (free_range(address)) return;
  const Allocation allocation = take(device_allocations_, address);
  switch (model) {
    case MemoryModel::kHost:
      free_host(address, allocation.bytes);
      break;
    case MemoryModel::kSvm:
      if (allocation.buffer != nullptr) device_.api->clReleaseMemObject(allocation.buffer);
      device_.api->clSVMFree(device_.context(), address);
      break;
    case MemoryModel::kBuffer:
      device_.api->clReleaseMemObject(allocation.buffer);
      munmap(address, allocation.bytes);
      break;
  }
  allocated_.fetch_sub(allocation.bytes, std::memory_order_relaxed);
}

Memory::Place Memory::find(const void* address, uint64_t bytes) const {
  if (address == nullptr) return {nullptr, 0};
  const uintptr_t number = reinterpret_cast<uintptr_t>(address);
  std::shared_lock lock(mutex_);
  auto found = device_allocations_.upper_bound(number);
  if (found != device_allocations_.begin()) {
    --found;
    const uint64_t offset = number - found->first;
    // One past the end is an address, too: that of an empty slice.
    if (offset + bytes <= found->second.bytes || (bytes <= 1 && offset == found->second.bytes)) {
      return {found->second.buffer, offset};
    }
  }
  fail_invalid("an address lies outside the device's allocations");
}

Memory::Place Memory::find_buffer(const void* address, uint64_t bytes) {
  Place place = find(address, bytes);
  if (place.buffer != nullptr || model != MemoryModel::kSvm) return place;
  std::lock_guard lock(mutex_);
  auto& [begin, allocation] = *std::prev(device_allocations_.upper_bound(reinterpret_cast<uintptr_t>(address)));
  if (allocation.buffer == nullptr) {
    cl_int status = CL_SUCCESS;
    allocation.buffer = device_.api->clCreateBuffer(device_.context(), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                                    allocation.bytes, reinterpret_cast<void*>(begin), &status);
    if (status != CL_SUCCESS) {
      allocation.buffer = nullptr;
      fail_call("clCreateBuffer", status, "over shared memory, " + mebibytes(allocation.bytes));
    }
  }
  place.buffer = allocation.buffer;
  return place;
}

void* Memory::allocate_pinned(uint64_t bytes) {
  void* address = nullptr;
  cl_mem buffer = nullptr;
  if (device_.has_cheap_events) {  // a CPU: all its memory is the host's
    address = allocate_host(bytes);
    if (address == nullptr) fail_memory("the system has no " + mebibytes(bytes) + " left");
  } else {
    cl_int status = CL_SUCCESS;
    buffer = device_.api->clCreateBuffer(device_.context(), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, nullptr,
                                         &status);
    if (status != CL_SUCCESS) fail_call("clCreateBuffer", status, "pinned, " + mebibytes(bytes));
    tg_stream stream = device_.transfer_stream();
    address = device_.api->clEnqueueMapBuffer(stream->queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0,
                                              nullptr, nullptr, &status);
    if (status != CL_SUCCESS) {
      device_.api->clReleaseMemObject(buffer);
      fail_call("clEnqueueMapBuffer", status);
    }
  }
  std::lock_guard lock(mutex_);
  pinned_allocations_[reinterpret_cast<uintptr_t>(address)] = {bytes, buffer};
  return address;
}

void Memory::deallocate_pinned(void* address) {
  const Allocation allocation = take(pinned_allocations_, address);
  if (allocation.buffer == nullptr) {
    free_host(address, allocation.bytes);
    return;
  }
  tg_stream stream = device_.transfer_stream();
  device_.api->clEnqueueUnmapMemObject(stream->queue, allocation.buffer, address, 0, nullptr, nullptr);
  device_.api->clReleaseMemObject(allocation.buffer);
}

}  // namespace ocl
