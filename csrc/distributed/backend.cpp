#include "backend.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "graphs/capture.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace torchgraft {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = GraftBackend::Tensors;

namespace {

// The current streams of the devices that tensors lie on.
std::vector<c10::Stream> streams_of(const Tensors& tensors) {
  std::vector<c10::Stream> streams;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.device().is_privateuseone()) continue;
    const c10::Stream stream = current_stream(tensor.device().index());
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }
  return streams;
}

std::vector<std::shared_ptr<Event>> marks_in(const std::vector<c10::Stream>& streams) {
  std::vector<std::shared_ptr<Event>> events;
  for (const c10::Stream& stream : streams) {
    EventPtr event(create_event(stream.device_index(), /*timing=*/false));
    record_event(*event, stream);
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

// What the inner backend is asked for in place of an operation that it lacks: sums for averages, and of booleans, which
// it takes for bytes, the largest for a sum and the smallest for a product.
ReduceOp operation_inside(const ReduceOp& op, c10::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(op != ReduceOp::PREMUL_SUM, "graft: ReduceOp.PREMUL_SUM is not implemented");
  TORCH_CHECK_VALUE(!c10::isComplexType(type) || op == ReduceOp::SUM || op == ReduceOp::AVG,
                    "graft: complex tensors have sums and averages only");
  if (type == at::kBool) {
    TORCH_CHECK_TYPE(op != ReduceOp::AVG, "graft: there is no average of booleans");
    if (op == ReduceOp::SUM) return ReduceOp::MAX;
    if (op == ReduceOp::PRODUCT) return ReduceOp::MIN;
  }
  if (op == ReduceOp::AVG) {
    TORCH_CHECK_TYPE(!c10::isIntegralType(type, /*includeBool=*/false), "graft: ReduceOp.AVG is for floating-point ",
                     "tensors, not ", type);
    return ReduceOp::SUM;
  }
  return op;
}

void divide_averages(Stage& stage, const ReduceOp& op, const Tensors& sums, int size) {
  if (op == ReduceOp::AVG)
    stage.then([sums, size] {
      for (at::Tensor sum : sums) sum.div_(size);
    });
}

// The rows of a matrix become one.
void reduce_rows(const ReduceOp& op, const at::Tensor& rows, at::Tensor result) {
  const auto fold = [&](at::Tensor& (at::Tensor::*add)(const at::Tensor&) const) {
    result.copy_(rows[0]);
    for (int64_t row = 1; row < rows.size(0); ++row) (result.*add)(rows[row]);
  };
  switch (op) {
    case ReduceOp::SUM:
      at::sum_out(result, rows, 0, /*keepdim=*/false, result.scalar_type());
      return;
    case ReduceOp::PRODUCT:
      at::prod_out(result, rows, 0, /*keepdim=*/false, result.scalar_type());
      return;
    case ReduceOp::MIN:
      at::amin_out(result, rows, 0);
      return;
    case ReduceOp::MAX:
      at::amax_out(result, rows, 0);
      return;
    case ReduceOp::BAND:
      return fold(&at::Tensor::bitwise_and_);
    case ReduceOp::BOR:
      return fold(&at::Tensor::bitwise_or_);
    case ReduceOp::BXOR:
      return fold(&at::Tensor::bitwise_xor_);
    default:
      TORCH_CHECK(false, "graft: an unknown ReduceOp");
  }
}

constexpr int64_t kPiece = int64_t{4} << 20;  // bytes

// Of the tensors of a call: the one by whose elements it is cut into pieces, if it is large. All ranks must find the
// same, so that it cannot depend on strides.
at::Tensor if_large(const Tensors& tensors) {
  if (tensors.size() != 1 || tensors.front().layout() != at::kStrided) return {};
  const at::Tensor& tensor = tensors.front();
  return tensor.numel() * static_cast<int64_t>(tensor.itemsize()) > kPiece ? tensor : at::Tensor();
}

// The tensors of a call that may be cut into pieces. Of a large one those that are not contiguous are replaced by
// copies, made on the current stream, and are copied back after the last piece.
class Divisible {
 public:
  explicit Divisible(const Tensors& tensors) : tensor_(if_large(tensors)) {}

  // What the call does with them: reads, writes, or both.
  Tensors in(const Tensors& tensors) { return each(tensors, true, false); }
  Tensors out(const Tensors& tensors) { return each(tensors, false, true); }
  Tensors both(const Tensors& tensors) { return each(tensors, true, true); }

  const at::Tensor& tensor() const { return tensor_; }  // undefined where it is not large
  const Stage& last() const { return last_; }

 private:
  Tensors each(const Tensors& tensors, bool reads, bool writes) {
    if (!tensor_.defined()) return tensors;
    Tensors found;
    for (const at::Tensor& tensor : tensors) {
      const bool is_whole = tensor.is_contiguous();
      found.push_back(is_whole ? tensor
                      : reads  ? tensor.contiguous()
                               : at::empty_like(tensor, at::MemoryFormat::Contiguous));
      if (writes && !is_whole) last_.copy_back(tensor, found.back());
    }
    return found;
  }

  const at::Tensor tensor_;
  Stage last_;
};

}  // namespace

// Cuts large calls into pieces, so that some are copied while others are on their way. All ranks must do the same, and
// so the first large call of a group asks whether one of them has to copy at all.
class GraftBackend::Pieces {
 public:
  bool are_agreed() const { return agreed_; }

  // In the order of the group's calls.
  std::vector<Piece> of(const at::Tensor& divisible, const BackendPtr& inner) {
    if (!divisible.defined() || !agree(*inner)) return {std::nullopt};
    const int64_t step = std::max<int64_t>(1, kPiece / static_cast<int64_t>(divisible.itemsize()));
    std::vector<Piece> pieces;
    for (int64_t begin = 0; begin < divisible.numel(); begin += step)
      pieces.emplace_back(Range{begin, std::min(step, divisible.numel() - begin)});
    return pieces;
  }

 private:
  bool agree(c10d::Backend& inner) {
    if (!agreed_) {
      std::vector<at::Tensor> staged{at::tensor({some_device_is_staged() ? 1 : 0}, at::kInt)};
      c10d::AllreduceOptions options;
      options.reduceOp = ReduceOp::MAX;
      inner.allreduce(staged, options)->wait();
      wanted_ = staged.front().item<int>() != 0;
      agreed_ = true;
    }
    return wanted_;
  }

  std::atomic<bool> agreed_{false};
  bool wanted_ = false;
};

namespace {

// These elements of a tensor that is contiguous in its memory.
template <typename Piece>
at::Tensor cut(const at::Tensor& tensor, const Piece& piece) {
  return piece ? tensor.view({-1}).narrow(0, piece->begin, piece->length) : tensor;
}
template <typename Piece>
Tensors cut(const Tensors& tensors, const Piece& piece) {
  if (!piece) return tensors;
  Tensors found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) found.push_back(cut(tensor, piece));
  return found;
}

}  // namespace

