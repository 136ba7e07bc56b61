#include "work.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <set>

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

// What the profiler calls it: "graft:all_reduce". It keeps the pointer.
const char* title_of(const CollectiveCall& call, const Group& group) {
  if (!at::hasCallbacks()) return nullptr;
  static std::mutex mutex;
  static auto* titles = new std::set<std::string>;
  std::lock_guard lock(mutex);
  return titles->insert(group.backend + ":" + name_of(call.type())).first->c_str();
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

GraftWork::GraftWork(CollectiveCall call, Group group, std::shared_ptr<Shared> shared, std::vector<at::Tensor> outputs,
                     const std::vector<at::Tensor>& tensors)
    : Work(group.rank, call.type(), title_of(call, group), tensors),
      call_(std::move(call)),
      group_(std::move(group)),
      shared_(std::move(shared)),
      outputs_(std::move(outputs)) {}

void GraftWork::follow(Inner inner, Stage stage) {
  if (is_message()) {
    {
      std::lock_guard lock(mutex_);
      message_ = std::move(inner);
      stage_ = std::move(stage);
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

void GraftWork::piece_done(Stage& stage) {
  if (ended_) return;  // another piece has failed
  try {
    stage.finish();
  } catch (...) {
    return end(refused());
  }
  if (open_.fetch_sub(1) == 1) end(nullptr);
}

std::exception_ptr GraftWork::refused() {
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(call_.text(group_));
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

void GraftWork::fail(const std::exception_ptr& error) { end(error); }

void GraftWork::aborted() { end(distributed_error(call_.text(group_) + ": the group was aborted.")); }

void GraftWork::failed(const std::exception_ptr& error) {
  if (ended_) return;
  end(distributed_error(call_.text(group_) + ": " + message_of(error) + "." + shared_->witness.account(call_.text())));
}

void GraftWork::end(const std::exception_ptr& error) {
  std::call_once(settled_, [&] {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      std::lock_guard lock(mutex_);
      is_settled_ = true;
      error_ = error;
      future = future_;
    }
    ended_ = true;
    if (future) complete(*future, error, outputs_);  // first: who has waited for the work may read it
    Work::finish(error);
  });
}

Inner GraftWork::issued_message() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return message_ || completed_; });
  return message_;
}

void GraftWork::end_message(std::chrono::milliseconds timeout) {
  const Inner message = issued_message();
  if (!message) return;
  std::call_once(awaited_, [&] {
    try {
      message->wait(timeout);
      stage_.finish();
    } catch (...) {
      return failed(std::current_exception());
    }
    end(nullptr);
  });
}

bool GraftWork::isCompleted() {
  Inner message;
  {
    std::lock_guard lock(mutex_);
    if (completed_) return true;
    message = message_;
  }
  if (!message || !message->isCompleted()) return false;
  end_message(kNoTimeout);
  return true;
}

bool GraftWork::isSuccess() const {
  std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool GraftWork::wait(std::chrono::milliseconds timeout) {
  if (is_message()) end_message(timeout);
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return completed_; };
  if (timeout == kNoTimeout)
    cv_.wait(lock, ended);  // for as long as the group's timeout lets the inner work go on
  else if (!cv_.wait_for(lock, timeout, ended))
    std::rethrow_exception(
        distributed_error(call_.text(group_) + " has not ended within " + std::to_string(timeout.count()) + " ms."));
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> GraftWork::getFuture() {
  {
    std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices_of(outputs_));
    if (is_settled_) {
      complete(*future_, error_, outputs_);  // nobody else knows it yet
      return future_;
    }
  }
  if (is_message())
    shared_->waits.push(
        [own = c10::intrusive_ptr<GraftWork>::unsafe_reclaim_from_nonowning(this)] { own->end_message(kNoTimeout); });
  return future_;
}

int GraftWork::sourceRank() const {
  std::lock_guard lock(mutex_);
  return message_ ? message_->sourceRank() : rank_;
}

void GraftWork::abort() {
  if (is_message())
    if (const Inner message = issued_message()) message->abort();
}

}  // namespace torchgraft
