"""Planners of pooling. The one-dimensional ops reach the two-dimensional ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torchgraft.codegen import element_type
from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.types import MOVES
from torchgraft.kernels import pooling as kernels
from torchgraft.kernels.convolution.geometry import Triple
from torchgraft.kernels.pooling import Kind, Places
from torchgraft.plans import PlanBuilder, Unsupported, decomposition, other_out, planner

Numbers = dict[str, int]
"""A kernel's, by name; of adaptive windows there are none."""


def _spatial(spec: torch.Tensor, dims: int) -> tuple[int, Triple]:
    """Planes, and the size of one."""
    shape = spec.shape[-dims:]
    size = [1] * (3 - dims) + list(shape)
    pixels = size[0] * size[1] * size[2]
    if pixels > 2**31 - 1:
        raise Unsupported("a plane of more than 2**31 pixels")
    planes = 1
    for n in spec.shape[:-dims]:
        planes *= n
    return planes, (size[0], size[1], size[2])


def _full(values: Sequence[int], dims: int, missing: int) -> list[int]:
    given = [int(v) for v in values] * (dims if len(values) == 1 else 1)
    return [missing] * (3 - dims) + given


def _axes(name: str, values: Sequence[int]) -> Numbers:
    return {f"{name}_{axis}": value for axis, value in zip(kernels.AXES, values, strict=True)}


def _sizes(source: Triple, target: Triple) -> Numbers:
    return {**_axes("source", source), **_axes("target", target)}


