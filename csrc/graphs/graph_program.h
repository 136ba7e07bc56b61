// A recording that is ready to be run: runs of commands, each perhaps a graph of the driver's, and what lies between.
#pragma once

#include <optional>
#include <vector>

#include "capture.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace torchgraft {

// Its calls come one at a time.
class GraphProgram {
 public:
  // Whose the commands' memory is. With the graph's, replays come one after the other, also on the device; with the
  // caller's, the addresses are set before each.
  enum Memory { GraphsOwn, Callers };

  GraphProgram(Device& device, Recording& recording, Memory memory = GraphsOwn);
  ~GraphProgram();
  GraphProgram(const GraphProgram&) = delete;
  GraphProgram& operator=(const GraphProgram&) = delete;

  // On `current`; does not wait. Who calls it sees to what the kernels report.
  void replay(c10::Stream current);
  // Until all replays are done, which with the caller's memory may run side by side.
  void wait();

  // Where an address stands in a command.
  struct Pointer {
    uint32_t node;
    enum Kind : uint8_t { Argument, Destination, Source, OfHost } kind;
    uint32_t argument = 0;  // its number, or that of a host function's memory
  };
  // From the next replay on.
  void set(const Pointer& pointer, void* address);

 private:
  // Neighbouring commands of one branch; or, with a count of 0, one node that is no command.
  struct Run {
    uint16_t branch;
    uint32_t first, count;
    tg_graph graph = nullptr;  // the driver's; NULL: command by command
  };

  DeviceCommand& command(uint32_t node) { return std::get<DeviceCommand>(recording_.nodes[node].action); }
  bool can_be_drivers(uint32_t node) const;
  void find_runs();
  void make_driver_graphs();
  c10::Stream stream_of(uint16_t branch, c10::Stream current) const;
  void follow_last_replay(c10::Stream current);
  void draw_random_numbers();
  void set_argument(uint32_t node, uint32_t argument, const tg_arg& value);
  void submit(const Run& run, tg_stream stream);
  void pass(const Node& node, c10::Stream stream);

  Device& device_;
  Recording& recording_;
  const Memory memory_;
  std::vector<EventPtr> marks_;
  std::vector<c10::Stream> streams_;  // of the branches from 1 on
  std::vector<Run> runs_;
  std::vector<uint32_t> run_of_;  // by node
  std::optional<c10::Stream> last_stream_;
  StreamSet used_;  // for replays
  EventPtr last_replay_;
};

}  // namespace torchgraft
