#include "allocator.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <shared_mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "adopted_memory.h"
#include "graphs/capture.h"
#include "runtime/command.h"
#include "runtime/event.h"
#include "runtime/stream.h"

// Memory comes from the driver in segments, which are cut into blocks. A free block belongs to the stream it was first
// used on: that stream's order makes it safe to hand out again at once. Small blocks wait in bins of exactly their
// size, uncoalesced, which makes the usual case a list's pop; when a size runs out, the bins are emptied into the
// best-fit sets and neighbours join.
//
// Where the driver can give memory to parts of reserved addresses, the large blocks of a stream lie in one range of
// them, which grows and gets holes: pieces of several segments would not join. Parts without memory are blocks, too,
// "holes".
//
// Random sizes would pile up segments that are too small for what comes next. So the cache is bounded: where a new
// segment would make it larger than the need (the most that was in use at once) and two fifths of it, unused segments
// are given back first. A loop that repeats the same sizes does not pay for this each time: see make_room().
//
// The mutex of a heap is never held across a call of the driver, since a driver in Python takes the GIL, and a thread
// with the GIL may be freeing a tensor.

namespace torchgraft {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::format_size;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr c10::MempoolId_t kNoPool{0, 0};

constexpr size_t kSmallLimit = size_t{1} << 20;
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kSegmentGranule = size_t{2} << 20;
static_assert(kSegmentGranule % TG_MEMORY_PART == 0);
constexpr size_t kLeastRest = size_t{64} << 10;  // of a large block: less than this stays with it
constexpr size_t kBins = kSmallLimit / kGranule;
constexpr uint64_t kScatter = 0x9E3779B97F4A7C15;  // a factor that spreads a number over its upper bits
constexpr size_t kRemembered = 4096;               // so many excesses are known at most

// TORCHGRAFT_MEMORY_CACHING=0: every block is a segment of its own, of just the bytes that were asked for, and is given
// back before the next one is taken. For tools that watch accesses: to them a segment is one allocation.
const bool caching = [] {
  const char* setting = std::getenv("TORCHGRAFT_MEMORY_CACHING");
  return setting == nullptr || std::strcmp(setting, "0") != 0;
}();

enum class State : uint8_t { kAllocated, kAwaitingFree, kInactive };
enum Pool : uint8_t { kSmallPool = 1, kLargePool = 2 };  // also the index into a StatArray

struct StreamPools;

struct Block {
  Block(char* address, size_t size, StreamPools* owner, c10::DeviceIndex device, Pool pool)
      : address(address), size(size), owner(owner), device(device), pool(pool) {}

  char* address;
  size_t size;
  size_t requested = 0;
  StreamPools* owner;
  c10::DeviceIndex device;
  Pool pool;
  State state = State::kInactive;
  bool free = false;          // in its owner's set; a block in a bin is not, so that neighbours leave it alone
  bool in_range = false;      // of reserved addresses; otherwise in a segment
  bool hole = false;          // has no memory
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  Block* next_in_bin = nullptr;
  std::vector<c10::Stream> used_on;  // streams other than the owner
  int pending = 0;                   // events to wait for

  bool whole() const { return !previous && !next; }
};

struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
  bool operator()(const Block* a, size_t size) const { return a->size < size; }
};
struct ByAddress {
  bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
};

// The free blocks of one stream, or of one in the captures of one pool.
struct StreamPools {
  StreamPools(c10::StreamId stream, c10::MempoolId_t pool) : stream(stream), pool(pool) {}

  const c10::StreamId stream;
  const c10::MempoolId_t pool;
  std::array<Block*, kBins> bins{};  // by size / kGranule
  size_t binned = 0;
  std::set<Block*, BySize> sets[2];
  std::set<Block*, ByAddress> holes;  // of its range
  bool asked_for_range = false;

  std::set<Block*, BySize>& set_of(const Block* block) { return sets[block->pool - 1]; }
};

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void increase(StatArray& stat, Pool pool, size_t amount) {
  stat[0].increase(amount);
  stat[pool].increase(amount);
}
void decrease(StatArray& stat, Pool pool, size_t amount) {
  stat[0].decrease(amount);
  stat[pool].decrease(amount);
}

// Blocks that the user's settings say are never split.
bool oversize(const Block* block) {
  return block->pool == kLargePool && block->size >= AcceleratorAllocatorConfig::max_split_size();
}

// Ranges grow by what is asked for. The user's settings may say that segments are to be as they are, or that blocks
// beyond a size are never split, which says the same.
bool ranges_wanted() {
  if (AcceleratorAllocatorConfig::max_split_size() != std::numeric_limits<size_t>::max()) return false;
  std::string settings = AcceleratorAllocatorConfig::last_allocator_settings();
  std::erase_if(settings, [](unsigned char each) { return std::isspace(each); });
  return settings.find("expandable_segments:False") == std::string::npos;
}

void free_block(void* context);

// What the profiler is told, read under the lock and reported outside it.
struct Usage {
  size_t allocated;
  size_t reserved;
};

