// Programs: what a device prepares from a description and shapes, and runs with addresses.
#pragma once

#include <c10/util/ArrayRef.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "device.h"

namespace torchgraft {

struct RandomArgument;

// What the driver is given, with the memory that its records point to.
class ProgramSource {
 public:
  struct Tensor {
    uint32_t element = 0;  // tg_element; 0: not given
    bool is_number = false;
    std::vector<int64_t> sizes, strides;
  };
  struct Attribute {
    std::string name;
    std::variant<int64_t, double, std::string, std::vector<int64_t>> value;
  };

  ProgramSource(std::string format, std::string name, std::string bytes, std::vector<Attribute> attributes,
                std::vector<Tensor> inputs, std::vector<Tensor> outputs);
  ProgramSource(const ProgramSource&) = delete;
  ProgramSource& operator=(const ProgramSource&) = delete;

  const std::string& name() const { return name_; }
  size_t tensors() const { return inputs_.size() + outputs_.size(); }
  const tg_program_source& record() const { return record_; }

 private:
  const std::string format_, name_, bytes_;
  const std::vector<Attribute> attributes_;
  const std::vector<Tensor> inputs_, outputs_;
  std::vector<tg_attribute> attribute_records_;
  std::vector<tg_tensor> input_records_, output_records_;
  tg_program_source record_{};
};

class Program : public std::enable_shared_from_this<Program> {
 public:
  // What the device would rather have, a tg_wish a tensor; nothing, with the reason, if it cannot.
  static std::optional<std::vector<uint32_t>> supports(Device& device, const ProgramSource& source,
                                                       std::string& reason);
  // NULL, with the reason, if it cannot; `refused` tells whether it should have. Throws for any other failure.
  static std::shared_ptr<Program> create(Device& device, const ProgramSource& source, std::string& reason,
                                         bool& refused);
  // The same of what binary() gave, on a device whose driver keeps binaries.
  static std::shared_ptr<Program> load(Device& device, const ProgramSource& source, const std::string& binary,
                                       std::string& reason);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Device& device() const { return device_; }
  tg_program handle() const { return handle_; }
  const std::string& name() const { return name_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  // What can be kept on disk, if anything can.
  std::optional<std::string> binary() const;

  // Submits a run: addresses of inputs and outputs, or numbers, and behind them the address of the scratch.
  tg_status submit(tg_stream stream, c10::ArrayRef<tg_arg> addresses) const;

 private:
  Program(Device& device, std::string name) : device_(device), name_(std::move(name)) {}
  // NULL, with the reason, where `prepare` cannot.
  template <class Prepare>
  static std::shared_ptr<Program> made(Device& device, const ProgramSource& source, std::string& reason, bool& refused,
                                       Prepare prepare);

  Device& device_;
  const std::string name_;
  tg_program handle_ = nullptr;
  uint64_t scratch_bytes_ = 0;
  mutable std::unique_ptr<std::mutex> alone_;  // of one that runs one at a time
};

// How many runs have been submitted to all devices.
uint64_t program_runs() noexcept;

// Where a run finds an argument: at its address, or, a number, where it is.
inline void* place_of(const tg_arg& argument) {
  return argument.is_pointer != 0 ? argument.value.pointer : const_cast<unsigned char*>(argument.value.bytes);
}

// Runs a program on a stream of its device, or records it: the one way by which programs are run. `addresses` as of
// Program::submit; `op` is who wants it, for messages; `randoms` are those numbers that a captured run takes anew.
void run(const Program& program, tg_stream stream, c10::ArrayRef<tg_arg> addresses, const std::string& op,
         c10::ArrayRef<RandomArgument> randoms = {});

}  // namespace torchgraft