GraftBackend::GraftBackend(BackendPtr inner, StorePtr store, std::string name)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      name_(std::move(name)),
      process_(getpid()),
      shared_(std::make_shared<Shared>(store, rank_, size_)),
      pieces_(std::make_shared<Pieces>()),
      networks_(std::move(store), name_, rank_, size_),
      queue_(std::make_unique<Queue>()) {}

GraftBackend::~GraftBackend() {
  if (getpid() != process_) {  // a forked child has none of the threads, and their locks may be held for ever
    queue_.release();
    new auto(shared_);
    new auto(inner_);
    return;
  }
  const WithoutPython released;
  if (aborted_) std::thread([inner = std::move(inner_)]() mutable { inner.reset(); }).detach();
  queue_.reset();
  networks_.close(aborted_);
  inner_.reset();
}

void GraftBackend::abort() {
  const WithoutPython released;
  std::vector<c10::weak_intrusive_ptr<GraftWork>> pending;
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    pending.swap(pending_);
  }
  queue_->abandon();
  for (const auto& weak : pending)
    if (const auto work = weak.lock()) work->aborted();
}

GraftBackend::BackendPtr GraftBackend::split(const StorePtr& store, const std::vector<int>& ranks,
                                             const c10::intrusive_ptr<Options>& options) {
  BackendPtr part = inner_->split(store, ranks, options);
  return part ? c10::make_intrusive<GraftBackend>(std::move(part), store, name_) : nullptr;
}

