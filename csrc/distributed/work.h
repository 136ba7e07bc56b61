// What a collective has been asked to do, and how far it is.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "collective_call.h"
#include "queue.h"
#include "stage.h"
#include "witness.h"

namespace torchgraft {

using Inner = c10::intrusive_ptr<c10d::Work>;

// What the works of a group share with it; they may outlive it.
struct Shared {
  explicit Shared(c10::intrusive_ptr<c10d::Store> store, int rank, int size) : witness(std::move(store), rank, size) {}

  Witness witness;
  Queue waits;  // for the works of messages whose future somebody wants
};

// A collective in the group's queue, then in the inner backend in one piece or several, then done.
class GraftWork final : public c10d::Work {
 public:
  GraftWork(CollectiveCall call, Group group, std::shared_ptr<Shared> shared, std::vector<at::Tensor> outputs,
            const std::vector<at::Tensor>& tensors);

  // By whoever asks the inner backend: it has begun with a piece; it has all of them.
  void follow(Inner inner, Stage stage);
  void all_issued();
  // It could not be asked, for the reason that is being thrown: returns that with the call's name in it.
  std::exception_ptr refused();
  // Ends it with an error, unless it has ended.
  void fail(const std::exception_ptr& error);
  void aborted();

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  void abort() override;
  uint64_t getSequencenumber() const override { return call_.number(); }

 private:
  // One may wait for what is sent after another has ended: messages are ended by whoever waits for them.
  bool is_message() const { return c10d::isP2POp(opType_); }
  void end_message(std::chrono::milliseconds timeout);
  Inner issued_message();  // waits until it is issued; null if it has failed before

  void piece_done(Stage& stage);
  void failed(const std::exception_ptr& error);  // in the inner backend: says what the other ranks did
  void end(const std::exception_ptr& error);     // once

  const CollectiveCall call_;
  const Group group_;
  const std::shared_ptr<Shared> shared_;
  const std::vector<at::Tensor> outputs_;
  std::atomic<int64_t> open_{1};  // pieces that are not done, and the asking
  std::atomic<bool> ended_{false};
  Inner message_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made when somebody wants it: completing it marks streams
  bool is_settled_ = false;                         // and with `error_`; its future is, or becomes, complete
  std::exception_ptr error_;
  Stage stage_;  // of the message
  std::once_flag settled_, awaited_;
};

}  // namespace torchgraft
