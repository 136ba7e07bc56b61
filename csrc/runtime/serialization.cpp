#include "serialization.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <string>
#include <unordered_map>
#include <utility>

namespace torchgraft {
namespace {

using Map = std::unordered_map<std::string, bool>;

// Never changed once a tensor has it, so that tensors may share it: detach() and its kin copy only the pointer.
struct Fields final : c10::BackendMeta {
  explicit Fields(Map map) : map(std::move(map)) {}
  const Map map;
};

void write(const at::Tensor& tensor, Map& map) {
  if (const auto* fields = dynamic_cast<const Fields*>(tensor.unsafeGetTensorImpl()->get_backend_meta()))
    map.insert(fields->map.begin(), fields->map.end());
}

// Replaces what the tensor had. PyTorch has taken its own entries ("conj", "neg") out of the map already.
void read(const at::Tensor& tensor, Map& map) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (map.empty() && impl->get_backend_meta() == nullptr) return;
  impl->set_backend_meta(map.empty() ? nullptr : c10::make_intrusive<Fields>(map));
}

}  // namespace

void carry_backend_meta(const at::Tensor& original, const at::Tensor& copy) {
  auto meta = original.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  if (meta != nullptr) [[unlikely]]
    copy.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
}

void register_serialization() { torch::jit::TensorBackendMetaRegistry(c10::DeviceType::PrivateUse1, write, read); }

}  // namespace torchgraft
