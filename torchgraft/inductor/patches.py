"""Places of inductor that have the devices of torch's own tree in them, and no registration: the only monkeypatches.

Each function here has one of them know the backend's device, and leaves it as it is for all others; the files that they
name are in torch/_inductor. They are applied when inductor asks for the device's generators; tests/test_inductor.py and
tests/test_split_programs.py fail as soon as one is needed no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft import backend
from torchgraft.inductor.options import form

__all__ = ["PATCHES", "apply"]

# Elements of a row that stay in a processor's nearest cache while it is traversed again.
_CACHED = 4096

_HALVES = (torch.bfloat16, torch.float16)


def pointwise_results_are_on_the_device() -> None:
    """The result of a pointwise op with a tensor of the CPU without dimensions goes where its first operand is, unless
    another is on a device of a list: with the CPU's one first, the result is on the CPU. torch 2.13 to 2.15
    (torch/_inductor/lowering.py, `make_pointwise`, whose only question of the kind this is).
    """
    import torch._inductor.lowering

    lowering: Any = torch._inductor.lowering

    plain = lowering.is_gpu

    @wraps(plain)
    def is_gpu(device: str | None) -> bool:
        return device == backend.name() or bool(plain(device))

    lowering.is_gpu = is_gpu


def costly_values_are_kept() -> None:
    """What is used again and costs much, as the exponential functions in a softmax, is stored on a CPU and made again
    elsewhere, since memory is slow where computing is not. Which of the two a device is, is asked by the name "cpu":
    devices with the CPU form of kernels are CPUs. torch 2.13 to 2.15 (ir.py, `is_cpu`).
    """
    import torch._inductor.ir

    ir: Any = torch._inductor.ir
    plain = ir.is_cpu

    @wraps(plain)
    def is_cpu(x: Any) -> bool:
        if ir.get_device_type(x) != backend.name():
            return bool(plain(x))
        device = x if isinstance(x, torch.device) else x.get_device() if isinstance(x, ir.IRNode) else None
        return form((device and device.index) or 0) == "cpu"

    ir.is_cpu = is_cpu


def extremes_have_places() -> None:
    """argmax and argmin over several dimensions, of a tensor or of a pooling's window, give the place in the order of
    the dimensions. Inductor orders a reduction's loops by strides, after which nothing is left of that order: places
    are made part of the values only for argmax of a tensor whose layout is known not to be contiguous, and only for
    Triton and for C++. torch 2.13 to 2.15 (lowering.py, `_make_reduction_inner` and `_max_pool_with_offsets`).
    """
    import torch._inductor.ir

    ir: Any = torch._inductor.ir
    plain = ir.Reduction.create

    @wraps(plain)
    def create(
        cls: Any,
        device: torch.device,
        dst_dtype: torch.dtype,
        src_dtype: torch.dtype,
        inner_fn: Callable[..., Any],
        ranges: Sequence[Any],
        reduction_ranges: Sequence[Any],
        reduction_type: str,
        *args: Any,
        **options: Any,
    ) -> Any:
        if device.type == backend.name() and reduction_type in ("argmax", "argmin") and len(reduction_ranges) > 1:
            inner_fn = _with_places(inner_fn, reduction_ranges)
        given = (device, dst_dtype, src_dtype, inner_fn, ranges, reduction_ranges, reduction_type)
        return plain.__func__(cls, *given, *args, **options)

    ir.Reduction.create = classmethod(create)


def _with_places(values: Callable[..., Any], sizes: Sequence[Any]) -> Callable[..., Any]:
    """The values of a reduction's elements along with their places in the row, in the order of its dimensions."""
    from torch._inductor.virtualized import ops

    def both(index: Any, reduced: Any) -> Any:
        value = values(index, reduced)
        if isinstance(value, tuple):
            return value
        place = reduced[0]
        for size, each in zip(sizes[1:], reduced[1:], strict=True):
            place = place * size + each
        return value, ops.index_expr(place, torch.int64)

    return both


def short_variances_take_two_steps() -> None:
    """The variance of a row that a cache holds is quicker found once its mean is known: to traverse it again costs less
    than Welford's division for each element, and than those of combining lanes. Inductor knows that of the device named
    "cpu", up to a number of elements that is an option of its C++ code; devices with the CPU form of kernels are CPUs.
    torch 2.13 to 2.15 (lowering.py, `use_two_step_variance`).
    """
    import sympy
    import torch._inductor.lowering

    lowering: Any = torch._inductor.lowering
    plain = lowering.use_two_step_variance

    @wraps(plain)
    def use_two_step_variance(x: Any, axis: Any, *args: Any, **options: Any) -> bool:
        device = x.get_device()
        if device is None or device.type != backend.name() or form(device.index or 0) != "cpu":
            return bool(plain(x, axis, *args, **options))
        sizes = x.get_size()
        size = sympy.Mul(*(sizes[dim] for dim in lowering._validate_reduction_axis(x, axis)))
        return isinstance(size, sympy.Integer) and size <= _CACHED and size != sympy.Mul(*sizes)

    lowering.use_two_step_variance = use_two_step_variance


