// The random number generator: a Philox counter for each device.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <memory>
#include <utility>

namespace torchgraft {

// State: seed and offset, 16 bytes as CUDA's generator and DTensor lay it out.
class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex index);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // Takes `count` counter values (each gives four 32-bit numbers to one work-item): returns {seed, first offset}. The
  // caller need not hold `mutex_`.
  std::pair<uint64_t, uint64_t> reserve(uint64_t count);

 private:
  PhiloxGenerator* clone_impl() const override;
  struct State;
  std::shared_ptr<State> state_;
};

const at::Generator& default_generator(c10::DeviceIndex index);
// Reserves from `generator`, or from the device's default one.
std::pair<uint64_t, uint64_t> reserve_philox(const std::optional<at::Generator>& generator, c10::DeviceIndex index,
                                             uint64_t count);

}  // namespace torchgraft