bool in_a_capture(const std::vector<c10::Stream>& streams) {
  const auto is_captured = [](c10::Stream s) { return bool(capture_of(s.device_index(), s.id())); };
  return capturing() && std::any_of(streams.begin(), streams.end(), is_captured);
}

class Heap {
 public:
  explicit Heap(Device& device) : device_(device) {}

  Block* allocate(size_t bytes, c10::StreamId stream) {
    c10::MempoolId_t pool = kNoPool;
    if (capturing()) [[unlikely]]
      if (const Captured captured = capture_of(device_.index, stream)) pool = captured->pool();
    TORCH_CHECK(bytes < std::numeric_limits<size_t>::max() / 2, name(), ": cannot allocate ", bytes, " bytes");
    size_t size = round_up(bytes, kGranule);
    Block* block;
    Usage usage;
    {
      std::lock_guard lock(mutex_);
      history_ = (history_ << 8) + bytes * kScatter;
      block = take(pools_of(stream, pool), size);
      if (block) [[likely]]
        usage = hand_out(block, bytes);
    }
    if (!block) [[unlikely]]
      return allocate_slowly(bytes, size, stream, pool);
    report(block->address, static_cast<int64_t>(block->size), usage);
    return block;
  }

  void free(Block* block) noexcept {
    Usage usage;
    std::vector<c10::Stream> used_on;
    char* address = block->address;
    auto size = static_cast<int64_t>(block->size);
    {
      std::lock_guard lock(mutex_);
      decrease(stats_.allocation, block->pool, 1);
      decrease(stats_.allocated_bytes, block->pool, block->size);
      decrease(stats_.requested_bytes, block->pool, block->requested);
      block->state = State::kAwaitingFree;
      usage = current_usage();
      if (block->used_on.empty()) [[likely]]
        put_back(block);
      else
        used_on.swap(block->used_on);
    }
    report(address, -size, usage);  // the block may be in another thread's hands by now
    if (used_on.empty()) [[likely]]
      return;
    if (in_a_capture(used_on)) {
      std::lock_guard lock(mutex_);
      after_capture_.emplace_back(block, std::move(used_on));
    } else {
      free_after(block, used_on);
    }
  }

  void free_after_capture() {
    decltype(after_capture_) freed;
    {
      std::lock_guard lock(mutex_);
      freed.swap(after_capture_);
    }
    for (auto& [block, used_on] : freed) {
      if (in_a_capture(used_on)) {  // another one
        std::lock_guard lock(mutex_);
        after_capture_.emplace_back(block, std::move(used_on));
      } else {
        free_after(block, used_on);
      }
    }
  }

  void enter_pool(c10::MempoolId_t pool) {
    std::lock_guard lock(mutex_);
    ++graph_pools_[pool].users;
  }
  void leave_pool(c10::MempoolId_t pool) {
    std::lock_guard lock(mutex_);
    --graph_pools_.at(pool).users;
    // Those whose memory has been given back.
    std::erase_if(graph_pools_, [this](const auto& entry) {
      const auto lies_there = [&](const auto& segment) { return segment.second->owner->pool == entry.first; };
      return entry.second.users == 0 && std::none_of(segments_.begin(), segments_.end(), lies_there);
    });
  }

  void record_stream(Block* block, c10::Stream stream) {
    std::lock_guard lock(mutex_);
    if (stream.device_index() == block->device && block->owner->stream == stream.id()) return;
    auto& used_on = block->used_on;
    if (std::find(used_on.begin(), used_on.end(), stream) == used_on.end()) used_on.push_back(stream);
  }

  // Puts blocks back whose events have passed; with `wait`, all.
  void collect_pending(bool wait) {
    std::deque<std::pair<EventPtr, Block*>> pending;
    {
      std::lock_guard lock(mutex_);
      if (pending_.empty()) return;
      pending.swap(pending_);
      if (wait) ++stats_.num_sync_all_streams;
    }
    std::deque<std::pair<EventPtr, Block*>> later;
    std::vector<Block*> done;
    std::exception_ptr failure;  // of the driver; the blocks stay pending then
    for (auto& entry : pending) {
      auto& [event, block] = entry;
      try {
        if (wait && !failure) synchronize_event(*event);
        if (!failure && query_event(*event)) {
          done.push_back(block);
          continue;
        }
      } catch (...) {
        failure = std::current_exception();
      }
      later.push_back(std::move(entry));
    }
    {
      std::lock_guard lock(mutex_);
      for (Block* block : done)
        if (--block->pending == 0) put_back(block);
      for (auto& entry : later) pending_.push_back(std::move(entry));
    }
    if (failure) std::rethrow_exception(failure);
  }

  // Begins anew: with what is in use as the need, and no loop known.
  void empty_cache() {
    release_cached();
    std::lock_guard lock(mutex_);
    need_ = active_bytes();
    excesses_.clear();
  }

  DeviceStats stats() {
    std::lock_guard lock(mutex_);
    stats_.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
    return stats_;
  }
  template <class Reset>
  void reset(Reset reset) {
    std::lock_guard lock(mutex_);
    for (StatArray* array :
         {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
          &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes})
      for (Stat& stat : *array) reset(stat);
    reset(stats_.oversize_allocations);
    reset(stats_.oversize_segments);
  }
  void reset_counters() {
    std::lock_guard lock(mutex_);
    stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
    stats_.num_device_alloc = stats_.num_device_free = 0;
  }

