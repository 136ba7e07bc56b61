"""Max pooling with gradients: the device's kernels in place of Inductor's loops.

For the gradient Inductor keeps the tap that was a window's largest, a byte, and not the pixel's index, eight of them.
In its loops a window's comparisons come one after the other in each lane, and the gradient is a sum into places that
could be any. On CPU devices the ops of `torchgraft.ops.pooling` do both, with the same byte between them. Poolings
whose places nobody needs are left to Inductor, which fuses them with what stands beside them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.inductor_prims import _low_memory_max_pool_offsets_to_indices as to_indices
from torch._inductor.inductor_prims import _low_memory_max_pool_with_offsets as with_offsets
from torch.fx.experimental.symbolic_shapes import guard_or_false

from torchgraft import backend
from torchgraft.ops.pooling import has_offsets
from torchgraft.plans.device import kernel_form

__all__ = ["keep_offsets"]

_aten = torch.ops.aten

_RESHAPES = (_aten.reshape.default, _aten.view.default)


def keep_offsets(gm: torch.fx.GraphModule) -> None:
    """Puts the device's ops in the place of the graph's nodes of max pooling."""
    for target, put in _PUT.items():
        for node in gm.graph.find_nodes(op="call_function", target=target):
            put(node, *node.args)


def _has_kernels(image: torch.Tensor) -> bool:
    """Whether it is an image that the ops take as it lies."""
    if image.device.type != backend.name() or not guard_or_false(image.is_contiguous()):
        return False
    return has_offsets(kernel_form(image.device.index or 0), image.dtype)


def _is_used(node: torch.fx.Node, result: int) -> bool:
    return any(user.target is operator.getitem and user.args[1] == result and user.users for user in node.users)


def _keep_taps(node: torch.fx.Node, image: Any, *_: Any) -> None:
    if _has_kernels(image.meta["val"]) and _is_used(node, 1):
        node.target = torch.ops.torchgraft.max_pool_offsets.default


def _scatter_in_planes(node: torch.fx.Node, zeros: Any, dim: int, places: Any, grad: Any) -> None:
    """A sum into planes of zeros at the indices of largest pixels, which is what the gradient is decomposed to."""
    indices = _reshaped(places)
    if indices.target is to_indices and dim == 1 and _is_zero(zeros) and _has_kernels(node.meta["val"]):
        _put_gradient(node, grad, indices, shape=zeros.args[0])


def _scatter_in_volumes(node: torch.fx.Node, grad: Any, image: Any, *windows_and_indices: Any) -> None:
    indices = windows_and_indices[-1]
    if indices.target is to_indices and _has_kernels(image.meta["val"]):
        _put_gradient(node, grad, indices)


def _reshaped(node: Any) -> Any:
    """What a node is a reshape of."""
    while node.target in _RESHAPES:
        node = node.args[0]
    return node


def _is_zero(node: Any) -> bool:
    return node.target is _aten.full.default and node.args[1] == 0


def _put_gradient(node: torch.fx.Node, grad: Any, indices: Any, shape: Any = None) -> None:
    """`shape` is the node's where it is not the image's: its numbers, or the nodes that they come from."""
    offsets, kernel_size, size, *windows = indices.args
    graph = node.graph
    with graph.inserting_before(node):
        args = (grad, offsets, size, kernel_size, *windows)
        made = graph.call_function(torch.ops.torchgraft.max_pool_offsets_backward.default, args)
        if shape is not None:
            extents = [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in size]
            planes = offsets.meta["val"].shape[: -len(kernel_size)]
            made.meta["val"] = node.meta["val"].new_empty((*planes, *extents))
            made = graph.call_function(_aten.reshape.default, (made, shape))
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)
    graph.erase_node(node)


_PUT: dict[Any, Callable[..., None]] = {
    with_offsets: _keep_taps,
    _aten.scatter_add.default: _scatter_in_planes,
    _aten.max_pool3d_with_indices_backward.default: _scatter_in_volumes,
}
