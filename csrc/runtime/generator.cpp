#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBase.h>

#include <array>
#include <atomic>
#include <cstring>

#include "device.h"
#include "graphs/capture.h"
#include "stream.h"

namespace torchgraft {

std::pair<uint64_t, uint64_t> PhiloxState::get() const {
  std::lock_guard lock(mutex);
  return {seed, offset};
}

void PhiloxState::set(uint64_t new_seed, uint64_t new_offset) {
  std::lock_guard lock(mutex);
  seed = new_seed;
  offset = new_offset;
}

std::pair<uint64_t, uint64_t> PhiloxState::reserve(uint64_t count) {
  std::lock_guard lock(mutex);
  return {seed, std::exchange(offset, offset + count)};
}

namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

// A graph has a share of what is drawn when it is replayed: the state meanwhile is not that of its ops.
void refuse_state_in_capture(c10::DeviceIndex index) {
  if (capturing()) [[unlikely]]
    refuse_in_capture(index, current_stream(index).id(), "reading or setting a generator's state or seed");
}

}  // namespace

PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex index)
    : GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, index),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::make_shared<PhiloxState>()) {}

void PhiloxGenerator::set_current_seed(uint64_t seed) {
  refuse_state_in_capture(device_.index());
  state_->set(seed, 0);
}
void PhiloxGenerator::set_offset(uint64_t offset) {
  refuse_state_in_capture(device_.index());
  std::lock_guard lock(state_->mutex);
  state_->offset = offset;
}
uint64_t PhiloxGenerator::get_offset() const { return state_->get().second; }
uint64_t PhiloxGenerator::current_seed() const { return state_->get().first; }

uint64_t PhiloxGenerator::seed() {
  uint64_t random = c10::detail::getNonDeterministicRandom();
  set_current_seed(random);
  return random;
}

void PhiloxGenerator::set_state(const c10::TensorImpl& state) {
  refuse_state_in_capture(device_.index());
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "the state of a ", backend_name(), " generator has ", kStateBytes,
              " bytes (seed and offset), not ", state.numel());
  uint64_t values[2];
  std::memcpy(values, state.data(), sizeof(values));
  state_->set(values[0], values[1]);
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  refuse_state_in_capture(device_.index());
  auto [seed, offset] = state_->get();
  uint64_t values[2] = {seed, offset};
  at::TensorBase state = at::detail::empty_cpu({kStateBytes}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.mutable_data_ptr(), values, sizeof(values));
  return state.getIntrusivePtr();
}

void PhiloxGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<PhiloxGenerator*>(state.get());
  TORCH_CHECK(other, "graphsafe_set_state: not a ", backend_name(), " generator");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> PhiloxGenerator::graphsafe_get_state() const {
  auto copy = c10::make_intrusive<PhiloxGenerator>(device_.index());
  copy->state_ = state_;
  return copy;
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  auto* copy = new PhiloxGenerator(device_.index());
  auto [seed, offset] = state_->get();
  copy->state_->set(seed, offset);
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  // One for each device, kept for ever.
  static auto* generators = new std::array<std::pair<std::once_flag, at::Generator>, kMaxDevices>;
  if (index < 0) index = current_device();
  get_device(index);
  auto& [once, generator] = (*generators)[index];
  std::call_once(once, [&g = generator, index] { g = at::make_generator<PhiloxGenerator>(index); });
  return generator;
}

const std::shared_ptr<PhiloxState>& philox_state(const std::optional<at::Generator>& generator,
                                                 c10::DeviceIndex index) {
  const at::Generator& chosen = generator && generator->defined() ? *generator : default_generator(index);
  auto* philox = dynamic_cast<PhiloxGenerator*>(chosen.unsafeGetGeneratorImpl());
  TORCH_CHECK(philox, "expected a '", backend_name(), "' device type for generator but found '",
              c10::DeviceTypeName(chosen.device().type(), true), "'");
  return philox->state();
}

}  // namespace torchgraft
