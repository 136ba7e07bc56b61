// The operators: each is prepared for tensors as they are, and then run with addresses.
#pragma once

#include <torchgraft/driver.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device.h"

namespace npu {

[[noreturn]] inline void refuse(const std::string& why) { throw Failure(TG_ERROR_UNSUPPORTED, why); }

struct Tensor {
  uint32_t element = 0;  // tg_element; 0: not given
  bool is_number = false;
  std::vector<int64_t> sizes, strides;

  explicit operator bool() const { return element != 0; }
  int64_t dims() const { return static_cast<int64_t>(sizes.size()); }
  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    return n;
  }
  bool is_contiguous() const {
    int64_t step = 1;
    for (size_t d = sizes.size(); d-- > 0; step *= sizes[d])
      if (sizes[d] != 1 && strides[d] != step) return false;
    return true;
  }
};

struct Source {
  explicit Source(const tg_program_source& source);

  std::string name;
  std::vector<Tensor> inputs, outputs;

  bool is_integer(const char* key) const { return find(key).is_integer; }
  int64_t integer(const char* key) const { return find(key).integer; }
  double number(const char* key) const {
    const Attribute& found = find(key);
    return found.is_integer ? static_cast<double>(found.integer) : found.number;
  }
  const std::string& text(const char* key) const { return find(key).text; }
  const std::vector<int64_t>& integers(const char* key) const { return find(key).integers; }

 private:
  struct Attribute {
    bool is_integer;
    int64_t integer;
    double number;
    std::string text;
    std::vector<int64_t> integers;
  };
  const Attribute& find(const char* key) const;
  std::map<std::string, Attribute> attributes_;
};

// The memory of a run, as the host sees it: inputs, then outputs; numbers where they are.
struct Run {
  std::vector<void*> places;
  char* scratch;
};

struct Program {
  std::function<void(const Run&)> run;
  uint64_t scratch_bytes = 0;
};

// Throws Failure with TG_ERROR_UNSUPPORTED, and why, where the library has none. `wishes` as of program_supports.
Program prepare(const Source& source, std::vector<uint32_t>* wishes);

// Of oneDNN: products, convolutions, and attention by products.
Program prepare_matmul(const Source& source, std::vector<uint32_t>* wishes);
Program prepare_convolution(const Source& source, std::vector<uint32_t>* wishes);
Program prepare_convolution_input_gradient(const Source& source, std::vector<uint32_t>* wishes);
Program prepare_convolution_weight_gradient(const Source& source, std::vector<uint32_t>* wishes);

Program prepare_attention(const Source& source, std::vector<uint32_t>* wishes);
Program prepare_attention_gradient(const Source& source, std::vector<uint32_t>* wishes);

// By loops of this device's own.
Program prepare_pointwise(const Source& source);
Program prepare_loops(const Source& source);

inline void want(bool holds, const char* why) {
  if (!holds) refuse(why);
}
inline void want_float(const Tensor& tensor) { want(tensor.element == TG_ELEMENT_F32, "it has float32 alone"); }

}  // namespace npu
