"""Planners of upsampling: nearest, linear and cubic, with and without antialiasing, on images of one to three
dimensions, and their gradients.

Two launches serve any mode: one writes each axis' weights, one applies them. Antialiased modes and those of uint8
images are applied axis after axis, as torch's CPU does it, since their filters are wide and uint8 is rounded in
between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torchgraft.codegen.teams import Layout
from torchgraft.codegen.types import BY_NAME, MOVES, element_type
from torchgraft.kernels import upsampling as kernels
from torchgraft.kernels.upsampling import Image
from torchgraft.ops.pooling import plan_block_sums
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, planner


@dataclass(frozen=True)
class _Layout:
    """An image's place in memory: planes x sizes x inner; sizes are in the order x, y, z."""

    planes: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    inner: int


@dataclass(frozen=True)
class _Tables:
    """Matrices of the axes as `kernels.table_kernel` writes them.

    Attributes:
        precisions: of weights that are integers.
        taps: of each axis.
        stride, most_taps: of the tables.
    """

    starts: torch.Tensor
    weights: torch.Tensor | None
    precisions: torch.Tensor | None
    spans: torch.Tensor | None
    taps: tuple[int, ...]
    stride: int
    most_taps: int

    @property
    def specs(self) -> dict[str, torch.Tensor]:
        """Those that there are, by name."""
        named = {name: getattr(self, name) for name in ("starts", "weights", "precisions", "spans")}
        return {name: spec for name, spec in named.items() if spec is not None}

    def of(self, axis: int) -> _Tables:
        """One axis alone."""
        parts: dict[str, Any] = {name: spec[axis] for name, spec in self.specs.items()}
        return replace(self, **parts, taps=self.taps[axis : axis + 1])


def _three(values: Sequence[Any]) -> tuple[Any, ...]:
    return (*values, *[1] * (3 - len(values)))


def _axes(**values: Sequence[Any]) -> dict[str, Any]:
    """A kernel's numbers for each axis, by name; those of axes that there are not are 1."""
    return {
        f"{name}_{axis}": v
        for name, given in values.items()
        for axis, v in zip(kernels.AXES, _three(given), strict=True)
    }


def _tables(
    p: PlanBuilder,
    mode: str,
    aligned: bool,
    real: str,
    source: tuple[int, ...],
    target: tuple[int, ...],
    scales: tuple[float, ...],
    transposed: bool = False,
) -> _Tables:
    filter_ = kernels.resampling_filter(mode, aligned)
    wide = [
        2 * math.ceil(filter_.taps / 2 * max(scale, 1)) + 1 if filter_.antialias else filter_.taps for scale in scales
    ]
    taps = tuple(min(n, size) for n, size in zip(wide, source, strict=True))
    axes, most_taps, stride = len(source), max(taps), max(*source, *target)
    starts = p.empty((axes, stride), torch.int32)
    weights = p.empty((axes, most_taps, stride), BY_NAME[real].dtype) if filter_.weight else None
    spans = p.empty((axes, 2, stride), torch.int32) if transposed else None
    tables = _Tables(starts, weights, None, spans, taps, stride, most_taps)
    p.launch(
        kernels.table_kernel(mode, aligned, real, transposed, p.form),
        p.walk(stride, most_taps, multiple=1).by(axes),
        **tables.specs,
        **_axes(source=source, target=target, taps=taps, scale=scales),
        stride=stride,
        most_taps=most_taps,
    )
    return tables


def _fixed(p: PlanBuilder, tables: _Tables, real: str, target: tuple[int, ...]) -> _Tables:
    """The tables of two axes with weights that are integers."""
    assert tables.weights is not None
    weights, precisions = p.empty(tables.weights.shape, torch.int32), p.empty((2,), torch.int32)
    p.launch(
        kernels.quantise_kernel(Layout(p.form), real),
        p.long_rows(2, tables.stride, tables.most_taps),
        fixed=weights,
        precisions=precisions,
        weights=tables.weights,
        most_taps=tables.most_taps,
        **dict(zip(("target_x", "target_y", "taps_x", "taps_y"), (*target, *tables.taps), strict=True)),
    )
    return replace(tables, weights=weights, precisions=precisions)


# A row kernel unrolls this many taps at most.
_MOST_UNROLLED = 16