GraftBackend::BackendPtr GraftBackend::merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options,
                                             const int& rank, const int& size) {
  return c10::make_intrusive<GraftBackend>(inner_->merge(store, options, rank, size), store, name_);
}

void GraftBackend::startCoalescing() {
  take_coalesced();
  std::lock_guard lock(mutex_);
  coalesced_[std::this_thread::get_id()];
}

// What is taken is let go of without the lock: its tensors may be Python's.
std::optional<JoinedWork::Parts> GraftBackend::take_coalesced() {
  std::lock_guard lock(mutex_);
  const auto found = coalesced_.extract(std::this_thread::get_id());
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

GraftBackend::WorkPtr GraftBackend::endCoalescing() {
  std::optional<JoinedWork::Parts> parts = take_coalesced();
  TORCH_CHECK(parts, name_, ": these calls cannot be waited for as one: one of them has failed");
  return c10::make_intrusive<JoinedWork>(rank_, *std::move(parts));
}

void GraftBackend::coalesce(const WorkPtr& work) {
  const auto found = coalesced_.find(std::this_thread::get_id());
  if (found != coalesced_.end()) found->second.push_back(work);
}

void GraftBackend::check_usable(OpType type) const {
  TORCH_CHECK(getpid() == process_, name_, ": ", name_of(type), " in a forked process: the group ", pg_desc_,
              " belongs to process ", process_,
              ". Use the 'spawn' start method, and init_process_group() in each process");
  if (aborted_)
    C10_THROW_ERROR(DistBackendError,
                    CollectiveCall(type, 0, {}).text(described()) + ": the group was aborted; make it anew.");
}

Group GraftBackend::described() const { return {name_, pg_uid_, pg_desc_, rank_, size_}; }

uint64_t GraftBackend::next_number(OpType type) {
  return (c10d::isP2POp(type) ? messages_ : collectives_).fetch_add(1, std::memory_order_relaxed) + 1;
}

void GraftBackend::remember(const c10::intrusive_ptr<GraftWork>& work) {
  std::lock_guard lock(mutex_);
  check_usable(work->retrieveOpType());  // again: whoever aborts ends what is remembered
  if (pending_.size() >= pending_limit_) {
    std::erase_if(pending_, [](const auto& weak) { return weak.expired(); });
    pending_limit_ = std::max<size_t>(64, 2 * pending_.size());
  }
  pending_.emplace_back(work);
  coalesce(work);
}

// What is thrown leaves nothing behind: neither a work that never ends nor calls that are to be waited for as one.
GraftBackend::WorkPtr GraftBackend::submit(const Request& request, Ask ask) {
  try {
    return make_and_issue(request, std::move(ask));
  } catch (...) {
    take_coalesced();
    throw;
  }
}

GraftBackend::WorkPtr GraftBackend::make_and_issue(const Request& request, Ask ask) {
  check_usable(request.type);
  refuse_captured(request.type, request.tensors);
  const CollectiveCall call(request.type, next_number(request.type), request.tensors);
  if (at::hasCallbacks()) [[unlikely]]
    record(request, call);
  auto work =
      c10::make_intrusive<GraftWork>(call, described(), shared_, request.outputs, request.tensors, request.last);
  remember(work);
  auto issue = [work, inner = inner_, pieces = pieces_, use = request.use, divisible = request.divisible,
                ask = std::move(ask)] {
    const at::NoGradGuard no_grad;
    for (const Piece& piece : pieces->of(divisible, inner)) {
      Stage stage(use);
      WorkPtr part = ask(stage, piece);
      work->follow(std::move(part), std::move(stage));
    }
    work->all_issued();
  };
  const std::vector<c10::Stream> streams = streams_of(request.tensors);
  const bool at_once = std::all_of(request.tensors.begin(), request.tensors.end(), is_host_ready) &&
                       (!request.divisible.defined() || pieces_->are_agreed()) &&
                       std::all_of(streams.begin(), streams.end(), query_stream);
  const auto issue_here = [&] {
    try {
      issue();
    } catch (...) {
      std::rethrow_exception(work->refused());
    }
  };
  if (at_once && queue_->run_if_idle(issue_here)) {
    count_call(/*queued=*/false);
    return work;
  }
  count_call(/*queued=*/true);
  const std::optional<at::ThreadLocalState> profiled =
      at::hasCallbacks() ? std::optional(at::ThreadLocalState()) : std::nullopt;
  queue_->push([work, profiled, is_inference = c10::InferenceMode::is_enabled(), before = marks_in(streams),
                issue = std::move(issue)] {
    try {
      std::optional<at::ThreadLocalStateGuard> as_the_caller;
      if (profiled) as_the_caller.emplace(*profiled);
      std::optional<c10::InferenceMode> inference;
      if (is_inference) inference.emplace();
      for (const auto& event : before) synchronize_event(*event);
      issue();
    } catch (...) {
      work->refused();
    }
  });
  return work;
}

// A row of the profiler with the numbers of elements that go in and come out.
void GraftBackend::record(const Request& request, const CollectiveCall& call) const {
  int64_t written = 0, touched = 0;
  for (const at::Tensor& tensor : request.outputs) written += tensor.numel();
  for (const at::Tensor& tensor : request.tensors) touched += tensor.numel();
  const int64_t read = touched == written ? written : touched - written;  // in place: what it reads it writes
  const std::vector<int64_t> none;
  RECORD_PARAM_COMMS_DATA(std::make_tuple(static_cast<int64_t>(call.number()), c10d::isP2POp(call.type())),
                          std::make_tuple(pg_uid_, pg_desc_), request.tensors, request.outputs, rank_,
                          std::string(name_of(call.type())), read, written,
                          request.tensors.empty() ? at::kByte : request.tensors.front().scalar_type(), none, none,
                          /*globalRankStart=*/0, /*globalRankStride=*/1, size_);
}

Tensors GraftBackend::parts_of(const at::Tensor& tensor) const {
  Tensors parts;
  const at::Tensor rows = tensor.view({size_, -1});
  for (int rank = 0; rank < size_; ++rank) parts.push_back(rows[rank]);
  return parts;
}

void GraftBackend::refuse_captured(OpType type, const Tensors& tensors) {
  if (!capturing()) [[likely]]
    return;
  for (const c10::Stream& stream : streams_of(tensors))
    refuse_in_capture(stream.device_index(), stream.id(), std::string("the collective ") + name_of(type));
}

GraftBackend::WorkPtr GraftBackend::by_network(OpType type, const Tensors& tensors,
                                               const std::function<WorkPtr()>& call) {
  check_usable(type);
  refuse_captured(type, tensors);
  const at::NoGradGuard no_grad;
  WorkPtr work = call();
  if (work == nullptr) return work;
  const uint64_t number = next_number(type);
  if (at::hasCallbacks()) [[unlikely]]
    record({type, {tensors.front()}, tensors}, CollectiveCall(type, number, tensors));
  count_call(/*queued=*/false);
  std::lock_guard lock(mutex_);
  coalesce(work);
  return work;
}

GraftBackend::WorkPtr GraftBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (tensors.size() == 1)
    if (WorkPtr work = by_network(OpType::BROADCAST, tensors, [&] {
          return networks_.broadcast(tensors.front(), static_cast<int>(options.rootRank));
        }))
      return work;
  const bool is_root = options.rootRank == rank_;
  Divisible divisible(tensors);
  const Tensors given = is_root ? divisible.in(tensors) : divisible.out(tensors);
  return submit({OpType::BROADCAST, tensors, given, Stage::Use::Moves, divisible.tensor(), divisible.last()},
                [inner = inner_, given, options, is_root](Stage& stage, const Piece& piece) {
                  const Tensors part = cut(given, piece);
                  Tensors host = is_root ? stage.in(part) : stage.out(part);
                  return inner->broadcast(host, options);
                });
}