  void set_limit(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  uint64_t limit() {
    std::lock_guard lock(mutex_);
    return limit_;
  }

  void snapshot(std::vector<SegmentInfo>& segments) {
    std::lock_guard lock(mutex_);
    for (const auto& [address, first] : segments_) {
      for (const Block* block = first; block; block = block->next) {
        if (block->hole) continue;
        if (!has_memory(block->previous)) {  // what lies between two holes of a range is a segment
          const bool large = block->pool == kLargePool;
          segments.push_back({device_.index, block->owner->stream, block->owner->pool, large, block->in_range, {}});
        }
        segments.back().blocks.push_back({reinterpret_cast<uintptr_t>(block->address), block->size,
                                          block->state == State::kInactive ? 0 : block->requested,
                                          block->state == State::kAllocated, block->state != State::kInactive});
      }
    }
  }

  // The block that covers `address`, or NULL.
  Block* find(const void* address) {
    std::lock_guard lock(mutex_);
    auto* wanted = static_cast<const char*>(address);
    auto segment = segments_.upper_bound(wanted);
    if (segment == segments_.begin()) return nullptr;
    for (Block* block = std::prev(segment)->second; block; block = block->next)
      if (wanted >= block->address && wanted < block->address + block->size) return block->hole ? nullptr : block;
    return nullptr;
  }

 private:
  std::string name() const { return backend_name() + ":" + std::to_string(device_.index); }
  c10::Device torch_device() const { return {c10::DeviceType::PrivateUse1, device_.index}; }
  Usage current_usage() const {
    return {static_cast<size_t>(stats_.allocated_bytes[0].current),
            static_cast<size_t>(stats_.reserved_bytes[0].current)};
  }
  void report(char* address, int64_t change, Usage usage) const {
    c10::reportMemoryUsageToProfiler(address, change, usage.allocated, usage.reserved, torch_device());
  }

  size_t active_bytes() const { return static_cast<size_t>(stats_.active_bytes[0].current); }
  size_t reserved_bytes() const { return static_cast<size_t>(stats_.reserved_bytes[0].current); }

  StreamPools& pools_of(c10::StreamId stream, c10::MempoolId_t pool) {
    auto& pools = pool == kNoPool ? pools_[stream] : graph_pools_.at(pool).streams[stream];
    if (!pools) [[unlikely]]
      pools = std::make_unique<StreamPools>(stream, pool);
    return *pools;
  }

  // Everything below is called with the mutex held, down to the slow path.

  void count_inactive(const Block* block, bool more) {
    if (block->whole()) return;
    auto change = more ? increase : decrease;
    change(stats_.inactive_split, block->pool, 1);
    change(stats_.inactive_split_bytes, block->pool, block->size);
  }
  void add_free(Block* block) {
    block->free = true;
    block->owner->set_of(block).insert(block);
    count_inactive(block, true);
  }
  void remove_free(Block* block) {
    count_inactive(block, false);
    block->owner->set_of(block).erase(block);
    block->free = false;
  }

  static bool has_memory(const Block* block) { return block && !block->hole; }

  // A block takes the place of its neighbour, too; neither is in a set.
  void absorb_previous(Block* block) {
    Block* left = block->previous;
    block->address = left->address;
    block->size += left->size;
    block->previous = left->previous;
    if (left->previous)
      left->previous->next = block;
    else
      segments_[block->address] = block;
    delete left;
  }
  void absorb_next(Block* block) {
    Block* right = block->next;
    block->size += right->size;
    block->next = right->next;
    if (right->next) right->next->previous = block;
    delete right;
  }

  // Joins a block that is in no set with its free neighbours, and puts the whole into the set.
  void coalesce(Block* block) {
    if (Block* left = block->previous; left && left->free) {
      remove_free(left);
      absorb_previous(block);
    }
    if (Block* right = block->next; right && right->free) {
      remove_free(right);
      absorb_next(block);
    }
    add_free(block);
  }

  // The same for what has no memory any more.
  void add_hole(Block* block) {
    auto& holes = block->owner->holes;
    block->hole = true;
    if (Block* left = block->previous; left && left->hole) {
      holes.erase(left);
      absorb_previous(block);
    }
    if (Block* right = block->next; right && right->hole) {
      holes.erase(right);
      absorb_next(block);
    }
    holes.insert(block);
  }

  void empty_bins(StreamPools& pools) {
    if (pools.binned == 0) return;
    for (Block*& head : pools.bins)
      while (head) {
        Block* block = head;
        head = block->next_in_bin;
        count_inactive(block, false);
        coalesce(block);
      }
    pools.binned = 0;
  }

  // A block that nothing uses any more.
  void put_back(Block* block) {
    block->state = State::kInactive;
    decrease(stats_.active, block->pool, 1);
    decrease(stats_.active_bytes, block->pool, block->size);
    if (oversize(block)) [[unlikely]]
      stats_.oversize_allocations.decrease(1);
    if (block->pool == kSmallPool && block->size < kSmallLimit) {
      StreamPools& pools = *block->owner;
      Block*& head = pools.bins[block->size / kGranule];
      block->next_in_bin = head;
      head = block;
      ++pools.binned;
      count_inactive(block, true);
    } else {
      coalesce(block);
    }
  }

  Usage hand_out(Block* block, size_t requested) {
    block->requested = requested;
    block->state = State::kAllocated;
    increase(stats_.allocation, block->pool, 1);
    increase(stats_.allocated_bytes, block->pool, block->size);
    increase(stats_.active, block->pool, 1);
    increase(stats_.active_bytes, block->pool, block->size);
    increase(stats_.requested_bytes, block->pool, requested);
    need_ = std::max(need_, active_bytes());
    if (oversize(block)) [[unlikely]]
      stats_.oversize_allocations.increase(1);
    return current_usage();
  }

  // Keeps `size` bytes of a block that is in no set. Returns the rest, which is in none either.
  Block* cut(Block* block, size_t size) {
    auto* rest = new Block(block->address + size, block->size - size, block->owner, block->device, block->pool);
    rest->in_range = block->in_range;
    rest->hole = block->hole;
    rest->previous = block;
    rest->next = block->next;
    if (block->next) block->next->previous = rest;
    block->next = rest;
    block->size = size;
    return rest;
  }

  // The same, where the rest is worth a free block of its own.
  void split(Block* block, size_t size) {
    const size_t rest = block->size - size;
    if (rest >= (block->pool == kSmallPool ? kGranule : kLeastRest) && !oversize(block)) add_free(cut(block, size));
  }

  // A free block of the stream for `size` bytes, or NULL.
  Block* take(StreamPools& pools, size_t size) {
    if (!caching) [[unlikely]]
      return nullptr;
    Pool pool = size < kSmallLimit ? kSmallPool : kLargePool;
    if (pool == kSmallPool) {
      Block*& head = pools.bins[size / kGranule];
      if (Block* block = head) [[likely]] {
        head = block->next_in_bin;
        --pools.binned;
        count_inactive(block, false);
        return block;
      }
    }
    if (Block* block = best_fit(pools, pool, size)) return block;
    if (pool == kLargePool || pools.binned == 0) return nullptr;
    empty_bins(pools);
    return best_fit(pools, pool, size);
  }

  // What could be given back of a free block: the segment, if it is one, or whole parts of a range.
  static size_t unused_bytes(const Block* block) {
    if (!block->in_range) return block->whole() ? block->size : 0;
    const auto begin = reinterpret_cast<uintptr_t>(block->address);
    const uintptr_t first = round_up(begin, kSegmentGranule);
    const uintptr_t last = (begin + block->size) / kSegmentGranule * kSegmentGranule;
    return last > first ? last - first : 0;
  }

  // Takes a free block out of its set, less what lies in a range before and behind the last `wanted` bytes of the parts
  // that it has whole.
  Block* cut_out(Block* block, size_t wanted) {
    remove_free(block);
    if (!block->in_range) return block;
    const size_t kept = std::min(unused_bytes(block), round_up(std::min(wanted, block->size), kSegmentGranule));
    const size_t behind = reinterpret_cast<uintptr_t>(block->address + block->size) % kSegmentGranule;
    if (behind > 0) add_free(cut(block, block->size - behind));
    if (block->size == kept) return block;
    Block* part = cut(block, block->size - kept);
    add_free(block);
    return part;
  }

  // Takes memory that nothing uses out of the sets, the largest pieces first, until it is `excess` bytes.
  std::vector<Block*> take_unused(size_t excess) {
    std::vector<Block*> unused;
    const auto add = [&](StreamPools& pools) {
      empty_bins(pools);
      for (auto& set : pools.sets) std::copy_if(set.begin(), set.end(), std::back_inserter(unused), unused_bytes);
    };
    for (auto& pools : pools_)
      if (pools) add(*pools);
    for (auto& [_, graph_pool] : graph_pools_)
      if (graph_pool.users == 0)
        for (auto& [_, pools] : graph_pool.streams) add(*pools);
    std::sort(unused.begin(), unused.end(), [](const Block* a, const Block* b) { return BySize()(b, a); });
    size_t taken = 0, count = 0;
    for (; count < unused.size() && taken < excess; ++count) {
      unused[count] = cut_out(unused[count], excess - taken);
      taken += unused[count]->size;
    }
    unused.resize(count);
    return unused;
  }

  Block* best_fit(StreamPools& pools, Pool pool, size_t size) {
    auto& set = pools.sets[pool - 1];
    auto it = set.lower_bound(size);
    if (it == set.end()) return nullptr;
    Block* block = *it;
    // Blocks above the split limit are kept whole, for requests of about their size.
    size_t limit = AcceleratorAllocatorConfig::max_split_size();
    if (block->size >= limit &&
        (size < limit || block->size - size > AcceleratorAllocatorConfig::max_non_split_rounding_size()))
      return nullptr;
    remove_free(block);
    split(block, size);
    return block;
  }

  // Takes the lock itself, like everything below.

  Block* allocate_slowly(size_t bytes, size_t size, c10::StreamId stream, c10::MempoolId_t graph_pool) {
    Pool pool = size < kSmallLimit ? kSmallPool : kLargePool;
    collect_pending(/*wait=*/false);
    Block* block = retry(bytes, size, stream, graph_pool);
    if (block) return block;

    std::string reason;
    if (pool == kLargePool && graph_pool == kNoPool && reserve_range(stream)) {
      make_room_in_range(size, stream);
      block = grow(bytes, size, stream, reason);
      if (!block && retry_after_release()) block = grow(bytes, size, stream, reason);
    }
    if (!block) block = allocate_segment(bytes, size, pool, stream, graph_pool, reason);
    if (!block) block = retry(bytes, size, stream, graph_pool);  // what other threads have freed meanwhile
    if (!block) raise_out_of_memory(bytes, reason);
    return block;
  }

  bool retry_after_release() {
    {
      std::lock_guard lock(mutex_);
      ++stats_.num_alloc_retries;
    }
    return release_cached();
  }

  Block* allocate_segment(size_t bytes, size_t size, Pool pool, c10::StreamId stream, c10::MempoolId_t graph_pool,
                          std::string& reason) {
    size_t comfortable;
    if (caching) {
      comfortable = make_room(size, pool);
    } else {
      release_cached();
      size = comfortable = bytes;
    }
    if (uint64_t largest = device_.properties.max_allocation; largest && comfortable > largest)
      comfortable = std::max<size_t>(size, largest / kGranule * kGranule);

    const auto segment = [&](size_t bytes_of_segment) {
      return new_segment(bytes, size, bytes_of_segment, pool, stream, graph_pool, reason);
    };
    Block* block = segment(comfortable);
    if (!block && retry_after_release()) block = segment(comfortable);
    if (!block && comfortable > size) block = segment(size);
    return block;
  }

  // Whether the stream has a range, which the first call asks the driver for. Addresses are for an eighth more than the
  // device's memory, since holes may be too small for what is asked for.
  bool reserve_range(c10::StreamId stream) {
    const tg_driver* driver = device_.driver;
    if (!driver->reserve || !caching || !ranges_wanted()) return false;
    {
      std::lock_guard lock(mutex_);
      StreamPools& pools = pools_of(stream, kNoPool);
      if (std::exchange(pools.asked_for_range, true)) return !pools.holes.empty();
    }
    const uint64_t memory = device_.properties.total_memory, bytes = round_up(memory + memory / 8, kSegmentGranule);
    void* address = nullptr;
    if (driver->reserve(driver->context, device_.ordinal, bytes, &address) != TG_OK) return false;
    TORCH_CHECK(address && reinterpret_cast<uintptr_t>(address) % TG_MEMORY_PART == 0, name(), ": the driver reserved ",
                "addresses from ", address, " on, which is no multiple of 2 MiB");
    std::lock_guard lock(mutex_);
    auto* range = new Block(static_cast<char*>(address), bytes, &pools_of(stream, kNoPool), device_.index, kLargePool);
    range->in_range = true;
    segments_[range->address] = range;
    add_hole(range);
    return true;
  }

  // The first hole that, with a free block before it, has room for `size` bytes; and what it lacks of memory for them.
  std::pair<Block*, size_t> find_hole(const StreamPools& pools, size_t size) const {
    for (Block* hole : pools.holes) {
      const size_t before = hole->previous && hole->previous->free ? hole->previous->size : 0;
      if (before < size && before + hole->size >= size) return {hole, round_up(size - before, kSegmentGranule)};
    }
    return {nullptr, 0};
  }

  // Gives memory to the beginning of a hole, and cuts the block from it and the free block before it. NULL, and the
  // driver's reason, when there is no memory or no hole.
  Block* grow(size_t bytes, size_t size, c10::StreamId stream, std::string& reason) {
    Block* block;
    Block* before = nullptr;
    if (uint64_t largest = device_.properties.max_allocation; largest && size > largest) return nullptr;
    {
      std::lock_guard lock(mutex_);
      StreamPools& pools = pools_of(stream, kNoPool);
      const auto [hole, missing] = find_hole(pools, size);
      if (!hole || beyond_limit(missing, reason)) return nullptr;
      block = hole;
      pools.holes.erase(block);
      if (block->size > missing) pools.holes.insert(cut(block, missing));
      if (block->previous && block->previous->free) remove_free(before = block->previous);
      // Counted beforehand, so that threads together stay below the limit.
      increase(stats_.reserved_bytes, kLargePool, missing);
    }
    const tg_driver* driver = device_.driver;
    const size_t missing = block->size;
    const tg_status status = driver->commit(driver->context, device_.ordinal, block->address, missing);
    if (status != TG_OK) reason = driver->last_error(driver->context);
    Usage usage;
    {
      std::lock_guard lock(mutex_);
      if (status != TG_OK) {
        decrease(stats_.reserved_bytes, kLargePool, missing);
        add_hole(block);
        if (before) coalesce(before);
        return nullptr;
      }
      block->hole = false;
      count_segments(1, block);
      ++stats_.num_device_alloc;
      if (before) absorb_previous(block);
      split(block, size);
      usage = hand_out(block, bytes);
    }
    report(block->address, static_cast<int64_t>(block->size), usage);
    return block;
  }

  // A part of a range has got memory (1) or lost it (-1): it is a segment, or joins one, or two.
  void count_segments(int change, const Block* part) {
    change *= 1 - has_memory(part->previous) - has_memory(part->next);
    if (change > 0) increase(stats_.segment, kLargePool, 1);
    if (change < 0) decrease(stats_.segment, kLargePool, 1);
  }

  // Whether the user's limit forbids so many more bytes, which `reason` then says.
  bool beyond_limit(size_t more, std::string& reason) const {
    if (reserved_bytes() + more <= limit_) return false;
    reason = "the memory limit of this process is " + format_size(limit_);
    return true;
  }

  // As make_room, for what a range lacks.
  void make_room_in_range(size_t size, c10::StreamId stream) {
    size_t missing;
    {
      std::lock_guard lock(mutex_);
      missing = find_hole(pools_of(stream, kNoPool), size).second;
    }
    make_room(size, missing, missing);
  }

  // Decides how large the new segment for `size` bytes is to be, and gives as much back as the cache would be larger
  // than its bound. But a loop that needs more would lose in each round what it needs in the next. It is recognised by
  // the last sizes that were asked for: where those have led here before, the segment comes on top.
  size_t make_room(size_t size, Pool pool) {
    const size_t shared = AcceleratorAllocatorConfig::large_segment_size();
    const size_t least = pool == kSmallPool ? kSmallSegment : round_up(size, kSegmentGranule);
    return make_room(size, least, pool == kLargePool && size < shared / 2 ? std::max(shared, least) : least);
  }
  size_t make_room(size_t size, size_t least, size_t most) {
    const size_t shared = AcceleratorAllocatorConfig::large_segment_size();
    size_t segment, room;
    {
      std::lock_guard lock(mutex_);
      size_t need = std::max(need_, active_bytes() + size);
      size_t bound = std::max(need + need / 5 * 2, shared);
      room = bound - std::min(bound, reserved_bytes());
      segment = std::clamp(room / kSegmentGranule * kSegmentGranule, least, most);
      if (segment <= room) return segment;
      if (excesses_.size() == kRemembered) excesses_.clear();
      if (!excesses_.insert(history_).second) return segment;
    }
    release(segment - room);
    return segment;
  }

  Block* retry(size_t bytes, size_t size, c10::StreamId stream, c10::MempoolId_t pool) {
    Usage usage;
    Block* block;
    {
      std::lock_guard lock(mutex_);
      block = take(pools_of(stream, pool), size);
      if (!block) return nullptr;
      usage = hand_out(block, bytes);
    }
    report(block->address, static_cast<int64_t>(block->size), usage);
    return block;
  }

  // Gives all unused segments back to the driver. Returns whether there were any.
  bool release_cached() {
    collect_pending(/*wait=*/true);
    return release(std::numeric_limits<size_t>::max());
  }

  // Gives unused memory back, the largest pieces first, until it is `excess` bytes. Returns whether there was any.
  bool release(size_t excess) {
    std::vector<Block*> unused;
    {
      std::lock_guard lock(mutex_);
      unused = take_unused(excess);
    }
    if (unused.empty()) return false;
    // Blocks are free for their stream's next work, not for the driver's taking.
    const tg_driver* driver = device_.driver;
    tg_status status = driver->device_synchronize(driver->context, device_.ordinal);
    if (status != TG_OK) {
      std::lock_guard lock(mutex_);
      for (Block* block : unused) coalesce(block);
    }
    check(device_, status, "waiting for the device before freeing its memory");
    size_t failed = 0;
    for (Block* block : unused) failed += block->in_range ? !release_part(block) : !release_segment(block);
    if (failed) raise_status(device_, TG_ERROR, "freeing memory");
    return true;
  }

  bool release_segment(Block* block) {
    {
      std::lock_guard lock(mutex_);
      segments_.erase(block->address);
      decrease(stats_.segment, block->pool, 1);
      decrease(stats_.reserved_bytes, block->pool, block->size);
      if (oversize(block)) stats_.oversize_segments.decrease(1);
      ++stats_.num_device_free;
    }
    const tg_driver* driver = device_.driver;
    const tg_status status = driver->deallocate(driver->context, device_.ordinal, block->address);
    delete block;
    return status == TG_OK;
  }

  bool release_part(Block* block) {
    const tg_driver* driver = device_.driver;
    const tg_status status = driver->decommit(driver->context, device_.ordinal, block->address, block->size);
    std::lock_guard lock(mutex_);
    if (status != TG_OK) {
      coalesce(block);
      return false;
    }
    count_segments(-1, block);
    decrease(stats_.reserved_bytes, block->pool, block->size);
    ++stats_.num_device_free;
    add_hole(block);
    return true;
  }

  // Asks the driver for a segment and cuts the block from it. NULL, and the driver's reason, when there is no memory.
  Block* new_segment(size_t bytes, size_t size, size_t segment, Pool pool, c10::StreamId stream,
                     c10::MempoolId_t graph_pool, std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      if (beyond_limit(segment, reason)) return nullptr;
      // Counted beforehand, so that threads together stay below the limit.
      increase(stats_.reserved_bytes, pool, segment);
    }
    void* address = nullptr;
    const tg_driver* driver = device_.driver;
    tg_status status = driver->allocate(driver->context, device_.ordinal, segment, &address);
    if (status != TG_OK || !address) {
      std::string message = status == TG_OK ? "the driver returned no address" : driver->last_error(driver->context);
      {
        std::lock_guard lock(mutex_);
        decrease(stats_.reserved_bytes, pool, segment);
      }
      if (status != TG_OK && status != TG_ERROR_OUT_OF_MEMORY) raise_status(device_, status, "allocating memory");
      reason = message;
      return nullptr;
    }
    Block* block;
    Usage usage;
    {
      std::lock_guard lock(mutex_);
      block = new Block(static_cast<char*>(address), segment, &pools_of(stream, graph_pool), device_.index, pool);
      segments_[block->address] = block;
      increase(stats_.segment, pool, 1);
      ++stats_.num_device_alloc;
      if (oversize(block)) stats_.oversize_segments.increase(1);
      split(block, size);
      usage = hand_out(block, bytes);
    }
    report(block->address, static_cast<int64_t>(block->size), usage);
    return block;
  }

