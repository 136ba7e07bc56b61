#include "pocl_binary.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace ocl {
namespace {

// Where a binary has what (pocl_binary.c, read for 3.1 to 7.2, which agree so far). It begins with a word and a number
// that stands for the device it is for: the FNV-1 hash of its driver's name, the target and the processor, as in
// "pthread-x86_64-pc-linux-gnu-skylake-avx512". Both devices' machine code is the same, so the number is all that has
// to be exchanged.
constexpr char kWord[] = "poclbin";
constexpr size_t kOffset = 8, kVersionOffset = 16, kFlagsOffset = 24, kHashOffset = 36, kHashLength = 40,
                 kVariablesOffset = 76;
// Flags: subnormal numbers count as zero; the size of the program's variables follows the hash.
constexpr uint64_t kFlushes = 1, kVariables = 2;

constexpr PoclRelease kReleases[] = {{3, 1, 9}, {4, 0, 11}, {5, 0, 11}, {6, 0, 11}, {7, 0, 11}, {7, 1, 11}, {7, 2, 12}};

bool is_binary(const Binary& binary) {
  return binary.size() >= kHashOffset + kHashLength && std::memcmp(binary.data(), kWord, sizeof kWord) == 0;
}

template <class T>
T number_at(const Binary& binary, size_t offset) {
  T value{};
  std::memcpy(&value, binary.data() + offset, sizeof value);
  return value;
}

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

const PoclRelease* find_pocl_release(const std::string& platform_version) {
  constexpr std::string_view kName = "PoCL ";
  const size_t name = platform_version.find(kName);
  if (name == platform_version.npos) return nullptr;
  const char* const end = platform_version.data() + platform_version.size();
  int major = 0, minor = 0;
  const auto [dot, error] = std::from_chars(platform_version.data() + name + kName.size(), end, major);
  if (error != std::errc() || dot == end || *dot != '.') return nullptr;
  const auto [rest, wrong] = std::from_chars(dot + 1, end, minor);
  // Distributions add their name; "7.2-pre" is what was on the way to a release.
  if (wrong != std::errc() || (rest != end && *rest != ' ' && *rest != '+')) return nullptr;
  const auto* const found = std::find_if(std::begin(kReleases), std::end(kReleases),
                                         [&, major = major, minor = minor](const PoclRelease& each) {
                                           return each.major == major && each.minor == minor;
                                         });
  return found != std::end(kReleases) ? found : nullptr;
}

std::string code_folder(const Binary& binary, const PoclRelease& release) {
  if (!is_binary(binary) || number_at<uint32_t>(binary, kVersionOffset) != release.binary_version ||
      (number_at<uint64_t>(binary, kFlagsOffset) & kFlushes) != 0)
    return "";
  return "/" + std::string(reinterpret_cast<const char*>(binary.data()) + kHashOffset, kHashLength) + "/";
}

bool may_have_variables(const Api& api, cl_program program, cl_device_id device) {
  size_t size = 0;
  if (api.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_OPTIONS, 0, nullptr, &size) != CL_SUCCESS)
    return true;
  std::string options(size, '\0');
  if (api.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_OPTIONS, size, options.data(), nullptr) != CL_SUCCESS)
    return true;
  constexpr std::string_view kStandard = "-cl-std=";
  const size_t standard = options.rfind(kStandard);
  // By default it is 1.2, which has none.
  return standard != options.npos && options.compare(standard + kStandard.size(), 3, "CL1") != 0;
}

bool has_variables(const Binary& binary) {
  // Whether there are some is said by their size, which this flag says to be there: later releases always set it.
  return is_binary(binary) && (number_at<uint64_t>(binary, kFlagsOffset) & kVariables) != 0 &&
         (binary.size() < kVariablesOffset + sizeof(uint64_t) || number_at<uint64_t>(binary, kVariablesOffset) != 0);
}

bool may_have_local_arrays(const Binary& binary, const std::string& kernel, uint32_t arguments) {
  // A kernel's record: its name behind the name's length, the number of arguments, that of local arrays.
  std::string record(2 * sizeof(uint32_t) + kernel.size(), '\0');
  const auto length = static_cast<uint32_t>(kernel.size());
  std::memcpy(record.data(), &length, sizeof length);
  std::memcpy(record.data() + sizeof length, kernel.data(), kernel.size());
  std::memcpy(record.data() + sizeof length + kernel.size(), &arguments, sizeof arguments);
  const std::string_view text(reinterpret_cast<const char*>(binary.data()), binary.size());
  const size_t at = text.find(record);
  return at == text.npos || at + record.size() + sizeof(uint32_t) > binary.size() ||
         number_at<uint32_t>(binary, at + record.size()) != 0;
}

bool may_print(const Binary& binary) {
  // In it is the program as LLVM's bitcode, which has the names of functions as they are: up to 6.0 and from 7.0 on.
  const std::string_view text(reinterpret_cast<const char*>(binary.data()), binary.size());
  return text.find("__pocl_printf_format_full") != text.npos || text.find("pocl_printf_alloc") != text.npos;
}

uint64_t device_number(const Binary& binary) { return is_binary(binary) ? number_at<uint64_t>(binary, kOffset) : 0; }

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