GraftBackend::WorkPtr GraftBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1)
    if (WorkPtr work = by_network(OpType::ALLREDUCE, tensors,
                                  [&] { return networks_.all_reduce(tensors.front(), options.reduceOp); }))
      return work;
  Divisible divisible(tensors);
  const Tensors given = divisible.both(tensors);
  return submit({OpType::ALLREDUCE, tensors, given, Stage::Use::Computes, divisible.tensor(), divisible.last()},
                [inner = inner_, given, options, size = size_](Stage& stage, const Piece& piece) {
                  Tensors host = stage.both(cut(given, piece));
                  c10d::AllreduceOptions own = options;
                  own.reduceOp = operation_inside(options.reduceOp, given.front().scalar_type());
                  divide_averages(stage, options.reduceOp, host, size);
                  return inner->allreduce(host, own);
                });
}

GraftBackend::WorkPtr GraftBackend::allreduce_coalesced(Tensors& tensors,
                                                        const c10d::AllreduceCoalescedOptions& options) {
  return submit({OpType::ALLREDUCE_COALESCED, tensors, tensors, Stage::Use::Computes},
                [inner = inner_, tensors, options, size = size_](Stage& stage, const Piece&) {
                  Tensors host = stage.both(tensors);
                  c10d::AllreduceCoalescedOptions own = options;
                  own.reduceOp = operation_inside(options.reduceOp, tensors.front().scalar_type());
                  divide_averages(stage, options.reduceOp, host, size);
                  return inner->allreduce_coalesced(host, own);
                });
}