  [[noreturn]] void raise_out_of_memory(size_t bytes, const std::string& reason) {
    uint64_t free_bytes = 0, total = device_.properties.total_memory;
    device_.driver->memory_info(device_.driver->context, device_.ordinal, &free_bytes, &total);
    Usage usage;
    {
      std::lock_guard lock(mutex_);
      ++stats_.num_ooms;
      usage = current_usage();
    }
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), usage.allocated, usage.reserved, torch_device());
    std::string text = name() + " out of memory. Tried to allocate " + format_size(bytes) + "; total " +
                       format_size(total) + ", free " + format_size(free_bytes) + ", allocated by tensors " +
                       format_size(usage.allocated) + ", reserved but unallocated " +
                       format_size(usage.reserved - usage.allocated) + "; try torch." + backend_name() +
                       ".empty_cache() or smaller batches";
    if (uint64_t largest = device_.properties.max_allocation; largest && bytes > largest)
      text += "; one allocation has at most " + format_size(largest) + " on this device";
    if (!reason.empty()) text += " (" + reason + ")";
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
  }

  // Called by a deleter, so it must not throw: a block whose events cannot be recorded is waited for, or lost.
  void free_after(Block* block, const std::vector<c10::Stream>& streams) noexcept {
    try {
      std::vector<EventPtr> events;
      for (c10::Stream stream : streams) {
        events.emplace_back(create_event(stream.device_index(), /*timing=*/false));
        record_event(*events.back(), stream);
      }
      std::lock_guard lock(mutex_);
      block->pending = static_cast<int>(events.size());
      for (EventPtr& event : events) pending_.emplace_back(std::move(event), block);
    } catch (const std::exception& e) {
      TORCH_WARN(name(), ": memory that was used on another stream is not reused: ", e.what());
    }
  }

  struct GraphPool {
    int users = 0;  // graphs and captures; without them its memory may be given back
    std::map<c10::StreamId, std::unique_ptr<StreamPools>> streams;
  };

  Device& device_;
  std::mutex mutex_;
  std::array<std::unique_ptr<StreamPools>, kMaxStreams> pools_;
  std::map<c10::MempoolId_t, GraphPool> graph_pools_;
  std::vector<std::pair<Block*, std::vector<c10::Stream>>> after_capture_;  // freed, and in use on captured streams
  std::map<const char*, Block*> segments_;                                  // the first block of each, by address
  std::deque<std::pair<EventPtr, Block*>> pending_;
  DeviceStats stats_;
  uint64_t limit_ = std::numeric_limits<uint64_t>::max();
  size_t need_ = 0;                        // the most bytes that were in use at once, since the cache was emptied
  uint64_t history_ = 0;                   // of the last eight sizes that were asked for
  std::unordered_set<uint64_t> excesses_;  // the histories after which a segment was more than the bound
};

