#include "network.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <string>

#include "collective_call.h"
#include "memory/allocator.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace torchgraft {

using c10d::OpType;
using c10d::ReduceOp;

namespace {

std::optional<tg_element> element_of(c10::ScalarType type) {
  switch (type) {
    case at::kByte:
      return TG_ELEMENT_U8;
    case at::kChar:
      return TG_ELEMENT_I8;
    case at::kShort:
      return TG_ELEMENT_I16;
    case at::kInt:
      return TG_ELEMENT_I32;
    case at::kLong:
      return TG_ELEMENT_I64;
    case at::kHalf:
      return TG_ELEMENT_F16;
    case at::kBFloat16:
      return TG_ELEMENT_BF16;
    case at::kFloat:
      return TG_ELEMENT_F32;
    case at::kDouble:
      return TG_ELEMENT_F64;
    default:
      return std::nullopt;
  }
}

// An average is a sum that is divided afterwards.
std::optional<tg_reduction> reduction_of(const ReduceOp& operation) {
  switch (operation) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
      return TG_SUM;
    case ReduceOp::PRODUCT:
      return TG_PRODUCT;
    case ReduceOp::MIN:
      return TG_MINIMUM;
    case ReduceOp::MAX:
      return TG_MAXIMUM;
    default:
      return std::nullopt;
  }
}

class InStream {
 public:
  explicit InStream(c10::Stream stream) : before_(exchange_stream(stream)) {}
  ~InStream() { exchange_stream(before_); }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;

 private:
  const c10::Stream before_;
};

// What was given to a stream of the network's; it is waited for by streams, not by the host.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(int rank, OpType type, const char* title, c10::Stream stream, const at::Tensor& output)
      : Work(rank, type, title, std::vector<at::Tensor>{output}),
        stream_(stream),
        outputs_{output},
        done_(create_event(stream.device_index(), false)) {
    record_event(*done_, stream);
  }
  ~DeviceWork() override { finish(); }

  bool isCompleted() override { return query_event(*done_); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    wait_event(*done_, current_stream(stream_.device_index()));
    finish();  // the profiler's row
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                           std::vector<c10::Device>{stream_.device()});
    const InStream marked(stream_);  // by the future
    future->markCompleted(at::IValue(outputs_));
    return future;
  }

 private:
  const c10::Stream stream_;
  const std::vector<at::Tensor> outputs_;
  const EventPtr done_;
};

}  // namespace

struct Networks::Network {
  Network(Device& device, c10d::Store& store, int rank, int size, int attempt)
      : device(device), stream(new_stream(device.index, /*priority=*/-1)) {
    const std::string key = "network/" + std::to_string(attempt);
    std::vector<uint8_t> id(256);
    if (rank == 0) {
      uint64_t bytes = id.size();
      check(device, device.driver->group_id(device.driver->context, device.ordinal, id.data(), &bytes),
            "naming a group of the network");
      id.resize(bytes);
      store.set(key, id);
    } else {
      id = store.get(key);
    }
    check(device,
          device.driver->group_create(device.driver->context, device.ordinal, id.data(), id.size(), rank, size, &group),
          "joining a group of the network");
  }
  ~Network() {
    if (!in_bad_fork()) device.driver->group_destroy(device.driver->context, device.ordinal, group);
  }

  Device& device;
  const c10::Stream stream;
  tg_group group = nullptr;
};

Networks::Networks(c10::intrusive_ptr<c10d::Store> store, std::string backend, int rank, int size)
    : store_(std::move(store)), backend_(std::move(backend)), rank_(rank), size_(size) {}
Networks::~Networks() = default;

void Networks::close(bool aborted) {
  for (const auto& [index, network] : networks_) {
    try {
      if (!aborted) synchronize_stream(network->stream);
    } catch (const c10::Error&) {  // of the calls, which tell it to whoever waits for them; nobody waits for this
    }
  }
  networks_.clear();
}

// All ranks must come to the same answer.
bool Networks::offered(const at::Tensor& tensor) const {
  return store_ != nullptr && tensor.is_privateuseone() && tensor.layout() == c10::kStrided && tensor.numel() != 0 &&
         get_device(tensor.device().index()).driver->group_create != nullptr;
}

