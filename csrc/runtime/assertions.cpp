#include "assertions.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <unordered_map>
#include <vector>

#include "command.h"
#include "memory/allocator.h"
#include "stream.h"

namespace torchgraft {
namespace {

constexpr uint64_t kWordsBytes = 4 * sizeof(int32_t);
constexpr size_t kWordsPerBlock = 64;

using Report = std::array<int32_t, 4>;

struct StreamErrors {
  std::atomic<bool> watched{false};  // a checked kernel may have run since the words were last read
  std::atomic<bool> follows{false};  // `upstream` has members
  std::atomic<bool> replays{false};  // graphs have been replayed on it, see DeviceErrors::replayed
  StreamSet upstream;                // the streams whose errors it inherits; guarded by DeviceErrors::mutex
};

struct DeviceErrors {
  std::atomic<char*> words{nullptr};       // of all streams, one after the other
  std::atomic<tg_stream> reader{nullptr};  // reads them while the streams go on
  std::array<StreamErrors, kMaxStreams> streams;
  std::mutex mutex;               // never held across a call of the driver
  std::vector<void*> call_words;  // zeroed, and nobody's at present
  // Of calls that failed before they had waited (Ctrl-C), whose kernels may still report; by stream.
  std::vector<std::pair<c10::StreamId, void*>> abandoned;
  // Of graphs whose kernels may have reported, by the stream on which they were replayed.
  struct Replayed {
    c10::StreamId stream;
    std::shared_ptr<GraphErrors> graph;
    uint64_t count;  // of its replays

    bool operator==(const Replayed&) const = default;
  };
  std::vector<Replayed> replayed;
  std::mutex taking;  // taken by GilSafeLock: an error is raised once
};

// Never destroyed: calls may be running when static destructors do.
DeviceErrors& errors_of(c10::DeviceIndex index) {
  static auto* all = new std::array<DeviceErrors, kMaxDevices>;
  return (*all)[index];
}

struct Messages {
  std::mutex mutex;
  std::vector<std::pair<std::string, bool>> texts;  // and whether it is an IndexError
  std::unordered_map<std::string, int32_t> codes;
  std::map<std::vector<std::pair<std::string, bool>>, int32_t> runs;  // of consecutive codes, by their texts
};
Messages& messages() {
  static auto* instance = new Messages;
  return *instance;
}

void clear_words(Device& device, void* address, uint64_t bytes, tg_stream stream) {
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    std::fill_n(static_cast<volatile int32_t*>(address), bytes / sizeof(int32_t), 0);
    return;
  }
  const tg_driver* driver = device.driver;
  int32_t zero = 0;
  check(device, submit_fill(device, stream, address, &zero, sizeof(zero), bytes), "clearing the error words");
  check(device, driver->stream_synchronize(driver->context, device.ordinal, stream), "clearing the error words");
}

char* allocate_words(Device& device, size_t count, tg_stream stream) {
  const tg_driver* driver = device.driver;
  void* address = nullptr;
  check(device, driver->allocate(driver->context, device.ordinal, count * kWordsBytes, &address),
        "allocating the error words");
  clear_words(device, address, count * kWordsBytes, stream);
  return static_cast<char*>(address);
}

char* create_stream_words(Device& device) {
  const tg_driver* driver = device.driver;
  char* made = allocate_words(device, kMaxStreams, stream_handle(device.index, 0));
  char* expected = nullptr;
  if (errors_of(device.index).words.compare_exchange_strong(expected, made)) return made;
  driver->deallocate(driver->context, device.ordinal, made);  // another thread was first
  return expected;
}

// `place` says where in a graph it was found.
void raise_if_any(const Report& report, const std::string& place = "") {
  const int32_t code = report[0];
  if (code == 0) return;
  const auto index = static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(report[2])) << 32 |
                                          static_cast<uint32_t>(report[1]));
  auto [text, is_index_error] = [code] {
    Messages& m = messages();
    std::lock_guard lock(m.mutex);
    TORCH_CHECK(code >= 1 && static_cast<size_t>(code) <= m.texts.size(), "a kernel reported the unknown error ", code);
    return m.texts[code - 1];
  }();
  if (auto at = text.find("{}"); at != std::string::npos) text.replace(at, 2, std::to_string(index));
  if (!place.empty()) text += " (" + place + ")";
  TORCH_CHECK_INDEX(!is_index_error, text);
  TORCH_CHECK(false, text);
}

