// The random number generator: a Philox counter for each device.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <memory>
#include <utility>

namespace torchgraft {

// Seed and offset, shared by the generators that graphsafe_set_state joins. It has a mutex of its own, so that replayed
// plans need not take the generator's.
struct PhiloxState {
  mutable std::mutex mutex;
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;

  std::pair<uint64_t, uint64_t> get() const;
  void set(uint64_t new_seed, uint64_t new_offset);
  // Takes `count` counter values (each gives four 32-bit numbers to one work-item): returns {seed, first offset}.
  std::pair<uint64_t, uint64_t> reserve(uint64_t count);
};

// Its state has 16 bytes, as CUDA's generator and DTensor lay it out.
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

  const std::shared_ptr<PhiloxState>& state() const { return state_; }

 private:
  PhiloxGenerator* clone_impl() const override;
  std::shared_ptr<PhiloxState> state_;
};

const at::Generator& default_generator(c10::DeviceIndex index);
// The state of `generator`, or of the device's default one.
const std::shared_ptr<PhiloxState>& philox_state(const std::optional<at::Generator>& generator, c10::DeviceIndex index);

}  // namespace torchgraft