Networks::Network& Networks::of(c10::DeviceIndex index) {
  const GilSafeLock lock(mutex_);
  const auto found = networks_.find(index);
  if (found != networks_.end()) return *found->second;
  auto network = std::make_unique<Network>(get_device(index), *store_, rank_, size_, ++attempts_);
  return *networks_.emplace(index, std::move(network)).first->second;
}

// `call` is given the tensors' memory, contiguous; what was made so for the output is copied back behind it.
Networks::WorkPtr Networks::run(OpType type, const at::Tensor& input, const at::Tensor& output, bool averages,
                                const Call& call) {
  if (!offered(input) || !offered(output)) return nullptr;
  const c10::DeviceIndex index = input.device().index();
  const Network& network = of(index);
  const c10::Stream stream = network.stream;
  const at::Tensor source = input.contiguous();
  const at::Tensor target = output.is_same(input)    ? source
                            : output.is_contiguous() ? output
                                                     : at::empty_like(output, at::MemoryFormat::Contiguous);
  const EventPtr before(create_event(index, /*timing=*/false));
  record_event(*before, current_stream(index));
  wait_event(*before, stream);
  const tg_status status = call(network, stream_handle(index, stream.id()), source, target);
  if (status == TG_ERROR_UNSUPPORTED) return nullptr;
  check(network.device, status, name_of(type));
  for (const at::Tensor& tensor : {source, target, output})
    device_allocator()->recordStream(tensor.storage().data_ptr(), stream);
  {
    const InStream behind(stream);
    if (averages) target.div_(size_);
    if (!target.is_same(output)) output.copy_(target);
  }
  return c10::make_intrusive<DeviceWork>(rank_, type, title_of(type, backend_), stream, output);
}

Networks::WorkPtr Networks::reduce(OpType type, const at::Tensor& input, const at::Tensor& output, int64_t parts,
                                   const c10d::ReduceOp& operation, Reduce tg_driver::* function) {
  const auto element = element_of(input.scalar_type());
  const auto reduction = reduction_of(operation);
  const bool averages = operation == ReduceOp::AVG;
  if (!element || !reduction || (averages && !at::isFloatingType(input.scalar_type())) ||
      output.scalar_type() != input.scalar_type() || input.numel() != output.numel() * parts)
    return nullptr;
  return run(type, input, output, averages,
             [&](const Network& network, tg_stream stream, const at::Tensor& source, const at::Tensor& target) {
               const tg_driver& driver = *network.device.driver;
               return (driver.*function)(driver.context, network.device.ordinal, network.group, stream,
                                         source.data_ptr(), target.data_ptr(), static_cast<uint64_t>(target.numel()),
                                         *element, *reduction);
             });
}

Networks::WorkPtr Networks::all_reduce(const at::Tensor& tensor, const ReduceOp& operation) {
  return reduce(OpType::ALLREDUCE, tensor, tensor, 1, operation, &tg_driver::all_reduce);
}

Networks::WorkPtr Networks::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                           const ReduceOp& operation) {
  return reduce(OpType::_REDUCE_SCATTER_BASE, input, output, size_, operation, &tg_driver::reduce_scatter);
}

Networks::WorkPtr Networks::all_gather(const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type() || output.numel() != input.numel() * size_) return nullptr;
  return run(OpType::_ALLGATHER_BASE, input, output, false,
             [&](const Network& network, tg_stream stream, const at::Tensor& source, const at::Tensor& target) {
               const tg_driver& driver = *network.device.driver;
               return driver.all_gather(driver.context, network.device.ordinal, network.group, stream,
                                        source.data_ptr(), target.data_ptr(), source.nbytes());
             });
}

Networks::WorkPtr Networks::broadcast(const at::Tensor& tensor, int root) {
  return run(OpType::BROADCAST, tensor, tensor, false,
             [&](const Network& network, tg_stream stream, const at::Tensor& memory, const at::Tensor&) {
               const tg_driver& driver = *network.device.driver;
               return driver.broadcast(driver.context, network.device.ordinal, network.group, stream, memory.data_ptr(),
                                       memory.nbytes(), root);
             });
}

}  // namespace torchgraft
