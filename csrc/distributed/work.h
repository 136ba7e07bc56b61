// What a collective has been asked to do, and how far it is.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "collective_call.h"
#include "stage.h"
#include "witness.h"

namespace torchgraft {

using Inner = c10::intrusive_ptr<c10d::Work>;

// What the works of a group share with it; they may outlive it.
struct Shared {
  explicit Shared(c10::intrusive_ptr<c10d::Store> store, int rank, int size) : witness(std::move(store), rank, size) {}

  Witness witness;
};

// How long a caller waits; kNoTimeout is for ever.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout)
      : timeout_(timeout), end_(Clock::now() + std::min(timeout, std::chrono::milliseconds(std::chrono::years(1)))) {}

  // What is left of it, not less than a millisecond; kNoTimeout where there is no end.
  std::chrono::milliseconds left() const;
  // Returns whether it came to be so.
  template <typename Condition>
  bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Condition condition) const {
    if (timeout_ != kNoTimeout) return changed.wait_until(lock, end_, condition);
    changed.wait(lock, condition);
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point end_;
};

// A collective in the group's queue, then in the inner backend in one piece or several, then done.
class GraftWork final : public c10d::Work {
 public:
  GraftWork(CollectiveCall call, Group group, std::shared_ptr<Shared> shared, std::vector<at::Tensor> outputs,
            const std::vector<at::Tensor>& tensors, Stage last);

  // By whoever asks the inner backend: it has begun with a piece; it has all of them.
  void follow(Inner inner, Stage stage);
  void all_issued();
  // It could not be asked, for the reason that is being thrown: ends it with that, and the call's name in it, which is
  // returned.
  std::exception_ptr refused();
  // Ends it with an error, unless it has ended, and wakes who waits for the message.
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
  // Whether this thread is to wait for the message, which is issued, and end the work: one does.
  bool claim_message(const Deadline& deadline);
  void end_message(const Deadline& deadline);

  bool finish(Stage& stage);  // whether that went well
  void piece_done(Stage& stage);
  std::exception_ptr told(const std::string& what) const;  // with what the other ranks say
  void failed(const std::exception_ptr& error);            // in the inner backend
  void end(const std::exception_ptr& error);               // unless it has ended

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
  Stage last_;               // to be finished after the last piece; a message's own
  bool is_awaited_ = false;  // the message: some thread has claimed it
};

}  // namespace torchgraft