def _pays_scatter(p: PlanBuilder, image: Image, tables: _Tables, layout: _Layout) -> bool:
    """Whether a gradient's rows are made of few pixels, and there are rows for all cores."""
    fits = p.form == "cpu" and image.axes == layout.inner == 1 and image.storage in ("f32", "f64")
    fewer = layout.target[0] < layout.source[0] and tables.taps[0] <= _MOST_UNROLLED
    return fits and fewer and layout.planes >= p.device.compute_units


def _apply(
    p: PlanBuilder,
    image: Image,
    out: torch.Tensor,
    source: torch.Tensor,
    tables: _Tables,
    layout: _Layout,
    transposed: bool = False,
) -> None:
    """Launches the kernel that suits the form and the layout."""
    target = layout.source if transposed else layout.target
    pixels = (layout.planes, *reversed(_three(target)))
    if p.form == "cpu" and layout.inner >= image.math.width:
        kernel = kernels.line_kernel(image, transposed)
        grid = p.walk(pixels, layout.inner, multiple=1)
    elif p.form == "cpu" and layout.inner == 1 and not transposed and math.prod(tables.taps) <= _MOST_UNROLLED:
        kernel = kernels.row_kernel(image, tables.taps)
        grid = p.walk(pixels[:-1], target[0], multiple=1)
    elif transposed and _pays_scatter(p, image, tables, layout):
        kernel = kernels.scatter_kernel(image, tables.taps[0])
        grid = p.walk(layout.planes, layout.source[0], multiple=1)
    else:
        kernel = kernels.element_kernel(image, transposed, p.form)
        grid = p.walk((*pixels[:-1], target[0] * layout.inner), math.prod(tables.taps), multiple=1)
    p.launch(
        kernel,
        grid,
        out=out,
        values=source,
        **tables.specs,
        **_axes(source=layout.source, target=layout.target, taps=tables.taps),
        inner=layout.inner,
        stride=tables.stride,
        most_taps=tables.most_taps,
    )


# ---- Scales.


def _scale(source: int, target: int, aligned: bool, given: float | None) -> float:
    """Source pixels for each pixel of the target; see area_pixel_compute_scale in torch's UpSample.h."""
    if aligned:
        return (source - 1) / (target - 1) if target > 1 else 0.0
    return 1 / given if given is not None and given > 0 else source / target


def _scales(
    mode: str,
    source: tuple[int, ...],
    target: tuple[int, ...],
    aligned: bool,
    given: Sequence[float | None],
    snap: bool,
) -> tuple[float, ...]:
    out = []
    for n, m, factor in zip(source, target, given, strict=True):
        scale = _scale(n, m, aligned, factor)
        # Torch does not look at the factor where sizes agree, or where "nearest" doubles them.
        if n == m and (mode == "linear" or (mode == "nearest" and snap)):
            scale = 1.0
        elif m == 2 * n and mode == "nearest" and snap:
            scale = 0.5
        out.append(scale)
    return tuple(out)


# ---- Layouts.


