// Collectives by a network of the device's own, where its driver offers one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "runtime/device.h"

namespace torchgraft {

// The networks of a group: one for each device of this process whose driver has one. All ranks must have such devices.
//
// A call waits on the device for what the current stream was given, runs on a stream of the network's own so that the
// device computes meanwhile, and is waited for by the current stream when its work is.
class Networks {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Networks(c10::intrusive_ptr<c10d::Store> store, std::string backend, int rank, int size);
  ~Networks();
  Networks(const Networks&) = delete;
  Networks& operator=(const Networks&) = delete;

  // Leaves the networks, once their calls are done; after an abort, at once. Without the GIL.
  void close(bool aborted);

  // All return null where the tensors' device has no network, or that cannot do the call: then it goes through the
  // host.
  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& operation);
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& operation);
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input);
  WorkPtr broadcast(const at::Tensor& tensor, int root);

 private:
  struct Network;
  using Call = std::function<tg_status(const Network&, tg_stream, const at::Tensor& source, const at::Tensor& target)>;
  using Reduce = decltype(tg_driver::all_reduce);

  bool offered(const at::Tensor& tensor) const;
  Network& of(c10::DeviceIndex index);
  WorkPtr run(c10d::OpType type, const at::Tensor& input, const at::Tensor& output, bool averages, const Call& call);
  // `function` reduces `parts` times as many elements as a rank gets.
  WorkPtr reduce(c10d::OpType type, const at::Tensor& input, const at::Tensor& output, int64_t parts,
                 const c10d::ReduceOp& operation, Reduce tg_driver::* function);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string backend_;  // "graft"
  const int rank_, size_;
  std::mutex mutex_;  // taken without the GIL
  std::map<c10::DeviceIndex, std::unique_ptr<Network>> networks_;
  int attempts_ = 0;  // to join one
};

}  // namespace torchgraft
