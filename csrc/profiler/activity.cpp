#include "activity.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>

#include "profiler.h"
#include "runtime/event.h"

namespace torchgraft {

constinit std::atomic<bool> detail::collecting{false};

namespace {

// Events that wait to be read hold resources of the driver, so from this many on those that are done are read.
constexpr size_t kDrain = 256;
// Where the host is that far ahead of the device, it waits.
constexpr size_t kMostPending = 8192;
// What is kept of one profile by default. torch makes 3 kB of each, as much as of the operator above it.
std::atomic<uint64_t> capacity{uint64_t{1} << 20};

int64_t now() { return c10::getTime(); }

// A moment on both clocks; the host's is known to within `error`.
struct ClockSample {
  int64_t device = 0, host = 0, error = 0;
};

// How the times of a device's commands become known, best first.
enum class Timing {
  Commands,  // the driver times single commands
  Events,    // events before and after each command
  Host       // each command is waited for
};

struct Track {
  const Device* device = nullptr;
  Timing timing = Timing::Host;
  EventPtr reference;  // Events: where the device's clock shows 0
  ClockSample opened;
};

struct Pending {
  Activity activity;
  Timing timing;
  std::shared_ptr<Track> track;  // NULL for a Wait
  EventPtr begin, end;
};

// Correlation ids of what the thread is in, innermost last. Those of an earlier collection mean nothing: it may have
// ended within an operator.
struct Nesting {
  uint64_t collection = 0;
  std::vector<uint64_t> ops, ranges;
};
thread_local Nesting nesting_of_thread;

class Collector {
 public:
  void start() {
    std::vector<std::string> ignored;
    stop(ignored);  // what an abandoned collection has left
    std::lock_guard lock(mutex_);
    problems_.clear();
    dropped_ = 0;
    submitted_ = 0;
    collection_.fetch_add(1, std::memory_order_relaxed);
    detail::collecting.store(true);
  }

  std::vector<Activity> stop(std::vector<std::string>& problems) {
    detail::collecting.store(false);
    drain(/*all=*/true);
    std::vector<Activity> activities;
    std::map<c10::DeviceIndex, std::shared_ptr<Track>> tracks;
    uint64_t dropped = 0;
    {
      std::lock_guard lock(mutex_);
      collection_.fetch_add(1, std::memory_order_relaxed);  // what is submitted just now comes too late
      activities.swap(done_);
      tracks.swap(tracks_);
      dropped = std::exchange(dropped_, 0);
      problems.insert(problems.end(), problems_.begin(), problems_.end());
      problems_.clear();
    }
    if (dropped != 0) {
      problems.push_back(std::to_string(dropped) + " activities after the first " + std::to_string(capacity.load()) +
                         " were not kept; profile fewer steps at a time (torch.profiler.schedule)");
    }
    std::sort(activities.begin(), activities.end(),
              [](const Activity& a, const Activity& b) { return a.number < b.number; });
    for (const auto& [_, track] : tracks) to_host_time(*track, activities);
    begin_after_predecessor(activities);
    return activities;
  }

  // Without a word to the driver: the process may be at its end.
  void abandon() noexcept {
    detail::collecting.store(false);
    collection_.fetch_add(1, std::memory_order_relaxed);
  }

  uint64_t collection() const { return collection_.load(std::memory_order_relaxed); }

  tg_status submit(Activity activity, const Device& device, tg_stream stream, Submit command) {
    const uint64_t collection = this->collection();
    describe(activity, device, stream);
    std::shared_ptr<Track> track = track_of(device);
    Pending pending{activity, track->timing, track, nullptr, nullptr};
    before(pending, device, stream);
    pending.activity.host_begin = now();
    tg_status status = command();
    pending.activity.host_end = now();
    if (status != TG_OK) {
      discard(std::move(pending));
      return status;
    }
    status = after(pending, device, stream);
    add(std::move(pending), collection);
    return status;
  }

  tg_status wait(Activity activity, const Device& device, tg_stream stream, Submit wait) {
    const uint64_t collection = this->collection();
    describe(activity, device, stream);
    activity.host_begin = now();
    tg_status status = wait();
    activity.host_end = now();
    if (status == TG_OK) add({activity, Timing::Host, nullptr, nullptr, nullptr}, collection);
    return status;
  }

  const std::string* keep(const std::string& name) {
    std::lock_guard lock(mutex_);
    return &*names_.insert(name).first;
  }

