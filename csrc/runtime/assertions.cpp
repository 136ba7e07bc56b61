#include "assertions.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <unordered_map>
#include <vector>

#include "command.h"
#include "stream.h"

namespace torchgraft {
namespace {

constexpr uint64_t kWordsBytes = 4 * sizeof(int32_t);

struct Words {
  std::atomic<void*> address{nullptr};
  std::atomic<tg_stream> reader{nullptr};  // reads them while other streams go on
  std::atomic<bool> watched{false};        // a checked kernel may have run since the words were last read
};
constinit std::array<Words, kMaxDevices> words_of{};

struct Messages {
  std::mutex mutex;
  std::vector<std::pair<std::string, bool>> texts;  // and whether it is an IndexError
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
  check(device, submit_fill(device, stream, address, &zero, sizeof(zero), kWordsBytes), "clearing the error words");
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

[[noreturn]] void raise_message(int32_t code, int64_t index) {
  auto [text, is_index_error] = [code] {
    Messages& m = messages();
    std::lock_guard lock(m.mutex);
    TORCH_CHECK(code >= 1 && static_cast<size_t>(code) <= m.texts.size(), "a kernel reported the unknown error ", code);
    return m.texts[code - 1];
  }();
  if (auto at = text.find("{}"); at != std::string::npos) text.replace(at, 2, std::to_string(index));
  TORCH_CHECK_INDEX(!is_index_error, text);
  TORCH_CHECK(false, text);
}

tg_stream reader_of(Device& device) {
  auto& reader = words_of[device.index].reader;
  if (tg_stream made = reader.load(std::memory_order_acquire)) return made;
  const tg_driver* driver = device.driver;
  tg_stream made = nullptr, expected = nullptr;
  check(device, driver->stream_create(driver->context, device.ordinal, /*priority=*/-1, &made), "creating a stream");
  if (reader.compare_exchange_strong(expected, made)) return made;
  driver->stream_destroy(driver->context, device.ordinal, made);  // another thread was first
  return expected;
}

using Report = std::array<int32_t, 4>;

Report read_words(Device& device, const void* address, tg_stream stream) {
  Report found;
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    std::copy_n(static_cast<const volatile int32_t*>(address), found.size(), found.begin());
  } else {
    check(device,
          submit_copy(device, stream, found.data(), address, kWordsBytes, TG_COPY_DEVICE_TO_HOST, /*blocking=*/1),
          "reading the error words");
  }
  return found;
}

bool may_have_reported(c10::DeviceIndex index) {
  return index >= 0 && index < kMaxDevices && words_of[index].watched.load(std::memory_order_relaxed) &&
         words_of[index].address.load(std::memory_order_acquire);
}

void raise_found(Device& device, tg_stream stream) {
  void* address = words_of[device.index].address.load(std::memory_order_acquire);
  if (read_words(device, address, stream)[0] == 0) return;
  // The reporter may still be running, between its code and its index, and so may others that want to report: all are
  // waited for before the words are believed and cleared.
  check(device, device.driver->device_synchronize(device.driver->context, device.ordinal), "waiting for the device");
  Report found = read_words(device, address, stream);
  if (found[0] == 0) return;  // another thread has raised it
  clear_words(device, address, stream);
  int64_t position = static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(found[2])) << 32 |
                                          static_cast<uint32_t>(found[1]));
  raise_message(found[0], position);
}

}  // namespace

void* error_words(c10::DeviceIndex index) {
  Device& device = get_device(index);
  void* address = words_of[index].address.load(std::memory_order_acquire);
  return address ? address : create_words(device);
}

int32_t error_code(const std::string& message, bool is_index_error) {
  Messages& m = messages();
  std::lock_guard lock(m.mutex);
  auto [entry, added] = m.codes.try_emplace(message, static_cast<int32_t>(m.texts.size()) + 1);
  if (added) m.texts.emplace_back(message, is_index_error);
  return entry->second;
}

void note_checked_launch(c10::DeviceIndex index) noexcept {
  words_of[index].watched.store(true, std::memory_order_relaxed);
}

void raise_reported_errors(c10::DeviceIndex index) {
  if (!may_have_reported(index)) return;
  raise_reported_errors(index, current_stream_handle(index));
}

void raise_reported_errors(c10::DeviceIndex index, tg_stream idle) {
  if (!may_have_reported(index)) return;
  Device& device = get_device(index);
  // Looking again is cheap in unified memory, and necessary where kernels of other streams may still be running.
  if (!device.has(TG_CAP_UNIFIED_MEMORY) && (!idle || !has_several_streams(index)))
    words_of[index].watched.store(false, std::memory_order_relaxed);
  raise_found(device, idle ? idle : stream_handle(index, 0));
}

void raise_errors_reported_so_far(c10::DeviceIndex index) {
  if (!may_have_reported(index)) return;
  Device& device = get_device(index);
  raise_found(device, device.has(TG_CAP_UNIFIED_MEMORY) ? stream_handle(index, 0) : reader_of(device));
}

}  // namespace torchgraft
