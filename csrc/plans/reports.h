// Where the kernels of one call report errors (see runtime/assertions.h), by who raises them: the graph into which the
// call is captured, the call itself, or whoever waits for the stream.
#pragma once

#include <c10/core/Stream.h>

#include <optional>
#include <string>

#include "graphs/capture.h"
#include "runtime/assertions.h"
#include "runtime/device.h"

namespace torchgraft {

class Reports {
 public:
  Reports(Device& device, c10::Stream stream, const Captured& captured)
      : device_(device), stream_(stream), captured_(captured) {}

  // The words for a kernel of the op.
  void* words(const std::string& op) {
    if (captured_) [[unlikely]]
      return captured_->error_words(op);
    // A CPU's kernels share its cores with the caller, so that waiting for the few that look at what they are given
    // costs little; and the error comes from the line that caused it.
    if (device_.properties.kind != TG_DEVICE_CPU) return stream_error_words(device_.index, stream_.id());
    if (!errors_) errors_.emplace(device_, stream_);
    return errors_->words();
  }
  // Tells that the kernel has been submitted.
  void submitted() const {
    if (!errors_ && !captured_) note_checked_launch(device_.index, stream_.id());
  }
  // Behind the call's last kernel: waits for them, where the errors are the call's own, and throws the first.
  void raise() {
    if (errors_) errors_->raise();
  }

 private:
  Device& device_;
  c10::Stream stream_;
  const Captured& captured_;
  std::optional<CallErrors> errors_;
};

}  // namespace torchgraft
