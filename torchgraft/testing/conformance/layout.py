"""A sample made again on a device: strides, offsets and shared memory stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

__all__ = ["Sample", "each_tensor", "on_device"]


class Sample:
    """Arguments of a call: OpInfo's `SampleInput` without what only torch's own tests need."""

    def __init__(
        self,
        input: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        process: Callable[[Any], Any] = lambda result: result,
    ) -> None:
        self.input, self.args, self.kwargs, self.process = input, tuple(args), dict(kwargs), process

    def arguments(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """All of it, for tree functions."""
        return self.input, self.args, self.kwargs

    def map_leaves(self, function: Callable[[Any], Any]) -> Sample:
        """The same with each argument replaced, however deep it stands in lists."""
        input, args, kwargs = tree_map(function, self.arguments())
        return Sample(input, args, kwargs, self.process)

    def map(self, function: Callable[[torch.Tensor], Any]) -> Sample:
        """The same with each tensor replaced."""
        return self.map_leaves(lambda x: function(x) if isinstance(x, torch.Tensor) else x)

    def call(self, op: Callable[..., Any], **more: Any) -> Any:
        """Calls `op` with the arguments."""
        return op(self.input, *self.args, **self.kwargs, **more)


def each_tensor(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree of arguments or results, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def on_device(sample: Sample, device: torch.device) -> Sample:
    """Makes the sample on a device.

    Each storage is copied as it is and its tensors are viewed again, so strides, offsets, broadcast dimensions and
    aliasing between arguments stay. The argument `device="cpu"` of factories becomes `device`.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:  # in a sample that is to be refused for it
            return tensor
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        plain = tensor.detach()
        conj, neg = plain.is_conj(), plain.is_neg()
        plain = plain.conj() if conj else plain
        plain = torch._neg_view(plain) if neg else plain
        source = plain.untyped_storage()
        if source._cdata not in storages:
            storages[source._cdata] = _copy_storage(source, device)
        moved = torch.empty(0, dtype=plain.dtype, device=device)
        moved.set_(storages[source._cdata], plain.storage_offset(), plain.size(), plain.stride())
        moved = torch._neg_view(moved) if neg else moved
        moved = moved.conj() if conj else moved
        return moved.requires_grad_(tensor.requires_grad)

    moved = sample.map(move)
    if str(moved.kwargs.get("device")) == "cpu":
        moved.kwargs["device"] = device
    return moved


def _copy_storage(source: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    size = source.nbytes()
    copy = torch.empty(size, dtype=torch.uint8, device=device)
    copy.copy_(torch.empty(0, dtype=torch.uint8, device=source.device).set_(source, 0, (size,), (1,)))
    return copy.untyped_storage()
