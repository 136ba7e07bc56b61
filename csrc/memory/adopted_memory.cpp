#include "adopted_memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>

namespace torchgraft {
namespace {

struct Adopted {
  c10::DeviceIndex index;
  char* begin;
  size_t bytes;
  std::function<void()> release;
};

struct AdoptedMemory {
  std::shared_mutex mutex;
  std::multimap<const char*, const Adopted*> all;  // the same memory may be adopted twice
};

AdoptedMemory& adopted_memory() {
  static auto* instance = new AdoptedMemory;  // outlives the tensors that are freed when the process ends
  return *instance;
}

void give_back(void* context) {
  std::unique_ptr<Adopted> adopted(static_cast<Adopted*>(context));
  {
    AdoptedMemory& r = adopted_memory();
    std::lock_guard lock(r.mutex);
    auto [first, last] = r.all.equal_range(adopted->begin);
    r.all.erase(std::find_if(first, last, [&](const auto& each) { return each.second == adopted.get(); }));
  }
  if (in_bad_fork()) return;  // it is the parent's
  // The other library knows nothing of our streams. A device that fails has stopped using the memory, too.
  const Device& device = get_device(adopted->index);
  device.driver->device_synchronize(device.driver->context, device.ordinal);
  adopted->release();
}

}  // namespace

c10::Storage adopt_memory(c10::DeviceIndex index, void* address, size_t bytes, std::function<void()> release) {
  get_device(index);
  auto adopted = std::make_unique<Adopted>(Adopted{index, static_cast<char*>(address), bytes, std::move(release)});
  {
    AdoptedMemory& r = adopted_memory();
    std::lock_guard lock(r.mutex);
    r.all.emplace(adopted->begin, adopted.get());
  }
  c10::DataPtr data(address, adopted.release(), &give_back, {c10::DeviceType::PrivateUse1, index});
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                               /*allocator=*/nullptr, /*resizable=*/false);
}

c10::DeviceIndex device_of_adopted(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  AdoptedMemory& r = adopted_memory();
  std::shared_lock lock(r.mutex);
  // Few are ever adopted at once.
  for (const auto& [begin, adopted] : r.all)
    if (wanted >= begin && wanted < begin + adopted->bytes) return adopted->index;
  return -1;
}

}  // namespace torchgraft
