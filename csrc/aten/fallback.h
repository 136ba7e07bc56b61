// Ops without a kernel of ours run on the CPU: how that is permitted, announced and counted.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace torchgraft {

enum class FallbackMode : int { Warn = 0, Silent = 1, Error = 2 };

// Of the whole process, not of a thread: backward runs on autograd's threads and must obey what surrounds it.
void set_fallback_mode(FallbackMode mode) noexcept;
FallbackMode fallback_mode() noexcept;

struct FallbackRecord {
  std::string op;  // "aten::add.Tensor"
  uint64_t calls = 0;
  uint64_t bytes_to_host = 0, bytes_to_device = 0;  // copied; memory that the host reads in place does not count
  double seconds = 0;
  std::map<std::string, uint64_t> places;   // the user's lines, each with how often it was seen there
  std::map<std::string, uint64_t> reasons;  // why the device did not do it, each with how often; "": it has no kernel
};

std::vector<FallbackRecord> fallback_report();
// Forgets the counts; and with `warnings` also which ops have been warned of.
void reset_fallback_report(bool warnings);
// Whether to ask for the user's line at every call, not only at the first of each op.
void record_fallback_places(bool every_call) noexcept;

// What runs in place of an op that PyTorch has no kernel of the CPU for. Replaces the arguments, which are CPU tensors,
// by the results.
using HostKernel = std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)>;
void set_host_kernel(const c10::OperatorName& name, HostKernel run);

// Has an op go to the CPU that PyTorch composes of no others, but of reads of memory as if it were the host's.
void register_host_op(const c10::OperatorName& name);

// What warns of an op, or of a device, and returns whether the op is to be warned of no more; it may throw.
using WarnOfFallback = std::function<bool(const std::string& message, bool of_op)>;
void set_fallback_warning(WarnOfFallback warn);

}  // namespace torchgraft