def _last(image: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if image.dim() == 4 else torch.channels_last_3d


def _of_images(image: torch.Tensor, target: Sequence[int]) -> bool:
    """Whether torch's CPU takes its kernel for images with channels last, whose "nearest" computes in float32 and
    knows equal and doubled sizes."""
    if image.dim() == 3:
        return False
    many = image.is_contiguous(memory_format=_last(image)) and image.shape[1] > 3
    return many or (image.dim() == 4 and sum(target) <= 128)


def _arrange(p: PlanBuilder, out: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Target and source in one layout, copied where they are not, with planes and elements of a pixel. A target that is
    a temporary has to be copied back."""
    batch, channels = image.shape[:2]
    if image.dim() > 3 and not out.is_contiguous() and out.is_contiguous(memory_format=_last(out)):
        if not image.is_contiguous(memory_format=_last(image)):
            strides = torch.empty_like(image, memory_format=_last(image)).stride()
            copy = p.empty(image.shape, image.dtype, strides)
            p.copy(copy, image)
            image = copy
        return out, image, batch, channels
    target = out if out.is_contiguous() else p.empty_like(out)
    return target, p.contiguous(image), batch * channels, 1


def _storage(image: torch.Tensor, bytes_too: bool) -> str:
    element = element_type(image.dtype)
    if not (element.is_float or (element.name == "u8" and bytes_too)):
        raise Unsupported(f"upsampling of {image.dtype}")
    if image.numel() >= 2**31 or max(image.shape) >= 2**24:
        raise Unsupported("an image of more than 2**31 elements")
    return element.name


# ---- Shapes. Torch's own meta functions refuse an empty batch, or give it other strides than its CPU.


def _sizes(size: Sequence[int]) -> str:
    names = ("D", "H", "W")[-len(size) :]
    return "(" + ", ".join(f"{name}: {n}" for name, n in zip(names, size, strict=True)) + ")"


def _check_sizes(dims: int, source: Sequence[int], target: Sequence[int]) -> None:
    """Refuses what torch's upsample_*d_common_check refuses."""
    if len(target) != dims:
        raise RuntimeError(f"It is expected output_size equals to {dims}, but got size {len(target)}")
    if len(source) != dims + 2:
        raise RuntimeError(f"It is expected input_size equals to {dims + 2}, but got size {len(source)}")
    if min(*source[2:], *target) <= 0:
        between = " and output " if dims == 1 else " output "
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {_sizes(source[2:])}{between}"
            f"{_sizes(target)}"
        )


def _like(shape: Sequence[int], image: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=image.dtype, device=image.device, memory_format=suggest_memory_format(image))


def _meta(dims: int, self: torch.Tensor, output_size: Sequence[int], **_: Any) -> torch.Tensor:
    _check_sizes(dims, self.shape, output_size)
    if self.shape[1] == 0:
        raise RuntimeError(f"Non-empty {dims + 2}D data tensor expected but got a tensor with sizes {list(self.shape)}")
    return _like((*self.shape[:2], *output_size), self)


def _backward_meta(
    mode: str, dims: int, grad_output: torch.Tensor, output_size: Sequence[int], input_size: Sequence[int], **_: Any
) -> torch.Tensor:
    _check_sizes(dims, input_size, output_size)
    if grad_output.dim() != dims + 2:
        raise RuntimeError(
            f"Expected grad_output to be a tensor of dimension {dims + 2} but got: dimension {grad_output.dim()}"
        )
    for n, (given, size) in enumerate(zip(grad_output.shape, (*input_size[:2], *output_size), strict=True)):
        if given != size:
            raise RuntimeError(
                f"Expected grad_output to have the same shape as output; output.size({n}) = {size} but got "
                f"grad_output.size({n}) = {given}"
            )
    if mode in ("cubic", "cubic-aa", "lanczos-aa"):  # whose gradients torch's CPU makes contiguous
        return grad_output.new_empty(input_size)
    return _like(input_size, grad_output)


# ---- Planners.


def _plan(
    p: PlanBuilder,
    mode: str,
    out: torch.Tensor,
    image: torch.Tensor,
    aligned: bool,
    factors: Sequence[Scalar | None],
    transposed: bool = False,
) -> None:
    """`image` upsampled into `out`; with `transposed` the gradient of `out`'s upsampling to the shape of `image`."""
    nearest = mode.startswith("nearest")
    storage = _storage(image, not transposed and (nearest or image.dim() == 4))
    if out.numel() == 0:
        return
    small, large = (out, image) if transposed else (image, out)
    source, target = tuple(reversed(small.shape[2:])), tuple(reversed(large.shape[2:]))
    # Scale factors are read: each is a plan of its own, as each size of the target is.
    given = [None if factor is None else float(factor) for factor in reversed(factors)]
    snap = nearest and (transposed or _of_images(image, target))
    scales = _scales(mode, source, target, aligned, given, snap)
    fixed = storage == "u8" and not nearest
    double = storage == "f64" and not snap
    real = "f64" if double or (fixed and p.device.float64) else "f32"
    arranged, by, planes, inner = _arrange(p, out, image)
    to = arranged
    layout = _Layout(planes, source, target, inner)
    if mode == "nearest-exact" and not snap:
        mode += "-fused"
    whole = all(_is_whole(n, m, s) for n, m, s in zip(source, target, scales, strict=True))
    if nearest and transposed and inner == 1 and whole:
        plan_block_sums(p, to, by)
        if arranged is not out:
            p.copy(out, arranged)
        return
    tables = _tables(p, mode, aligned, real, source, target, scales, transposed)
    if fixed:
        tables, real = _fixed(p, tables, real, target), "i32"
    if nearest and not transposed:
        storage = MOVES[image.element_size()]
        to, by = p.bits(to), p.bits(by)
    kind = Image(storage, "" if nearest else real, len(source))
    if not transposed and (fixed or mode.endswith("-aa")):
        # Torch leaves out an axis whose size stays, whatever its factor.
        axes = [axis for axis in (0, 1) if source[axis] != target[axis]]
        _axis_after_axis(p, kind, to, by, tables, layout, axes, transposed)
    elif _pays_separately(p, kind, layout, transposed):
        _axis_after_axis(p, kind, to, by, tables, layout, list(range(len(source))), transposed)
    else:
        _apply(p, kind, to, by, tables, layout, transposed)
    if arranged is not out:
        p.copy(out, arranged)


def _is_whole(source: int, target: int, scale: float) -> bool:
    """Whether each pixel becomes as many as a power of two says: whose numbers are rounded nowhere."""
    factor = target // source
    return target == factor * source and factor & (factor - 1) == 0 and scale == 1 / factor


def _pays_separately(p: PlanBuilder, image: Image, layout: _Layout, transposed: bool) -> bool:
    """Whether a CPU is quicker axis after axis: all but rows are then whole vectors."""
    several = p.form == "cpu" and layout.inner == 1 and image.axes > 1 and image.storage in ("f32", "f64")
    pixels = max(math.prod(layout.target), math.prod(layout.source) if transposed else 0)
    return several and layout.planes * pixels > 1 << 14 and (transposed or image.weights != "")


def _axis_after_axis(
    p: PlanBuilder,
    image: Image,
    out: torch.Tensor,
    by: torch.Tensor,
    tables: _Tables,
    layout: _Layout,
    axes: list[int],
    transposed: bool,
) -> None:
    """Applies the axes' matrices one by one: rows first, as torch does, except after what makes rows fewer."""
    if not axes:
        p.copy(out, by)
        return
    sizes, after = (layout.target, layout.source) if transposed else (layout.source, layout.target)
    if not image.is_fixed:  # whose results are rounded in between, so that the order is seen
        axes = sorted(axes, key=lambda axis: (axis == 0 or after[axis] >= sizes[axis], axis))
    for axis in axes:
        planes, line = layout.planes * math.prod(sizes[axis + 1 :]), math.prod(sizes[:axis]) * layout.inner
        part = _Layout(planes, layout.source[axis : axis + 1], layout.target[axis : axis + 1], line)
        sizes = (*sizes[:axis], after[axis], *sizes[axis + 1 :])
        shape = (layout.planes, *reversed(sizes), layout.inner)
        to = out if axis == axes[-1] else p.empty(shape, by.dtype)
        _apply(p, replace(image, axes=1), to, by, tables.of(axis), part, transposed)
        by = to


def _declare(name: str, mode: str, dims: int, has_corners: bool) -> None:
    @planner(name, meta=partial(_meta, dims))
    def forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, output_size: list[int], *rest: Any) -> None:
        aligned, factors = (bool(rest[0]), rest[1:]) if has_corners else (False, rest)
        _plan(p, mode, out, self, aligned, factors)

    @planner(f"{name}_backward", meta=partial(_backward_meta, mode, dims))
    def backward(
        p: PlanBuilder,
        out: torch.Tensor,
        grad_output: torch.Tensor,
        output_size: list[int],
        input_size: list[int],
        *rest: Any,
    ) -> None:
        aligned, factors = (bool(rest[0]), rest[1:]) if has_corners else (False, rest)
        _plan(p, mode, out, grad_output, aligned, factors, transposed=True)


for _dims in (1, 2, 3):
    _declare(f"upsample_nearest{_dims}d", "nearest", _dims, False)
    _declare(f"_upsample_nearest_exact{_dims}d", "nearest-exact", _dims, False)
for _op, _mode in {
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "linear",
    "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
    "_upsample_bilinear2d_aa": "linear-aa",
    "_upsample_bicubic2d_aa": "cubic-aa",
    "_upsample_lanczos2d_aa": "lanczos-aa",
}.items():
    _declare(_op, _mode, int(_op.removesuffix("_aa")[-2]), True)
