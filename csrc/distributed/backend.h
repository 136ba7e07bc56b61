// Collectives for any device, through a backend that knows CPU tensors.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "../runtime/event.h"
#include "work.h"

namespace torchgraft {

// Runs tasks one after the other in a thread of its own: every rank has to ask for its collectives in one order.
class Queue {
 public:
  Queue();
  ~Queue();  // after the tasks that are left
  void push(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ends_ = false;
  std::thread thread_;
};

// A collective waits in the group's queue until the work that was queued before it on the current stream is done; then
// the inner backend has it, with the memory itself where the host can use that, and with copies elsewhere. The caller
// does not wait. `Work::wait` returns when the results are there, so that what is queued after it finds them.
class GraftBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  GraftBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string name);

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  using Ask = std::function<WorkPtr(Stage&)>;
  // Queues a collective: `tensors` are all that it touches, `outputs` those that its future holds.
  WorkPtr submit(c10d::OpType type, Tensors outputs, const Tensors& tensors, Ask ask);
  // The same for those that give each rank's tensor a place of its own.
  WorkPtr fill_lists(c10d::OpType type, const TensorLists& outputs, const Tensors& inputs,
                     std::function<WorkPtr(TensorLists&, Tensors&)> ask);
  // Has a work end when the inner backend's does.
  void follow(const c10::intrusive_ptr<GraftWork>& work, const WorkPtr& inner);
  // The inner backend knows sums only: divides them where an average is asked for.
  c10d::ReduceOp without_average(Stage& stage, const c10d::ReduceOp& op, const Tensors& results) const;

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::string name_;
  Queue waits_;  // for works that tell nobody when they are done
  Queue queue_;  // the last member: it ends before what its tasks use
};

}  // namespace torchgraft
