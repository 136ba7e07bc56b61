#include "program.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <utility>

#include "command.h"
#include "graphs/capture.h"

namespace torchgraft {
namespace {

std::atomic<uint64_t> submitted{0};

std::vector<tg_tensor> records(const std::vector<ProgramSource::Tensor>& tensors) {
  std::vector<tg_tensor> made;
  for (const ProgramSource::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.sizes.size() == tensor.strides.size(), "a tensor has a stride for each size");
    made.push_back({sizeof(tg_tensor), tensor.element, static_cast<uint32_t>(tensor.sizes.size()),
                    tensor.is_number ? TG_TENSOR_NUMBER : 0u, tensor.sizes.data(), tensor.strides.data()});
  }
  return made;
}

tg_attribute record(const ProgramSource::Attribute& attribute) {
  tg_attribute made{};
  made.struct_size = sizeof made;
  made.name = attribute.name.c_str();
  if (const auto* integer = std::get_if<int64_t>(&attribute.value)) {
    made.kind = TG_ATTRIBUTE_INTEGER;
    made.integer = *integer;
  } else if (const auto* number = std::get_if<double>(&attribute.value)) {
    made.kind = TG_ATTRIBUTE_NUMBER;
    made.number = *number;
  } else if (const auto* text = std::get_if<std::string>(&attribute.value)) {
    made.kind = TG_ATTRIBUTE_TEXT;
    made.text = text->c_str();
  } else {
    const auto& integers = std::get<std::vector<int64_t>>(attribute.value);
    made.kind = TG_ATTRIBUTE_INTEGERS;
    made.integers = integers.data();
    made.count = static_cast<uint32_t>(integers.size());
  }
  return made;
}

std::string why(const Device& device) {
  const char* text = device.driver->last_error(device.driver->context);
  return text != nullptr && *text != 0 ? text : "the driver gave no reason";
}

}  // namespace

ProgramSource::ProgramSource(std::string format, std::string name, std::string bytes, std::vector<Attribute> attributes,
                             std::vector<Tensor> inputs, std::vector<Tensor> outputs)
    : format_(std::move(format)),
      name_(std::move(name)),
      bytes_(std::move(bytes)),
      attributes_(std::move(attributes)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      input_records_(records(inputs_)),
      output_records_(records(outputs_)) {
  for (const Attribute& each : attributes_) attribute_records_.push_back(torchgraft::record(each));
  record_.struct_size = sizeof record_;
  record_.attribute_count = static_cast<uint32_t>(attribute_records_.size());
  record_.input_count = static_cast<uint32_t>(input_records_.size());
  record_.output_count = static_cast<uint32_t>(output_records_.size());
  record_.format = format_.c_str();
  record_.name = name_.c_str();
  record_.bytes = bytes_.empty() ? nullptr : bytes_.data();
  record_.byte_count = bytes_.size();
  record_.attributes = attribute_records_.data();
  record_.inputs = input_records_.data();
  record_.outputs = output_records_.data();
}

std::optional<std::vector<uint32_t>> Program::supports(Device& device, const ProgramSource& source,
                                                       std::string& reason) {
  std::vector<uint32_t> wishes(source.tensors(), TG_WISH_NONE);
  const tg_status status =
      device.driver->program_supports(device.driver->context, device.ordinal, &source.record(), wishes.data());
  if (status == TG_ERROR_UNSUPPORTED) {
    reason = why(device);
    return std::nullopt;
  }
  check(device, status, ("ask whether it supports the program " + source.name()).c_str());
  return wishes;
}

template <class Prepare>
std::shared_ptr<Program> Program::made(Device& device, const ProgramSource& source, std::string& reason, bool& refused,
                                       Prepare prepare) {
  const std::shared_ptr<Program> made(new Program(device, source.name()));
  tg_program_info info{};
  info.struct_size = sizeof info;
  const char* log = nullptr;
  const tg_status status = prepare(&made->handle_, &info, &log);
  refused = status == TG_ERROR_COMPILE;
  if (status == TG_ERROR_UNSUPPORTED || refused) {
    reason = log != nullptr && *log != 0 ? log : why(device);
    return nullptr;
  }
  check(device, status, ("prepare the program " + source.name()).c_str());
  made->scratch_bytes_ = info.scratch_bytes;
  if ((info.flags & TG_PROGRAM_ONE_AT_A_TIME) != 0) made->alone_ = std::make_unique<std::mutex>();
  return made;
}

std::shared_ptr<Program> Program::create(Device& device, const ProgramSource& source, std::string& reason,
                                         bool& refused) {
  return made(device, source, reason, refused, [&](tg_program* out, tg_program_info* info, const char** log) {
    return device.driver->program_create(device.driver->context, device.ordinal, &source.record(), out, info, log);
  });
}

std::shared_ptr<Program> Program::load(Device& device, const ProgramSource& source, const std::string& binary,
                                       std::string& reason) {
  bool refused = false;
  return made(device, source, reason, refused, [&](tg_program* out, tg_program_info* info, const char** log) {
    // Whatever is wrong with a binary, the program can be made anew.
    const tg_status status = device.driver->program_load(device.driver->context, device.ordinal, &source.record(),
                                                         binary.data(), binary.size(), out, info, log);
    return status == TG_OK ? TG_OK : TG_ERROR_UNSUPPORTED;
  });
}

std::optional<std::string> Program::binary() const {
  const tg_driver* driver = device_.driver;
  if (driver->program_binary == nullptr) return std::nullopt;
  uint64_t bytes = 0;
  const tg_status status = driver->program_binary(driver->context, handle_, nullptr, &bytes);
  if (status == TG_ERROR_UNSUPPORTED) return std::nullopt;
  check(device_, status, ("read the binary of the program " + name_).c_str());
  std::string read(bytes, '\0');
  check(device_, driver->program_binary(driver->context, handle_, read.data(), &bytes),
        ("read the binary of the program " + name_).c_str());
  return read;
}

Program::~Program() {
  if (handle_ != nullptr && !in_bad_fork()) device_.driver->program_destroy(device_.driver->context, handle_);
}

tg_status Program::submit(tg_stream stream, c10::ArrayRef<tg_arg> addresses) const {
  c10::SmallVector<void*, 16> pointers;
  for (const tg_arg& each : addresses) pointers.push_back(place_of(each));
  const tg_run run{sizeof(tg_run), static_cast<uint32_t>(pointers.size() - 1), handle_, pointers.data(),
                   pointers.back()};
  std::optional<GilSafeLock> lock;
  if (alone_ != nullptr) lock.emplace(*alone_);
  submitted.fetch_add(1, std::memory_order_relaxed);
  return submit_run(device_, stream, run, name_);
}

uint64_t program_runs() noexcept { return submitted.load(std::memory_order_relaxed); }

void run(const Program& program, tg_stream stream, c10::ArrayRef<tg_arg> addresses, const std::string& op,
         c10::ArrayRef<RandomArgument> randoms) {
  const Device& device = program.device();
  if (capturing()) [[unlikely]]
    if (const Captured captured = capture_of(device.index, stream))
      return captured->run(captured.stream, program.shared_from_this(), addresses, op, randoms);
  const tg_status status = program.submit(stream, addresses);
  if (status != TG_OK) [[unlikely]]
    raise_status(device, status, ("run program " + program.name() + (op.empty() ? op : " of " + op)).c_str());
}

}  // namespace torchgraft
