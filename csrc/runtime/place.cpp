#include "place.h"

namespace torchgraft {
namespace {

std::function<std::string()>& teller() {
  static auto* function = new std::function<std::string()>;  // outlives the threads that may still ask
  return *function;
}

}  // namespace

std::string user_place() { return teller() ? teller()() : std::string(); }
void set_user_place(std::function<std::string()> place) { teller() = std::move(place); }

}  // namespace torchgraft
