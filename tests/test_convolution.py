"""Convolution and its gradients against torch's CPU in float64: random shapes, strides, paddings, dilations, groups."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchgraft import plans
from torchgraft.codegen.tuning import Target
from torchgraft.kernels.choice import Way
from torchgraft.kernels.convolution import channel_lanes, channel_lanes_bfloat16, patches
from torchgraft.ops.convolution import choose
from torchgraft.plans.device import device_traits, kernel_form

pytestmark = pytest.mark.no_fallback

TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-13, torch.float16: 3e-3, torch.bfloat16: 2e-2}
Convolution = Callable[..., torch.Tensor]
CONVOLUTIONS: dict[bool, list[Convolution]] = {
    False: [F.conv1d, F.conv2d, F.conv3d],
    True: [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d],
}


def _check(got: torch.Tensor, expected: torch.Tensor, terms: int = 0) -> None:
    """`terms` is how many numbers of about 1 a gradient sums at least: they may cancel out."""
    tolerance = TOLERANCE[got.dtype]
    scale = max(expected.abs().max().item(), terms**0.5) if expected.numel() else 1.0
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=tolerance, atol=tolerance * scale)


def _compare(
    device: str, dtype: torch.dtype, convolution: Convolution, shapes: list[tuple[int, ...]], **options: object
) -> None:
    """The result and the gradients of image, weight and, if there is a third shape, bias."""
    values = [torch.randn(shape).to(dtype) for shape in shapes]
    exact = [x.double().requires_grad_() for x in values]
    ours = [x.to(device).requires_grad_() for x in values]
    expected = convolution(*exact, **options)
    got = convolution(*ours, **options)
    assert got.dtype == dtype
    _check(got, expected)
    grad = torch.randn(expected.shape).to(dtype)
    for mine, true in zip(
        torch.autograd.grad(got, ours, grad.to(device)),
        torch.autograd.grad(expected, exact, grad.double()),
        strict=True,
    ):
        _check(mine, true, grad.numel() // max(1, true.numel()))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.quick(dims=2, dtype=[torch.float32, torch.bfloat16])
def test_random_shapes(device: str, dims: int, transposed: bool, dtype: torch.dtype) -> None:
    done = 0
    while done < 4:
        groups = random.choice([1, 1, 2, 3])
        channels, results = groups * random.choice([1, 3, 8, 17]), groups * random.choice([1, 2, 9, 33])
        if random.random() < 0.3:  # depthwise
            groups, results = channels, channels * random.choice([1, 2])
        extents = [random.randint(1, {1: 70, 2: 20, 3: 8}[dims]) for _ in range(dims)]
        taps = [random.randint(1, 4 if dims < 3 else 3) for _ in range(dims)]
        stride = [random.randint(1, 3) if random.random() < 0.6 else 1 for _ in range(dims)]
        padding = [random.randint(0, 3) for _ in range(dims)]
        dilation = [random.randint(1, 3) if random.random() < 0.3 else 1 for _ in range(dims)]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, taps, strict=True)]
        if transposed:
            fits = all((n - 1) * s + r > 2 * p for n, s, r, p in zip(extents, stride, reach, padding, strict=True))
        else:
            fits = all(n + 2 * p >= r for n, p, r in zip(extents, padding, reach, strict=True))
        if not fits:
            continue
        pair = (channels, results // groups) if transposed else (results, channels // groups)
        shapes = [(random.choice([1, 2, 5]), channels, *extents), (*pair, *taps), (results,)]
        _compare(
            device,
            dtype,
            CONVOLUTIONS[transposed][dims - 1],
            shapes[: random.choice([2, 3])],
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        done += 1


@pytest.mark.parametrize(
    ("image", "weight", "stride", "padding"),
    [
        ((4, 16, 28, 28), (32, 16, 3, 3), 1, 1),  # several blocks of columns
        ((2, 3, 64, 64), (64, 3, 7, 7), 2, 3),
        ((3, 260, 7, 7), (140, 260, 3, 3), 1, 1),  # several blocks of rows and slices; blocks over several images
        ((2, 64, 14, 14), (128, 64, 1, 1), 2, 0),
        ((70, 1, 5, 5), (8, 1, 5, 5), 1, 0),  # images of one pixel
        ((1, 2, 300), (3, 2, 280), 1, 10),  # more taps than a slice has steps
    ],
    ids=str,
)
def test_sizes(device: str, image: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int) -> None:
    convolution = CONVOLUTIONS[False][len(image) - 3]
    _compare(device, torch.float32, convolution, [image, weight, weight[:1]], stride=stride, padding=padding)


def recorded(monkeypatch: pytest.MonkeyPatch, *without: str) -> set[tuple[str, str]]:
    """What is planned from now on and by which way of choose.py's tables, of which some may be left out."""
    taken: set[tuple[str, str]] = set()

    def noting(way: Way[Any, None]) -> Way[Any, None]:
        def plan(problem: Any) -> None:
            taken.add((str(problem).split()[0], way.name))
            way.plan(problem)

        return dataclasses.replace(way, plan=plan)

    for table in ("IMAGES", "WEIGHTS"):
        ways = [noting(way) for way in getattr(choose, table) if way.name not in without]
        monkeypatch.setattr(choose, table, tuple(ways))
    return taken


