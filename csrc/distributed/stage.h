// The host's side of the tensors of a collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace torchgraft {

// What all groups of the process have done so far.
struct Traffic {
  uint64_t calls = 0;         // collectives and messages
  uint64_t queued = 0;        // of them those that a queue's thread asked for, in place of the caller
  uint64_t copies = 0;        // between a device's memory, or a strided tensor's, and the host's
  uint64_t copied_bytes = 0;  // by them
};
Traffic traffic();
void count_call(bool queued);

// Whether this tensor's memory can be given to the inner backend as it is.
bool is_host_ready(const at::Tensor& tensor);
// Whether some device of this process has memory that the host cannot use.
bool some_device_is_staged();

// Where the device's memory is the host's too, the host's side of a tensor is the same memory; otherwise it is staged:
// copied before and after, on a stream of the copying thread's own, through pinned memory.
class Stage {
 public:
  // The inner backend knows few dtypes. It gets the others as bytes where it only moves them, and where it computes, as
  // something that comes to the same.
  enum class Use { Moves, Computes };
  explicit Stage(Use use = Use::Moves) : use_(use) {}

  // The tensor as the host sees it, with what it holds now, or only with room for what comes.
  at::Tensor in(const at::Tensor& tensor) { return add(tensor, /*reads=*/true, /*writes=*/false); }
  at::Tensor out(const at::Tensor& tensor) { return add(tensor, /*reads=*/false, /*writes=*/true); }
  at::Tensor both(const at::Tensor& tensor) { return add(tensor, /*reads=*/true, /*writes=*/true); }

  std::vector<at::Tensor> in(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> out(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> both(const std::vector<at::Tensor>& tensors);

  // Several tensors of one dtype as one after the other; the memory itself where they lie so already.
  at::Tensor joined_in(const std::vector<at::Tensor>& tensors) { return add_joined(tensors, true, false); }
  at::Tensor joined_out(const std::vector<at::Tensor>& tensors) { return add_joined(tensors, false, true); }

  // Something to do with the host's tensors before they are copied back.
  void then(std::function<void()> task) { tasks_.push_back(std::move(task)); }
  // Something else to be copied when it is finished.
  void copy_back(const at::Tensor& to, const at::Tensor& from) { backs_.emplace_back(to, from); }
  // Runs the tasks and copies back.
  void finish();

 private:
  at::Tensor add(const at::Tensor& tensor, bool reads, bool writes);
  at::Tensor add_joined(const std::vector<at::Tensor>& tensors, bool reads, bool writes);

  Use use_;
  std::vector<std::function<void()>> tasks_;
  std::vector<std::pair<at::Tensor, at::Tensor>> backs_;  // to, from
};

}  // namespace torchgraft
