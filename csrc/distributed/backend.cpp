#include "backend.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "../runtime/stream.h"

namespace torchgraft {

using c10d::OpType;
using Tensors = GraftBackend::Tensors;

namespace {

// Marks in the current streams of the devices that tensors lie on.
std::vector<std::shared_ptr<Event>> marks(const Tensors& tensors) {
  std::vector<std::shared_ptr<Event>> events;
  StreamSet seen;  // by device
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    if (!device.is_privateuseone() || seen.test(size_t(device.index()))) continue;
    seen.set(size_t(device.index()));
    EventPtr event(create_event(device.index(), /*timing=*/false));
    record_event(*event, current_stream(device.index()));
    events.emplace_back(std::move(event));
  }
  return events;
}

Tensors flattened(const GraftBackend::TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Tensors joined(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <typename Function>
GraftBackend::TensorLists each_list(const GraftBackend::TensorLists& lists, Function function) {
  GraftBackend::TensorLists found;
  found.reserve(lists.size());
  for (const Tensors& list : lists) found.push_back(function(list));
  return found;
}

}  // namespace

Queue::Queue() : thread_([this] { run(); }) {}

Queue::~Queue() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Queue::push(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Queue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // its tensors go before the next task is waited for
    lock.lock();
  }
}

GraftBackend::GraftBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string name)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), name_(std::move(name)) {}

GraftBackend::WorkPtr GraftBackend::submit(OpType type, Tensors outputs, const Tensors& tensors, Ask ask) {
  auto work = c10::make_intrusive<GraftWork>(rank_, type, std::move(outputs));
  queue_.push([this, work, before = marks(tensors), ask = std::move(ask)] {
    try {
      const at::NoGradGuard no_grad;
      for (const auto& event : before) synchronize_event(*event);
      Stage stage;
      WorkPtr inner = ask(stage);
      work->issued(inner, std::move(stage));
      follow(work, inner);
    } catch (...) {
      work->failed(std::current_exception());
    }
  });
  return work;
}

void GraftBackend::follow(const c10::intrusive_ptr<GraftWork>& work, const WorkPtr& inner) {
  switch (work->retrieveOpType()) {
    case OpType::SEND:
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return;  // one may wait for what is sent after another has ended: whoever waits for it ends it
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:  // without a future in the inner backend
      return waits_.push([work] { work->done_by_waiting(kNoTimeout); });
    default:
      inner->getFuture()->addCallback(
          [work](c10::ivalue::Future& done) { done.hasError() ? work->failed(done.exception_ptr()) : work->done(); });
  }
}

c10d::ReduceOp GraftBackend::without_average(Stage& stage, const c10d::ReduceOp& op, const Tensors& results) const {
  if (op != c10d::ReduceOp::AVG) return op;
  stage.then([results, size = size_] {
    for (at::Tensor result : results) result.div_(size);
  });
  return c10d::ReduceOp::SUM;
}

GraftBackend::WorkPtr GraftBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return submit(OpType::BROADCAST, tensors, tensors, [=, this](Stage& stage) {
    Tensors host = stage.both(tensors);
    return inner_->broadcast(host, options);
  });
}

GraftBackend::WorkPtr GraftBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return submit(OpType::ALLREDUCE, tensors, tensors, [=, this](Stage& stage) {
    Tensors host = stage.both(tensors);
    c10d::AllreduceOptions own = options;
    own.reduceOp = without_average(stage, options.reduceOp, host);
    return inner_->allreduce(host, own);
  });
}

GraftBackend::WorkPtr GraftBackend::allreduce_coalesced(Tensors& tensors,
                                                        const c10d::AllreduceCoalescedOptions& options) {
  return submit(OpType::ALLREDUCE_COALESCED, tensors, tensors, [=, this](Stage& stage) {
    Tensors host = stage.both(tensors);
    c10d::AllreduceCoalescedOptions own = options;
    own.reduceOp = without_average(stage, options.reduceOp, host);
    return inner_->allreduce_coalesced(host, own);
  });
}

GraftBackend::WorkPtr GraftBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return submit(OpType::REDUCE, tensors, tensors, [=, this](Stage& stage) {
    Tensors host = stage.both(tensors);
    c10d::ReduceOptions own = options;
    own.reduceOp = without_average(stage, options.reduceOp, options.rootRank == rank_ ? host : Tensors());
    return inner_->reduce(host, own);
  });
}

GraftBackend::WorkPtr GraftBackend::fill_lists(OpType type, const TensorLists& outputs, const Tensors& inputs,
                                               std::function<WorkPtr(TensorLists&, Tensors&)> ask) {
  const Tensors all = flattened(outputs);
  return submit(type, all, joined(all, inputs), [=, ask = std::move(ask)](Stage& stage) {
    TensorLists to = each_list(outputs, [&](const Tensors& list) { return stage.out(list); });
    Tensors from = stage.in(inputs);
    return ask(to, from);
  });
}

GraftBackend::WorkPtr GraftBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  return fill_lists(OpType::ALLGATHER, outputs, inputs,
                    [=, this](TensorLists& to, Tensors& from) { return inner_->allgather(to, from, options); });
}

GraftBackend::WorkPtr GraftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  return submit(OpType::_ALLGATHER_BASE, {output}, {output, input}, [=, this](Stage& stage) {
    at::Tensor to = stage.out(output), from = stage.in(input);
    return inner_->_allgather_base(to, from, options);
  });
}

