"""`flex_attention` in the ops that it is defined by, so that what it does to scores fuses with their softmax.

Inductor makes one kernel of it from texts for the devices of its own tree, which no registration reaches. Here its two
nodes, forward and backward, become the products, the changed and masked scores and the softmax that they mean, before
anything is generated: of the functions that were given, and of what they capture, the generators see ops as of any
other program. Large matrices of scores are made and used in parts, some rows of queries at a time.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._guards import detect_fake_mode
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.ir import get_fill_order
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import _vmap_for_bhqkv
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchgraft import backend
from torchgraft.inductor.flex_op import lanes
from torchgraft.inductor.functions import Captured, Text, Untranslatable, Value, number
from torchgraft.ops.attention.problem import LARGEST_HEAD
from torchgraft.plans.device import device_traits, kernel_form

__all__ = ["expand_attention"]

# A matrix of more scores than this is made in parts, but no more than so many, each of which is compiled.
_MOST_SCORES, _MOST_PARTS = 1 << 26, 16

# The size of a block that holds everything.
_ALL = 1 << 30

# Fewer queries than these leave lanes of vectors empty, in which the kernel has them.
_FEW = 8

# What a mask is under which all count.
_TRUE = number(True).text

_log = logging.getLogger("torchgraft.inductor")

Tensors = Sequence[Any]


def expand_attention(gm: torch.fx.GraphModule) -> None:
    """Puts ops in the place of the graph's nodes of `flex_attention` on the device."""
    expanded = False
    for target, plain in ((flex_attention, _forward), (flex_attention_backward, _backward)):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            query: Any = node.args[0]
            if query.meta["val"].device.type == backend.name():
                _put(gm, node, plain)
                expanded = True
    if expanded:
        gm.graph.eliminate_dead_code()
        gm.graph.lint()


# ---- a node's place ----


def _put(gm: torch.fx.GraphModule, node: torch.fx.Node, plain: Callable[..., Any]) -> None:
    """Puts what a function does, in ops, in a node's place."""
    leaves, spec = tree_flatten(node.args)
    leaves = [_module(gm, leaf) for leaf in leaves]
    nodes = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    values = [each.meta["val"] for each in nodes]

    def called(*tensors: Any) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
        return plain(*tree_unflatten(filled, spec))

    mode = detect_fake_mode(values)
    assert mode is not None
    decompositions = {**select_decomp_table(), torch.ops.flex_lib.zeros_and_scatter.default: _scattered}
    with mode, enable_python_dispatcher(), torch.no_grad():
        traced = make_fx(called, decompositions, _allow_non_fake_inputs=True)(*values)
    meta = {key: value for key, value in node.meta.items() if key in ("stack_trace", "nn_module_stack")}
    with gm.graph.inserting_before(node):
        results = _copied(gm, traced, nodes, meta)
    _replace(node, results)
    gm.graph.erase_node(node)


def _module(gm: torch.fx.GraphModule, leaf: Any) -> Any:
    """The function that a node stands for, or the leaf."""
    if isinstance(leaf, torch.fx.Node) and leaf.op == "get_attr":
        found = operator.attrgetter(str(leaf.target))(gm)
        return found if isinstance(found, torch.fx.GraphModule) else leaf
    return leaf


def _copied(
    gm: torch.fx.GraphModule, traced: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node], meta: dict[str, Any]
) -> Any:
    """Copies a graph into another's, and gives its results there."""
    known: dict[torch.fx.Node, Any] = {}
    given = iter(inputs)
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(given)
        elif node.op == "output":
            return torch.fx.map_arg(node.args[0], known.__getitem__)
        else:
            known[node] = copy = gm.graph.node_copy(node, known.__getitem__)
            copy.meta.update(meta)
            if node.op == "get_attr":
                copy.target = _attribute(gm, getattr(traced, str(node.target)))
    raise AssertionError("a graph without output")


