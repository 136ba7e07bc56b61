"""Upsampling of all modes and its gradients against torch's CPU, on images of one to three dimensions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchgraft

pytestmark = pytest.mark.no_fallback

aten = torch.ops.aten

TOLERANCE = {torch.float32: 8e-6, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "trilinear": (3,),
    "bicubic": (2,),
    "bilinear antialias": (2,),
    "bicubic antialias": (2,),
    **({"lanczos antialias": (2,)} if hasattr(aten, "_upsample_lanczos2d_aa") else {}),
}
LARGEST = {1: 150, 2: 40, 3: 9}


def _options(mode: str, size: list[int]) -> dict[str, Any]:
    """A target's size or scale factors, given or recomputed, and corners aligned at times."""
    options: dict[str, Any] = {"mode": mode.removesuffix(" antialias")}
    if mode.endswith(" antialias"):
        options["antialias"] = True
    if not mode.startswith(("nearest", "lanczos")):
        options["align_corners"] = random.random() < 0.5
    if random.random() < 0.5:
        # Torch's CPU takes a column that is one pixel wide for a row where it antialiases.
        options["size"] = [max(2, round(n * random.choice([0.4, 1, 1.7, 2]))) for n in size]
    else:
        options["scale_factor"] = [max(2.01 / n, random.uniform(0.3, 3)) for n in size]
        options["recompute_scale_factor"] = random.random() < 0.3
    return options


def _image(dims: int, dtype: torch.dtype) -> torch.Tensor:
    """With channels last or apart in memory at times."""
    size = [random.randint(2, LARGEST[dims]) for _ in range(dims)]
    shape = [random.choice([1, 2]), random.choice([1, 3, 5, 19]), *size]
    x = torch.randint(0, 256, shape, dtype=dtype) if dtype == torch.uint8 else torch.randn(shape).to(dtype)
    kind = random.random()
    if dims > 1 and kind < 0.4:
        return x.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    return x.transpose(0, 1).contiguous().transpose(0, 1) if kind < 0.6 else x


@pytest.mark.quick(form="cpu", dtype=torch.float32)
@pytest.mark.quick(form="gpu", dtype=torch.float32, mode=["bilinear", "nearest"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_like_the_cpu(device: str, form: str, mode: str, dtype: torch.dtype) -> None:
    for dims in MODES[mode]:
        x = _image(dims, dtype)
        options = _options(mode, list(x.shape[2:]))
        # Torch's CPU does not antialias half precision, and rounds weights to it elsewhere. It computes which pixel
        # is the nearest in float32 for all but float64.
        reference = x.float() if dtype in (torch.float16, torch.bfloat16) else x
        mine, theirs = x.to(device).requires_grad_(), reference.clone().requires_grad_()
        got, expected = F.interpolate(mine, **options), F.interpolate(theirs, **options)
        tolerance = TOLERANCE[dtype]
        assert got.dtype == dtype
        torch.testing.assert_close(
            got.cpu().to(reference.dtype),
            expected,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, o=options: f"{o}: {m}",
        )
        gradient = torch.randn(expected.shape).to(dtype)
        (a,) = torch.autograd.grad(got, mine, gradient.to(device))
        (b,) = torch.autograd.grad(expected, theirs, gradient.to(reference.dtype))
        torch.testing.assert_close(a.cpu().to(b.dtype), b, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("linear", "trilinear")])
def test_bytes(device: str, form: str, mode: str) -> None:
    """Images of bytes are computed with as many bits as torch's CPU has, and so equal."""
    for _ in range(3):
        x = _image(2, torch.uint8)
        options = _options(mode, list(x.shape[2:]))
        assert torch.equal(F.interpolate(x.to(device), **options).cpu(), F.interpolate(x, **options)), options


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_pixels(device: str, mode: str, dtype: torch.dtype) -> None:
    """The very pixel that torch takes, in its kernel for large images and in that for small ones."""
    x = torch.arange(6).to(dtype).expand(1, 1, 1, 6)  # the centre of pixel 60 of 363 lies between two of six
    between = F.interpolate(x.to(device), size=[1, 363], mode=mode)
    assert torch.equal(between.cpu(), F.interpolate(x, size=[1, 363], mode=mode))
    for _ in range(40):
        n = random.randint(1, 300)
        x = torch.arange(n).to(dtype).expand(1, 1, 1, n)
        factor = max(1.01 / n, random.uniform(0.1, 3))
        for options in (
            {"size": [1, random.choice([n, 2 * n, 3 * n, random.randint(1, 600)])]},
            {"scale_factor": [1.0, factor]},
        ):
            expected = F.interpolate(x, mode=mode, **options)  # type: ignore[call-overload]
            got = F.interpolate(x.to(device), mode=mode, **options)  # type: ignore[call-overload]
            assert torch.equal(got.cpu(), expected), (n, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_gradients_of_whole_factors(device: str, mode: str, dtype: torch.dtype) -> None:
    """Blocks of pixels are summed; of factors that are no powers of two, tables say which pixels are whose."""
    for size, factors in (((5, 7), (2, 4)), ((9,), (8,)), ((3, 4, 5), (2, 1, 2)), ((6, 5), (3, 2)), ((4, 4), (1, 1))):
        x = torch.randn(2, 3, *size, dtype=dtype)
        target = [n * factor for n, factor in zip(size, factors, strict=True)]
        mine, theirs = x.to(device).requires_grad_(), x.double().requires_grad_()
        got, expected = (F.interpolate(t, size=target, mode=mode) for t in (mine, theirs))
        gradient = torch.randn(expected.shape, dtype=dtype)
        (a,) = torch.autograd.grad(got, mine, gradient.to(device))
        (b,) = torch.autograd.grad(expected, theirs, gradient.double())
        torch.testing.assert_close(a.cpu(), b.to(dtype), rtol=5e-3 if dtype == torch.float16 else 1e-5, atol=5e-3)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "trilinear"])
