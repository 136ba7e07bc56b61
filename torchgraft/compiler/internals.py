"""What the compiler stands on in torch that is not documented for backends, in one place. Nothing of Inductor's.

* `aot_autograd`: a Dynamo backend of compilers for forward and backward graphs; its arguments are those of
  torch._functorch.aot_autograd.aot_module_simplified.
* `min_cut_rematerialization_partition`: which of a training graph is forward and which backward; what is cheap is
  computed again in place of being kept.
* `core_aten_decompositions`: functions that say of ops what other ops they come down to.
* `_BoxedCodeGen`: a graph's function takes a list and empties it, so that memory is free after its last use.
* `CapabilityBasedPartitioner`, `OperatorSupportBase`: which supported nodes can be one part without a circle.
* `make_fx`, `FakeTensorMode`: a function's ops, of tensors without memory.
* `TracingContext.fw_metadata.static_input_indices` (`static_inputs`): which arguments of the graph that is being
  compiled are parameters and buffers.
* `ONNXRegistry` (`onnx_registry`): which ops torch.onnx can write.
* `SymInt.node.hint` (`hint`): what a size was when the graph was made.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import _BoxedCodeGen as BoxedCodeGen
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

__all__ = [
    "BoxedCodeGen",
    "CapabilityBasedPartitioner",
    "FakeTensorMode",
    "OperatorSupportBase",
    "aot_autograd",
    "core_aten_decompositions",
    "hint",
    "make_fx",
    "min_cut_rematerialization_partition",
    "onnx_registry",
    "static_inputs",
]


def hint(size: int | torch.SymInt) -> int | None:
    """What a size was when the graph was made; None if it depends on data."""
    if isinstance(size, int):
        return size
    known = size.node.hint
    return None if known is None else int(known)


def static_inputs() -> list[int]:
    """The numbers of the arguments that are parameters and buffers, of the graph that is being compiled."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return [] if metadata is None else list(metadata.static_input_indices)


@functools.cache
def onnx_registry() -> Any:
    """What torch.onnx can write."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry.from_torchlib()