GraftBackend::WorkPtr GraftBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return fill_lists(OpType::ALLGATHER_COALESCED, outputs, inputs, [=, this](TensorLists& to, Tensors& from) {
    return inner_->allgather_coalesced(to, from, options);
  });
}

GraftBackend::WorkPtr GraftBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::AllgatherOptions& options) {
  return submit(OpType::ALLGATHER_COALESCED, outputs, joined(outputs, inputs), [=, this](Stage& stage) {
    Tensors to = stage.out(outputs), from = stage.in(inputs);
    return inner_->allgather_into_tensor_coalesced(to, from, options);
  });
}

GraftBackend::WorkPtr GraftBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return fill_lists(OpType::GATHER, outputs, inputs,
                    [=, this](TensorLists& to, Tensors& from) { return inner_->gather(to, from, options); });
}

GraftBackend::WorkPtr GraftBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                            const c10d::ScatterOptions& options) {
  return submit(OpType::SCATTER, outputs, joined(outputs, flattened(inputs)), [=, this](Stage& stage) {
    Tensors to = stage.out(outputs);
    TensorLists from = each_list(inputs, [&](const Tensors& list) { return stage.in(list); });
    return inner_->scatter(to, from, options);
  });
}

GraftBackend::WorkPtr GraftBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  return submit(OpType::REDUCE_SCATTER, outputs, joined(outputs, flattened(inputs)), [=, this](Stage& stage) {
    Tensors to = stage.out(outputs);
    TensorLists from = each_list(inputs, [&](const Tensors& list) { return stage.in(list); });
    c10d::ReduceScatterOptions own = options;
    own.reduceOp = without_average(stage, options.reduceOp, to);
    return inner_->reduce_scatter(to, from, own);
  });
}

GraftBackend::WorkPtr GraftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& options) {
  return submit(OpType::_REDUCE_SCATTER_BASE, {output}, {output, input}, [=, this](Stage& stage) {
    at::Tensor to = stage.out(output), from = stage.in(input);
    c10d::ReduceScatterOptions own = options;
    own.reduceOp = without_average(stage, options.reduceOp, {to});
    return inner_->_reduce_scatter_base(to, from, own);
  });
}

GraftBackend::WorkPtr GraftBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::ReduceScatterOptions& options) {
  return submit(OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, joined(outputs, inputs), [=, this](Stage& stage) {
    Tensors to = stage.out(outputs), from = stage.in(inputs);
    c10d::ReduceScatterOptions own = options;
    own.reduceOp = without_average(stage, options.reduceOp, to);
    return inner_->reduce_scatter_tensor_coalesced(to, from, own);
  });
}

GraftBackend::WorkPtr GraftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& options) {
  return submit(OpType::ALLTOALL_BASE, {output}, {output, input}, [=, this](Stage& stage) mutable {
    at::Tensor to = stage.out(output), from = stage.in(input);
    return inner_->alltoall_base(to, from, output_splits, input_splits, options);
  });
}

// The inner backend has no such thing for lists: they go one after the other.
GraftBackend::WorkPtr GraftBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return submit(OpType::ALLTOALL, outputs, joined(outputs, inputs), [=, this](Stage& stage) {
    const Tensors to = stage.out(outputs), from = stage.in(inputs);
    Tensors flat;
    std::vector<int64_t> output_splits, input_splits;
    int64_t total = 0;
    for (const at::Tensor& tensor : from) {
      flat.push_back(tensor.reshape({-1}));
      input_splits.push_back(tensor.numel());
    }
    for (const at::Tensor& tensor : to) {
      output_splits.push_back(tensor.numel());
      total += tensor.numel();
    }
    at::Tensor sent = at::cat(flat), received = at::empty({total}, sent.options());
    stage.then([to, received] {
      int64_t at = 0;
      for (const at::Tensor& tensor : to) {
        tensor.copy_(received.narrow(0, at, tensor.numel()).view(tensor.sizes()));
        at += tensor.numel();
      }
    });
    return inner_->alltoall_base(received, sent, output_splits, input_splits, options);
  });
}

GraftBackend::WorkPtr GraftBackend::send(Tensors& tensors, int destination, int tag) {
  const auto ask = [=, this](Stage& stage) {
    Tensors host = stage.in(tensors);
    return inner_->send(host, destination, tag);
  };
  return submit(OpType::SEND, {}, tensors, ask);
}

GraftBackend::WorkPtr GraftBackend::recv(Tensors& tensors, int source, int tag) {
  const auto ask = [=, this](Stage& stage) {
    Tensors host = stage.out(tensors);
    return inner_->recv(host, source, tag);
  };
  return submit(OpType::RECV, tensors, tensors, ask);
}

GraftBackend::WorkPtr GraftBackend::recvAnysource(Tensors& tensors, int tag) {
  const auto ask = [=, this](Stage& stage) {
    Tensors host = stage.out(tensors);
    return inner_->recvAnysource(host, tag);
  };
  return submit(OpType::RECVANYSOURCE, tensors, tensors, ask);
}

GraftBackend::WorkPtr GraftBackend::barrier(const c10d::BarrierOptions& options) {
  return submit(OpType::BARRIER, {}, {}, [=, this](Stage&) { return inner_->barrier(options); });
}

void GraftBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  inner_->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace torchgraft