def programs_are_split() -> None:
    """Programs are made of functions with nodes between them that cannot be recorded. Inductor splits them for CUDA's
    graphs alone: which nodes those are is asked by the names of torch's own devices, and only if the option
    `triton.cudagraphs` is set, or one wrapper of functions for all devices. torch 2.13 to 2.15 (scheduler.py,
    `Scheduler.should_partition`).
    """
    import torch._inductor.scheduler

    scheduler: Any = torch._inductor.scheduler.Scheduler
    plain = scheduler.should_partition

    @wraps(plain)
    def should_partition(self: Any, node: Any) -> str | None:
        ours = [own for device, own in self.backends.items() if device.type == backend.name()]
        if not ours or not ours[0].splitting.is_needed:
            return plain(self, node)  # type: ignore[no-any-return]
        return ours[0].splitting.why_apart(node)  # type: ignore[no-any-return]

    scheduler.should_partition = should_partition


def convolutions_keep_their_layout() -> None:
    """The device's convolutions take images as they lie. Inductor has the operands of most copied to lie by channels
    last, on any device, as is best for the matrix units of CUDA's GPUs: the factors by which it decides were measured
    there ("TODO - get different values per hardware"), and the option `layout_optimization` is that of all devices.
    `force_layout_optimization` is followed. torch 2.13 to 2.15 (graph.py, `GraphLowering.decide_layout_opt`).
    """
    import torch._inductor.config
    import torch._inductor.graph

    graph: Any = torch._inductor.graph.GraphLowering
    plain = graph.decide_layout_opt

    @wraps(plain)
    def decide_layout_opt(module: torch.fx.GraphModule, *, is_inference: bool) -> bool:
        forced = torch._inductor.config.force_layout_optimization
        if not forced and any(_convolves_ours(node) for node in module.graph.nodes):
            return False
        return bool(plain(module, is_inference=is_inference))

    graph.decide_layout_opt = staticmethod(decide_layout_opt)


def _convolves_ours(node: torch.fx.Node) -> bool:
    """Whether it is a convolution of ours, or the backward of one, which torch asks about from 2.15 on."""
    if node.target not in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
        return False
    first = node.args[0]  # the image, or its gradient
    return isinstance(first, torch.fx.Node) and first.meta["val"].device.type == backend.name()


def sums_of_halves_are_calls() -> None:
    """Sums into places of 16-bit floating-point numbers are left to the device's own kernels, which keep them in
    float32. Inductor adds in the memory of the result, where each sum is rounded: 5,000 ones of bfloat16 are 256. Which
    types cannot be added so is asked by the names of torch's own devices. torch 2.13 to 2.15 (lowering.py,
    `needs_fallback_due_to_atomic_add_limitations` of `index_put_impl_`, and `use_scatter_fallback`).
    """
    import torch._inductor.lowering
    from torch._inductor.virtualized import V

    lowering: Any = torch._inductor.lowering
    needs_fallback, use_scatter_fallback = (
        lowering.needs_fallback_due_to_atomic_add_limitations,
        lowering.use_scatter_fallback,
    )

    @wraps(needs_fallback)
    def puts_by_a_call(dtype: torch.dtype) -> bool:
        return (dtype in _HALVES and _makes_ours(V.graph.current_node)) or bool(needs_fallback(dtype))

    @wraps(use_scatter_fallback)
    def scatters_by_a_call(op: Any, reduction: str | None, dtype: torch.dtype, *args: Any) -> bool:
        ours = reduction is not None and dtype in _HALVES and _makes_ours(V.graph.current_node)
        return ours or bool(use_scatter_fallback(op, reduction, dtype, *args))

    lowering.needs_fallback_due_to_atomic_add_limitations = puts_by_a_call
    lowering.use_scatter_fallback = scatters_by_a_call


def _makes_ours(node: torch.fx.Node) -> bool:
    """Whether a node has a tensor of the device's among its results."""
    made = tree_leaves(node.meta.get("val"))
    return any(isinstance(each, torch.Tensor) and each.device.type == backend.name() for each in made)


PATCHES = (
    sums_of_halves_are_calls,
    pointwise_results_are_on_the_device,
    costly_values_are_kept,
    extremes_have_places,
    short_variances_take_two_steps,
    programs_are_split,
    convolutions_keep_their_layout,
)


def apply() -> None:
    """Applies them all."""
    for patch in PATCHES:
        patch()
