// The headers that nearly every source of the core includes, compiled once per build (see setup.py). Sources still include what
// they use: this file may be left out at any time.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>
