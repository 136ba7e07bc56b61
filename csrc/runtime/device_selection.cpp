#include "device_selection.h"

#include <strings.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <sstream>

namespace torchgraft {
namespace {

constexpr const char* kKinds[] = {"", "cpu", "gpu", "accelerator"};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t first = part.find_first_not_of(" \t");
    if (first != std::string::npos) parts.push_back(part.substr(first, part.find_last_not_of(" \t") - first + 1));
  }
  return parts;
}

bool same_physical_device(const FoundDevice& a, const FoundDevice& b) {
  const char* uuid = a.device.properties.uuid;
  return *uuid && std::strcmp(uuid, b.device.properties.uuid) == 0;
}

bool is_kind(const std::string& wish) {
  return std::any_of(std::begin(kKinds) + 1, std::end(kKinds),
                     [&](const char* kind) { return strcasecmp(wish.c_str(), kind) == 0; });
}

bool matches(const Device& device, const std::string& wish) {
  if (is_kind(wish)) return strcasecmp(wish.c_str(), kind_name(device.properties.kind)) == 0;
  const tg_device_properties& p = device.properties;
  const char* texts[] = {p.name, p.vendor, p.platform, device.driver->name};
  return std::any_of(std::begin(texts), std::end(texts),
                     [&](const char* text) { return strcasestr(text, wish.c_str()); });
}

std::string list(const std::vector<FoundDevice>& found) {
  std::string text;
  for (size_t i = 0; i < found.size(); ++i) {
    const tg_device_properties& p = found[i].device.properties;
    text += "\n  " + std::to_string(i) + ": " + p.name + " (" + kind_name(p.kind) + ", " + found[i].device.driver->name;
    if (*p.platform) text += std::string(", ") + p.platform;
    text += ")";
  }
  return text;
}

class Selector {
 public:
  explicit Selector(const std::vector<FoundDevice>& found) : found_(found) {}

  // Whether the entry means any device, chosen before or not.
  bool choose(const std::string& wish) {
    if (std::all_of(wish.begin(), wish.end(), [](unsigned char c) { return std::isdigit(c); })) {
      const size_t number = wish.size() < 9 ? std::stoul(wish) : found_.size();
      if (number >= found_.size()) return false;
      if (std::find(chosen_.begin(), chosen_.end(), number) == chosen_.end()) chosen_.push_back(number);
      return true;
    }
    bool any = false;
    for (size_t i = 0; i < found_.size(); ++i) {
      if (!matches(found_[i].device, wish)) continue;
      any = true;
      add_once(i);
    }
    return any;
  }

  void add_once(size_t number) {
    for (size_t other : chosen_)
      if (other == number || same_physical_device(found_[other], found_[number])) return;
    chosen_.push_back(number);
  }

  std::vector<size_t> take() { return std::move(chosen_); }

 private:
  const std::vector<FoundDevice>& found_;
  std::vector<size_t> chosen_;
};

}  // namespace

const char* kind_name(uint32_t kind) {
  return kind >= TG_DEVICE_CPU && kind <= TG_DEVICE_ACCELERATOR ? kKinds[kind] : kKinds[TG_DEVICE_ACCELERATOR];
}

void mark_duplicates(std::vector<FoundDevice>& found) {
  for (size_t i = 0; i < found.size(); ++i)
    for (size_t j = 0; j < i && found[i].duplicate_of < 0; ++j)
      if (same_physical_device(found[i], found[j])) found[i].duplicate_of = static_cast<int32_t>(j);
}

Selection select_devices(const std::vector<FoundDevice>& found, const char* wishes) {
  Selection selection;
  Selector selector(found);
  const std::vector<std::string> entries = split(wishes ? wishes : "");
  const std::string setting = std::string("TORCHGRAFT_DEVICES is '") + (wishes ? wishes : "") + "'";
  if (entries.empty()) {
    for (size_t i = 0; i < found.size(); ++i) selector.add_once(i);
  } else if (entries.size() == 1 && entries[0] == "none") {
    selection.errors = setting + ", so no device is used";
  } else {
    std::string wrong;
    for (const std::string& entry : entries)
      if (!selector.choose(entry)) wrong += (wrong.empty() ? "'" : ", '") + entry + "'";
    if (!wrong.empty() && !found.empty())
      selection.errors = setting + ": " + wrong + " matches none of these devices:" + list(found);
  }
  selection.chosen = selector.take();
  return selection;
}

}  // namespace torchgraft