GraftBackend::WorkPtr GraftBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return submit({OpType::REDUCE, tensors, tensors, Stage::Use::Computes},
                [inner = inner_, tensors, options, size = size_, rank = rank_](Stage& stage, const Piece&) {
                  Tensors host = stage.both(tensors);
                  c10d::ReduceOptions own = options;
                  own.reduceOp = operation_inside(options.reduceOp, tensors.front().scalar_type());
                  if (options.rootRank == rank) divide_averages(stage, options.reduceOp, host, size);
                  return inner->reduce(host, own);
                });
}

GraftBackend::WorkPtr GraftBackend::fill_lists(OpType type, const TensorLists& outputs, const Tensors& inputs,
                                               std::function<WorkPtr(TensorLists&, Tensors&)> ask) {
  const Tensors all = flattened(outputs);
  return submit({type, all, joined(all, inputs)}, [outputs, inputs, ask = std::move(ask)](Stage& stage, const Piece&) {
    TensorLists to = each_list(outputs, [&](const Tensors& list) { return stage.out(list); });
    Tensors from = stage.in(inputs);
    return ask(to, from);
  });
}

GraftBackend::WorkPtr GraftBackend::gather_parts(const Request& request, const Tensors& parts, const Tensors& given,
                                                 const c10d::AllgatherOptions& options) {
  return submit(request, [inner = inner_, parts, given, options](Stage& stage, const Piece& piece) {
    at::Tensor to = stage.joined_out(cut(parts, piece)), from = stage.joined_in(cut(given, piece));
    return inner->_allgather_base(to, from, options);
  });
}

GraftBackend::WorkPtr GraftBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  const auto fits = [&](const at::Tensor& part) {
    return part.sizes() == inputs[0].sizes() && part.scalar_type() == inputs[0].scalar_type() &&
           part.layout() == at::kStrided && inputs[0].layout() == at::kStrided;
  };
  if (inputs.size() == 1 && outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_) &&
      std::all_of(outputs[0].begin(), outputs[0].end(), fits)) {
    Divisible divisible(inputs);
    const Tensors parts = divisible.out(outputs[0]), given = divisible.in(inputs);
    return gather_parts(
        {OpType::ALLGATHER, outputs[0], joined(parts, given), Stage::Use::Moves, divisible.tensor(), divisible.last()},
        parts, given, options);
  }
  return fill_lists(  // which also says what is wrong
      OpType::ALLGATHER, outputs, inputs,
      [inner = inner_, options](TensorLists& to, Tensors& from) { return inner->allgather(to, from, options); });
}