 private:
  void describe(Activity& activity, const Device& device, tg_stream stream) {
    activity.device = device.index;
    activity.stream = stream == nullptr ? kAllStreams : stream_id(device.index, stream);
    if (stream != nullptr && activity.stream < 0) activity.stream = kOwnStream;
    activity.thread = profiled_thread_id();
    const Nesting& nesting = nesting_of_thread;
    if (nesting.collection == collection()) {
      if (!nesting.ops.empty()) activity.op = nesting.ops.back();
      if (!nesting.ranges.empty()) activity.range = nesting.ranges.back();
    }
  }

  // What has to be done before a command. Where it fails, the host measures.
  void before(Pending& pending, const Device& device, tg_stream stream) {
    if (pending.timing == Timing::Host) return;
    const tg_driver* driver = device.driver;
    try {
      pending.end.reset(create_event(device.index, /*timing=*/true));
      if (pending.timing == Timing::Commands) {
        check(device, driver->event_time_next(driver->context, device.ordinal, pending.end->handle),
              "timing a command");
      } else {
        pending.begin.reset(create_event(device.index, /*timing=*/true));
        check(device, driver->event_record(driver->context, device.ordinal, pending.begin->handle, stream),
              "recording an event");
      }
    } catch (const std::exception& error) {
      note_problem(error);
      pending.timing = Timing::Host;
    }
  }

  tg_status after(Pending& pending, const Device& device, tg_stream stream) {
    const tg_driver* driver = device.driver;
    if (pending.timing == Timing::Commands) return TG_OK;
    if (pending.timing == Timing::Events) {
      try {
        check(device, driver->event_record(driver->context, device.ordinal, pending.end->handle, stream),
              "recording an event");
        return TG_OK;
      } catch (const std::exception& error) {
        note_problem(error);
        pending.timing = Timing::Host;
      }
    }
    tg_status status = driver->stream_synchronize(driver->context, device.ordinal, stream);
    pending.activity.end = now();
    return status;
  }

  // The events of a command that failed: destroyed later, since that may call the driver, which would forget its
  // message.
  void discard(Pending pending) {
    std::lock_guard lock(mutex_);
    discarded_.push_back(std::move(pending));
  }

  void add(Pending pending, uint64_t collection) {
    bool full = false;
    {
      std::lock_guard lock(mutex_);
      if (collection != collection_.load(std::memory_order_relaxed)) {
        discarded_.push_back(std::move(pending));
        return;
      }
      pending.activity.number = ++submitted_;
      if (pending.activity.number > capacity.load(std::memory_order_relaxed)) {
        ++dropped_;
        discarded_.push_back(std::move(pending));
        full = discarded_.size() >= kDrain;
      } else {
        pending_.push_back(std::move(pending));
        full = pending_.size() >= drain_at_;
      }
    }
    if (full) drain(/*all=*/false);
  }

