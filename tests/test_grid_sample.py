"""Sampling at grids and its gradients against torch's CPU, on images and volumes."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchgraft
from torchgraft.ops import grid_sample as planners
from torchgraft.plans import versions

pytestmark = pytest.mark.no_fallback

aten = torch.ops.aten

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 6e-2}
MODES = [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")]
PADDINGS = ["zeros", "border", "reflection"]


def _case(dims: int, mode: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An image, with channels last or apart in memory at times, and a grid that reaches beyond it."""
    size = [random.randint(1, 9) for _ in range(dims)]
    x = torch.randn(random.choice([1, 2]), random.choice([1, 3, 5]), *size).to(dtype)
    kind = random.random()
    if kind < 0.4:
        x = x.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    elif kind < 0.6:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    places = [random.randint(1, {2: 14, 3: 7}[dims]) for _ in range(dims)]
    # In steps that half precision has too, and beside the middle between two pixels.
    grid = (torch.randn(x.shape[0], *places, dims) * 20).round() / 16 + 1 / 128
    return x, grid.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "padding"),
    [
        *((torch.float32, padding) for padding in PADDINGS),
        *((dtype, "any") for dtype in TOLERANCE if dtype.itemsize != 4),
    ],
    ids=str,
)
@pytest.mark.quick(form="cpu", dtype=torch.float32)
@pytest.mark.quick(form="gpu", dtype=torch.float32, dims=2)
@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_like_the_cpu(device: str, form: str, dims: int, mode: str, padding: str, dtype: torch.dtype) -> None:
    padding = random.choice(PADDINGS) if padding == "any" else padding
    x, grid = _case(dims, mode, dtype)
    options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": random.random() < 0.5}
    exact = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    mine = [t.to(device).requires_grad_() for t in (x, grid)]
    theirs = [t.to(exact).requires_grad_() for t in (x, grid)]
    got, expected = F.grid_sample(*mine, **options), F.grid_sample(*theirs, **options)
    tolerance = TOLERANCE[dtype]
    assert got.dtype == dtype and got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu().to(exact), expected, rtol=tolerance, atol=tolerance)
    gradient = torch.randn(expected.shape).to(dtype)
    a = torch.autograd.grad(got, mine, gradient.to(device))
    b = torch.autograd.grad(expected, theirs, gradient.to(exact))
    for one, other in zip(a, b, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.cpu().to(exact), other, rtol=tolerance, atol=20 * tolerance)


