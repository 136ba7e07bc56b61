#include "hooks.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>

#include "command.h"
#include "generator.h"
#include "memory/allocator.h"
#include "memory/host_allocator.h"
#include "stream.h"

namespace torchgraft {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override { get_device(current_device()); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return devices_opened() && !in_bad_fork() && index < device_count();
  }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    c10::DeviceIndex index = device_of_address(data);
    TORCH_CHECK(index >= 0, "the address ", data, " does not belong to memory allocated on a device of ",
                backend_name());
    return {c10::DeviceType::PrivateUse1, index};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    if (index < 0) index = current_device();
    get_device(index);
    return at::make_generator<PhiloxGenerator>(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "trying to resize storage that is not resizable");
    c10::DeviceIndex index = impl->device().index();
    c10::DataPtr resized = allocate(index, bytes);
    if (size_t kept = std::min(bytes, impl->nbytes())) {
      const Device& device = get_device(index);
      check(device,
            submit_copy(device, current_stream_handle(index), resized.get(), impl->data(), kept,
                        TG_COPY_DEVICE_TO_DEVICE, /*blocking=*/false),
            "copying a storage that is resized");
      // The old memory may belong to another stream than the copy that reads it.
      device_allocator()->recordStream(impl->data_ptr(), current_stream(index));
    }
    impl->set_data_ptr_noswap(std::move(resized));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

void register_hooks() {
  TORCH_CHECK(!at::isPrivateUse1HooksRegistered(),
              "another backend already occupies PyTorch's place for out-of-tree devices (PrivateUse1) in this process");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace torchgraft
