"""What the compiler stands on in torch that is not documented for backends, in one place. Nothing of Inductor's.

* `aot_autograd`: a Dynamo backend of compilers for forward and backward graphs; its arguments are those of
  torch._functorch.aot_autograd.aot_module_simplified.
* `min_cut_rematerialization_partition`: which of a training graph is forward and which backward; what is cheap is
  computed again in place of being kept.
* `core_aten_decompositions`: functions that say of ops what other ops they come down to.
* `_BoxedCodeGen`: a graph's function takes a list and empties it, so that memory is free after its last use.
* `SymInt.node.hint` (`hint`): what a size was when the graph was made.
"""

from __future__ import annotations

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.graph import _BoxedCodeGen as BoxedCodeGen

__all__ = ["BoxedCodeGen", "aot_autograd", "core_aten_decompositions", "hint", "min_cut_rematerialization_partition"]


def hint(size: int | torch.SymInt) -> int | None:
    """What a size was when the graph was made; None if it depends on data."""
    if isinstance(size, int):
        return size
    known = size.node.hint
    return None if known is None else int(known)
