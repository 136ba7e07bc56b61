// What a collective has been asked to do, and how far it is.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace torchgraft {

// The host's side of the tensors of one collective. Where the device's memory is the host's too, that is the same
// memory; otherwise it is staged: copied before and after.
class Stage {
 public:
  // The tensor as the host sees it, with what it holds now, or only with room for what comes.
  at::Tensor in(const at::Tensor& tensor) { return add(tensor, /*reads=*/true, /*writes=*/false); }
  at::Tensor out(const at::Tensor& tensor) { return add(tensor, /*reads=*/false, /*writes=*/true); }
  at::Tensor both(const at::Tensor& tensor) { return add(tensor, /*reads=*/true, /*writes=*/true); }

  std::vector<at::Tensor> in(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> out(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> both(const std::vector<at::Tensor>& tensors);

  // Something to do with the host's tensors before they are copied back.
  void then(std::function<void()> task) { tasks_.push_back(std::move(task)); }
  // Runs the tasks and copies back.
  void finish();

 private:
  at::Tensor add(const at::Tensor& tensor, bool reads, bool writes);

  std::vector<std::function<void()>> tasks_;
  std::vector<std::pair<at::Tensor, at::Tensor>> backs_;  // to, from
};

using Inner = c10::intrusive_ptr<c10d::Work>;

// A collective in the group's queue, then in the inner backend, then done.
class GraftWork final : public c10d::Work {
 public:
  GraftWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);

  // By the queue: what the inner backend is doing; or that it could not be asked.
  void issued(Inner inner, Stage stage);
  void failed(const std::exception_ptr& error);
  // The inner work is done; or it is to be waited for, once and in this thread.
  void done() {
    settle([] {});
  }
  void done_by_waiting(std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  void abort() override;

 private:
  Inner inner();                                    // waits until it is issued; null if it has failed before
  void settle(const std::function<void()>& first);  // once
  // Whether the thread that waits for it ends it.
  bool is_waited_for() const;
  void end(const std::exception_ptr& error);

  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  Inner inner_;
  Stage stage_;
  bool is_issued_ = false;
  std::once_flag settled_;
};

}  // namespace torchgraft