def by(taken: set[tuple[str, str]], *ways: str) -> set[tuple[str, str]]:
    return {each for each in taken if each[1] in ways}


PATCHES = [  # image, results, taps
    ((2, 3, 64, 64), 24, (8, 8)),
    ((3, 2, 50, 47), 9, (7, 8)),  # pixels of the image's edges are in no patch
    ((2, 5, 24, 14), 200, (2, 2)),  # lines of few elements, and filters enough to pay for them
    ((1, 4, 21, 18), 193, (3, 1)),
    ((5, 3, 400), 8, (10,)),
    ((2, 3, 8, 12, 32), 10, (2, 3, 8)),
    ((2, 3, 6, 8, 10), 192, (1, 2, 2)),
    ((2, 3, 12, 76), 200, (4, 4)),
    ((1, 2, 6, 70), 193, (3, 2)),
    ((2, 2, 24, 6), 193, (2, 2)),  # lines shorter than any vector
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("sizes", PATCHES, ids=str)
def test_filters_beside_each_other(
    device: str, sizes: tuple[Any, ...], transposed: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, results, taps = sizes
    planned = recorded(monkeypatch)
    plans.clear()
    source = image
    if transposed:
        source = (image[0], results, *(n // k for n, k in zip(image[2:], taps, strict=True)))
    shapes: list[tuple[int, ...]] = [source, (results, image[1], *taps), (image[1] if transposed else results,)]
    _compare(device, dtype, CONVOLUTIONS[transposed][len(taps) - 1], shapes, stride=taps)
    _compare(device, dtype, CONVOLUTIONS[transposed][len(taps) - 1], shapes[:2], stride=taps)
    wanted = {"forward"}
    if transposed or all(n % k == 0 for n, k in zip(image[2:], taps, strict=True)):
        wanted.add("backward")
    if taps[-1] >= 8:
        wanted.add("weight")
    if kernel_form(torch.device(device).index or 0) != "cpu":
        wanted = set()
    assert by(planned, "patches-beside") == {(each, "patches-beside") for each in wanted}


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("taps", [2, 3, 4, 8])
def test_integers_beside_each_other(device: str, taps: int, dtype: torch.dtype) -> None:
    x, w = torch.randint(0, 3, (2, 12, 7, 9)).to(dtype), torch.randint(0, 3, (12, 10, taps, taps)).to(dtype)
    got = F.conv_transpose2d(x.to(device), w.to(device), stride=taps)
    assert torch.equal(got.cpu(), F.conv_transpose2d(x.double(), w.double(), stride=taps).to(dtype))


SMALL = [  # image, results, taps, how
    ((3, 17, 7, 7), 9, (3, 3), {"padding": 1}),
    ((1, 8, 5, 6), 33, (3, 2), {"padding": (1, 0)}),
    ((4, 20, 14, 13), 11, (3, 3), {"padding": 1, "stride": 2}),
    ((2, 9, 9, 20), 10, (1, 5), {"padding": (0, 4), "dilation": (1, 2), "stride": (3, 1)}),
    ((5, 3, 90), 5, (3,), {"padding": 1}),
    ((2, 12, 3, 4, 5), 8, (2, 2, 3), {"padding": (0, 1, 1)}),
    ((2, 33, 2, 2), 40, (3, 3), {"padding": 1}),  # taps that meet nothing but zeros
    ((6, 7, 12, 12), 5, (2, 2), {"stride": 3}),  # pixels that no tap meets
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("room", [patches.LARGEST_PLANES, 0], ids=["planes", "lines"])
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_small_images(
    device: str,
    sizes: tuple[Any, ...],
    room: int,
    transposed: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    tune: Callable[..., None],
) -> None:
    image, results, taps, how = sizes
    monkeypatch.setattr(patches, "LARGEST_PLANES", room)
    for family in ("small_images", "packed_images"):  # also where they do not pay
        tune(family, read=100, kept=100, strided=100, made=256, channels=1)
    for module in (channel_lanes, channel_lanes_bfloat16):
        monkeypatch.setattr(module, "choose_lanes", lambda *_: None)
    if dtype == torch.bfloat16 and device_traits(torch.device(device).index or 0).bfloat16 is None:
        pytest.skip("bfloat16 goes so where the processor multiplies it")
    planned = recorded(monkeypatch)
    plans.clear()
    pair = (image[1], results) if transposed else (results, image[1])
    for count in (3, 2):
        shapes = [image, (*pair, *taps), (results,)][:count]
        _compare(device, dtype, CONVOLUTIONS[transposed][len(taps) - 1], shapes, **how)
    wanted = {"forward", "backward"}
    if transposed and math.prod(image[2:]) > 100:  # what the gradient gives is the image, which is not small
        wanted.remove("forward")
    if kernel_form(torch.device(device).index or 0) != "cpu":
        wanted = set()
    of_images = {each for each in by(planned, "patches-of-all") if each[0] != "weight"}
    assert of_images == {(each, "patches-of-all") for each in wanted}
    plans.clear()


BOXES = [  # image, results, taps, stride, padding, dilation
    ((2, 40, 33, 29), 24, 3, 1, 1, 1),  # several slices of channels; lines that share zeros
    ((3, 12, 7, 7), 12, 3, 1, 1, 1),  # boxes of several images
    ((1, 130, 700), 20, 3, 1, 1, 1),  # boxes of a part of a line
    ((1, 3, 5000), 20, 1, 1, 0, 1),  # one tap
    ((2, 8, 9, 10, 11), 9, 3, 1, 1, 1),
    ((2, 6, 5, 12, 9), 10, 3, 2, 1, 1),
    ((2, 17, 26, 22), 33, 4, 4, 2, 2),  # pixels that several taps meet, and others that none meets
    ((2, 17, 21, 18), 20, 2, 3, 1, 1),
    ((2, 9, 20, 20), 140, 5, 2, 2, 1),
    ((4, 16, 16, 16), 8, 4, 2, 1, 1),  # a weight that only its channels divide among cores
    ((2, 12, 3, 3), 12, 3, 1, 5, 1),  # nothing but zeros in many places
    ((1, 8, 30, 30), 8, 3, 1, 9, 9),
]


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("sizes", BOXES, ids=str)
@pytest.mark.quick(transposed=False)
@pytest.mark.quick(sizes=BOXES[::4])
def test_boxes(device: str, sizes: tuple[Any, ...], transposed: bool) -> None:
    image, results, taps, stride, padding, dilation = sizes
    dims = len(image) - 2
    pair = (image[1], results) if transposed else (results, image[1])
    if transposed and (image[2] - 1) * stride + (taps - 1) * dilation < 2 * padding:
        pytest.skip("it has no pixels")
    for dtype in (torch.float32, torch.float64):
        shapes = [image, (*pair, *(taps,) * dims), (results,)]
        convolution = CONVOLUTIONS[transposed][dims - 1]
        _compare(device, dtype, convolution, shapes, stride=stride, padding=padding, dilation=dilation)


LANES = [  # image, results, groups, taps, how
    ((3, 260, 7, 7), 70, 1, (3, 3), {"padding": 1}),  # several slices and blocks of channels; half a panel
    ((2, 9, 2, 5), 40, 1, (3, 3), {"padding": 1}),  # fewer pixels than a vector has lanes
    ((1, 60, 40, 28), 33, 1, (3, 3), {"padding": 1}),  # parts of lines
    ((1, 70, 66, 70), 100, 1, (3, 3), {"padding": 1}),  # bands of lines
    ((2, 34, 13, 9), 36, 2, (5, 3), {"padding": (2, 1)}),
    ((2, 20, 16, 23), 32, 1, (3, 3), {"padding": 1, "stride": 2}),
    ((2, 20, 25, 28), 32, 1, (2, 2), {"stride": (4, 3)}),  # pixels that no tap meets
    ((2, 12, 8, 8), 24, 1, (3, 3), {"padding": 9, "dilation": 5}),  # lines of which no tap lies inside
    ((1, 5, 4, 30), 17, 1, (4, 17), {"padding": (3, 8)}),  # filters with more taps in a line than vectors have lanes
    ((3, 7, 24), 16, 1, (3,), {"padding": 1}),
    ((2, 8, 5, 6, 7), 20, 1, (3, 2, 3), {"padding": (1, 0, 1)}),
    ((70, 3, 4, 4), 16, 1, (1, 1), {}),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", LANES, ids=str)
@pytest.mark.quick(dtype=torch.float32)
@pytest.mark.quick(dtype=torch.bfloat16, sizes=LANES[::4])
def test_lanes_of_channels(
    device: str, sizes: tuple[Any, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, results, groups, taps, how = sizes
    # Also where boxes are quicker, on other registers, and where small images or pairs would go otherwise.
    monkeypatch.setattr(channel_lanes, "box_cost", lambda *_: None)
    monkeypatch.setattr(Target, "registers", 32)
    others = ("pair-lanes", "pair-boxes", "product", "patches-beside", "patches-of-all")
    planned = recorded(monkeypatch, *others)
    plans.clear()
    for count in (3, 2):
        shapes = [image, (results, image[1] // groups, *taps), (results,)][:count]
        _compare(device, dtype, CONVOLUTIONS[False][len(taps) - 1], shapes, **how, groups=groups)
    expected = {"forward"} if "stride" in how else {"forward", "backward"}
    if kernel_form(torch.device(device).index or 0) != "cpu":
        expected = set()
    assert by(planned, "lanes") == {(each, "lanes") for each in expected}
    plans.clear()


def test_lanes_of_integers(device: str) -> None:
    x, w = torch.randint(-9, 9, (2, 40, 7, 7)), torch.randint(-9, 9, (64, 40, 3, 3))
    expected = F.conv2d(x.double(), w.double(), padding=1)
    for dtype in (torch.int32, torch.int64, torch.int16):
        got = F.conv2d(x.to(device, dtype), w.to(device, dtype), padding=1)
        assert torch.equal(got.cpu(), expected.to(torch.int64).to(dtype))


DEPTHWISE = [  # images, channels, results of each, height, width, taps, padding, dilation
    (2, 3, 1, 14, 14, (5, 5), (2, 2), 1),
    (2, 3, 2, 7, 7, (3, 3), (1, 1), 1),
    (1, 1, 1, 1, 1, (3, 3), (1, 1), 1),
    (3, 4, 1, 56, 56, (3, 3), (1, 1), 1),  # bands of rows
    (2, 2, 1, 5, 130, (3, 5), (0, 4), (1, 2)),
    (2, 2, 3, 9, 33, (3, 3), (2, 2), 1),
    (1, 2, 1, 40, 40, (7, 7), (3, 3), 1),
    (2, 2, 1, 12, 12, (3, 3), (4, 4), 2),  # more padding than the filter reaches
    (2, 2, 1, 3, 17, (1, 9), (0, 4), 1),
    (2, 2, 1, 2, 9000, (1, 3), (0, 1), 1),  # longer than a band
    (2, 2, 1, 16, 16, (8, 8), (3, 4), 1),  # more taps than there are sums for
    (2, 3, 1, 300, 9, (100, 1), (50, 0), 1),  # long filters
    (2, 3, 2, 5, 300, (1, 100), (0, 50), 1),
    (1, 2, 1, 1, 700, (1, 65), (0, 64), (1, 3)),
    (1, 2, 1, 300, 70, (130, 1), (64, 0), 1),  # in tiles of columns
    (1, 2, 2, 90, 203, (61, 3), (30, 1), 1),
    (2, 2, 1, 40, 33, (31, 31), (15, 15), 1),
    (1, 2, 1, 1, 9001, (1, 70), (0, 3), 1),
    (1, 2, 1, 3, 5, (11, 9), (6, 4), 1),  # rows and columns fewer than a vector's
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", DEPTHWISE, ids=str)
@pytest.mark.quick(dtype=torch.float32)
@pytest.mark.quick(dtype=torch.bfloat16, sizes=DEPTHWISE[::4])
def test_depthwise(device: str, sizes: tuple[Any, ...], dtype: torch.dtype) -> None:
    images, channels, results, height, width, taps, padding, dilation = sizes
    shapes = [(images, channels, height, width), (channels * results, 1, *taps), (channels * results,)]
    _compare(device, dtype, F.conv2d, shapes, padding=padding, dilation=dilation, groups=channels)


STRIDED_PLANES = [  # images, channels, results of each, height, width, taps, padding, dilation, stride
    (2, 3, 1, 14, 14, (3, 3), (1, 1), 1, 2),
    (1, 2, 2, 37, 41, (5, 5), (2, 2), 1, 2),
    (2, 2, 1, 9, 33, (2, 3), (0, 1), 1, (1, 3)),
    (2, 2, 1, 40, 12, (3, 2), (4, 3), 1, (4, 2)),
    (1, 3, 1, 5, 70, (1, 5), (0, 7), (1, 3), (2, 2)),  # a tap between the remainders
    (1, 2, 1, 30, 3, (3, 3), (2, 2), 1, 3),  # fewer columns than a vector
    (2, 2, 1, 11, 11, (3, 3), (1, 1), 1, 5),  # further apart than planes are copied for
    (2, 2, 1, 15, 29, (3, 3), (1, 1), 1, 2),  # an odd number of columns, in vectors
    (1, 2, 1, 32, 64, (4, 4), (1, 2), 1, 2),
    (2, 2, 1, 7, 7, (3, 3), (1, 1), 1, 2),
    (1, 1, 1, 33, 100, (7, 7), (3, 3), 1, (2, 1)),
    (1, 1, 1, 20, 50, (3, 3), (0, 0), 1, (1, 2)),
    (1, 2, 1, 300, 120, (3, 3), (1, 1), 1, 2),  # bands of rows
    (1, 2, 1, 9, 19, (1, 1), (0, 0), 1, 2),  # pixels that no tap meets
    (1, 2, 1, 9, 19, (3, 3), (5, 6), 1, 2),  # more padding than the filter reaches
    (1, 2, 1, 200, 100, (61, 3), (30, 1), 1, (2, 3)),  # long filters, in tiles
    (1, 2, 1, 9, 3001, (1, 90), (0, 40), 1, (1, 2)),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", STRIDED_PLANES, ids=str)
@pytest.mark.quick(sizes=STRIDED_PLANES[:3])
def test_depthwise_with_strides(device: str, sizes: tuple[Any, ...], dtype: torch.dtype) -> None:
    images, channels, results, height, width, taps, padding, dilation, stride = sizes
    shapes = [(images, channels, height, width), (channels * results, 1, *taps), (channels * results,)]
    how = {"padding": padding, "dilation": dilation, "stride": stride, "groups": channels}
    _compare(device, dtype, F.conv2d, shapes, **how)


@pytest.mark.parametrize("stride", [1, 2, (2, 1)], ids=str)
@pytest.mark.parametrize("results", [1, 2])
def test_transposed_depthwise(device: str, results: int, stride: int | tuple[int, int]) -> None:
    for height, width in ((7, 9), (20, 35)):
        shapes = [(2, 3, height, width), (3, results, 3, 4), (3 * results,)]
        how = {"padding": (1, 2), "stride": stride, "groups": 3}
        _compare(device, torch.float32, F.conv_transpose2d, shapes, **how)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_is_infinite_goes_where_it_belongs(device: str, stride: int) -> None:
    x, w = torch.randn(2, 3, 14, 14), torch.randn(3, 1, 5, 5)
    x[0, 0, 0, 13], x[1, 2, 5, 12] = float("inf"), float("nan")
    there = w.to(device).requires_grad_()
    here = w.clone().requires_grad_()
    got = F.conv2d(x.to(device), there, stride=stride, padding=2, groups=3)
    expected = F.conv2d(x, here, stride=stride, padding=2, groups=3)
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
    got.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_what_is_infinite_in_small_images(device: str) -> None:
    x, w = torch.randn(2, 32, 7, 7), torch.randn(64, 32, 3, 3)
    x[0, 3, 0, 6], x[1, 2, 5, 0], w[5, 7, 1, 1] = float("inf"), float("nan"), float("-inf")
    expected = F.conv2d(x, w, padding=1)
    got = F.conv2d(x.to(device), w.to(device), padding=1)
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_layouts(device: str) -> None:
    x, w = torch.randn(2, 6, 9, 9), torch.randn(4, 6, 3, 3)
    expected = F.conv2d(x.double(), w.double())
    channels_last = x.to(device).to(memory_format=torch.channels_last)
    _check(F.conv2d(channels_last, w.to(device)), expected)
    _check(F.conv2d(x.to(device).mT.contiguous().mT, w.to(device).flip(0).flip(0)), expected)
    _check(F.conv2d(x[0].to(device), w.to(device)), expected[0])


def test_output_padding(device: str) -> None:
    _compare(
        device, torch.float32, F.conv_transpose2d, [(2, 4, 5, 6), (4, 3, 3, 3)], stride=2, padding=1, output_padding=1
    )


def test_empty_batch(device: str) -> None:
    x = torch.randn(0, 3, 8, 8, device=device, requires_grad=True)
    w = torch.randn(4, 3, 3, 3, device=device, requires_grad=True)
    out = F.conv2d(x, w)
    assert out.shape == (0, 4, 6, 6)
    out.sum().backward()
    assert w.grad is not None
    assert not w.grad.cpu().any()


def test_one_gradient(device: str) -> None:
    """Only what is asked for is computed."""
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    frozen = w.to(device)
    image = x.to(device).requires_grad_()
    F.conv2d(image, frozen).sum().backward()
    exact = x.double().requires_grad_()
    F.conv2d(exact, w.double()).sum().backward()
    assert image.grad is not None
    assert exact.grad is not None
    assert frozen.grad is None
    _check(image.grad, exact.grad)
