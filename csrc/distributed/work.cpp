#include "work.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "../runtime/device.h"

namespace torchgraft {
namespace {

bool is_ours(const at::Tensor& tensor) { return tensor.device().is_privateuseone(); }

// Copies may be asked for where they are not needed, to see what they cost.
bool is_unified(const at::Tensor& tensor) {
  static const char* staged = std::getenv("TORCHGRAFT_DISTRIBUTED_STAGED");
  static const bool forced = staged != nullptr && std::string_view(staged) == "1";
  return !forced && get_device(tensor.device().index()).has(TG_CAP_UNIFIED_MEMORY);
}

// The same memory as a CPU tensor. Booleans are bytes: the inner backend has no such type.
at::Tensor host_view(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type() == at::kBool ? at::kByte : tensor.scalar_type();
  if (!is_ours(tensor)) return tensor.view(type);
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep = tensor](void*) {}, at::TensorOptions(type));
}

at::Tensor host_copy_of(const at::Tensor& tensor, bool filled) {
  const auto type = tensor.scalar_type() == at::kBool ? at::kByte : tensor.scalar_type();
  at::Tensor copy = at::empty(tensor.sizes(), at::TensorOptions(type));
  if (filled) copy.copy_(tensor);
  return copy;
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors)
    if (is_ours(tensor) && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  return devices;
}

template <typename Function>
std::vector<at::Tensor> each(const std::vector<at::Tensor>& tensors, Function function) {
  std::vector<at::Tensor> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) found.push_back(function(tensor));
  return found;
}

}  // namespace

std::vector<at::Tensor> Stage::in(const std::vector<at::Tensor>& tensors) {
  return each(tensors, [this](const at::Tensor& tensor) { return in(tensor); });
}
std::vector<at::Tensor> Stage::out(const std::vector<at::Tensor>& tensors) {
  return each(tensors, [this](const at::Tensor& tensor) { return out(tensor); });
}
std::vector<at::Tensor> Stage::both(const std::vector<at::Tensor>& tensors) {
  return each(tensors, [this](const at::Tensor& tensor) { return both(tensor); });
}

at::Tensor Stage::add(const at::Tensor& tensor, bool reads, bool writes) {
  const bool as_it_is = tensor.is_contiguous() && (!is_ours(tensor) || is_unified(tensor));
  if (as_it_is && !tensor.is_conj() && !tensor.is_neg() && tensor.layout() == at::kStrided) return host_view(tensor);
  at::Tensor host = host_copy_of(tensor, reads);
  if (writes) backs_.emplace_back(tensor, host);
  return host;
}

void Stage::finish() {
  for (const auto& task : tasks_) task();
  for (const auto& [to, from] : backs_) to.copy_(from);
}

GraftWork::GraftWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
    : Work(rank, type),
      outputs_(std::move(outputs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices_of(outputs_))) {}

void GraftWork::issued(Inner inner, Stage stage) {
  {
    std::lock_guard lock(mutex_);
    inner_ = std::move(inner);
    stage_ = std::move(stage);
    is_issued_ = true;
  }
  cv_.notify_all();
}

void GraftWork::failed(const std::exception_ptr& error) {
  std::call_once(settled_, [&] { end(error); });
}

Inner GraftWork::inner() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return is_issued_ || completed_; });
  return inner_;
}

void GraftWork::settle(const std::function<void()>& first) {
  std::call_once(settled_, [&] {
    std::exception_ptr error;
    try {
      first();
      const at::NoGradGuard no_grad;
      stage_.finish();
    } catch (...) {
      error = std::current_exception();
    }
    end(error);
  });
}

void GraftWork::end(const std::exception_ptr& error) {
  stage_ = {};
  Work::finish(error);
  if (error)
    future_->setErrorIfNeeded(error);
  else
    future_->markCompleted(outputs_);
}

bool GraftWork::isCompleted() {
  Inner inner;
  {
    std::lock_guard lock(mutex_);
    if (completed_) return true;
    if (!is_issued_) return false;
    inner = inner_;
  }
  if (!is_waited_for() || !inner->isCompleted()) return false;
  done_by_waiting(kNoTimeout);
  return true;
}

bool GraftWork::isSuccess() const {
  std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

bool GraftWork::wait(std::chrono::milliseconds timeout) {
  if (is_waited_for()) done_by_waiting(timeout);
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return completed_; };
  if (timeout == kNoTimeout)
    cv_.wait(lock, ended);  // for as long as the group's timeout lets the inner work go on
  else
    TORCH_CHECK(cv_.wait_for(lock, timeout, ended), c10d::opTypeToString(opType_), " on rank ", rank_,
                " has not ended within ", timeout.count(), " ms");
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

bool GraftWork::is_waited_for() const { return c10d::isP2POp(opType_); }

void GraftWork::done_by_waiting(std::chrono::milliseconds timeout) {
  if (const Inner inner = this->inner(); inner != nullptr) settle([&] { inner->wait(timeout); });
}

int GraftWork::sourceRank() const {
  std::lock_guard lock(mutex_);
  return inner_ == nullptr ? rank_ : inner_->sourceRank();
}

void GraftWork::abort() {
  if (const Inner inner = this->inner(); inner != nullptr) inner->abort();
}

}  // namespace torchgraft
