// Errors that kernels find (an index out of range) and the host raises later.
//
// An error belongs to the stream whose kernel found it, and is raised by the next wait for that stream or read through
// it, nowhere else. Where a call waits for its kernels itself, it belongs to the call: see CallErrors.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <torchgraft/driver.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace torchgraft {

// A kernel reports by writing to the error words that it is given: int32 words[4] = {code, index low, index high,
// unused}, words[0] != 0 meaning an error (the first writer wins, by compare-and-swap of words[0] from 0; others'
// values do not matter).

// A code for a message; "{}" in it becomes the index that the kernel wrote. The same message gives the same code. It is
// raised as an IndexError or as a RuntimeError, as torch's CPU does for the op.
int32_t error_code(const std::string& message, bool is_index_error);

// The first of consecutive codes for several messages.
int32_t error_codes(const std::vector<std::pair<std::string, bool>>& messages);

// The device address of a stream's words, allocated and zeroed at first use.
void* stream_error_words(c10::DeviceIndex index, c10::StreamId stream);
// Tells that a kernel which may report to the stream's words has been submitted.
void note_checked_launch(c10::DeviceIndex index, c10::StreamId stream) noexcept;
// Called when the work submitted to a stream so far is known to be done: throws what its kernels have reported, or
// those of streams that it has waited for. Cheap where no checked kernel has run since the last call.
void raise_reported_errors(c10::DeviceIndex index, c10::StreamId stream);
// The same where all work of the device is known to be done, for the streams that the calling thread has used: those of
// other threads keep their errors.
void raise_reported_errors(c10::DeviceIndex index);
// The same where some work of a stream is known to be done (an event has been waited for) and more may be running,
// which is only waited for if there is an error.
void raise_errors_reported_so_far(c10::DeviceIndex index, c10::StreamId stream);
// Tells that one stream waits for what another was given so far: its results may come from there, and so its errors.
void inherit_errors(c10::DeviceIndex index, c10::StreamId waiting, c10::StreamId awaited);

// The words of a graph's kernels, each with words of its own so that it is known which of them found the error.
class GraphErrors {
 public:
  explicit GraphErrors(Device& device) : device_(device) {}
  // Words for one more kernel; `place` says in messages which one it is. Called while the graph is captured.
  void* add(std::string place);
  struct Found {
    std::array<int32_t, 4> words;
    std::string place;
  };
  // What the kernels of replays on the stream have reported, looked at through `reader`, is taken out of the words;
  // returns the first of it.
  std::optional<Found> take(c10::StreamId stream, tg_stream reader);
  // The same, thrown.
  void raise(c10::StreamId stream, tg_stream reader);

 private:
  Device& device_;
  std::vector<c10::DataPtr> blocks_;
  std::vector<std::string> places_;
};
// Tells that a graph whose kernels may report has been replayed on the stream.
void note_replay(c10::DeviceIndex index, c10::StreamId stream, const std::shared_ptr<GraphErrors>& errors);

// The words of one call, for devices on which a call with checked kernels waits for them: so the error comes from the
// line that caused it, whatever other threads do on the same stream.
class CallErrors {
 public:
  CallErrors(Device& device, c10::Stream stream);
  // Where the call has failed before its wait (by Ctrl-C, say) its kernels may still report: a later call of the stream
  // takes care of the words.
  ~CallErrors();
  CallErrors(const CallErrors&) = delete;
  CallErrors& operator=(const CallErrors&) = delete;

  void* words() const { return words_[0]; }
  // Waits for the call's kernels and throws what they have reported.
  void raise();

 private:
  Device& device_;
  c10::Stream stream_;
  std::vector<void*> words_;  // its own, then those of calls that failed before they had waited; none once it is over
};

}  // namespace torchgraft
