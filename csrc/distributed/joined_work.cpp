#include "joined_work.h"

#include <algorithm>
#include <atomic>

namespace torchgraft {

bool JoinedWork::isCompleted() {
  bool all = true;
  for (const auto& part : parts_) all = part->isCompleted() && all;  // each: a message may need to be looked at
  return all;
}

bool JoinedWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr JoinedWork::exception() const {
  for (const auto& part : parts_)
    if (auto error = part->exception()) return error;
  return nullptr;
}

bool JoinedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part->wait(timeout);
  return true;
}

std::vector<at::Tensor> JoinedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    const auto found = part->result();
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> JoinedWork::getFuture() {
  std::vector<c10::Device> devices;
  const std::vector<at::Tensor> tensors = result();
  for (const at::Tensor& tensor : tensors)
    if (!tensor.is_cpu() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
      devices.push_back(tensor.device());
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::move(devices));
  auto open = std::make_shared<std::atomic<size_t>>(parts_.size());
  if (parts_.empty()) future->markCompleted(tensors);
  for (const auto& part : parts_)
    part->getFuture()->addCallback([=](c10::ivalue::Future& done) {
      if (done.hasError()) future->setErrorIfNeeded(done.exception_ptr());
      if (open->fetch_sub(1) == 1 && !future->hasError()) future->markCompleted(tensors);
    });
  return future;
}

void JoinedWork::abort() {
  for (const auto& part : parts_) part->abort();
}

}  // namespace torchgraft
