// Which of the devices that the drivers offer are used, and in which order: the variable TORCHGRAFT_DEVICES.
#pragma once

#include <string>
#include <vector>

#include "device.h"

namespace torchgraft {

// Sets `duplicate_of` of every device that an earlier one with the same uuid stands for already.
void mark_duplicates(std::vector<FoundDevice>& found);

struct Selection {
  std::vector<size_t> chosen;  // positions in `found`
  std::string errors;          // empty if every entry matched something
};

// `wishes` is a list, separated by commas, of
//   - a number: the device at that place of `found`,
//   - a kind: cpu, gpu, accelerator,
//   - any other text: the devices with it in their name, vendor, platform or driver, in any case of letters,
// or the word "none". NULL or nothing but blanks: all devices. A physical device that several platforms offer is taken
// once, where it comes first, unless numbers name the others.
Selection select_devices(const std::vector<FoundDevice>& found, const char* wishes);

const char* kind_name(uint32_t kind);

}  // namespace torchgraft