def _attribute(gm: torch.fx.GraphModule, tensor: torch.Tensor) -> str:
    """The name of a new constant of a graph's."""
    number = 0
    while hasattr(gm, name := f"_attention_constant{number}"):
        number += 1
    gm.register_buffer(name, tensor)
    return name


def _replace(node: torch.fx.Node, results: Any) -> None:
    """Has those that take a result out of a tuple take the result itself."""
    for user in list(node.users):
        assert user.target is operator.getitem
        index: Any = user.args[1]
        if isinstance(results[index], torch.fx.Node):
            user.replace_all_uses_with(results[index])
        else:
            _replace(user, results[index])
        user.graph.erase_node(user)


def _scattered(shape: Sequence[Any], indices: Sequence[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Gradients of what a function indexes, summed in float32 at least."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    grad = torch.zeros(shape, device=values.device, dtype=dtype)
    return grad.index_put(tuple(indices), values.to(dtype), accumulate=True)


# ---- what the nodes mean ----


@dataclass
class _Scores:
    """The scores of some rows of queries.

    Attributes:
        plain: as the product gives them, scaled.
        changed: by the functions, -inf where they are masked.
        mask: where they are not, by function and blocks.
        places: of their four dimensions.
    """

    plain: torch.Tensor
    changed: torch.Tensor
    mask: torch.Tensor
    places: tuple[torch.Tensor, ...]


@dataclass
class _Functions:
    score: torch.fx.GraphModule
    mask: torch.fx.GraphModule
    scale: float
    score_buffers: Tensors
    mask_buffers: Tensors
    listed: tuple[torch.Tensor, torch.Tensor, int, int] | None = None

    def scores(self, query: torch.Tensor, key: torch.Tensor, first: int) -> _Scores:
        """Of the queries from the first on that is given."""
        made = _grouped(query, key) @ key.transpose(-2, -1)
        plain = made.reshape(*query.shape[:3], key.shape[2]) * self.scale
        sizes, device = plain.shape, plain.device
        b, h, n = (torch.arange(sizes[d], device=device) for d in (0, 1, 3))
        places = (b, h, torch.arange(first, first + sizes[2], device=device), n)
        score = _vmap_for_bhqkv(self.score, prefix=(0,), suffix=(None,) * len(self.score_buffers))
        mask = _vmap_for_bhqkv(self.mask, prefix=(), suffix=(None,) * len(self.mask_buffers))
        with TransformGetItemToIndex():
            kept = mask(*places, *self.mask_buffers)
            if self.listed is not None:
                kept = self._in_blocks(kept, *places, *self.listed)
            changed = score(plain, *places, *self.score_buffers).to(plain.dtype)
        return _Scores(plain, torch.where(kept, changed, -math.inf), kept, places)

    @staticmethod
    def _in_blocks(
        kept: torch.Tensor,
        b: torch.Tensor,
        h: torch.Tensor,
        m: torch.Tensor,
        n: torch.Tensor,
        masked: torch.Tensor,
        full: torch.Tensor,
        q_size: int,
        k_size: int,
    ) -> torch.Tensor:
        """What is kept of it by the lists of blocks, which say it alone where there is no function."""
        shape = masked.shape
        at = (
            (b if shape[0] != 1 else b * 0).view(-1, 1, 1, 1),
            (h if shape[1] != 1 else h * 0).view(-1, 1, 1),
            (m // q_size).clamp(max=shape[2] - 1).view(-1, 1),
            n // k_size,
        )
        return (kept & masked[at]) | full[at]


def _listed(block_mask: Tensors, keys: Any) -> tuple[torch.Tensor, torch.Tensor, int, int] | None:
    """Which blocks are listed as those with a mask and as those without, and their sizes; None for one of all."""
    counts, places, full_counts, full_places = block_mask[2:6]
    q_size, k_size = block_mask[-3:-1]
    if isinstance(k_size, int) and k_size >= _ALL:
        return None
    blocks = (keys + k_size - 1) // k_size

    def table(counts: torch.Tensor | None, places: torch.Tensor | None) -> torch.Tensor:
        if counts is None or places is None:
            return torch.zeros((*block_mask[2].shape, blocks), dtype=torch.bool, device=block_mask[2].device)
        is_listed = torch.arange(places.shape[-1], device=places.device) < counts.unsqueeze(-1)
        none = torch.zeros((*counts.shape, blocks), dtype=torch.int32, device=places.device)
        return none.scatter_add(-1, places.clamp(max=blocks - 1).long(), is_listed.to(torch.int32)) > 0

    return table(counts, places), table(full_counts, full_places), q_size, k_size


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: torch.fx.GraphModule,
    block_mask: Tensors,
    scale: float,
    kernel_options: Any,
    score_buffers: Tensors = (),
    mask_buffers: Tensors = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention, the logarithm of what its scores sum to and the largest score; both to base 2, as all devices give
    them."""
    functions = _Functions(score_mod, block_mask[-1], scale, score_buffers, mask_buffers)
    texts = _texts(query, key, value, functions, block_mask)
    if texts is not None:
        operands = (query, key, value, *block_mask[2:6], texts.captured, scale, *block_mask[-3:-1])
        return torch.ops.torchgraft.flex_attention.default(  # type: ignore[no-any-return]
            *operands, texts.score, texts.mask, texts.helpers
        )
    functions.listed = _listed(block_mask, key.shape[2])
    precise, wide = _precise(query), query.to(_precise(query))
    keys, values = (_of_all_batches(each, query) for each in (key, value))
    parts: list[tuple[torch.Tensor, ...]] = []
    for first, last in _spans(query, key):
        scores = functions.scores(_rows(wide, first, last), keys.to(precise), first).changed
        largest = scores.amax(-1, keepdim=True)
        weights = (scores - torch.where(largest == -math.inf, 0.0, largest)).exp()
        total = weights.sum(-1, keepdim=True)
        weights = weights * torch.where(total == 0, 0.0, 1 / total)  # nothing where all is masked
        found = _grouped(weights.to(query.dtype), values) @ values.to(query.dtype)
        sums = torch.where(largest == -math.inf, -math.inf, largest + total.log())
        parts.append((found.reshape(*scores.shape[:3], value.shape[3]), sums, largest))
    out, sums, largest = (_joined([part[i] for part in parts]) for i in range(3))
    to_base_2 = 1 / math.log(2)
    return (
        _laid_out(out, query.stride()),
        (sums.squeeze(-1) * to_base_2).to(torch.float32),
        (largest.squeeze(-1) * to_base_2).to(torch.float32),
    )


@dataclass
class _Texts:
    """The functions in the kernel language, and what they read."""

    score: str
    mask: str
    gradient: str
    helpers: str
    captured: list[torch.Tensor]


def _texts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    functions: _Functions,
    block_mask: Tensors,
    joint: torch.fx.GraphModule | None = None,
) -> _Texts | None:
    """What a kernel needs that holds no matrix of scores and skips blocks of which the mask says so. None where there
    is no such kernel: for functions that are no expressions, and for few queries."""
    index = query.device.index or 0
    q_size, k_size = block_mask[-3:-1]
    few = isinstance(query.shape[2], int) and query.shape[2] < _FEW
    sizes = (query.shape[1], query.shape[3], value.shape[3], q_size, k_size)
    if few or kernel_form(index) != "cpu" or not all(isinstance(size, int) for size in sizes):
        return None
    if len({query.dtype, key.dtype, value.dtype}) > 1 or max(sizes[1:3]) > LARGEST_HEAD:
        return None
    # What a work-item takes is in one row of the tables.
    side_by_side = lanes(query.dtype, device_traits(index).simd_width)
    if q_size % side_by_side or (joint is not None and k_size % side_by_side):
        return None
    text, captured = Text(), _Captures()
    places = [
        Value(f"tg_{name}", torch.int32, size)
        for name, size in zip("bhmn", (*query.shape[:3], key.shape[2]), strict=True)
    ]
    plain = Value("tg_s", _precise(query))
    try:
        buffers = captured.of(functions.score_buffers)
        score, changed = text.of(functions.score, [plain, *places, *buffers])
        mask, kept = text.of(functions.mask, [*places, *captured.of(functions.mask_buffers)])
        gradient, derived = "", None
        if joint is not None:
            gradient, derived = text.of(joint, [plain, *places, Value("tg_g", _precise(query)), *buffers])
    except Untranslatable as why:
        _log.info("flex_attention holds its scores in memory: %s", why)
        return None
    return _Texts(
        f"{score}\ntg_s = {changed.text};" if changed.text != "tg_s" else "",
        f"{mask}\ntg_kept = {kept.text};" if kept.text != _TRUE else "",
        f"{gradient}\ntg_g = {derived.text};" if derived is not None and derived.text != "tg_g" else "",
        "\n".join(text.helpers.values()),
        captured.tensors,
    )


class _Captures:
    """The tensors that a kernel's functions read, each under a name."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def of(self, buffers: Tensors) -> list[Value | Captured]:
        return [self._of(each) for each in buffers]

    def _of(self, buffer: Any) -> Value | Captured:
        if not isinstance(buffer, torch.Tensor):
            return number(buffer)
        self.tensors.append(buffer)
        return Captured(f"c{len(self.tensors) - 1}", buffer)


def _backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logsumexp: torch.Tensor | None,
    score_mod: torch.fx.GraphModule,
    joint: torch.fx.GraphModule,
    block_mask: Tensors,
    scale: float,
    kernel_options: Any,
    score_buffers: Tensors = (),
    mask_buffers: Tensors = (),
) -> tuple[Any, ...]:
    """The gradients of queries, keys and values, and of what the function of scores captures."""
    if query.dtype != key.dtype or query.dtype != value.dtype:
        raise ValueError(
            f"the gradient of flex_attention wants one dtype, not queries of {query.dtype}, keys of {key.dtype} and "
            f"values of {value.dtype}"
        )
    functions = _Functions(score_mod, block_mask[-1], scale, score_buffers, mask_buffers)
    precise, dtype = _precise(query), query.dtype
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    # How a score's gradient counts for all of its row.
    row = (out.to(precise) * grad_out.to(precise)).sum(-1, keepdim=True)
    if grad_logsumexp is not None:
        row = row - grad_logsumexp.to(precise).unsqueeze(-1) / math.log(2)
    texts = None
    if precise != torch.float64 and block_mask[6] is not None:  # the sums were rounded; the lists by keys may be absent
        texts = _texts(query, key, value, functions, block_mask, joint)
    if texts is not None:
        grads = torch.ops.torchgraft.flex_attention_backward.default(
            *(query, key, value, grad_out, logsumexp, row.squeeze(-1), *block_mask[2:10], texts.captured, scale),
            *(*block_mask[-3:-1], texts.score, texts.mask, texts.gradient, texts.helpers),
        )
        return (*_as_given(query, key, value, *grads), (None,) * len(score_buffers))
    functions.listed = _listed(block_mask, key.shape[2])
    keys, values = (_of_all_batches(each, query) for each in (key, value))
    gradient_of_scores = _vmap_for_bhqkv(
        joint,
        prefix=(0,),
        suffix=(0,) + (None,) * len(score_buffers),
        out_dims=[0] + [None] * (4 + len(score_buffers)),
    )
    parts = []
    for first, last in _spans(query, key):
        queries, grads = _rows(query, first, last), _rows(grad_out, first, last)
        scores = functions.scores(queries.to(precise), keys.to(precise), first)
        sums = _rows(logsumexp, first, last).unsqueeze(-1) * math.log(2)
        if precise == torch.float64:  # for which they were rounded
            sums = scores.changed.logsumexp(-1, keepdim=True)
        weights = torch.where(sums == -math.inf, 0.0, (scores.changed - sums).exp())
        grad_weights = _grouped(grads, values).to(precise) @ values.to(precise).transpose(-2, -1)
        grad_changed = weights * (grad_weights.reshape(weights.shape) - _rows(row, first, last))
        with TransformGetItemToIndex():
            grad_scores, _, _, _, _, *captured = gradient_of_scores(
                scores.plain, *scores.places, grad_changed, *score_buffers
            )
        grad_scores = (torch.where(scores.mask, grad_scores, 0.0) * scale).to(dtype)
        grad_scores, weights = _grouped(grad_scores, keys), _grouped(weights.to(dtype), values)
        parts.append(
            (
                (grad_scores @ keys).reshape(queries.shape),
                grad_scores.transpose(-2, -1) @ _grouped(queries, keys),
                weights.transpose(-2, -1) @ _grouped(grads, values),
                captured,
            )
        )
    grad_query = _joined([part[0] for part in parts])
    grad_key, grad_value = (_summed([part[i] for part in parts]) for i in (1, 2))
    return (
        *_as_given(query, key, value, grad_query, grad_key, grad_value),
        tuple(_of_captured(i, each, [part[3][i] for part in parts]) for i, each in enumerate(score_buffers)),
    )


def _as_given(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_query: torch.Tensor,
    grad_key: torch.Tensor,
    grad_value: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients with the batches and the strides of what they are of."""
    if key.shape[0] != query.shape[0]:
        grad_key, grad_value = (each.sum(0, keepdim=True) for each in (grad_key, grad_value))
    pairs = ((grad_query, query), (grad_key, key), (grad_value, value))
    return tuple(_laid_out(grad, given.stride()) for grad, given in pairs)


def _of_captured(i: int, buffer: Any, grads: Sequence[Any]) -> Any:
    """The gradient of what is captured, if it is a tensor that has one."""
    if not isinstance(buffer, torch.Tensor) or grads[0] is None:
        return None
    return _summed(grads).to(buffer.dtype).reshape(buffer.shape)


def _precise(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _of_all_batches(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values, where one batch of them is that of all queries."""
    return tensor.expand(query.shape[0], *tensor.shape[1:])


def _grouped(tensor: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The rows of all heads that share a key's head, one after the other, so that it is read but once."""
    batches, heads, rows, columns = tensor.shape
    shared = heads // key.shape[1]
    return tensor if shared == 1 else tensor.reshape(batches, key.shape[1], shared * rows, columns)


def _spans(query: torch.Tensor, key: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The rows of queries whose scores are made at a time."""
    rows: Any = query.shape[2]
    sizes = (*query.shape[:3], key.shape[2])
    if not all(isinstance(size, int) for size in sizes):
        yield 0, rows
        return
    parts = min(-(-math.prod(sizes) // _MOST_SCORES), _MOST_PARTS, max(rows, 1))
    each = -(-rows // max(parts, 1))
    for first in range(0, rows, max(each, 1)):
        yield first, min(first + each, rows)


def _rows(tensor: torch.Tensor, first: int, last: int) -> torch.Tensor:
    whole = first == 0 and (not isinstance(last, int) or last == tensor.shape[2])
    return tensor if whole else tensor[:, :, first:last]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 2)


def _summed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total.to(torch.promote_types(part.dtype, torch.float32)) + part
    return total.to(parts[0].dtype)


def _laid_out(tensor: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """With dimensions in memory as those of another tensor, but for the last, which is always the innermost."""
    last = tensor.dim() - 1
    order = [d for d in reversed(get_fill_order(strides)) if d != last] + [last]
    back = [order.index(d) for d in range(tensor.dim())]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
