#include "host_allocator.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <shared_mutex>

#include "runtime/event.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

// The allocations, for is_pinned and for giving each back to the device that made it.
struct Region {
  size_t size;
  c10::DeviceIndex device;
  bool from_driver;
};

struct Regions {
  std::shared_mutex mutex;
  std::map<const char*, Region> by_address;
};
Regions& regions() {
  static auto* instance = new Regions;
  return *instance;
}

constexpr size_t kPage = 4096;

class Impl final : public at::CachingHostAllocatorImpl<c10::Stream, EventPtr> {
 public:
  using Block = at::HostBlock<c10::Stream>;

  void free(void* context) override {
    if (in_bad_fork()) return;  // locks may be held for ever, and the memory is the parent's
    CachingHostAllocatorImpl::free(context);
    release();
  }
  void empty_cache() override {
    raise_if_forked();
    CachingHostAllocatorImpl::empty_cache();
    release();
  }
  std::pair<void*, void*> allocate(size_t size) override {
    raise_if_forked();
    return CachingHostAllocatorImpl::allocate(size);
  }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  void allocate_host_memory(size_t size, void** address) override {
    Timer timer(*this, &at::HostStatsStaged::host_alloc_time);
    Device& device = get_device(current_device());
    const tg_driver* driver = device.driver;
    if (driver->host_allocate) {
      check(device, driver->host_allocate(driver->context, device.ordinal, size, address),
            "allocating pinned host memory");
    } else if (posix_memalign(address, kPage, size) != 0) {
      TORCH_CHECK(false, "cannot allocate ", size, " bytes of host memory");
    }
    Regions& r = regions();
    std::unique_lock lock(r.mutex);
    r.by_address[static_cast<char*>(*address)] = {size, device.index, driver->host_allocate != nullptr};
  }

  // Adds the microseconds of its life to a statistic.
  class Timer {
   public:
    Timer(Impl& owner, c10::CachingAllocator::DurationStat at::HostStatsStaged::* stat) : owner_(owner), stat_(stat) {}
    ~Timer() {
      auto passed = std::chrono::steady_clock::now() - start_;
      std::lock_guard lock(owner_.stats_.timing_mutex_);
      (owner_.stats_.*stat_).increase(std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
    }

   private:
    Impl& owner_;
    c10::CachingAllocator::DurationStat at::HostStatsStaged::* stat_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  // Called under torch's locks, where a driver in Python must not be: the memory is kept, and given back by
  // release().
  void free_block(Block* block) override {
    std::lock_guard lock(aside_mutex_);
    aside_.push_back(static_cast<char*>(block->ptr_));
  }

  void release() {
    std::vector<char*> addresses;
    {
      std::lock_guard lock(aside_mutex_);
      addresses.swap(aside_);
    }
    for (char* address : addresses) {
      Timer timer(*this, &at::HostStatsStaged::host_free_time);
      Region region;
      {
        Regions& r = regions();
        std::unique_lock lock(r.mutex);
        auto it = r.by_address.find(address);
        region = it->second;
        r.by_address.erase(it);
      }
      if (region.from_driver) {
        Device& device = get_device(region.device);
        device.driver->host_deallocate(device.driver->context, device.ordinal, address);
      } else {
        std::free(address);
      }
    }
  }

  void record_stream(std::optional<std::vector<EventPtr>>& events, c10::Stream stream) override {
    EventPtr event(create_event(stream.device_index(), /*timing=*/false));
    torchgraft::record_event(*event, stream);
    if (!events) events.emplace();
    events->push_back(std::move(event));
  }
  bool query_event(EventPtr& event) override { return torchgraft::query_event(*event); }
  c10::Stream get_current_stream() const override { return current_stream(current_device()); }
  // What a capture copies from or to is the graph's to keep, whatever becomes of the block.
  bool stream_is_capturing(c10::Stream) const override { return false; }

  std::mutex aside_mutex_;
  std::vector<char*> aside_;
};

void free_host_memory(void* context);

class HostAllocator final : public at::CachingHostAllocatorInterface<Impl, free_host_memory> {};

HostAllocator& instance() {
  static auto* allocator = new HostAllocator;  // used until the process ends
  return *allocator;
}

void free_host_memory(void* context) { instance().free(context); }

}  // namespace

at::HostAllocator* host_allocator() { return &instance(); }

bool is_pinned(const void* data) {
  if (!data || in_bad_fork()) return false;
  Regions& r = regions();
  std::shared_lock lock(r.mutex);
  auto* address = static_cast<const char*>(data);
  auto after = r.by_address.upper_bound(address);
  if (after == r.by_address.begin()) return false;
  auto& [start, region] = *std::prev(after);
  return address < start + region.size;
}

}  // namespace torchgraft
