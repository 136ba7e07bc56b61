// Several works that are waited for as one.
#pragma once

#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace torchgraft {

class JoinedWork final : public c10d::Work {
 public:
  using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;
  JoinedWork(int rank, Parts parts) : Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // The timeout holds for each.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  void abort() override;

 private:
  const Parts parts_;
};

}  // namespace torchgraft