GraftBackend::WorkPtr GraftBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  if (WorkPtr work =
          by_network(OpType::_ALLGATHER_BASE, {output, input}, [&] { return networks_.all_gather(output, input); }))
    return work;
  Divisible divisible({input});
  if (divisible.tensor().defined() && output.numel() == input.numel() * size_ &&
      output.scalar_type() == input.scalar_type()) {
    const Tensors whole = divisible.out({output}), given = divisible.in({input});
    return gather_parts({OpType::_ALLGATHER_BASE,
                         {output},
                         joined(whole, given),
                         Stage::Use::Moves,
                         divisible.tensor(),
                         divisible.last()},
                        parts_of(whole.front()), given, options);
  }
  return submit({OpType::_ALLGATHER_BASE, {output}, {output, input}},
                [inner = inner_, output, input, options](Stage& stage, const Piece&) {
                  at::Tensor to = stage.joined_out({output}), from = stage.joined_in({input});  // of any shapes
                  return inner->_allgather_base(to, from, options);
                });
}

GraftBackend::WorkPtr GraftBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return fill_lists(OpType::ALLGATHER_COALESCED, outputs, inputs,
                    [inner = inner_, options](TensorLists& to, Tensors& from) {
                      return inner->allgather_coalesced(to, from, options);
                    });
}

GraftBackend::WorkPtr GraftBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::AllgatherOptions& options) {
  return submit({OpType::ALLGATHER_COALESCED, outputs, joined(outputs, inputs)},
                [inner = inner_, outputs, inputs, options](Stage& stage, const Piece&) {
                  Tensors to = stage.out(outputs), from = stage.in(inputs);
                  return inner->allgather_into_tensor_coalesced(to, from, options);
                });
}

GraftBackend::WorkPtr GraftBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return fill_lists(OpType::GATHER, outputs, inputs, [inner = inner_, options](TensorLists& to, Tensors& from) {
    return inner->gather(to, from, options);
  });
}

GraftBackend::WorkPtr GraftBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                            const c10d::ScatterOptions& options) {
  return submit({OpType::SCATTER, outputs, joined(outputs, flattened(inputs))},
                [inner = inner_, outputs, inputs, options](Stage& stage, const Piece&) {
                  Tensors to = stage.out(outputs);
                  TensorLists from = each_list(inputs, [&](const Tensors& list) { return stage.in(list); });
                  return inner->scatter(to, from, options);
                });
}

// Each rank gets the parts that are its own, and reduces them in the order of the ranks: half of what goes over the
// network in a reduction for all, which is what the inner backend makes of these calls.
GraftBackend::WorkPtr GraftBackend::reduce_parts(OpType type, const Tensors& outputs, const TensorLists& parts,
                                                 const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(!outputs.empty() && outputs.size() == parts.size(), "graft: ", name_of(type),
              " needs as many lists of inputs as outputs, and one at least");
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK(parts[i].size() == static_cast<size_t>(size_), "graft: ", name_of(type), " needs an input for each of ",
                size_, " ranks, not ", parts[i].size());
    for (const at::Tensor& part : parts[i])
      TORCH_CHECK(part.numel() == outputs[i].numel() && part.scalar_type() == outputs[0].scalar_type(),
                  "graft: ", name_of(type), " of ", part.scalar_type(), ' ', part.sizes(), " into ",
                  outputs[i].scalar_type(), ' ', outputs[i].sizes());
  }
  Tensors by_rank;
  for (int rank = 0; rank < size_; ++rank)
    for (const Tensors& list : parts) by_rank.push_back(list[rank]);
  Divisible divisible(outputs);
  const Tensors filled = divisible.out(outputs), given = divisible.in(by_rank);
  return submit({type, outputs, joined(filled, given), Stage::Use::Computes, divisible.tensor(), divisible.last()},
                [inner = inner_, filled, given, options, size = size_](Stage& stage, const Piece& piece) {
                  const ReduceOp op = operation_inside(options.reduceOp, filled.front().scalar_type());
                  at::Tensor sent = stage.joined_in(cut(given, piece)).view({-1});
                  at::Tensor received = at::empty_like(sent);
                  const at::Tensor result = stage.joined_out(cut(filled, piece)).view({-1});
                  stage.then([=] { reduce_rows(op, received.view({size, result.numel()}), result); });
                  divide_averages(stage, options.reduceOp, {result}, size);
                  c10d::AllToAllOptions own;
                  own.timeout = options.timeout;
                  std::vector<int64_t> even;
                  return inner->alltoall_base(received, sent, even, even, own);
                });
}

