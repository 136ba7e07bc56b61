// Collectives for any device, through a backend that knows CPU tensors.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "joined_work.h"
#include "network.h"
#include "queue.h"
#include "stage.h"
#include "work.h"

namespace torchgraft {

// A collective waits in the group's queue until the work that was queued before it on the current stream is done; then
// the inner backend has it, with the memory itself where the host can use that, and with copies elsewhere. The caller
// does not wait; and where there is nothing to wait for and nothing to copy, it asks the inner backend itself.
// `Work::wait` returns when the results are there, so that what is queued after it finds them.
class GraftBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // The ranks of a group that fails tell each other of it through the store, which may be null.
  GraftBackend(BackendPtr inner, StorePtr store, std::string name);
  ~GraftBackend() override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  // Ends every work of the group with an error, and with it the group. Whatever hangs is left to itself.
  void abort() override;
  void shutdown() override { inner_->shutdown(); }

  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  BackendPtr merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options, const int& rank,
                   const int& size) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

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
  // Asks the inner backend for all of it, or for these elements of each tensor. Such functions and what is queued hold
  // no pointer to the group, which may be gone when it has been aborted.
  struct Range {
    int64_t begin, length;
  };
  using Piece = std::optional<Range>;
  using Ask = std::function<WorkPtr(Stage&, const Piece&)>;
  struct Request {
    c10d::OpType type;
    Tensors outputs;  // what its future holds
    Tensors tensors;  // all that it touches
    Stage::Use use = Stage::Use::Moves;
    at::Tensor divisible{};  // if defined, the call can be made for parts of this tensor's elements
    Stage last{};            // to be finished after the last part
  };
  class Pieces;

  WorkPtr submit(const Request& request, Ask ask);
  // The same for those that give each rank's tensor a place of its own.
  WorkPtr fill_lists(c10d::OpType type, const TensorLists& outputs, const Tensors& inputs,
                     std::function<WorkPtr(TensorLists&, Tensors&)> ask);
  // `parts[r]` gets what rank r has given.
  WorkPtr gather_parts(const Request& request, const Tensors& parts, const Tensors& given,
                       const c10d::AllgatherOptions& options);
  // `parts[i][r]` is what rank r gets of, and gives to, the i-th tensor.
  WorkPtr reduce_parts(c10d::OpType type, const Tensors& outputs, const TensorLists& parts,
                       const c10d::ReduceScatterOptions& options);
  static void refuse_captured(c10d::OpType type, const Tensors& tensors);
  // By a network of the device's own; null where there is none that can.
  WorkPtr by_network(c10d::OpType type, const Tensors& tensors, const std::function<WorkPtr()>& call);
  void record(const Request& request, const CollectiveCall& call) const;
  void check_usable(c10d::OpType type) const;
  Group described() const;
  void remember(const c10::intrusive_ptr<GraftWork>& work);
  WorkPtr make_and_issue(const Request& request, Ask ask);
  void coalesce(const WorkPtr& work);  // where this thread has begun to; under `mutex_`
  std::optional<JoinedWork::Parts> take_coalesced();
  uint64_t next_number(c10d::OpType type);
  Tensors parts_of(const at::Tensor& tensor) const;  // one for each rank

  BackendPtr inner_;
  std::string name_;
  pid_t process_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Pieces> pieces_;
  Networks networks_;  // of the devices' own
  std::unique_ptr<Queue> queue_;
  std::mutex mutex_;  // of what follows
  std::vector<c10::weak_intrusive_ptr<GraftWork>> pending_;
  size_t pending_limit_ = 64;
  std::map<std::thread::id, JoinedWork::Parts> coalesced_;  // by threads that have begun to
  std::atomic<uint64_t> collectives_{0}, messages_{0};
  std::atomic<bool> aborted_{false};
};

}  // namespace torchgraft
