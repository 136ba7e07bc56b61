"""What writes graphs in a language that a device's compiler reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Importer"]


@dataclass(frozen=True)
class Importer:
    """What writes graphs in a language.

    Attributes:
        why_not: why an op cannot be written, in a few words; empty if it can.
        write: the text, or bytes, of a graph of aten ops on the CPU, of fixed sizes, with fake tensors in
            `meta["val"]`. Its inputs are the placeholders in their order, its outputs those of the graph. Tensors that
            the module has itself (`get_attr`) are constants.
        version: of everything that decides what is written; programs are kept on disk under it.
        decompositions: of ops that it cannot write, beside torch's own.
    """

    why_not: Callable[[torch._ops.OpOverload], str]
    write: Callable[[torch.fx.GraphModule], bytes]
    version: Callable[[], str]
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
