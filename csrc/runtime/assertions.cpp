#include "assertions.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <unordered_map>
#include <vector>

#include "stream.h"

namespace torchgraft {
namespace {

constexpr uint64_t kWordsBytes = 4 * sizeof(int32_t);

struct Words {
  std::atomic<void*> address{nullptr};
  std::atomic<bool> watched{false};  // a checked kernel may have run since the words were last read
};
constinit std::array<Words, kMaxDevices> words_of{};

struct Messages {
  std::mutex mutex;
  std::vector<std::string> texts;
  std::unordered_map<std::string, int32_t> codes;
};
Messages& messages() {
  static auto* instance = new Messages;
  return *instance;
}

void clear_words(Device& device, void* address, tg_stream stream) {
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    std::fill_n(static_cast<volatile int32_t*>(address), 4, 0);
    return;
  }
  const tg_driver* driver = device.driver;
  int32_t zero = 0;
  check(device, driver->fill(driver->context, device.ordinal, stream, address, &zero, sizeof(zero), kWordsBytes),
        "clearing the error words");
  check(device, driver->stream_synchronize(driver->context, device.ordinal, stream), "clearing the error words");
}

void* create_words(Device& device) {
  const tg_driver* driver = device.driver;
  void* address = nullptr;
  check(device, driver->allocate(driver->context, device.ordinal, kWordsBytes, &address), "allocating the error words");
  clear_words(device, address, stream_handle(device.index, 0));
  void* expected = nullptr;
  if (words_of[device.index].address.compare_exchange_strong(expected, address)) return address;
  driver->deallocate(driver->context, device.ordinal, address);  // another thread was first
  return expected;
}

std::string message_of(int32_t code, int64_t index) {
  Messages& m = messages();
  std::lock_guard lock(m.mutex);
  if (code < 1 || static_cast<size_t>(code) > m.texts.size())
    return "a kernel reported the unknown error " + std::to_string(code);
  std::string text = m.texts[code - 1];
  if (auto at = text.find("{}"); at != std::string::npos) text.replace(at, 2, std::to_string(index));
  return text;
}

}  // namespace

void* error_words(c10::DeviceIndex index) {
  Device& device = get_device(index);
  void* address = words_of[index].address.load(std::memory_order_acquire);
  return address ? address : create_words(device);
}

int32_t error_code(const std::string& message) {
  Messages& m = messages();
  std::lock_guard lock(m.mutex);
  auto [entry, added] = m.codes.try_emplace(message, static_cast<int32_t>(m.texts.size()) + 1);
  if (added) m.texts.push_back(message);
  return entry->second;
}

void note_checked_launch(c10::DeviceIndex index) noexcept {
  words_of[index].watched.store(true, std::memory_order_relaxed);
}

void raise_reported_errors(c10::DeviceIndex index) {
  if (index < 0 || index >= kMaxDevices || !words_of[index].watched.load(std::memory_order_relaxed)) return;
  raise_reported_errors(index, current_stream_handle(index));
}

void raise_reported_errors(c10::DeviceIndex index, tg_stream idle) {
  Words& words = words_of[index];
  if (!words.watched.load(std::memory_order_relaxed)) return;
  Device& device = get_device(index);
  void* address = words.address.load(std::memory_order_acquire);
  if (!address) return;
  // Looking again is cheap in unified memory, and necessary where kernels of other streams may still be running.
  bool unified = device.has(TG_CAP_UNIFIED_MEMORY);
  if (!unified && (!idle || !has_several_streams(index))) words.watched.store(false, std::memory_order_relaxed);
  if (!idle) idle = stream_handle(index, 0);

  int32_t found[4];
  if (unified) {
    std::copy_n(static_cast<volatile int32_t*>(address), 4, found);
  } else {
    check(device,
          device.driver->copy(device.driver->context, device.ordinal, idle, found, address, kWordsBytes,
                              TG_COPY_DEVICE_TO_HOST, /*blocking=*/1),
          "reading the error words");
  }
  if (found[0] == 0) return;
  clear_words(device, address, idle);
  int64_t position = static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(found[2])) << 32 |
                                          static_cast<uint32_t>(found[1]));
  TORCH_CHECK_INDEX(false, message_of(found[0], position));
}

}  // namespace torchgraft