GraftBackend::WorkPtr GraftBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  return reduce_parts(OpType::REDUCE_SCATTER, outputs, inputs, options);
}

GraftBackend::WorkPtr GraftBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(input.numel() == output.numel() * size_, "graft: reduce_scatter_tensor of ", input.sizes(), " into ",
              output.sizes(), ": the input must have ", size_, " times as many elements");
  if (WorkPtr work = by_network(OpType::_REDUCE_SCATTER_BASE, {output, input},
                                [&] { return networks_.reduce_scatter(output, input, options.reduceOp); }))
    return work;
  return reduce_parts(OpType::_REDUCE_SCATTER_BASE, {output}, {parts_of(input.contiguous())}, options);
}

GraftBackend::WorkPtr GraftBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::ReduceScatterOptions& options) {
  TensorLists parts;
  for (const at::Tensor& input : inputs) parts.push_back(parts_of(input.contiguous()));
  return reduce_parts(OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, parts, options);
}

GraftBackend::WorkPtr GraftBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& options) {
  return submit(
      {OpType::ALLTOALL_BASE, {output}, {output, input}},
      [inner = inner_, output, input, output_splits, input_splits, options](Stage& stage, const Piece&) mutable {
        at::Tensor to = stage.out(output), from = stage.in(input);
        return inner->alltoall_base(to, from, output_splits, input_splits, options);
      });
}

// The inner backend has no such thing for lists: they go one after the other.
GraftBackend::WorkPtr GraftBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return submit({OpType::ALLTOALL, outputs, joined(outputs, inputs)},
                [inner = inner_, outputs, inputs, options](Stage& stage, const Piece&) {
                  at::Tensor to = stage.joined_out(outputs), from = stage.joined_in(inputs);
                  std::vector<int64_t> output_splits, input_splits;
                  for (const at::Tensor& tensor : inputs) input_splits.push_back(tensor.numel());
                  for (const at::Tensor& tensor : outputs) output_splits.push_back(tensor.numel());
                  return inner->alltoall_base(to, from, output_splits, input_splits, options);
                });
}

GraftBackend::WorkPtr GraftBackend::send(Tensors& tensors, int destination, int tag) {
  return submit({OpType::SEND, {}, tensors}, [inner = inner_, tensors, destination, tag](Stage& stage, const Piece&) {
    Tensors host = stage.in(tensors);
    return inner->send(host, destination, tag);
  });
}

GraftBackend::WorkPtr GraftBackend::recv(Tensors& tensors, int source, int tag) {
  return submit({OpType::RECV, tensors, tensors}, [inner = inner_, tensors, source, tag](Stage& stage, const Piece&) {
    Tensors host = stage.out(tensors);
    return inner->recv(host, source, tag);
  });
}

GraftBackend::WorkPtr GraftBackend::recvAnysource(Tensors& tensors, int tag) {
  return submit({OpType::RECVANYSOURCE, tensors, tensors}, [inner = inner_, tensors, tag](Stage& stage, const Piece&) {
    Tensors host = stage.out(tensors);
    return inner->recvAnysource(host, tag);
  });
}

GraftBackend::WorkPtr GraftBackend::barrier(const c10d::BarrierOptions& options) {
  return submit({OpType::BARRIER, {}, {}},
                [inner = inner_, options](Stage&, const Piece&) { return inner->barrier(options); });
}

void GraftBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  check_usable(OpType::BARRIER);
  inner_->monitoredBarrier(options, wait_all_ranks);
}

}  // namespace torchgraft