def test_large_images(device: str, mode: str) -> None:
    """CPUs resample these axis after axis, in the order that has less to do."""
    larger, smaller = ([11, 30, 50], [16, 33, 90]) if mode == "trilinear" else ([60, 70], [150, 75])
    for size, target in ((larger, smaller), (smaller, larger)):
        x = torch.randn(2, 3, *size)
        mine, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
        got, expected = (F.interpolate(t, size=target, mode=mode) for t in (mine, theirs))
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
        gradient = torch.randn(expected.shape)
        (a,) = torch.autograd.grad(got, mine, gradient.to(device))
        (b,) = torch.autograd.grad(expected, theirs, gradient)
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"])
def test_gradients_of_images_made_smaller(device: str, mode: str, dtype: torch.dtype) -> None:
    """Most pixels have no part in them, and what is infinite stays where it belongs."""
    for dims in MODES[mode]:
        for _ in range(3):
            size = [random.randint(2, LARGEST[dims]) for _ in range(dims)]
            target = [random.randint(1, n) for n in size]
            aligned = {} if mode.startswith("nearest") else {"align_corners": random.random() < 0.5}
            x = torch.randn(3, 4, *size, dtype=dtype)
            gradient = torch.randn(3, 4, *target, dtype=dtype)
            if mode.startswith("nearest"):
                gradient.view(-1)[::7] = float("inf")
            a, b = (
                torch.autograd.grad(F.interpolate(t, target, mode=mode, **aligned), t, gradient.to(t.device))[0]
                for t in (x.to(device).requires_grad_(), x.requires_grad_())
            )
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=10 * tolerance)


def test_layouts(device: str) -> None:
    """Results have the strides that torch's CPU gives them."""
    x = torch.randn(2, 5, 6, 7)
    last = x.to(memory_format=torch.channels_last)
    for mode in ("nearest", "bilinear", "bicubic"):
        for image in (x, last, last[:, 1:4], x[:, :, ::2, 1:]):
            expected = F.interpolate(image, size=[9, 8], mode=mode)
            moved = torch.empty_strided(image.shape, image.stride(), device=device)
            got = F.interpolate(moved.copy_(image), size=[9, 8], mode=mode)
            assert got.stride() == expected.stride(), mode
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_out(device: str) -> None:
    x = torch.randn(2, 3, 6, 7)
    expected = F.interpolate(x, size=[9, 8], mode="bilinear")
    for out in (
        torch.empty(0, device=device),
        torch.empty(2, 3, 9, 8, device=device),
        torch.empty(2, 3, 8, 9, device=device).transpose(2, 3),
        torch.empty(2, 3, 9, 8, device=device).to(memory_format=torch.channels_last),
    ):
        assert aten.upsample_bilinear2d(x.to(device), [9, 8], False, out=out) is out
        torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_an_infinite_pixel_stays_where_it_is(device: str, form: str) -> None:
    x = torch.randn(1, 1, 12, 12)
    x[0, 0, 0, 0] = x[0, 0, -1, -1] = float("inf")
    x[0, 0, 5, 6] = float("nan")
    for mode, options in {"bilinear": {}, "bicubic": {}, "linear-aa": {"mode": "bilinear", "antialias": True}}.items():
        options = {"mode": mode, "size": [23, 29], **options}
        got, expected = F.interpolate(x.to(device), **options).cpu(), F.interpolate(x, **options)
        assert torch.equal(got.isfinite(), expected.isfinite()), mode


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_empty_batch(device: str, mode: str) -> None:
    x = torch.randn(0, 3, 4, 5, device=device, requires_grad=True)
    out = F.interpolate(x, scale_factor=2, mode=mode)
    assert out.shape == (0, 3, 8, 10)
    out.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_second_derivatives(device: str, mode: str) -> None:
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda t: F.interpolate(t, size=[6, 3], mode=mode), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: aten.upsample_bilinear2d(x, [7], False), "It is expected output_size equals to 2, but got size 1"),
        (lambda x: aten.upsample_nearest2d(x[0], [7, 7]), "It is expected input_size equals to 4, but got size 3"),
        (lambda x: aten.upsample_nearest1d(x[0], [0]), "Input and output sizes should be greater than 0"),
        (lambda x: aten.upsample_bicubic2d(x[:, :, :0], [7, 7], False), "Input and output sizes should be greater"),
        (lambda x: aten.upsample_bicubic2d(x[:, :0], [7, 7], False), "Non-empty 4D data tensor expected"),
        (lambda x: aten.upsample_nearest2d_backward(x, [4, 4], [2, 3, 2, 2]), "Expected grad_output to have the same"),
    ],
)
def test_errors(device: str, call: Any, message: str) -> None:
    for where in ("cpu", device):
        with pytest.raises(RuntimeError, match=message):
            call(torch.randn(2, 3, 4, 5, device=where))


def test_integers_are_refused_as_on_the_cpu(device: str) -> None:
    with torchgraft.fallback("silent"), pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.interpolate(torch.ones(1, 1, 4, 4, dtype=torch.long, device=device), scale_factor=2)