def _windows(
    dims: int, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Numbers:
    return {
        **_axes("taps", _full(kernel_size, dims, 1)),
        **_axes("stride", _full(stride or kernel_size, dims, 1)),
        **_axes("padding", _full(padding, dims, 0)),
        **_axes("dilation", _full(dilation, dims, 1)),
    }


def _cost(source: Triple, target: Triple, windows: Numbers) -> int:
    """About how many pixels a window has."""
    if windows:
        return math.prod(windows[f"taps_{axis}"] for axis in kernels.AXES)
    return max(1, math.prod(source) // math.prod(target))


def _storage(spec: torch.Tensor, kind: Kind, whole: bool = False) -> str:
    """The element type's name. `whole` allows integers, which adaptive windows have on no device; of means torch's CPU
    has those of int64 alone, which it divides as C does."""
    element = element_type(spec.dtype)
    allowed = element.is_float or (whole and (kind == "max" or element.name == "i64"))
    if element.is_complex or element.name == "b8" or not allowed:
        raise Unsupported(f"pooling of {spec.dtype}")
    return element.name


_OF_AXIS = ("taps", "stride", "padding", "dilation")


def _joined(kind: Kind, source: Triple, target: Triple, windows: Numbers) -> tuple[Triple, Triple, Numbers]:
    """The same windows with rows as long as they get: where each takes all of x, y goes on along it."""
    while target[2] == 1 and source[:2] != (1, 1):
        if windows:
            z, y, x = ([windows[f"{name}_{axis}"] for name in _OF_AXIS] for axis in kernels.AXES)
            padded = kind == "average" and any(windows[f"padding_{axis}"] for axis in kernels.AXES)
            if x[0] != source[2] or x[2] or (x[3], y[3]) != (1, 1) or padded:
                break
            joined = [1, 1, 0, 1], z, [*(n * source[2] for n in y[:3]), 1]
            for name, values in zip(_OF_AXIS, zip(*joined, strict=True), strict=True):
                windows = {**windows, **_axes(name, values)}
        elif source[1] % target[1]:
            break
        source, target = (1, source[0], source[1] * source[2]), (1, target[0], target[1])
    return source, target, windows


def _vector_within(storage: str, source: Triple, target: Triple, windows: Numbers, p: PlanBuilder) -> int:
    """The widest of the vectors that fit into a window's rows, or 0 where it is better to take as many windows at
    once: where they lie close together."""
    row = windows["taps_x"] if windows else source[2] // target[2]
    if windows and (windows["dilation_x"] != 1 or (windows["stride_x"] <= 2 and target[2] >= p.device.simd_width)):
        return 0
    widths = [p.device.simd_width >> n for n in range(5)]
    return max((n for n in widths if n >= 4 and arithmetic(storage, n).width <= row), default=0)


def _pool(
    p: PlanBuilder,
    kind: Kind,
    dims: int,
    outs: tuple[torch.Tensor, ...],
    source: torch.Tensor,
    windows: Numbers,
    places: Places = "indices",
) -> None:
    storage = _storage(source, kind, bool(windows))
    if outs[0].numel() == 0:
        return
    planes, source_size = _spatial(source, dims)
    target_size = _spatial(outs[0], dims)[1]
    cost = _cost(source_size, target_size, windows)
    wide = 0
    if p.form == "cpu" and places == "indices":
        source_size, target_size, windows = _joined(kind, source_size, target_size, windows)
        wide = _vector_within(storage, source_size, target_size, windows, p)
    if wide:
        grid = p.walk((planes, *target_size), cost, multiple=1)
        kernel = kernels.wide_kernel(storage, kind, not windows, wide)
    elif p.form == "cpu" and windows:
        grid = p.walk((planes, *target_size[:2]), cost * target_size[2], multiple=1)
        kernel = kernels.row_kernel(storage, kind, p.device.simd_width, places)
    else:
        grid = p.walk((planes, *target_size), cost, multiple=1)
        kernel = kernels.window_kernel(storage, kind, not windows, p.form)
    specs = dict(zip(("out", places), outs, strict=False))
    p.launch(kernel, grid, **specs, image=source, **_sizes(source_size, target_size), **windows)


def plan_block_sums(p: PlanBuilder, out: torch.Tensor, source: torch.Tensor) -> None:
    """Plans the sums of the blocks of pixels, each as large as the sizes of the last dimensions but two say, which are
    multiples of `out`'s: both contiguous."""
    dims = out.dim() - 2
    block = [large // small for large, small in zip(source.shape[2:], out.shape[2:], strict=True)]
    windows = _windows(dims, block, block, [0], [1])
    _pool(p, "average", dims, (out,), source, {**windows, "include_padding": 1, "divisor": 1})


def _apart(windows: Numbers) -> bool:
    """Whether no two windows have a pixel in common; of adaptive and of random ones that is not known."""
    return bool(windows) and all(
        (windows[f"taps_{axis}"] - 1) * windows[f"dilation_{axis}"] < windows[f"stride_{axis}"] for axis in kernels.AXES
    )


def _pool_gradient(
    p: PlanBuilder, kind: Kind, dims: int, out: torch.Tensor, sources: tuple[torch.Tensor, ...], windows: Numbers
) -> None:
    planes, source_size = _spatial(out, dims)
    target_size = _spatial(sources[0], dims)[1]
    if sources[0].numel() == 0:
        p.zero(out)
        return
    storage = _storage(out, kind)
    sizes, cost = _sizes(source_size, target_size), _cost(source_size, target_size, windows)
    specs = dict(zip(("grad", "indices"), sources, strict=False))
    if p.form == "cpu" and kind == "max" and planes >= p.device.compute_units:
        grid = p.walk(planes, math.prod(source_size), multiple=1)
        if _apart(windows):  # a matter of bits
            moved, specs = MOVES[out.element_size()], {**specs, "grad": p.bits(sources[0])}
            p.launch(kernels.scatter_kernel(moved, moved, True), grid, out=p.bits(out), **specs, **sizes)
            return
        wide = torch.float32 if storage in ("f16", "bf16") else out.dtype
        sums = out if wide == out.dtype else p.empty(out.shape, wide)
        kernel = kernels.scatter_kernel(storage, element_type(wide).name, False)
        p.launch(kernel, grid, out=sums, **specs, **sizes)
        if sums is not out:
            p.copy(out, sums)
        return
    if p.form == "cpu" and kind == "average":
        kernel = kernels.mean_gradient_kernel(storage, not windows)
    else:
        kernel = kernels.gather_kernel(storage, kind, not windows, p.form)
    p.launch(kernel, p.walk((planes, *source_size), cost), out=out, **specs, **sizes, **windows)


def _declare_max(dims: int) -> None:
    def check(self: torch.Tensor, **_: Any) -> None:
        if self.dim() not in (dims + 1, dims + 2):
            raise RuntimeError(f"max_pool{dims}d() wants {dims + 1} or {dims + 2} dimensions, not {self.dim()}")

    @planner(f"max_pool{dims}d_with_indices", contiguous=True, refuses=(check, other_out))
    def forward(
        p: PlanBuilder,
        outs: tuple[torch.Tensor, torch.Tensor],
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
    ) -> None:
        _pool(p, "max", dims, outs, self, _windows(dims, kernel_size, stride, padding, dilation))

    @planner(f"max_pool{dims}d_with_indices_backward", contiguous=True)
    def backward(
        p: PlanBuilder,
        out: torch.Tensor,
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        indices: torch.Tensor,
    ) -> None:
        windows = _windows(dims, kernel_size, stride, padding, dilation)
        _pool_gradient(p, "max", dims, out, (grad_output, indices), windows)


# --- Max pooling that keeps the tap of each window's largest pixel, a byte. It is what Inductor keeps for the gradient.

torch.library.define(
    "torchgraft::max_pool_offsets",
    "(Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) "
    "-> (Tensor out, Tensor offsets)",
)
torch.library.define(
    "torchgraft::max_pool_offsets_backward",
    "(Tensor grad_output, Tensor offsets, SymInt[] size, int[] kernel_size, int[] stride, int[] padding, "
    "int[] dilation) -> Tensor",
)

# Taps that a byte can tell apart.
_MOST_TAPS = 127


def has_offsets(form: str, dtype: torch.dtype) -> bool:
    """Whether there are kernels for it: on CPUs, for types that sums are kept in."""
    return form == "cpu" and dtype in (torch.float32, torch.float64)


def _require_offsets(p: PlanBuilder, self: torch.Tensor, kernel_size: Sequence[int]) -> None:
    if not has_offsets(p.form, self.dtype) or math.prod(kernel_size) > _MOST_TAPS:
        raise Unsupported("offsets of largest pixels")


def _offsets_meta(
    self: torch.Tensor, kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int],
    ceil_mode: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    pool = torch.ops.aten.max_pool2d_with_indices if len(kernel_size) == 2 else torch.ops.aten.max_pool3d_with_indices
    shape = pool(self, kernel_size, stride, padding, dilation, ceil_mode)[0].shape
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int8)


@planner("torchgraft::max_pool_offsets", contiguous=True, meta=_offsets_meta)
def _max_pool_offsets(
    p: PlanBuilder,
    outs: tuple[torch.Tensor, torch.Tensor],
    self: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> None:
    _require_offsets(p, self, kernel_size)
    dims = len(kernel_size)
    _pool(p, "max", dims, outs, self, _windows(dims, kernel_size, stride, padding, dilation), "offsets")


def _offsets_backward_meta(
    grad_output: torch.Tensor, offsets: torch.Tensor, size: list[int], kernel_size: list[int], stride: list[int],
    padding: list[int], dilation: list[int],
) -> torch.Tensor:  # fmt: skip
    """`size` is the image's, [height, width] or [depth, height, width]; planes are the offsets'."""
    return grad_output.new_empty((*offsets.shape[: -len(size)], *size))


@planner("torchgraft::max_pool_offsets_backward", contiguous=True, meta=_offsets_backward_meta)
def _max_pool_offsets_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    offsets: torch.Tensor,
    size: list[int],
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> None:
    _require_offsets(p, out, kernel_size)
    if out.numel() == 0 or offsets.numel() == 0:
        p.zero(out)
        return
    dims = len(kernel_size)
    planes, source_size = _spatial(out, dims)
    windows = _windows(dims, kernel_size, stride, padding, dilation)
    p.launch(
        kernels.scatter_offsets_kernel(_storage(out, "max"), _apart(windows)),
        p.walk(planes, math.prod(source_size), multiple=1),
        out=out,
        grad=grad_output,
        offsets=offsets,
        **_sizes(source_size, _spatial(offsets, dims)[1]),
        **windows,
    )


def _check_divisor(divisor_override: int | None, **_: Any) -> None:
    """torch's meta function of avg_pool3d does not look."""
    if divisor_override == 0:
        raise RuntimeError("divisor must be not zero")


def _declare_average(dims: int) -> None:
    def windows(
        kernel_size: list[int], stride: list[int], padding: list[int], include_pad: bool, divisor: int | None
    ) -> Numbers:
        average = {"include_padding": int(include_pad), "divisor": divisor or 0}
        return {**_windows(dims, kernel_size, stride, padding, [1]), **average}

    @planner(f"avg_pool{dims}d", contiguous=True, refuses=(_check_divisor, other_out))
    def forward(
        p: PlanBuilder,
        out: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> None:
        _pool(
            p, "average", dims, (out,), self, windows(kernel_size, stride, padding, count_include_pad, divisor_override)
        )

    @planner(f"avg_pool{dims}d_backward", contiguous=True, refuses=(_check_divisor, other_out))
    def backward(
        p: PlanBuilder,
        out: torch.Tensor,
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> None:
        over = windows(kernel_size, stride, padding, count_include_pad, divisor_override)
        _pool_gradient(p, "average", dims, out, (grad_output,), over)


def _check_pixels(self: torch.Tensor, dims: int) -> None:
    """torch's meta functions take images without pixels; of volumes its CPU wants channels, too."""
    if 0 in self.shape[1 if dims == 3 else -dims :]:
        raise RuntimeError(
            f"adaptive_avg_pool{dims}d(): Expected input to have non-zero size for non-batch dimensions, but input has "
            f"sizes {list(self.shape)}"
        )


def _declare_adaptive(dims: int) -> None:
    def check(self: torch.Tensor, **_: Any) -> None:
        _check_pixels(self, dims)

    @planner(f"_adaptive_avg_pool{dims}d", contiguous=True, refuses=(check, other_out))
    def forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, output_size: list[int]) -> None:
        _pool(p, "average", dims, (out,), self, {})

    @planner(f"_adaptive_avg_pool{dims}d_backward", contiguous=True)
    def backward(p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor) -> None:
        _pool_gradient(p, "average", dims, out, (grad_output,), {})

    @planner(f"adaptive_max_pool{dims}d", contiguous=True)
    def max_forward(
        p: PlanBuilder, outs: tuple[torch.Tensor, torch.Tensor], self: torch.Tensor, output_size: list[int]
    ) -> None:
        _pool(p, "max", dims, outs, self, {})

    @planner(f"adaptive_max_pool{dims}d_backward", contiguous=True)
    def max_backward(
        p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor, indices: torch.Tensor
    ) -> None:
        _pool_gradient(p, "max", dims, out, (grad_output, indices), {})


def _float_storage(spec: torch.Tensor, what: str) -> str:
    element = element_type(spec.dtype)
    if not element.is_float:
        raise Unsupported(f"{what} of {spec.dtype}")
    return element.name


def _check_samples(x: torch.Tensor, samples: torch.Tensor, dims: int) -> None:
    """The kernel reads a sample for each plane and dimension; torch's meta function for volumes looks at none."""
    batch = x.size(0) if x.dim() == dims + 2 else 1
    wanted = (batch, x.size(-dims - 1), dims)
    fits = samples.dim() == 3 and samples.size(0) >= batch and tuple(samples.shape[1:]) == wanted[1:]
    if not fits or samples.dtype != x.dtype:
        raise RuntimeError(
            f"Expect _random_samples of {x.dtype} and at least the shape {wanted}, but got {samples.dtype} and "
            f"{tuple(samples.shape)}"
        )


def _declare_fractional(dims: int) -> None:
    name = f"fractional_max_pool{dims}d"

    @planner(name, contiguous=True)
    def forward(
        p: PlanBuilder,
        outs: tuple[torch.Tensor, torch.Tensor],
        self: torch.Tensor,
        kernel_size: list[int],
        output_size: list[int],
        random_samples: torch.Tensor,
    ) -> None:
        storage = _float_storage(self, name)
        _check_samples(self, random_samples, dims)
        planes, source = _spatial(self, dims)
        target = _spatial(outs[0], dims)[1]
        taps = _axes("taps", _full(kernel_size, dims, 1))
        report = p.error("a random sample puts a window outside of the image, at {}", RuntimeError)
        specs = {"out": outs[0], "indices": outs[1], "image": self, "samples": random_samples}
        p.launch(
            kernels.fractional_kernel(storage, dims, p.form),
            p.walk((planes, *target), math.prod(taps.values()), multiple=1),
            **{**specs, **_sizes(source, target), **taps},
            errors=report.words,
            code=report.code,
        )

    @decomposition(f"{name}_backward")
    def backward(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        kernel_size: list[int],
        output_size: list[int],
        indices: torch.Tensor,
    ) -> torch.Tensor:
        for axis, size in zip(("width", "height", "time"), reversed(output_size), strict=False):
            if grad_output.shape[-("width", "height", "time").index(axis) - 1] != size:
                raise RuntimeError(f"{name}_backward_out(): gradOutput {axis} unexpected")
        zero = self.new_zeros((*self.shape[:-dims], math.prod(self.shape[-dims:])))
        return zero.scatter_add(-1, indices.flatten(-dims), grad_output.flatten(-dims)).reshape(self.shape)


def _declare_unpool(dims: int) -> None:
    op = getattr(torch.ops.aten, f"max_unpool{dims}d")

    def meta(self: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        out: torch.Tensor = op(self, *more, **named)
        return out.to(memory_format=suggest_memory_format(self)) if dims == 2 else out

    @planner(f"max_unpool{dims}d", contiguous=True, meta=meta)
    def forward(
        p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, indices: torch.Tensor, output_size: list[int], *_: Any
    ) -> None:
        _float_storage(self, "max_unpool")
        p.zero(out)
        if self.numel() == 0:
            return
        planes, pixels = _spatial(self, dims)
        target = _spatial(out, dims)[1]
        size = "x".join(str(n) for n in output_size)
        report = p.error(f"Found an invalid max index: {{}} (output volumes are of size {size})", RuntimeError)
        p.launch(
            kernels.unpool_kernel(MOVES[self.element_size()], p.form),
            p.walk((planes, math.prod(pixels))),
            out=p.bits(out),
            image=p.bits(self),
            indices=indices,
            errors=report.words,
            code=report.code,
            target_pixels=math.prod(target),
        )


for _dims in (2, 3):
    _declare_fractional(_dims)
    _declare_unpool(_dims)
    _declare_max(_dims)
    _declare_average(_dims)
    _declare_adaptive(_dims)
