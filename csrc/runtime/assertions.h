// Errors that kernels find (an index out of range) and the host raises later, at the next read of results or
// synchronisation.
#pragma once

#include <c10/core/Device.h>
#include <torchgraft/driver.h>

#include <cstdint>
#include <string>

namespace torchgraft {

// A kernel reports by writing to its device's error words: int32 words[4] = {code, index low, index high, unused},
// words[0] != 0 meaning an error (the first writer wins, by compare-and-swap of words[0] from 0; others' values do not
// matter). The device address of the words, allocated and zeroed at first use.
void* error_words(c10::DeviceIndex index);
// A code for a message; "{}" in it becomes the index that the kernel wrote. The same message gives the same code. It is
// raised as an IndexError or as a RuntimeError, as torch's CPU does for the op.
int32_t error_code(const std::string& message, bool is_index_error);
// Tells that a kernel which may report has been submitted.
void note_checked_launch(c10::DeviceIndex index) noexcept;
// Called when submitted work is known to be done: throws if a kernel reported, after clearing the words.
// Cheap where no checked kernel has run since the last call.
void raise_reported_errors(c10::DeviceIndex index);
// The same where only `idle` is known to be done (NULL: the whole device is); the words are read through it.
void raise_reported_errors(c10::DeviceIndex index, tg_stream idle);
// The same where some work is known to be done (an event has been waited for) while streams go on: the words are read
// through a stream of their own, so that nothing else is waited for unless there is an error.
void raise_errors_reported_so_far(c10::DeviceIndex index);

}  // namespace torchgraft