def test_many_places(device: str, form: str) -> None:
    """Several blocks of places, of several images, in channels that work-items share."""
    x, grid = torch.randn(3, 9, 20, 30), torch.rand(3, 31, 37, 2) * 2.2 - 1.1
    mine = [t.to(device).requires_grad_() for t in (x, grid)]
    theirs = [t.clone().requires_grad_() for t in (x, grid)]
    got, expected = F.grid_sample(*mine, align_corners=False), F.grid_sample(*theirs, align_corners=False)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    gradient = torch.randn(expected.shape)
    before = torch.autograd.grad(got, mine, gradient.to(device))
    for one, other in zip(before, torch.autograd.grad(expected, theirs, gradient), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-3)
    torch.use_deterministic_algorithms(form == "gpu")  # where sums are otherwise in the order of chance
    try:
        a, b = (
            torch.autograd.grad(F.grid_sample(*mine, align_corners=False), mine, gradient.to(device)) for _ in range(2)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other, first in zip(a, b, before, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, first, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_places_far_away(device: str, form: str, mode: str, padding: str) -> None:
    """Such places, and those that are no numbers, read nothing outside of the image."""
    x = torch.randn(1, 1, 5, 6)
    far = [float("inf"), float("-inf"), float("nan"), 1e10, -1e20, 3e9]
    grid = torch.tensor(list(itertools.product(far, far))).reshape(1, 6, 6, 2)
    got = F.grid_sample(x.to(device), grid.to(device), mode=mode, padding_mode=padding, align_corners=False).cpu()
    within = got[got.isfinite()].abs() <= 2 * x.abs().max()
    assert within.all()
    if padding == "zeros":
        finite = grid.isfinite().all(-1).flatten()
        assert (got.flatten()[finite] == 0).all()
        assert (got == 0).all() if mode == "nearest" else got.flatten()[~finite].isnan().all()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("dims", "mode"), MODES)
def test_places_outside_read_nothing(device: str, form: str, dims: int, mode: str, dtype: torch.dtype) -> None:
    """Where weights are zero a pixel may be anything, the first one of a channel in particular."""
    x, grid = torch.full((1, 2, *[9] * dims), torch.inf), torch.rand(1, *[5] * dims, dims) * 0.2 + 0.5
    x[..., 2:, 2:] = 1
    if dims == 3:
        x[:, :, :2] = torch.inf
    grid[:, ::2] += 9
    for layout in (torch.contiguous_format, torch.channels_last if dims == 2 else torch.channels_last_3d):
        image = x.to(device, dtype).to(memory_format=layout)
        got = F.grid_sample(image, grid.to(device, dtype), mode=mode, align_corners=True).cpu()
        assert (got[:, :, ::2] == 0).all()
        torch.testing.assert_close(got[:, :, 1::2], torch.ones_like(got[:, :, 1::2]))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_wide_channels(device: str, form: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of pixels that 32 bits do not hold; that there are few bits stands for a large image."""
    x, grid = torch.randn(2, 5, 5, 6).to(memory_format=torch.channels_last), torch.rand(2, 9, 8, 2) * 2.2 - 1.1
    x, grid = x.requires_grad_(), grid.requires_grad_()
    mine = [t.detach().to(device).requires_grad_() for t in (x, grid)]
    for most, wide in ((5 * 6 * 5, False), (5 * 6 * 5 - 1, True)):
        monkeypatch.setattr(planners, "_INT", most)
        torchgraft.plans.clear()
        got, expected = (F.grid_sample(*t, mode=mode, align_corners=False) for t in (mine, (x, grid)))
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
        source = torchgraft.plans.show("grid_sampler_2d", source=True)
        assert ("(long)pixel_step" in source) is wide and ("(int)pixel_step" in source) is not wide
        gradient = torch.randn(expected.shape)
        theirs = torch.autograd.grad(expected, (x, grid), gradient)
        for one, other in zip(torch.autograd.grad(got, mine, gradient.to(device)), theirs, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-3)
    torchgraft.plans.clear()


@pytest.mark.parametrize(("channels", "size"), [(1, (5, 1)), (3, (1, 1)), (3, (1, 4))], ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("aligned", [False, True])
def test_images_of_a_pixel_in_width(
    device: str, form: str, channels: int, size: tuple[int, int], padding: str, aligned: bool
) -> None:
    """Mirrors may lie at one place, and the strides of dimensions of size 1 mean nothing."""
    height, width = size
    x, grid = torch.randn(1, channels, height, width), torch.rand(1, 6, 7, 2) * 3 - 1.5
    step = 77 if width == 1 else 1
    mine = x.to(device).as_strided(x.shape, (99, height * width, width, step)).requires_grad_()
    places = grid.to(device).requires_grad_()
    options: dict[str, Any] = {"padding_mode": padding, "align_corners": aligned}
    theirs = [t.requires_grad_() for t in (x, grid)]
    got, expected = F.grid_sample(mine, places, **options), F.grid_sample(*theirs, **options)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    a, b = torch.autograd.grad(got.sum(), (mine, places)), torch.autograd.grad(expected.sum(), theirs)
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("dims", "mode", "padding"),
    [*((*each, "zeros") for each in MODES), (2, "bicubic", "border"), (2, "bicubic", "reflection")],
)
def test_places_that_are_no_numbers(device: str, form: str, dims: int, mode: str, padding: str) -> None:
    """In planes they are NaN, also outside. Elsewhere torch's CPU takes them for some pixel of the border, and
    crashes in gradients."""
    x = torch.randn(2, 3, *(5, 4, 6)[:dims])
    grid = torch.rand(2, *(3, 7, 5)[:dims], dims) * 2.6 - 1.3
    rows = grid.view(-1, dims)
    for k, value in enumerate((math.nan, math.inf, -math.inf)):
        for axis in range(dims):
            rows[dims * k + axis, axis] = value  # the other is inside or outside
            rows[20 + dims * k + axis] = 5.0
            rows[20 + dims * k + axis, axis] = value
        rows[-1 - k] = value
    options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": random.random() < 0.5}
    results = []
    for place in ("cpu", device):
        inputs = [t.to(place).requires_grad_() for t in (x, grid)]
        y = F.grid_sample(*inputs, **options)
        gradients = torch.autograd.grad(y, inputs, torch.ones_like(y))
        results.append([t.detach().cpu() for t in (y, *gradients)])
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("mask", [[True, True], [False, True]])
def test_gradients_that_are_asked_for(device: str, mask: list[bool]) -> None:
    x, grid = torch.randn(1, 2, 5, 5), torch.rand(1, 3, 4, 2)
    gradient = torch.randn(1, 2, 3, 4)
    expected = aten.grid_sampler_2d_backward(gradient, x, grid, 0, 0, False, mask)
    got = aten.grid_sampler_2d_backward(gradient.to(device), x.to(device), grid.to(device), 0, 0, False, mask)
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


def test_out(device: str) -> None:
    x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 7, 2) * 2 - 1
    expected = aten.grid_sampler_2d(x, grid, 0, 0, False)
    for out in (torch.empty(0, device=device), torch.empty(2, 3, 7, 4, device=device).transpose(2, 3)):
        assert aten.grid_sampler_2d.out(x.to(device), grid.to(device), 0, 0, False, out=out) is out
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shapes", [((0, 2, 4, 4), (0, 3, 3, 2)), ((1, 0, 4, 4), (1, 3, 3, 2)), ((1, 2, 4, 4), (1, 0, 3, 2))]
)
def test_empty(device: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, grid = (torch.zeros(shape, device=device, requires_grad=True) for shape in shapes)
    out = F.grid_sample(x, grid, align_corners=False)
    assert out.shape == (*shapes[0][:2], *shapes[1][1:3])
    out.sum().backward()
    assert x.grad is not None and grid.grad is not None
    assert (x.grad == 0).all() and (grid.grad == 0).all()


@pytest.mark.parametrize(
    ("x", "grid", "mode", "message"),
    [
        ((1, 2, 4, 4), (2, 3, 3, 2), 0, "expected grid and input to have same batch size"),
        ((1, 2, 4, 4), (1, 3, 3, 3), 0, "expected grid to have size 2 in last dimension"),
        ((1, 2, 0, 4), (1, 3, 3, 2), 0, "expected input to have non-empty spatial dimensions"),
        pytest.param(
            *((1, 2, 4, 4, 4), (1, 3, 3, 3, 3), 2, "bicubic interpolation only supports 4D input"),
            marks=pytest.mark.skipif(versions.CUBIC_VOLUMES, reason="this torch samples volumes so"),
        ),
    ],
)
def test_errors(device: str, x: tuple[int, ...], grid: tuple[int, ...], mode: int, message: str) -> None:
    sample = aten.grid_sampler_2d if len(x) == 4 else aten.grid_sampler_3d
    for where in ("cpu", device):
        with pytest.raises(RuntimeError, match=message):
            sample(torch.zeros(x, device=where), torch.zeros(grid, device=where), mode, 0, False)


@pytest.mark.skipif(not versions.CUBIC_VOLUMES, reason="this torch refuses it")
def test_volumes_by_cubic_interpolation(device: str) -> None:
    """They are the CPU's."""
    x, grid = torch.randn(2, 3, 4, 5, 6, requires_grad=True), (torch.rand(2, 3, 4, 5, 3) * 2 - 1).requires_grad_()
    results = []
    for where in ("cpu", device):
        inputs = [each.detach().to(where).requires_grad_() for each in (x, grid)]
        with torchgraft.fallback("silent"):
            out = F.grid_sample(*inputs, mode="bicubic", align_corners=False)
            results.append([out.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(out.sin().sum(), inputs))])
    torch.testing.assert_close(results[1], results[0])


def test_dtypes_that_differ(device: str) -> None:
    for where in ("cpu", device):
        x, grid = torch.zeros(1, 1, 2, 2, device=where), torch.zeros(1, 1, 1, 2, device=where, dtype=torch.float64)
        with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
            F.grid_sample(x, grid, align_corners=False)


def test_integers_are_refused_as_on_the_cpu(device: str) -> None:
    x, grid = torch.ones(1, 1, 2, 2, device=device).long(), torch.zeros(1, 1, 1, 2, device=device).long()
    with torchgraft.fallback("silent"), pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.grid_sample(x, grid, align_corners=False)