  // Reads the times of commands that are done; with `all`, waits for all of them. No lock that a submission waits for
  // is held while the driver is called.
  void drain(bool all) {
    std::optional<GilSafeLock> waited;
    std::unique_lock tried(draining_, std::defer_lock);
    if (all)
      waited.emplace(draining_);
    else if (!tried.try_lock())
      return;
    std::deque<Pending> batch;
    std::vector<Pending> discarded;  // destroyed at the end, outside of the lock
    {
      std::lock_guard lock(mutex_);
      batch.swap(pending_);
      discarded.swap(discarded_);
    }
    std::vector<Activity> done;
    std::deque<Pending> kept;
    std::array<bool, kMaxDevices> busy{};
    for (Pending& pending : batch) {
      c10::DeviceIndex device = pending.activity.device;
      bool wait = all || batch.size() - done.size() > kMostPending;
      if (!wait && !busy[device]) busy[device] = !is_done(pending);
      if (!wait && busy[device]) {
        kept.push_back(std::move(pending));
      } else {
        read(pending);
        done.push_back(pending.activity);
      }
    }
    std::lock_guard lock(mutex_);
    done_.insert(done_.end(), done.begin(), done.end());
    pending_.insert(pending_.begin(), std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
    drain_at_ = pending_.size() + kDrain;
  }

  bool is_done(Pending& pending) {
    if (pending.timing == Timing::Host) return true;
    const Device& device = get_device(pending.activity.device);
    const tg_driver* driver = device.driver;
    // An error counts as done: it is found again when the times are read.
    return driver->event_query(driver->context, device.ordinal, pending.end->handle) != TG_NOT_READY;
  }

  void read(Pending& pending) {
    Activity& activity = pending.activity;
    try {
      if (pending.timing == Timing::Commands) read_command(activity, *pending.end);
      if (pending.timing == Timing::Events)
        read_events(activity, *pending.track->reference, *pending.begin, *pending.end);
    } catch (const std::exception& error) {
      note_problem(error);
    }
    if (activity.timed_by_device) return;
    activity.begin = activity.host_begin;
    activity.end = std::max(activity.end, activity.host_end);
  }

  void read_command(Activity& activity, Event& event) {
    synchronize_event(event);
    const Device& device = get_device(activity.device);
    const tg_driver* driver = device.driver;
    uint64_t begin = 0, end = 0;
    check(device, driver->event_times(driver->context, device.ordinal, event.handle, &begin, &end),
          "reading the times of a command");
    if (begin == 0 && end == 0) return;
    activity.begin = static_cast<int64_t>(begin);
    activity.end = static_cast<int64_t>(std::max(begin, end));
    activity.timed_by_device = true;
  }

  void read_events(Activity& activity, Event& reference, Event& begin, Event& end) {
    synchronize_event(end);
    activity.begin = nanoseconds(elapsed_time(reference, begin));
    activity.end = std::max(activity.begin, nanoseconds(elapsed_time(reference, end)));
    activity.timed_by_device = true;
  }

  static int64_t nanoseconds(double milliseconds) { return static_cast<int64_t>(milliseconds * 1e6); }

  // Clocks

  // Made at the device's first command, so that a profile opens no device that it does not use.
  std::shared_ptr<Track> track_of(const Device& device) {
    {
      std::lock_guard lock(mutex_);
      auto it = tracks_.find(device.index);
      if (it != tracks_.end()) return it->second;
    }
    auto track = std::make_shared<Track>();
    track->device = &device;
    try {
      if (device.has(TG_CAP_EVENT_TIMING)) {
        track->timing = device.driver->event_time_next ? Timing::Commands : Timing::Events;
        track->opened = sample(*track);
      }
    } catch (const std::exception& error) {
      note_problem(error);
      track->timing = Timing::Host;
    }
    std::lock_guard lock(mutex_);
    return tracks_.try_emplace(device.index, track).first->second;  // another thread may have been first
  }

  ClockSample sample(Track& track) { return track.timing == Timing::Commands ? sample_clock(track) : mark(track); }

  // The best of a few: one alone may have been interrupted.
  static ClockSample sample_clock(const Track& track) {
    const Device& device = *track.device;
    ClockSample best;
    for (int i = 0; i < 5; ++i) {
      uint64_t time = 0;
      int64_t before = now();
      check(device, device.driver->device_time(device.driver->context, device.ordinal, &time),
            "reading the device's clock");
      int64_t error = (now() - before) / 2;
      if (i == 0 || error < best.error) best = {static_cast<int64_t>(time), before + error, error};
    }
    return best;
  }

  // An event in the default stream, waited for. The first one becomes the track's reference.
  static ClockSample mark(Track& track) {
    c10::Stream stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, track.device->index), 0);
    EventPtr event(create_event(track.device->index, /*timing=*/true));
    wait_for(stream);
    int64_t before = now();
    record_event(*event, stream);
    synchronize_event(*event);
    int64_t error = (now() - before) / 2;
    ClockSample sample{0, before + error, error};
    if (track.reference)
      sample.device = nanoseconds(elapsed_time(*track.reference, *event));
    else
      track.reference = std::move(event);
    return sample;
  }

  // So that the event is reached at once. Without the errors of kernels: those are not ours to raise.
  static void wait_for(c10::Stream stream) {
    const Device& device = get_device(stream.device_index());
    check(device,
          device.driver->stream_synchronize(device.driver->context, device.ordinal,
                                            stream_handle(device.index, stream.id())),
          "waiting for a stream");
  }

  // Clocks drift, so the device's times lie on the line through a sample from before them and one from after.
  void to_host_time(Track& track, std::vector<Activity>& activities) {
    if (track.timing == Timing::Host) return;
    ClockSample a = track.opened, b = a;
    try {
      b = sample(track);
    } catch (const std::exception& error) {
      note_problem(error);
    }
    const double rate =
        b.device > a.device ? static_cast<double>(b.host - a.host) / static_cast<double>(b.device - a.device) : 1;
    int64_t early = 0;
    auto each = [&](auto&& change) {
      for (Activity& activity : activities)
        if (activity.device == track.device->index && activity.timed_by_device) change(activity);
    };
    each([&](Activity& activity) {
      activity.begin = a.host + static_cast<int64_t>(static_cast<double>(activity.begin - a.device) * rate);
      activity.end = a.host + static_cast<int64_t>(static_cast<double>(activity.end - a.device) * rate);
      early = std::max(early, activity.host_begin - activity.begin);
    });
    // Nothing begins before it is submitted. If it looks so, the samples were off by that much, as far as they can be.
    const int64_t shift = std::min(early, std::max(a.error, b.error));
    each([&](Activity& activity) {
      const int64_t duration = activity.end - activity.begin;
      activity.begin = std::max(activity.begin + shift, activity.host_begin);
      activity.end = activity.begin + duration;
    });
  }

