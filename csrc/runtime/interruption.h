// Ctrl-C while the host waits for a device.
#pragma once

#include "device.h"

namespace torchgraft {

// Whether waits of the calling thread can be made in pieces, between which Ctrl-C is looked for.
bool can_interrupt(const Device& device) noexcept;
// The host waits for an event or a stream, in such pieces if it can. What was queued goes on after a KeyboardInterrupt.
tg_status wait_interruptibly(const Device& device, tg_event event);
tg_status wait_interruptibly(const Device& device, tg_stream stream);

}  // namespace torchgraft