constinit std::array<std::atomic<Heap*>, kMaxDevices> heaps{};

Heap& create_heap(c10::DeviceIndex index) {
  auto* created = new Heap(get_device(index));
  Heap* expected = nullptr;
  if (heaps[index].compare_exchange_strong(expected, created)) return *created;
  delete created;
  return *expected;
}

// Throws in a forked child, before any lock.
Heap& heap_of(c10::DeviceIndex index) {
  Device& device = get_device(index);
  Heap* heap = heaps[device.index].load(std::memory_order_acquire);
  return heap ? *heap : create_heap(index);
}

void free_block(void* context) {
  // In a forked child the mutex may be locked for ever, and the memory is the parent's.
  if (!context || in_bad_fork()) return;
  auto* block = static_cast<Block*>(context);
  heaps[block->device].load(std::memory_order_relaxed)->free(block);
}

Block* block_of(const c10::DataPtr& data) {
  if (auto* block = data.cast_context<Block>(&free_block)) return block;
  // Wrapped by another owner.
  if (!data.device().is_privateuseone() || !data.device().has_index()) return nullptr;
  return heap_of(data.device().index()).find(data.get());
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return torchgraft::allocate(current_device(), bytes); }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    if (bytes == 0) return;
    c10::DeviceIndex to = device_of_address(destination), from = device_of_address(source);
    TORCH_CHECK(to >= 0 && from >= 0, "copy_data: both addresses must come from the allocator of ", backend_name());
    Device& device = get_device(to);
    const tg_driver* driver = device.driver;
    tg_stream stream = current_stream_handle(to);
    if (from == to) {
      check(device,
            submit_copy(device, stream, destination, source, bytes, TG_COPY_DEVICE_TO_DEVICE, /*blocking=*/false),
            "copying on the device");
      return;
    }
    Device& other = get_device(from);
    if (driver == other.driver && driver->copy_peer) {
      synchronize_stream(current_stream(from));
      check(device, submit_peer_copy(device, stream, destination, other, source, bytes), "copying from another device");
      return;
    }
    std::vector<char> staging(bytes);
    check(other,
          submit_copy(other, current_stream_handle(from), staging.data(), source, bytes, TG_COPY_DEVICE_TO_HOST,
                      /*blocking=*/true),
          "copying to another device");
    check(device,
          submit_copy(device, stream, destination, staging.data(), bytes, TG_COPY_HOST_TO_DEVICE, /*blocking=*/true),
          "copying from another device");
  }

  // Once memory has been asked for. Before that torch.accelerator's questions are answered without opening a device.
  bool initialized() override {
    return std::any_of(heaps.begin(), heaps.end(), [](const auto& heap) { return heap.load() != nullptr; });
  }

  void emptyCache(c10::MempoolId_t) override {
    raise_if_forked();
    for (auto& heap : heaps)
      if (Heap* used = heap.load()) used->empty_cache();
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (!data.get()) return;
    stream_handle(stream.device_index(), stream.id());  // throws if there is no such stream
    Block* block = block_of(data);
    if (block) heap_of(block->device).record_stream(block, stream);
  }

  DeviceStats getDeviceStats(c10::DeviceIndex index) override { return heap_of(index).stats(); }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    heap_of(index).reset([](Stat& stat) { stat.reset_accumulated(); });
    heap_of(index).reset_counters();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    heap_of(index).reset([](Stat& stat) { stat.reset_peak(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    Device& device = get_device(index);
    uint64_t free_bytes = 0, total = 0;
    check(device, device.driver->memory_info(device.driver->context, device.ordinal, &free_bytes, &total),
          "asking for the memory of the device");
    return {free_bytes, total};
  }
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* instance = new Allocator;  // used until the process ends
  return instance;
}

c10::DataPtr allocate(c10::DeviceIndex index, size_t bytes) {
  if (index < 0) index = current_device();
  c10::Device device(c10::DeviceType::PrivateUse1, index);
  if (bytes == 0) {
    get_device(index);
    return {nullptr, device};
  }
  if (capturing()) [[unlikely]]
    if (const Captured captured = capture_of_current(index); captured && captured->symbolic_memory())
      return captured->symbolic_memory()->allocate(bytes, device);
  Heap& heap = heap_of(index);
  Block* block = heap.allocate(bytes, current_stream(index).id());
  return {block->address, block, &free_block, device};
}

void enter_pool(c10::DeviceIndex index, c10::MempoolId_t pool) { heap_of(index).enter_pool(pool); }

void leave_pool(c10::DeviceIndex index, c10::MempoolId_t pool) noexcept {
  if (!in_bad_fork()) heaps[index].load()->leave_pool(pool);
}

void free_after_capture(c10::DeviceIndex index) noexcept {
  if (!in_bad_fork()) heaps[index].load()->free_after_capture();
}

c10::DeviceIndex device_of_address(const void* address) {
  raise_if_forked();
  for (c10::DeviceIndex index = 0; index < kMaxDevices; ++index)
    if (Heap* heap = heaps[index].load(); heap && heap->find(address)) return index;
  return device_of_adopted(address);
}

void set_memory_limit(c10::DeviceIndex index, uint64_t bytes) { heap_of(index).set_limit(bytes); }

uint64_t memory_limit(c10::DeviceIndex index) { return heap_of(index).limit(); }

std::vector<SegmentInfo> memory_snapshot() {
  raise_if_forked();
  std::vector<SegmentInfo> segments;
  for (auto& heap : heaps)
    if (Heap* used = heap.load()) used->snapshot(segments);
  return segments;
}

void register_allocator() { c10::SetAllocator(c10::DeviceType::PrivateUse1, device_allocator(), /*priority=*/0); }

}  // namespace torchgraft