tg_stream reader_of(Device& device) {
  auto& reader = errors_of(device.index).reader;
  if (tg_stream made = reader.load(std::memory_order_acquire)) return made;
  const tg_driver* driver = device.driver;
  tg_stream made = nullptr, expected = nullptr;
  check(device, driver->stream_create(driver->context, device.ordinal, /*priority=*/-1, &made), "creating a stream");
  if (reader.compare_exchange_strong(expected, made)) return made;
  driver->stream_destroy(driver->context, device.ordinal, made);  // another thread was first
  return expected;
}

void read_words(Device& device, const void* address, Report* found, size_t count, tg_stream stream) {
  if (device.has(TG_CAP_UNIFIED_MEMORY)) {
    const auto* words = static_cast<const volatile int32_t*>(address);
    for (size_t i = 0; i < count; ++i) std::copy_n(words + i * found[i].size(), found[i].size(), found[i].begin());
  } else {
    check(device,
          submit_copy(device, stream, found, address, count * kWordsBytes, TG_COPY_DEVICE_TO_HOST, /*blocking=*/1),
          "reading the error words");
  }
}

Report read_words(Device& device, const void* address, tg_stream stream) {
  Report found;
  read_words(device, address, &found, 1, stream);
  return found;
}

// What kernels of a stream have reported to some words, taken out of them; these are looked at through `reader`.
Report take_report(Device& device, c10::StreamId id, void* address, tg_stream reader) {
  Report found = read_words(device, address, reader);
  if (found[0] == 0) return found;
  GilSafeLock lock(errors_of(device.index).taking);
  // The reporter may still be running, between its code and its index: it is waited for before the words are believed
  // and cleared.
  tg_stream stream = stream_handle(device.index, id);
  check(device, device.driver->stream_synchronize(device.driver->context, device.ordinal, stream),
        "waiting for a stream");
  found = read_words(device, address, stream);  // zero if another thread has taken it
  if (found[0] != 0) clear_words(device, address, kWordsBytes, stream);
  return found;
}

// With `done`, all that the stream was given before the call is.
void raise_of_graphs(Device& device, c10::StreamId id, bool done, tg_stream reader) {
  DeviceErrors& errors = errors_of(device.index);
  std::atomic<bool>& replays = errors.streams[id].replays;
  if (!replays.load(std::memory_order_acquire)) return;
  std::vector<DeviceErrors::Replayed> seen;
  {
    std::lock_guard lock(errors.mutex);
    for (const auto& entry : errors.replayed)
      if (entry.stream == id) seen.push_back(entry);
  }
  // Where words are not read in the stream's order, another thread's replay may be running since.
  if (device.has(TG_CAP_UNIFIED_MEMORY))
    done = done && device.driver->stream_query(device.driver->context, device.ordinal,
                                               stream_handle(device.index, id)) == TG_OK;
  std::optional<GraphErrors::Found> first;
  for (const auto& entry : seen)
    if (auto found = entry.graph->take(id, reader); found && !first) first = std::move(found);
  if (done) {
    std::lock_guard lock(errors.mutex);
    std::erase_if(errors.replayed, [&](const auto& entry) { return std::ranges::find(seen, entry) != seen.end(); });
    replays.store(std::ranges::find(errors.replayed, id, &DeviceErrors::Replayed::stream) != errors.replayed.end());
  }
  if (first) raise_if_any(first->words, first->place);
}

