// What a group is asked for, for its messages and for profiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace torchgraft {

struct Group {
  std::string backend;  // "graft"
  std::string name;     // as torch calls it
  std::string what;     // "default_pg": what torch says that it is for
  int rank;
  int size;
};

// "all_reduce": the name that programs know it by.
const char* name_of(c10d::OpType type);

// "graft:all_reduce": what the profiler calls it, which keeps the pointer; null where there is no profiler.
const char* title_of(c10d::OpType type, const std::string& backend);

class CollectiveCall {
 public:
  CollectiveCall(c10d::OpType type, uint64_t number, const std::vector<at::Tensor>& tensors);

  c10d::OpType type() const { return type_; }
  uint64_t number() const { return number_; }
  // "all_reduce, call 12, float32 [3, 4]"
  std::string text() const;
  // The same with group and rank.
  std::string text(const Group& group) const;

 private:
  c10d::OpType type_;
  uint64_t number_;  // of the group's calls of this kind, collectives or messages, from 1
  size_t tensors_;
  c10::ScalarType dtype_ = at::kFloat;
  at::DimVector sizes_;  // of the first tensor
};

}  // namespace torchgraft
