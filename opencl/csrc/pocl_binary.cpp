#include "pocl_binary.h"

#include <cstring>

namespace ocl {
namespace {

// They begin with a word and a number that stands for the device they are for: the FNV-1 hash of its driver's name, the
// target and the processor, as in "pthread-x86_64-pc-linux-gnu-skylake-avx512" (pocl_binary.c, read for 3.1). Both
// devices' machine code is the same, so the number is all that has to be exchanged.
constexpr char kWord[] = "poclbin";
constexpr size_t kOffset = 8;

uint64_t fnv1(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash * 0x100000001b3) ^ static_cast<unsigned char>(c);
  return hash;
}

}  // namespace

Binary binary_of(const Api& api, cl_program program) {
  size_t size = 0;
  if (api.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) != CL_SUCCESS) return {};
  Binary binary(size);
  unsigned char* data = binary.data();
  if (api.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr) != CL_SUCCESS) return {};
  return binary;
}

uint64_t device_number(const Binary& binary) {
  uint64_t number = 0;
  if (binary.size() < kOffset + sizeof number || std::memcmp(binary.data(), kWord, sizeof kWord) != 0) return 0;
  std::memcpy(&number, binary.data() + kOffset, sizeof number);
  return number;
}

void set_device_number(Binary& binary, uint64_t number) {
  std::memcpy(binary.data() + kOffset, &number, sizeof number);
}

uint64_t caller_device_number(const std::string& device_name, uint64_t number) {
  // The name is "pthread-skylake-avx512-Some Processor", so that it is not known where the target's ends.
  const size_t first = device_name.find('-');
  if (first == device_name.npos) return 0;
  for (const char* target : {"x86_64-pc-linux-gnu", "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"}) {
    for (size_t end = device_name.find('-', first + 1); end != device_name.npos; end = device_name.find('-', end + 1)) {
      const std::string rest = "-" + std::string(target) + device_name.substr(first, end - first);
      if (fnv1("pthread" + rest) == number) return fnv1("basic" + rest);
    }
  }
  return 0;
}

}  // namespace ocl