void raise_own(Device& device, c10::StreamId id) {
  raise_of_graphs(device, id, /*done=*/true, stream_handle(device.index, id));
  std::atomic<bool>& watched = errors_of(device.index).streams[id].watched;
  if (!watched.load(std::memory_order_acquire)) return;
  // Looking again is cheap in unified memory, and necessary where another thread's kernel is still running. Elsewhere
  // the words are read in the stream's order, so after every launch that was noted before this.
  if (!device.has(TG_CAP_UNIFIED_MEMORY)) watched.store(false);
  Report found;
  try {
    found = take_report(device, id, stream_error_words(device.index, id), stream_handle(device.index, id));
  } catch (...) {
    watched.store(true);  // nothing was learnt
    throw;
  }
  raise_if_any(found);
}

void raise_so_far(Device& device, c10::StreamId id) {
  const StreamErrors& errors = errors_of(device.index).streams[id];
  const bool watched = errors.watched.load(std::memory_order_acquire);
  if (!watched && !errors.replays.load(std::memory_order_acquire)) return;
  tg_stream reader = device.has(TG_CAP_UNIFIED_MEMORY) ? stream_handle(device.index, id) : reader_of(device);
  raise_of_graphs(device, id, /*done=*/false, reader);
  if (!watched) return;
  raise_if_any(take_report(device, id, stream_error_words(device.index, id), reader));
}

void raise_inherited(Device& device, c10::StreamId id) {
  DeviceErrors& errors = errors_of(device.index);
  StreamErrors& own = errors.streams[id];
  if (!own.follows.load(std::memory_order_acquire)) return;
  auto next = [&]() -> c10::StreamId {
    std::lock_guard lock(errors.mutex);
    for (int upstream = 0; upstream < kMaxStreams; ++upstream)
      if (own.upstream.test(upstream)) {
        own.upstream.reset(upstream);
        return upstream;
      }
    own.follows.store(false, std::memory_order_release);
    return -1;
  };
  for (c10::StreamId upstream = next(); upstream >= 0; upstream = next()) raise_so_far(device, upstream);
}

}  // namespace

int32_t error_codes(const std::vector<std::pair<std::string, bool>>& texts) {
  Messages& m = messages();
  std::lock_guard lock(m.mutex);
  auto [entry, added] = m.runs.try_emplace(texts, static_cast<int32_t>(m.texts.size()) + 1);
  if (added) m.texts.insert(m.texts.end(), texts.begin(), texts.end());
  return entry->second;
}

int32_t error_code(const std::string& message, bool is_index_error) {
  Messages& m = messages();
  std::lock_guard lock(m.mutex);
  auto [entry, added] = m.codes.try_emplace(message, static_cast<int32_t>(m.texts.size()) + 1);
  if (added) m.texts.emplace_back(message, is_index_error);
  return entry->second;
}

void* stream_error_words(c10::DeviceIndex index, c10::StreamId stream) {
  Device& device = get_device(index);
  char* words = errors_of(index).words.load(std::memory_order_acquire);
  if (!words) words = create_stream_words(device);
  return words + static_cast<uint64_t>(stream) * kWordsBytes;
}

void note_checked_launch(c10::DeviceIndex index, c10::StreamId stream) noexcept {
  errors_of(index).streams[stream].watched.store(true);
}

void raise_reported_errors(c10::DeviceIndex index, c10::StreamId stream) {
  Device& device = get_device(index);
  raise_own(device, stream);
  raise_inherited(device, stream);
}

void raise_reported_errors(c10::DeviceIndex index) {
  const StreamSet used = streams_of_thread(index);
  for (int stream = 0; stream < kMaxStreams; ++stream)
    if (used.test(stream)) raise_reported_errors(index, stream);
}

void raise_errors_reported_so_far(c10::DeviceIndex index, c10::StreamId stream) {
  Device& device = get_device(index);
  raise_so_far(device, stream);
  raise_inherited(device, stream);
}

void inherit_errors(c10::DeviceIndex index, c10::StreamId waiting, c10::StreamId awaited) {
  if (waiting == awaited) return;
  DeviceErrors& errors = errors_of(index);
  StreamErrors &to = errors.streams[waiting], &from = errors.streams[awaited];
  // A stream in which nothing has been checked has no errors that could have reached its results.
  const bool watched = from.watched.load(std::memory_order_acquire) || from.replays.load(std::memory_order_acquire);
  if (!watched && !from.follows.load(std::memory_order_acquire)) return;
  std::lock_guard lock(errors.mutex);
  to.upstream |= from.upstream;
  if (watched) to.upstream.set(awaited);
  to.upstream.reset(waiting);
  to.follows.store(to.upstream.any(), std::memory_order_release);
}

