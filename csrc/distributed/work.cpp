#include "work.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

namespace torchgraft {
namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors)
    if (tensor.device().is_privateuseone() &&
        std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  return devices;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& found) {
    return found.what_without_backtrace();
  } catch (const std::exception& found) {
    return found.what();
  } catch (...) {
    return "an unknown error";
  }
}

void complete(c10::ivalue::Future& future, const std::exception_ptr& error, const std::vector<at::Tensor>& outputs) {
  if (error)
    future.setErrorIfNeeded(error);
  else
    future.markCompleted(outputs);
}

std::exception_ptr distributed_error(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message));
}

}  // namespace

std::chrono::milliseconds Deadline::left() const {
  if (timeout_ == kNoTimeout) return kNoTimeout;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

GraftWork::GraftWork(CollectiveCall call, Group group, std::shared_ptr<Shared> shared, std::vector<at::Tensor> outputs,
                     const std::vector<at::Tensor>& tensors, Stage last)
    : Work(group.rank, call.type(), title_of(call.type(), group.backend), tensors),
      call_(std::move(call)),
      group_(std::move(group)),
      shared_(std::move(shared)),
      outputs_(std::move(outputs)),
      last_(std::move(last)) {}

void GraftWork::follow(Inner inner, Stage stage) {
  if (is_message()) {
    {
      std::lock_guard lock(mutex_);
      message_ = std::move(inner);
      last_ = std::move(stage);
    }
    cv_.notify_all();
    return;
  }
  open_.fetch_add(1);
  auto own = c10::intrusive_ptr<GraftWork>::unsafe_reclaim_from_nonowning(this);
  inner->getFuture()->addCallback(
      [own = std::move(own), stage = std::make_shared<Stage>(std::move(stage))](c10::ivalue::Future& done) {
        done.hasError() ? own->failed(done.exception_ptr()) : own->piece_done(*stage);
      });
}

void GraftWork::all_issued() {
  Stage nothing;
  if (!is_message()) piece_done(nothing);
}

bool GraftWork::finish(Stage& stage) {
  try {
    stage.finish();
    return true;
  } catch (...) {
    refused();
    return false;
  }
}

void GraftWork::piece_done(Stage& stage) {
  if (ended_) return;  // another piece has failed
  if (finish(stage) && open_.fetch_sub(1) == 1 && finish(last_)) end(nullptr);
}

std::exception_ptr GraftWork::refused() {
  std::exception_ptr error;
  try {
    throw;
  } catch (c10::Error& found) {
    found.add_context(call_.text(group_));
    error = std::current_exception();
  } catch (const std::runtime_error& found) {  // the inner backend's, of a connection that is lost
    error = told(found.what());
  } catch (...) {
    error = std::current_exception();
  }
  end(error);
  return error;
}

std::exception_ptr GraftWork::told(const std::string& what) const {
  return distributed_error(call_.text(group_) + ": " + what + "." + shared_->witness.account(call_.text()));
}

void GraftWork::failed(const std::exception_ptr& error) {
  if (!ended_) end(told(message_of(error)));
}

void GraftWork::aborted() {
  end(distributed_error(call_.text(group_) + ": the group was aborted."));
  Inner message;
  {
    std::lock_guard lock(mutex_);
    message = message_;
  }
  if (message) message->abort();
}

// What runs because of it may end it too: a future's callback may abort the group.
void GraftWork::end(const std::exception_ptr& error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(mutex_);
    if (is_settled_) return;
    is_settled_ = true;
    error_ = error;
    future = future_;
  }
  ended_ = true;
  std::exception_ptr ends_with = error;
  try {
    if (future) complete(*future, error, outputs_);  // first: who has waited for the work may read it
  } catch (...) {  // a device that cannot mark its stream; the inner backend's threads must not see it
    ends_with = std::current_exception();
  }
  Work::finish(ends_with);
}

bool GraftWork::claim_message(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const bool is_issued = deadline.wait(cv_, lock, [this] { return message_ || is_settled_; });
  return is_issued && !is_settled_ && !std::exchange(is_awaited_, true);
}

void GraftWork::end_message(const Deadline& deadline) {
  {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [this] { return message_ || is_settled_; });
    if (is_settled_) return;
  }
  try {
    if (!message_->wait(deadline.left())) return end(distributed_error(call_.text(group_) + ": it was aborted."));
  } catch (...) {
    return failed(std::current_exception());
  }
  if (finish(last_)) end(nullptr);
}

// The inner backend does not say whether a message has come: who asks has a thread wait for it.
bool GraftWork::isCompleted() {
  if (is_message()) getFuture();
  std::lock_guard lock(mutex_);
  return completed_ || (future_ && future_->completed());  // who has waited for the future finds the work completed
}

bool GraftWork::isSuccess() const {
  std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool GraftWork::wait(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);  // or for as long as the group's timeout lets the inner work go on
  if (is_message() && claim_message(deadline)) end_message(deadline);
  std::unique_lock lock(mutex_);
  if (!deadline.wait(cv_, lock, [this] { return completed_; }))
    std::rethrow_exception(
        distributed_error(call_.text(group_) + " has not ended within " + std::to_string(timeout.count()) + " ms."));
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> GraftWork::getFuture() {
  std::lock_guard lock(mutex_);
  if (future_) return future_;
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices_of(outputs_));
  if (is_settled_)
    complete(*future, error_, outputs_);  // nobody else knows it yet
  else if (is_message() &&
           !std::exchange(is_awaited_,
                          true))  // each in a thread of its own: one may come only after another has been answered
    std::thread([own = c10::intrusive_ptr<GraftWork>::unsafe_reclaim_from_nonowning(this)] {
      own->end_message(Deadline(kNoTimeout));
    }).detach();
  return future_ = std::move(future);
}

int GraftWork::sourceRank() const {
  std::lock_guard lock(mutex_);
  return message_ ? message_->sourceRank() : rank_;
}

void GraftWork::abort() {
  if (!is_message()) return;
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return message_ || is_settled_; });
  const Inner message = message_;
  lock.unlock();
  if (message) message->abort();
}

}  // namespace torchgraft