  // What the host did itself had to wait for the stream; the waiting is none of its time.
  static void begin_after_predecessor(std::vector<Activity>& activities) {
    std::map<std::pair<c10::DeviceIndex, int64_t>, int64_t> end_of_stream;
    for (Activity& activity : activities) {
      if (activity.kind == Activity::Wait) continue;
      int64_t& previous = end_of_stream[{activity.device, activity.stream}];
      if (!activity.timed_by_device) activity.begin = std::clamp(previous, activity.begin, activity.end);
      previous = std::max(previous, activity.end);
    }
  }

  void note_problem(const std::exception& error) {
    std::string text = error.what();
    text.resize(std::min(text.size(), text.find('\n')));
    std::lock_guard lock(mutex_);
    if (std::find(problems_.begin(), problems_.end(), text) == problems_.end()) problems_.push_back(std::move(text));
  }

  std::mutex draining_;
  std::mutex mutex_;  // of what follows; never held across a call of the driver
  std::atomic<uint64_t> collection_{0};
  std::map<c10::DeviceIndex, std::shared_ptr<Track>> tracks_;
  std::deque<Pending> pending_;
  std::vector<Pending> discarded_;
  std::vector<Activity> done_;
  std::vector<std::string> problems_;
  std::unordered_set<std::string> names_;
  uint64_t submitted_ = 0, dropped_ = 0;
  size_t drain_at_ = kDrain;
};

Collector& collector() {
  static auto* instance = new Collector;  // a profile may still be on when the process ends
  return *instance;
}

void enter(std::vector<uint64_t> Nesting::* list, uint64_t correlation) {
  Nesting& nesting = nesting_of_thread;
  uint64_t collection = collector().collection();
  if (nesting.collection != collection) nesting = {collection, {}, {}};
  (nesting.*list).push_back(correlation);
}

void leave(std::vector<uint64_t> Nesting::* list) noexcept {
  Nesting& nesting = nesting_of_thread;
  if (nesting.collection == collector().collection() && !(nesting.*list).empty()) (nesting.*list).pop_back();
}

Activity make(Activity::Kind kind) {
  Activity activity{};
  activity.kind = kind;
  return activity;
}

}  // namespace

void start_collecting() { collector().start(); }
void set_activity_capacity(uint64_t most) { capacity.store(most); }
void abandon_collecting() noexcept { collector().abandon(); }
std::vector<Activity> stop_collecting(std::vector<std::string>& problems) { return collector().stop(problems); }

void push_op(uint64_t correlation) { enter(&Nesting::ops, correlation); }
void pop_op() noexcept { leave(&Nesting::ops); }
void push_range(uint64_t correlation) { enter(&Nesting::ranges, correlation); }
void pop_range() noexcept { leave(&Nesting::ranges); }

tg_status collect_launch(const Device& device, tg_stream stream, const tg_launch& launch, const std::string& name,
                         Submit submit) {
  Activity activity = make(Activity::Launch);
  activity.name = collector().keep(name);
  for (uint32_t d = 0; d < 3; ++d) {
    activity.groups[d] = d < launch.dims ? launch.groups[d] : 1;
    activity.local[d] = d < launch.dims ? launch.local[d] : 1;
  }
  return collector().submit(activity, device, stream, submit);
}

// Shown as a kernel of one group.
tg_status collect_run(const Device& device, tg_stream stream, const std::string& name, Submit submit) {
  Activity activity = make(Activity::Launch);
  activity.name = collector().keep(name);
  for (uint32_t d = 0; d < 3; ++d) activity.groups[d] = activity.local[d] = 1;
  return collector().submit(activity, device, stream, submit);
}

tg_status collect_copy(const Device& device, tg_stream stream, uint64_t bytes, tg_copy_kind direction, Submit submit) {
  Activity activity = make(Activity::Copy);
  activity.direction = direction;
  activity.bytes = bytes;
  return collector().submit(activity, device, stream, submit);
}

tg_status collect_fill(const Device& device, tg_stream stream, uint64_t bytes, Submit submit) {
  Activity activity = make(Activity::Fill);
  activity.bytes = bytes;
  return collector().submit(activity, device, stream, submit);
}

tg_status collect_wait(const Device& device, tg_stream stream, Submit wait) {
  return collector().wait(make(Activity::Wait), device, stream, wait);
}

}  // namespace torchgraft
