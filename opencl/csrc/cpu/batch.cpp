#include "batch.h"

#include <memory>
#include <utility>

#include "native_job.h"
#include "program.h"

namespace ocl {

Batch::Item::Item(const tg_launch& given) : launch(given), arguments(given.args, given.args + given.arg_count) {
  launch.args = arguments.data();
  retain_kernel(*launch.kernel);
}

Batch::Item::Item(Item&& other) noexcept
    : launch(std::exchange(other.launch, tg_launch{})), arguments(std::move(other.arguments)) {}

Batch::Item::~Item() {
  if (launch.kernel != nullptr) destroy_kernel(launch.kernel);
}

bool Batch::add(const tg_launch& launch) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  items_.emplace_back(launch);
  return true;
}

void Batch::run() {
  try {
    run_all();
  } catch (...) {
    close();
    throw;
  }
}

void Batch::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  items_.clear();
}

void Batch::run_all() {
  std::vector<Item> items;
  while (true) {
    items.clear();
    {
      std::lock_guard lock(mutex_);
      closed_ = items_.empty();
      if (closed_) return;
      items.swap(items_);
    }
    CallerDevice::Turn turn(caller_);
    for (const Item& item : items) turn.run(item.launch);
  }
}

namespace {

struct Job {
  tg_stream stream;
  std::shared_ptr<Batch> batch;

  void run() const { batch->run(); }
};

bool add_to_open_batch(tg_stream_& stream, const tg_launch& launch) {
  std::lock_guard lock(stream.mutex);
  if (stream.open == nullptr || !static_cast<Batch&>(*stream.open).add(launch)) return false;
  stream.since_wait.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool hand_over(tg_stream_& stream, CallerDevice& caller, const tg_launch& launch) {
  if (timer != nullptr || !stream.device->has_native_kernels || !caller.takes(launch)) return false;
  if (add_to_open_batch(stream, launch)) return true;
  auto batch = std::make_shared<Batch>(caller);
  batch->add(launch);
  const uint64_t number = submit_job(stream, std::make_unique<Job>(&stream, batch));
  std::lock_guard lock(stream.mutex);
  // What another thread has queued meanwhile comes before what is added from now on; so may what others put into a
  // shared queue at any time.
  if (stream.submitted == number && !stream.shared) stream.open = std::move(batch);
  return true;
}

}  // namespace ocl