void* GraphErrors::add(std::string place) {
  const size_t place_in_block = places_.size() % kWordsPerBlock;
  if (place_in_block == 0) {
    const CaptureSuspended real;  // memory, that replays do not move
    c10::DataPtr block = allocate(device_.index, kWordsPerBlock * kWordsBytes);
    clear_words(device_, block.get(), kWordsPerBlock * kWordsBytes, reader_of(device_));
    blocks_.push_back(std::move(block));
  }
  places_.push_back(std::move(place));
  return static_cast<char*>(blocks_.back().get()) + place_in_block * kWordsBytes;
}

std::optional<GraphErrors::Found> GraphErrors::take(c10::StreamId stream, tg_stream reader) {
  std::optional<Found> first;
  std::array<Report, kWordsPerBlock> found;
  for (size_t block = 0; block < places_.size(); block += found.size()) {
    auto* words = static_cast<char*>(blocks_[block / found.size()].get());
    const size_t count = std::min(found.size(), places_.size() - block);
    read_words(device_, words, found.data(), count, reader);
    for (size_t i = 0; i < count; ++i) {
      if (found[i][0] == 0) continue;
      const Report taken = take_report(device_, stream, words + i * kWordsBytes, reader);
      if (taken[0] != 0 && !first) first = Found{taken, places_[block + i]};
    }
  }
  return first;
}

void GraphErrors::raise(c10::StreamId stream, tg_stream reader) {
  if (const auto found = take(stream, reader)) raise_if_any(found->words, found->place);
}

void note_replay(c10::DeviceIndex index, c10::StreamId stream, const std::shared_ptr<GraphErrors>& replayed) {
  DeviceErrors& errors = errors_of(index);
  std::lock_guard lock(errors.mutex);
  const auto known = std::ranges::find_if(
      errors.replayed, [&](const auto& entry) { return entry.stream == stream && entry.graph == replayed; });
  if (known == errors.replayed.end())
    errors.replayed.push_back({stream, replayed, 1});
  else
    ++known->count;
  errors.streams[stream].replays.store(true);
}

CallErrors::CallErrors(Device& device, c10::Stream stream) : device_(device), stream_(stream) {
  DeviceErrors& errors = errors_of(device.index);
  std::unique_lock lock(errors.mutex);
  if (errors.call_words.empty()) {
    lock.unlock();
    char* block = allocate_words(device, kWordsPerBlock, stream_handle(device.index, stream.id()));
    lock.lock();
    for (size_t i = 0; i < kWordsPerBlock; ++i) errors.call_words.push_back(block + i * kWordsBytes);
  }
  words_.push_back(errors.call_words.back());
  errors.call_words.pop_back();
}

void CallErrors::raise() {
  DeviceErrors& errors = errors_of(device_.index);
  {
    std::lock_guard lock(errors.mutex);
    std::erase_if(errors.abandoned, [this](const auto& entry) {
      if (entry.first == stream_.id()) words_.push_back(entry.second);
      return entry.first == stream_.id();
    });
  }
  wait_for_stream(device_, stream_.id());
  tg_stream stream = stream_handle(device_.index, stream_.id());
  const Report found = read_words(device_, words(), stream);
  for (void* used : words_)
    if (used != words() || found[0] != 0) clear_words(device_, used, kWordsBytes, stream);
  {
    std::lock_guard lock(errors.mutex);
    errors.call_words.insert(errors.call_words.end(), words_.begin(), words_.end());
  }
  words_.clear();
  raise_if_any(found);
}

CallErrors::~CallErrors() {
  DeviceErrors& errors = errors_of(device_.index);
  std::lock_guard lock(errors.mutex);
  for (void* used : words_) errors.abandoned.emplace_back(stream_.id(), used);
}

}  // namespace torchgraft
