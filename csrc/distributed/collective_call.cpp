#include "collective_call.h"

#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>

#include <mutex>
#include <set>
#include <sstream>

namespace torchgraft {

using c10d::OpType;

const char* name_of(OpType type) {
  switch (type) {
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLREDUCE:
      return "all_reduce";
    case OpType::ALLREDUCE_COALESCED:
      return "all_reduce_coalesced";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "all_gather_into_tensor";
    case OpType::ALLGATHER_COALESCED:
      return "all_gather_coalesced";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "reduce_scatter_tensor";
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return "reduce_scatter_tensor_coalesced";
    case OpType::ALLTOALL_BASE:
      return "all_to_all_single";
    case OpType::ALLTOALL:
      return "all_to_all";
    case OpType::SEND:
      return "send";
    case OpType::RECV:
      return "recv";
    case OpType::RECVANYSOURCE:
      return "recv from any rank";
    case OpType::BARRIER:
      return "barrier";
    case OpType::COALESCED:
      return "coalesced calls";
    default:
      return "a call";
  }
}

const char* title_of(OpType type, const std::string& backend) {
  if (!at::hasCallbacks()) return nullptr;
  static std::mutex mutex;
  static auto* titles = new std::set<std::string>;
  std::lock_guard lock(mutex);
  return titles->insert(backend + ":" + name_of(type)).first->c_str();
}

CollectiveCall::CollectiveCall(OpType type, uint64_t number, const std::vector<at::Tensor>& tensors)
    : type_(type), number_(number), tensors_(tensors.size()) {
  if (tensors.empty()) return;
  dtype_ = tensors.front().scalar_type();
  sizes_ = tensors.front().sizes();
}

std::string CollectiveCall::text() const {
  std::ostringstream text;
  text << name_of(type_) << ", call " << number_;
  if (tensors_ > 0) text << ", " << c10::getDtypeNames(dtype_).first << ' ' << at::IntArrayRef(sizes_);
  if (tensors_ > 1) text << " and " << tensors_ - 1 << " more";
  return text.str();
}

std::string CollectiveCall::text(const Group& group) const {
  std::ostringstream text;
  text << group.backend << ": " << name_of(type_) << " on rank " << group.rank << " of " << group.size << " in group "
       << (group.what.empty() ? group.name : group.what) << " (" << this->text() << ')';
  return text.str();
}

}  // namespace torchgraft
