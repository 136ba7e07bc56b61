#include "environment.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace ocl {
namespace {

// Lists and texts that readers may have: kept as long as the process lives.
template <class T>
T* lasting(const std::vector<T>& items) {
  T* copy = new T[items.size()];
  std::copy(items.begin(), items.end(), copy);
  return copy;
}

bool is_of(const char* entry, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

}  // namespace

std::optional<std::string> find_variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
}

void set_variable(const char* name, const std::optional<std::string>& value) {
  char* own = nullptr;
  if (value) {
    const std::string entry = std::string(name) + "=" + *value;
    own = lasting(std::vector<char>(entry.c_str(), entry.c_str() + entry.size() + 1));
  }
  const std::atomic_ref<char**> current(environ);
  char** before = current.load(std::memory_order_acquire);
  char** after = nullptr;
  do {
    std::vector<char*> entries;
    for (char** entry = before; entry != nullptr && *entry != nullptr; ++entry)
      if (!is_of(*entry, name)) entries.push_back(*entry);
    if (own != nullptr) entries.push_back(own);
    entries.push_back(nullptr);
    after = lasting(entries);
  } while (!current.compare_exchange_strong(before, after, std::memory_order_acq_rel));
}

}  // namespace ocl
