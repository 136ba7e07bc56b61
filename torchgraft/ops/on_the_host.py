"""Ops that torch composes of no others: they read and write a tensor's memory as the host's, whatever its device. They
run on the CPU, on copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchgraft.plans import recomposed
from torchgraft.plans.schema import parameters, resolve, written

_NAMES = (
    "_sobol_engine_draw",
    "_sobol_engine_ff_",
    "_sobol_engine_initialize_state_",
    "_sobol_engine_scramble_",
    "_rowwise_prune",
    "_saturate_weight_to_fp16",
    "choose_qparams_optimized",
)


def _on_copies(name: str) -> Callable[..., Any]:
    op = resolve(name)
    names, targets = [a.name for a in parameters(op)], written(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        device = next(x.device for x in given.values() if isinstance(x, torch.Tensor))
        copies = {n: x.cpu() if isinstance(x, torch.Tensor) else x for n, x in given.items()}
        result = op(**copies)
        for target in targets:
            given[target].copy_(copies[target])
        own = {id(copies[target]): given[target] for target in targets}
        return tree_map(lambda x: own.get(id(x), x.to(device)) if isinstance(x, torch.Tensor) else x, result)

    return run


for _name in _NAMES:
    recomposed(_name)(_on_copies(_name))
