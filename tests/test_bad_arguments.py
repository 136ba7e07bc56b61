"""Arguments that torch's CPU refuses, family by family, are refused on the device by the same type of exception.

Many of these checks are in torch's CPU kernels and not in its meta functions. What is refused for other reasons than
its arguments' sizes, ranges and dtypes stands in test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchgraft.plans import versions

aten = torch.ops.aten


class On:
    """Tensors on a device."""

    def __init__(self, place: str) -> None:
        self.place = place

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(shape).to(self.place, dtype)

    def ints(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.place)

    def of(self, *values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.place)


def transposed(dims: int, **wrong: Any) -> Callable[[On], Any]:
    convolve = getattr(F, f"conv_transpose{dims}d")
    return lambda on: convolve(on.floats(1, 2, *[5] * dims), on.floats(2, 3, *[3] * dims), **wrong)


def convolved(
    dims: int, channels: int = 2, taps: int = 3, bias: int | None = None, **wrong: Any
) -> Callable[[On], Any]:
    convolve = getattr(F, f"conv{dims}d")
    return lambda on: convolve(
        on.floats(1, 2, *[5] * dims),
        on.floats(4, channels, *[taps] * dims),
        None if bias is None else on.floats(bias),
        **wrong,
    )


def pooled(kind: str, dims: int, *shape: int, **given: Any) -> Callable[[On], Any]:
    pool = getattr(F, f"{kind}_pool{dims}d")
    return lambda on: pool(on.floats(*(shape or (2, 3, *[6] * dims))), **given)


def resampled(mode: str, shape: list[int], size: int) -> Callable[[On], Any]:
    return lambda on: F.interpolate(on.floats(*shape), size=size, mode=mode)


CONVOLUTION = {
    **{f"transposed {d}d: output_padding of the stride": transposed(d, output_padding=1) for d in (1, 2, 3)},
    **{f"transposed {d}d: output_padding of dilation": transposed(d, output_padding=2, dilation=2) for d in (1, 2, 3)},
    **{f"transposed {d}d: large output_padding": transposed(d, stride=2, output_padding=3) for d in (1, 2, 3)},
    "transposed: output_padding of one dimension": transposed(2, stride=(2, 3), output_padding=(1, 3)),
    "transposed: negative output_padding": transposed(2, stride=2, output_padding=-1),
    "transposed: negative padding": transposed(2, padding=-1),
    "transposed: no stride": transposed(2, stride=0),
    "transposed: no dilation": transposed(2, dilation=0),
    "transposed: so much padding that nothing is left": transposed(2, padding=9),
    "transposed: groups": transposed(2, groups=3),
    **{f"{d}d: stride": convolved(d, stride=0) for d in (1, 2, 3)},
    **{f"{d}d: negative stride": convolved(d, stride=-1) for d in (1, 2, 3)},
    **{f"{d}d: dilation": convolved(d, dilation=0) for d in (1, 2, 3)},
    **{f"{d}d: negative padding": convolved(d, padding=-1) for d in (1, 2, 3)},
    **{f"{d}d: too large a filter": convolved(d, taps=6) for d in (1, 2, 3)},
    **{f"{d}d: channels": convolved(d, channels=3) for d in (1, 2, 3)},
    **{f"{d}d: bias": convolved(d, bias=3) for d in (1, 2, 3)},
    "groups that do not divide": convolved(2, groups=3),
    "no groups": convolved(2, groups=0),
    "negative groups": convolved(2, groups=-1),
    "an unknown padding": convolved(2, padding="half"),
    "same padding of a stride": convolved(2, padding="same", stride=2),
    "dilation that makes the filter too large": convolved(2, dilation=3),
    "stride of three dimensions": convolved(2, stride=(1, 1, 1)),
    "padding of three dimensions": convolved(2, padding=(1, 1, 1)),
    "two dtypes": lambda on: F.conv2d(on.floats(1, 2, 5, 5), on.floats(4, 2, 3, 3).double()),
    "bias of another dtype": lambda on: F.conv2d(on.floats(1, 2, 5, 5), on.floats(4, 2, 3, 3), on.floats(4).double()),
    "truth": lambda on: F.conv2d(on.floats(1, 2, 5, 5), on.floats(4, 2, 3, 3) > 0),
    "bias of two dimensions": lambda on: F.conv2d(on.floats(1, 2, 5, 5), on.floats(4, 2, 3, 3), on.floats(4, 1)),
    "no taps": lambda on: F.conv2d(on.floats(1, 2, 5, 5), on.floats(4, 2, 0, 3)),
    "an image of two dimensions": lambda on: F.conv2d(on.floats(5, 5), on.floats(4, 2, 3, 3)),
    "no channels of filters": lambda on: F.conv2d(on.floats(1, 2, 5, 5), on.floats(4, 0, 3, 3)),
    "conv_tbc": lambda on: torch.conv_tbc(on.floats(5, 2, 3), on.floats(3, 4, 2), on.floats(2), 1),
}

POOLING = {
    **{
        f"{kind}_pool{d}d: {why}": pooled(kind, d, **{"kernel_size": 2} | wrong)
        for kind in ("max", "avg")
        for d in (1, 2, 3)
        for why, wrong in {
            "stride": {"stride": 0},
            "negative stride": {"stride": -1},
            "no window": {"kernel_size": 0},
            "negative window": {"kernel_size": -1},
            "padding of more than half a window": {"padding": 2},
            "negative padding": {"padding": -1},
            "a window larger than the image": {"kernel_size": 9},
            "window of many dimensions": {"kernel_size": (2, 2, 2, 2)},
            "padding of many dimensions": {"padding": (1, 1, 1, 1)},
            **({"dilation": {"dilation": 0}, "negative dilation": {"dilation": -1}} if kind == "max" else {}),
        }.items()
    },
    **{
        f"{kind}_pool{d}d: {why}": pooled(kind, d, *shape(d), **{size: 2})
        for kind, size in (
            ("max", "kernel_size"),
            ("avg", "kernel_size"),
            ("adaptive_avg", "output_size"),
            ("adaptive_max", "output_size"),
        )
        for d in (1, 2, 3)
        for why, shape in {
            "too few dimensions": lambda d: [6] * d,
            "too many dimensions": lambda d: [2] * (d + 3),
            "no pixels": lambda d: [2, 3, *[0] * d],
            "no channels": lambda d: [2, 0, *[6] * d],
        }.items()
        if not (d < 3 and kind == "adaptive_avg" and why == "no channels")
    },
    **{
        f"adaptive_{kind}_pool{d}d: {why}": pooled(f"adaptive_{kind}", d, output_size=size)
        for kind in ("max", "avg")
        for d in (1, 2, 3)
        for why, size in {"negative size": -1, "sizes of many dimensions": (2, 2, 2, 2)}.items()
    },
    "avg_pool2d: divisor": lambda on: F.avg_pool2d(on.floats(1, 1, 4, 4), 2, divisor_override=0),
    "avg_pool3d: divisor": lambda on: F.avg_pool3d(on.floats(1, 1, 4, 4, 4), 2, divisor_override=0),
    **{
        f"max_unpool{d}d: {why}": lambda on, d=d, w=wrong: getattr(F, f"max_unpool{d}d")(
            on.floats(1, 2, *[2] * d), on.ints(1, 2, *[2] * d) + w[0], 2, **w[1]
        )
        for d in (1, 2, 3)
        for why, wrong in {
            "index": (999, {}),
            "negative index": (-1, {}),
            "size": (0, {"output_size": [9] * d}),
        }.items()
    },
    "max_unpool2d: shapes": lambda on: F.max_unpool2d(on.floats(1, 2, 2, 2), on.ints(1, 2, 2, 3), 2),
    "max_unpool2d: indices of int32": lambda on: F.max_unpool2d(on.floats(1, 2, 2, 2), on.ints(1, 2, 2, 2).int(), 2),
    "max_unpool2d: a row": lambda on: aten.max_unpool2d(on.floats(2, 2), on.ints(2, 2), [4, 4]),
    "max_unpool2d: sizes": lambda on: aten.max_unpool2d(on.floats(1, 2, 2, 2), on.ints(1, 2, 2, 2), [4]),
    "max_unpool3d: stride": lambda on: aten.max_unpool3d(
        on.floats(1, 2, 2, 2, 2), on.ints(1, 2, 2, 2, 2), [4, 4, 4], [0, 1, 1], [0, 0, 0]
    ),
    "fractional_max_pool2d: sizes": lambda on: F.fractional_max_pool2d(on.floats(1, 2, 6, 6), 3, output_size=5),
    "fractional_max_pool2d: ratio": lambda on: F.fractional_max_pool2d(on.floats(1, 2, 6, 6), 3, output_ratio=1.5),
    "fractional_max_pool2d: samples": lambda on: F.fractional_max_pool2d(
        on.floats(1, 2, 6, 6), 3, output_size=3, _random_samples=on.floats(1, 2, 3)
    ),
    "fractional_max_pool2d: samples of another dtype": lambda on: F.fractional_max_pool2d(
        on.floats(1, 2, 6, 6), 3, output_size=3, _random_samples=on.floats(1, 2, 2).double()
    ),
    "fractional_max_pool3d: sizes": lambda on: F.fractional_max_pool3d(on.floats(1, 2, 6, 6, 6), 3, output_size=5),
    "fractional_max_pool3d: samples": lambda on: F.fractional_max_pool3d(
        on.floats(1, 2, 6, 6, 6), 3, output_size=3, _random_samples=on.floats(1, 2, 2)
    ),
    "lp_pool2d: window": lambda on: F.lp_pool2d(on.floats(1, 2, 6, 6), 2, 9),
}

RESAMPLING = {
    "no size": lambda on: F.interpolate(on.floats(1, 2, 4, 4), size=0),
    "a negative size": lambda on: F.interpolate(on.floats(1, 2, 4, 4), size=-3),
    "a size of three dimensions": lambda on: F.interpolate(on.floats(1, 2, 4, 4), size=(3, 3, 3)),
    "a row": lambda on: F.interpolate(on.floats(4, 4), size=3),
    **{
        f"{mode}: {why}": resampled(mode, shape(d), size)
        for mode, d in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
        for why, shape, size in (
            ("no pixels", lambda d: [1, 2, *[0] * d], 3),
            ("no channels", lambda d: [1, 0, *[4] * d], 3),
            ("no size", lambda d: [1, 2, *[4] * d], 0),
            ("too few dimensions", lambda d: [2, *[4] * d], 3),
        )
    },
    "a scale of nothing": lambda on: F.interpolate(on.floats(1, 2, 4, 4), scale_factor=0.1),
    "a negative scale": lambda on: F.interpolate(on.floats(1, 2, 4, 4), scale_factor=-1.0),
    "integers": lambda on: F.interpolate(on.floats(1, 2, 4, 4).int(), size=3, mode="bilinear"),
    "an unknown mode": lambda on: F.interpolate(on.floats(1, 2, 4, 4), size=3, mode="cubic"),
    "antialias of nearest": lambda on: F.interpolate(on.floats(1, 2, 4, 4), size=3, antialias=True),
    "grid_sample: batch": lambda on: F.grid_sample(on.floats(1, 2, 4, 4), on.floats(2, 3, 3, 2)),
    "grid_sample: coordinates": lambda on: F.grid_sample(on.floats(1, 2, 4, 4), on.floats(1, 3, 3, 3)),
    "grid_sample: dimensions": lambda on: F.grid_sample(on.floats(1, 2, 4, 4), on.floats(1, 3, 3, 3, 3)),
    "grid_sample: no pixels": lambda on: F.grid_sample(on.floats(1, 2, 0, 4), on.floats(1, 3, 3, 2)),
    "grid_sample: dtypes": lambda on: F.grid_sample(on.floats(1, 2, 4, 4), on.floats(1, 3, 3, 2).double()),
    **(
        {}  # torch 2.15 and later take it: tests/test_grid_sample.py
        if versions.CUBIC_VOLUMES
        else {
            "grid_sample: cubic volume": lambda on: F.grid_sample(
                on.floats(1, 2, 4, 4, 4), on.floats(1, 3, 3, 3, 3), mode="bicubic"
            )
        }
    ),
    "grid_sample: a mode": lambda on: F.grid_sample(on.floats(1, 2, 4, 4), on.floats(1, 3, 3, 2), mode="cubic"),
    "grid_sample: integers": lambda on: F.grid_sample(on.floats(1, 2, 4, 4).int(), on.floats(1, 3, 3, 2).int()),
    "affine_grid": lambda on: F.affine_grid(on.floats(1, 2, 4), [1, 1, 4, 4]),
    "affine_grid: sizes": lambda on: F.affine_grid(on.floats(1, 2, 3), [1, 1, 0, 4]),
    "affine_grid: integers": lambda on: F.affine_grid(on.floats(1, 2, 3).int(), [1, 1, 4, 4]),
    "pixel_shuffle: channels": lambda on: F.pixel_shuffle(on.floats(1, 3, 4, 4), 2),
    "pixel_shuffle: factor": lambda on: F.pixel_shuffle(on.floats(1, 4, 4, 4), 0),
    "pixel_shuffle: dimensions": lambda on: F.pixel_shuffle(on.floats(4, 4), 2),
    "pixel_unshuffle": lambda on: F.pixel_unshuffle(on.floats(1, 4, 5, 4), 2),
    "pixel_unshuffle: factor": lambda on: F.pixel_unshuffle(on.floats(1, 4, 5, 4), -1),
    "channel_shuffle: groups": lambda on: F.channel_shuffle(on.floats(1, 4, 4, 4), 3),
    "channel_shuffle: no groups": lambda on: F.channel_shuffle(on.floats(1, 4, 4, 4), 0),
    "unfold": lambda on: F.unfold(on.floats(1, 2, 4, 4), 5),
    "unfold: window": lambda on: F.unfold(on.floats(1, 2, 4, 4), 0),
    "unfold: stride": lambda on: F.unfold(on.floats(1, 2, 4, 4), 2, stride=0),
    "unfold: dilation": lambda on: F.unfold(on.floats(1, 2, 4, 4), 2, dilation=0),
    "unfold: padding": lambda on: F.unfold(on.floats(1, 2, 4, 4), 2, padding=-1),
    "unfold: dimensions": lambda on: F.unfold(on.floats(4, 4), 2),
    "unfold: no channels": lambda on: F.unfold(on.floats(1, 0, 4, 4), 2),
    "unfold: integers": lambda on: F.unfold(on.floats(1, 2, 4, 4).int(), 2),
    "fold: columns": lambda on: F.fold(on.floats(1, 8, 8), (4, 4), 2),
    "fold: channels": lambda on: F.fold(on.floats(1, 7, 9), (4, 4), 2),
    "fold: stride": lambda on: F.fold(on.floats(1, 8, 9), (4, 4), 2, stride=0),
    "fold: dilation": lambda on: F.fold(on.floats(1, 8, 9), (4, 4), 2, dilation=-1),
    "fold: dimensions": lambda on: F.fold(on.floats(8), (4, 4), 2),
    "reflect as much as there is": lambda on: F.pad(on.floats(1, 2, 4), (4, 0), mode="reflect"),
    "reflect in two dimensions": lambda on: F.pad(on.floats(1, 2, 4, 4), (1, 1, 4, 0), mode="reflect"),
    "reflect in three dimensions": lambda on: F.pad(on.floats(1, 2, 4, 4, 4), (1, 1, 1, 1, 4, 0), mode="reflect"),
    "reflect nothing": lambda on: F.pad(on.floats(1, 2, 0), (1, 0), mode="reflect"),
    "replicate nothing": lambda on: F.pad(on.floats(1, 2, 0), (1, 0), mode="replicate"),
    "cut away more than there is": lambda on: F.pad(on.floats(1, 2, 4), (-3, -3)),
    "cut away more than there is, replicating": lambda on: F.pad(on.floats(1, 2, 4), (-3, -3), mode="replicate"),
    "cut away more than there is, reflecting": lambda on: F.pad(on.floats(1, 2, 4), (-3, -3), mode="reflect"),
    "wrap more than once": lambda on: F.pad(on.floats(1, 2, 4), (5, 0), mode="circular"),
    "padding of an odd length": lambda on: F.pad(on.floats(1, 2, 4), (1,)),
    "padding of too many dimensions": lambda on: F.pad(on.floats(4), (1, 1, 1, 1)),
    "reflect truth": lambda on: F.pad(on.floats(1, 2, 4) > 0, (1, 1), mode="reflect"),
}

NORMS = {
    "group_norm: groups": lambda on: F.group_norm(on.floats(2, 4, 3), 3),
    "group_norm: no groups": lambda on: F.group_norm(on.floats(2, 4, 3), 0),
    "group_norm: weight": lambda on: F.group_norm(on.floats(2, 4, 3), 2, on.floats(3)),
    "group_norm: bias": lambda on: F.group_norm(on.floats(2, 4, 3), 2, on.floats(4), on.floats(5)),
    "group_norm: a row": lambda on: F.group_norm(on.floats(4), 2),
    "group_norm: integers": lambda on: F.group_norm(on.floats(2, 4, 3).int(), 2),
    "group_norm: mixed": lambda on: F.group_norm(on.floats(2, 4, 3), 2, on.floats(4).double(), on.floats(4).double()),
    "layer_norm: shape": lambda on: F.layer_norm(on.floats(2, 4), (3,)),
    "layer_norm: weight": lambda on: F.layer_norm(on.floats(2, 4), (4,), on.floats(3)),
    "layer_norm: bias": lambda on: F.layer_norm(on.floats(2, 4), (4,), on.floats(4), on.floats(2, 4)),
    "layer_norm: nothing": lambda on: F.layer_norm(on.floats(2, 4), ()),
    "layer_norm: integers": lambda on: F.layer_norm(on.floats(2, 4).int(), (4,)),
    "layer_norm: mixed": lambda on: F.layer_norm(on.floats(2, 4), (4,), on.floats(4).double(), on.floats(4).double()),
    "rms_norm: shape": lambda on: F.rms_norm(on.floats(2, 4), (3,)),
    "rms_norm: weight": lambda on: F.rms_norm(on.floats(2, 4), (4,), on.floats(3)),
    "rms_norm: integers": lambda on: F.rms_norm(on.floats(2, 4).int(), (4,)),
    "batch_norm: mean": lambda on: F.batch_norm(on.floats(2, 4, 3), on.floats(3), on.floats(4)),
    "batch_norm: variance": lambda on: F.batch_norm(on.floats(2, 4, 3), on.floats(4), on.floats(3)),
    "batch_norm: weight": lambda on: F.batch_norm(on.floats(2, 4, 3), on.floats(4), on.floats(4), on.floats(3)),
    "batch_norm: bias": lambda on: F.batch_norm(
        on.floats(2, 4, 3), on.floats(4), on.floats(4), on.floats(4), on.floats(3)
    ),
    "batch_norm: no statistics": lambda on: F.batch_norm(on.floats(2, 4, 3), None, None),
    "batch_norm: one value": lambda on: F.batch_norm(on.floats(1, 4), None, None, training=True),
    "batch_norm: integers": lambda on: F.batch_norm(on.floats(2, 4, 3).int(), None, None, training=True),
    "batch_norm: mixed": lambda on: F.batch_norm(
        on.floats(2, 4, 3), None, None, on.floats(4).double(), on.floats(4).double(), training=True
    ),
    "batch_norm: a row": lambda on: torch.batch_norm(on.floats(4), None, None, None, None, True, 0.1, 1e-5, False),
    "instance_norm: one value": lambda on: F.instance_norm(on.floats(2, 4, 1)),
    "instance_norm: statistics": lambda on: F.instance_norm(on.floats(2, 4, 3), use_input_stats=False),
    "instance_norm: weight": lambda on: F.instance_norm(on.floats(2, 4, 3), weight=on.floats(3)),
    "local_response_norm": lambda on: F.local_response_norm(on.floats(2, 4), 3),
    "renorm: p": lambda on: torch.renorm(on.floats(2, 4), -1.0, 0, 1.0),
    "renorm: largest": lambda on: torch.renorm(on.floats(2, 4), 2, 0, -1.0),
    "renorm: dimension": lambda on: torch.renorm(on.floats(2, 4), 2, 2, 1.0),
    "renorm: a row": lambda on: torch.renorm(on.floats(4), 2, 0, 1.0),
    "vector_norm: no largest": lambda on: torch.linalg.vector_norm(on.floats(0), float("inf")),
    "vector_norm: integers": lambda on: torch.linalg.vector_norm(on.ints(3)),
    "matrix_norm: an order": lambda on: torch.linalg.matrix_norm(on.floats(3, 3), 3),
    "matrix_norm: a row": lambda on: torch.linalg.matrix_norm(on.floats(3)),
    "norm: a word": lambda on: torch.norm(on.floats(3, 3), "frob"),
    "cosine_similarity": lambda on: F.cosine_similarity(on.floats(2, 3), on.floats(2, 4)),
    "cosine_similarity: integers": lambda on: F.cosine_similarity(on.ints(2, 3), on.ints(2, 3)),
    "cdist: columns": lambda on: torch.cdist(on.floats(2, 3), on.floats(2, 4)),
    "cdist: p": lambda on: torch.cdist(on.floats(2, 3), on.floats(2, 3), -1.0),
    "cdist: a row": lambda on: torch.cdist(on.floats(3), on.floats(2, 3)),
    "cdist: mode": lambda on: torch.cdist(on.floats(2, 3), on.floats(2, 3), compute_mode="mm"),
    "cdist: integers": lambda on: torch.cdist(on.ints(2, 3), on.ints(2, 3)),
    "cdist: dtypes": lambda on: torch.cdist(on.floats(2, 3), on.floats(2, 3).double()),
    "pdist: a row": lambda on: torch.pdist(on.floats(3)),
    "pdist: p": lambda on: torch.pdist(on.floats(2, 3), -1.0),
    "pdist: integers": lambda on: torch.pdist(on.ints(2, 3)),
}

INDEXING = {
    "embedding": lambda on: F.embedding(on.of(0, 5), on.floats(3, 4)),
    "embedding: negative": lambda on: F.embedding(on.of(0, -1), on.floats(3, 4)),
    "embedding: of floats": lambda on: F.embedding(on.of(0.0, 1.0), on.floats(3, 4)),
    "embedding: no rows": lambda on: F.embedding(on.of(0), on.floats(0, 4)),
    "embedding: padding": lambda on: F.embedding(on.of(0), on.floats(3, 4), padding_idx=3),
    "embedding: a row": lambda on: F.embedding(on.of(0), on.floats(3)),
    "embedding_bag: index": lambda on: F.embedding_bag(on.of(0, 5), on.floats(3, 4), on.of(0)),
    "embedding_bag: negative index": lambda on: F.embedding_bag(on.of(0, -1), on.floats(3, 4), on.of(0)),
    "embedding_bag: first offset": lambda on: F.embedding_bag(on.of(0, 1), on.floats(3, 4), on.of(1)),
    "embedding_bag: last offset": lambda on: F.embedding_bag(on.of(0, 1), on.floats(3, 4), on.of(0, 3)),
    "embedding_bag: no offsets": lambda on: F.embedding_bag(on.of(0, 1), on.floats(3, 4)),
    "embedding_bag: matrix and offsets": lambda on: F.embedding_bag(on.ints(2, 2), on.floats(3, 4), on.of(0)),
    "embedding_bag: offsets of two dimensions": lambda on: F.embedding_bag(on.of(0), on.floats(3, 4), on.ints(1, 1)),
    "embedding_bag: dtypes": lambda on: F.embedding_bag(on.of(0, 1).int(), on.floats(3, 4), on.of(0).float()),
    "embedding_bag: of floats": lambda on: F.embedding_bag(on.of(0.0, 1.0), on.floats(3, 4), on.of(0)),
    "embedding_bag: mode": lambda on: F.embedding_bag(on.of(0), on.floats(3, 4), on.of(0), mode="prod"),
    "embedding_bag: weights": lambda on: F.embedding_bag(
        on.of(0, 1), on.floats(3, 4), on.of(0), mode="sum", per_sample_weights=on.floats(3)
    ),
    "embedding_bag: weights of means": lambda on: F.embedding_bag(
        on.of(0, 1), on.floats(3, 4), on.of(0), per_sample_weights=on.floats(2)
    ),
    "embedding_bag: dtype of weights": lambda on: F.embedding_bag(
        on.of(0, 1), on.floats(3, 4), on.of(0), mode="sum", per_sample_weights=on.floats(2).double()
    ),
    "embedding_bag: padding": lambda on: F.embedding_bag(on.of(0, 1), on.floats(3, 4), on.of(0), padding_idx=3),
    "embedding_bag: table of integers": lambda on: F.embedding_bag(on.of(0, 1), on.ints(3, 4), on.of(0)),
    "one_hot": lambda on: F.one_hot(on.of(0, 5), 3),
    "one_hot: negative": lambda on: F.one_hot(on.of(0, -1)),
    "one_hot: of floats": lambda on: F.one_hot(on.of(0.0)),
    "one_hot: no classes": lambda on: F.one_hot(on.ints(0)),
    "one_hot: classes": lambda on: F.one_hot(on.of(0), 0),
    "gather: index": lambda on: on.floats(3, 4).gather(1, on.ints(3, 1) + 4),
    "gather: negative": lambda on: on.floats(3, 4).gather(1, on.ints(3, 1) - 1),
    "gather: dimension": lambda on: on.floats(3, 4).gather(2, on.ints(3, 1)),
    "gather: shape": lambda on: on.floats(3, 4).gather(1, on.ints(4, 1)),
    "gather: dimensions": lambda on: on.floats(3, 4).gather(1, on.ints(3)),
    "gather: of floats": lambda on: on.floats(3, 4).gather(1, on.floats(3, 1)),
    "gather: out": lambda on: torch.gather(on.floats(3, 4), 1, on.ints(3, 1), out=on.floats(3, 1).double()),
    "scatter: index": lambda on: on.floats(3, 4).scatter(1, on.ints(3, 1) + 4, on.floats(3, 1)),
    "scatter: a number": lambda on: on.floats(3, 4).scatter(1, on.ints(3, 1) + 4, 1.0),
    "scatter: dtype": lambda on: on.floats(3, 4).scatter(1, on.ints(3, 1), on.floats(3, 1).double()),
    "scatter: source": lambda on: on.floats(3, 4).scatter(1, on.ints(3, 2), on.floats(3, 1)),
    "scatter: shape": lambda on: on.floats(3, 4).scatter(1, on.ints(4, 1), on.floats(4, 1)),
    "scatter: of floats": lambda on: on.floats(3, 4).scatter(1, on.floats(3, 1), on.floats(3, 1)),
    "scatter: of bytes": lambda on: on.floats(3, 4).scatter(1, on.ints(3, 1).byte(), on.floats(3, 1)),
    "scatter: reduction": lambda on: on.floats(3, 4).scatter(1, on.ints(3, 1), on.floats(3, 1), reduce="mean"),
    "scatter_add: index": lambda on: on.floats(3, 4).scatter_add(1, on.ints(3, 1) + 4, on.floats(3, 1)),
    "scatter_add: dtype": lambda on: on.floats(3, 4).scatter_add(1, on.ints(3, 1), on.ints(3, 1)),
    "scatter_reduce: index": lambda on: on.floats(3).scatter_reduce(0, on.ints(3) + 3, on.floats(3), "amax"),
    "scatter_reduce: dtype": lambda on: on.floats(3).scatter_reduce(0, on.ints(3), on.floats(3).half(), "amax"),
    "take": lambda on: on.floats(3, 4).take(on.of(12)),
    "take: negative": lambda on: on.floats(3, 4).take(on.of(-13)),
    "take: of floats": lambda on: on.floats(3, 4).take(on.of(1.0)),
    "take: of int32": lambda on: on.floats(3, 4).take(on.of(1).int()),
    "take: nothing": lambda on: on.floats(0).take(on.of(0)),
    "put: index": lambda on: on.floats(3, 4).put(on.of(12), on.floats(1)),
    "put: count": lambda on: on.floats(3, 4).put(on.of(1, 2), on.floats(1)),
    "put: dtype": lambda on: on.floats(3, 4).put(on.of(1), on.of(1)),
    "put: of int32": lambda on: on.floats(3, 4).put(on.of(1).int(), on.floats(1)),
    "take_along_dim": lambda on: torch.take_along_dim(on.floats(3, 4), on.ints(3), 1),
    "take_along_dim: of int32": lambda on: torch.take_along_dim(on.floats(3, 4), on.ints(3, 1).int(), 1),
    "index: index": lambda on: on.floats(3, 4)[on.of(3)],
    "index: negative": lambda on: on.floats(3, 4)[on.of(-4)],
    "index: several": lambda on: on.floats(3, 4)[on.of(0, 1), on.of(0, 1, 2)],
    "index: too many": lambda on: on.floats(3)[on.of(0), on.of(0)],
    "index: of floats": lambda on: on.floats(3)[on.of(0.0)],
    "index: mask": lambda on: on.floats(3)[on.of(True, False)],
    "index_put: index": lambda on: on.floats(3).index_put((on.of(3),), on.floats(1)),
    "index_put: values": lambda on: on.floats(3).index_put((on.of(0, 1),), on.floats(3)),
    "index_put: dtype": lambda on: on.floats(3).index_put((on.of(0),), on.of(1)),
    "index_put: too many": lambda on: on.floats(3).index_put((on.of(0), on.of(0)), on.floats(1)),
    "index_add: index": lambda on: on.floats(3, 4).index_add(0, on.of(3), on.floats(1, 4)),
    "index_add: shape": lambda on: on.floats(3, 4).index_add(0, on.of(2), on.floats(1, 3)),
    "index_add: dtype": lambda on: on.floats(3, 4).index_add(0, on.of(2), on.floats(1, 4).double()),
    "index_add: matrix": lambda on: on.floats(3, 4).index_add(0, on.ints(1, 1), on.floats(1, 4)),
    "index_add: of floats": lambda on: on.floats(3, 4).index_add(0, on.of(2.0), on.floats(1, 4)),
    "index_copy: index": lambda on: on.floats(3, 4).index_copy(0, on.of(3), on.floats(1, 4)),
    "index_copy: negative": lambda on: on.floats(3, 4).index_copy(0, on.of(-1), on.floats(1, 4)),
    "index_copy: shape": lambda on: on.floats(3, 4).index_copy(0, on.of(2), on.floats(1, 3)),
    "index_copy: count": lambda on: on.floats(3, 4).index_copy(0, on.of(2, 1), on.floats(1, 4)),
    "index_copy: dtype": lambda on: on.floats(3, 4).index_copy(0, on.of(2), on.ints(1, 4)),
    "index_copy: of int32": lambda on: on.floats(3, 4).index_copy(0, on.of(2).int(), on.floats(1, 4)),
    "index_fill: index": lambda on: on.floats(3, 4).index_fill(0, on.of(3), 1.0),
    "index_fill: value": lambda on: on.floats(3, 4).index_fill(0, on.of(2), on.floats(2)),
    "index_fill: of floats": lambda on: on.floats(3, 4).index_fill(0, on.of(2.0), 1.0),
    "index_fill: dimension": lambda on: on.floats(3, 4).index_fill(2, on.of(2), 1.0),
    "index_reduce: index": lambda on: on.floats(3, 4).index_reduce(0, on.of(3), on.floats(1, 4), "amax"),
    "index_reduce: reduction": lambda on: on.floats(3, 4).index_reduce(0, on.of(2), on.floats(1, 4), "sum"),
    "index_reduce: shape": lambda on: on.floats(3, 4).index_reduce(0, on.of(2), on.floats(1, 3), "amax"),
    "index_reduce: dtype": lambda on: on.floats(3, 4).index_reduce(0, on.of(2), on.ints(1, 4), "amax"),
    "index_select: index": lambda on: on.floats(3, 4).index_select(0, on.of(3)),
    "index_select: negative": lambda on: on.floats(3, 4).index_select(0, on.of(-1)),
    "index_select: matrix": lambda on: on.floats(3, 4).index_select(0, on.ints(1, 1)),
    "index_select: of floats": lambda on: on.floats(3, 4).index_select(0, on.of(1.0)),
    "index_select: dimension": lambda on: on.floats(3, 4).index_select(2, on.of(0)),
    "masked_fill: shape": lambda on: on.floats(3, 4).masked_fill(on.floats(3) > 2, 1.0),
    "masked_fill: mask of integers": lambda on: on.floats(3).masked_fill(on.ints(3), 1.0),
    "masked_fill: value": lambda on: on.floats(3).masked_fill(on.floats(3) > 2, on.floats(2)),
    "masked_fill: complex value": lambda on: on.floats(3).masked_fill(on.floats(3) > 2, 1j),
    "masked_select: mask of integers": lambda on: on.floats(3).masked_select(on.ints(3)),
    "masked_select: shape": lambda on: on.floats(3).masked_select(on.floats(2) > 2),
    "masked_scatter: too little": lambda on: on.floats(3).masked_scatter(on.floats(3) < 2, on.floats(2)),
    "masked_scatter: dtype": lambda on: on.floats(3).masked_scatter(on.floats(3) < 2, on.ints(3)),
    "masked_scatter: mask of integers": lambda on: on.floats(3).masked_scatter(on.ints(3), on.floats(3)),
    "select": lambda on: on.floats(3).select(0, 3),
    "narrow": lambda on: on.floats(3).narrow(0, 2, 2),
    "narrow: negative length": lambda on: on.floats(3).narrow(0, 1, -1),
    "narrow_copy": lambda on: torch.narrow_copy(on.floats(3), 0, 2, 2),
    "select_scatter": lambda on: torch.select_scatter(on.floats(3, 4), on.floats(3), 0, 0),
    "slice_scatter": lambda on: torch.slice_scatter(on.floats(3, 4), on.floats(3, 4), 0, 0, 2),
    "slice_scatter: step": lambda on: torch.slice_scatter(on.floats(3, 4), on.floats(3, 4), 0, 0, 2, 0),
    "diagonal_scatter": lambda on: torch.diagonal_scatter(on.floats(3, 3), on.floats(2)),
    "nonzero_static": lambda on: torch.nonzero_static(on.floats(3), size=-1),
    "unravel_index: of floats": lambda on: torch.unravel_index(on.of(1.0), (3, 4)),
    "repeat_interleave: negative": lambda on: torch.repeat_interleave(on.floats(2), on.of(1, -1)),
    "repeat_interleave: count": lambda on: torch.repeat_interleave(on.floats(2), on.of(1, 1, 1), 0),
    "repeat_interleave: of floats": lambda on: torch.repeat_interleave(on.floats(2), on.of(1.0, 1.0)),
    "repeat_interleave: size": lambda on: torch.repeat_interleave(on.floats(2), on.of(1, 1), output_size=5),
}

LOSSES = {
    **{
        f"{f.__name__}: {why}": lambda on, f=f, x=x, y=y: f(x(on), y(on))
        for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy)
        for why, x, y in (
            ("shapes", lambda on: on.floats(3), lambda on: on.floats(4)),
            ("truth", lambda on: on.floats(3) > 0, lambda on: on.floats(3) > 0),
            ("integers", lambda on: on.ints(3), lambda on: on.ints(3)),
            ("complex", lambda on: on.floats(3).cfloat(), lambda on: on.floats(3).cfloat()),
        )
        if not (why == "complex" and f in (F.l1_loss,)) and not (why == "shapes" and f in (F.mse_loss,))
    },
    "binary_cross_entropy: not a chance": lambda on: F.binary_cross_entropy(on.floats(3) + 1, on.floats(3)),
    "binary_cross_entropy: target": lambda on: F.binary_cross_entropy(on.floats(3), on.floats(3) + 1),
    "binary_cross_entropy: target of integers": lambda on: F.binary_cross_entropy(on.floats(3), on.ints(3)),
    "binary_cross_entropy: two dtypes": lambda on: F.binary_cross_entropy(on.floats(3), on.floats(3).double()),
    "binary_cross_entropy: weight": lambda on: F.binary_cross_entropy(on.floats(3), on.floats(3), on.floats(2)),
    "binary_cross_entropy_with_logits": lambda on: F.binary_cross_entropy_with_logits(on.floats(3), on.floats(2)),
    "smooth_l1_loss: beta": lambda on: F.smooth_l1_loss(on.floats(3), on.floats(3), beta=-1.0),
    "huber_loss: delta": lambda on: F.huber_loss(on.floats(3), on.floats(3), delta=0.0),
    "nll_loss: class": lambda on: F.nll_loss(on.floats(2, 3), on.of(0, 3)),
    "nll_loss: negative class": lambda on: F.nll_loss(on.floats(2, 3), on.of(0, -1)),
    "nll_loss: count": lambda on: F.nll_loss(on.floats(2, 3), on.of(0, 1, 2)),
    "nll_loss: weight": lambda on: F.nll_loss(on.floats(2, 3), on.of(0, 1), on.floats(2)),
    "nll_loss: dtype of weight": lambda on: F.nll_loss(on.floats(2, 3), on.of(0, 1), on.floats(3).double()),
    "nll_loss: target of floats": lambda on: F.nll_loss(on.floats(2, 3), on.of(0.0, 1.0)),
    "nll_loss: target of int32": lambda on: F.nll_loss(on.floats(2, 3), on.of(0, 1).int()),
    "nll_loss: target of a matrix": lambda on: F.nll_loss(on.floats(2, 3), on.ints(2, 1)),
    "nll_loss: scores of integers": lambda on: F.nll_loss(on.ints(2, 3), on.of(0, 1)),
    "nll_loss: images": lambda on: F.nll_loss(on.floats(2, 3, 4, 4), on.ints(2, 4, 5)),
    "nll_loss: class of images": lambda on: F.nll_loss(on.floats(2, 3, 4, 4), on.ints(2, 4, 4) + 3),
    "nll_loss: weight of images": lambda on: F.nll_loss(on.floats(2, 3, 4, 4), on.ints(2, 4, 4), on.floats(2)),
    "cross_entropy: class": lambda on: F.cross_entropy(on.floats(2, 3), on.of(0, 3)),
    "cross_entropy: smoothing": lambda on: F.cross_entropy(on.floats(2, 3), on.of(0, 1), label_smoothing=2.0),
    "cross_entropy: chances": lambda on: F.cross_entropy(on.floats(2, 3), on.floats(2, 4)),
    "cross_entropy: weight": lambda on: F.cross_entropy(on.floats(2, 3), on.of(0, 1), on.floats(2)),
    "multi_margin_loss: class": lambda on: F.multi_margin_loss(on.floats(2, 3), on.of(0, 3)),
    "multi_margin_loss: p": lambda on: F.multi_margin_loss(on.floats(2, 3), on.of(0, 1), p=3),
    "multi_margin_loss: count": lambda on: F.multi_margin_loss(on.floats(2, 3), on.of(0, 1, 2)),
    "multi_margin_loss: weight": lambda on: F.multi_margin_loss(on.floats(2, 3), on.of(0, 1), weight=on.floats(2)),
    "multi_margin_loss: of int32": lambda on: F.multi_margin_loss(on.floats(2, 3), on.of(0, 1).int()),
    "multilabel_margin_loss: class": lambda on: F.multilabel_margin_loss(on.floats(3), on.of(3, -1, 0)),
    "multilabel_margin_loss: negative class": lambda on: F.multilabel_margin_loss(on.floats(3), on.of(-2, -1, 0)),
    "multilabel_margin_loss: shape": lambda on: F.multilabel_margin_loss(on.floats(3), on.of(0, -1)),
    "multilabel_margin_loss: of floats": lambda on: F.multilabel_margin_loss(on.floats(3), on.of(0.0, -1.0, 0.0)),
    "soft_margin_loss": lambda on: F.soft_margin_loss(on.floats(3), on.floats(2)),
    "soft_margin_loss: larger": lambda on: F.soft_margin_loss(on.floats(3), on.floats(2, 3)),
    "cosine_embedding_loss": lambda on: F.cosine_embedding_loss(on.floats(3, 4), on.floats(3, 5), on.floats(3)),
    "triplet_margin_loss": lambda on: F.triplet_margin_loss(on.floats(3), on.floats(2, 3), on.floats(3)),
    "gaussian_nll_loss: negative": lambda on: F.gaussian_nll_loss(on.floats(3), on.floats(3), -on.floats(3)),
    **{
        f"ctc_loss: {why}": lambda on, c=change: F.ctc_loss(
            **{
                "log_probs": on.floats(6, 2, 5),
                "targets": on.ints(2, 3) + 1,
                "input_lengths": on.of(6, 6),
                "target_lengths": on.of(3, 2),
            }
            | c(on)
        )
        for why, change in {
            "blank": lambda on: {"blank": 5},
            "negative blank": lambda on: {"blank": -1},
            "lengths of inputs": lambda on: {"input_lengths": on.of(7, 6)},
            "negative lengths of inputs": lambda on: {"input_lengths": on.of(-1, 6)},
            "count of inputs": lambda on: {"input_lengths": on.of(6)},
            "lengths of targets": lambda on: {"target_lengths": on.of(4, 2)},
            "negative lengths of targets": lambda on: {"target_lengths": on.of(-1, 2)},
            "count of targets": lambda on: {"target_lengths": on.of(3)},
            "batch of targets": lambda on: {"targets": on.ints(3, 3)},
            "joined targets": lambda on: {"targets": on.ints(4) + 1},
            "integers": lambda on: {"log_probs": on.ints(6, 2, 5)},
            "lengths of floats": lambda on: {"input_lengths": on.of(6.0, 6.0)},
            "no inputs": lambda on: {"log_probs": on.floats(0, 2, 5)},
        }.items()
    },
}

SORTING = {
    "topk": lambda on: on.floats(3).topk(4),
    "topk: negative": lambda on: on.floats(3).topk(-1),
    "topk: dimension": lambda on: on.floats(3).topk(1, 1),
    "topk: complex": lambda on: on.floats(3).cfloat().topk(1),
    "kthvalue": lambda on: on.floats(3).kthvalue(4),
    "kthvalue: none": lambda on: on.floats(3).kthvalue(0),
    "kthvalue: complex": lambda on: on.floats(3).cfloat().kthvalue(1),
    "sort: dimension": lambda on: on.floats(3).sort(1),
    "sort: complex": lambda on: on.floats(3).cfloat().sort(),
    "sort: of a number": lambda on: on.floats(1)[0].sort(1),
    "argsort: of a number": lambda on: on.floats(1)[0].argsort(1),
    "median: dimension": lambda on: on.floats(3).median(1),
    "median: complex": lambda on: on.floats(3).cfloat().median(),
    "mode: complex": lambda on: on.floats(3).cfloat().mode(),
    "quantile: above 1": lambda on: on.floats(3).quantile(1.5),
    "quantile: below 0": lambda on: on.floats(3).quantile(on.of(-0.5)),
    "quantile: two dtypes": lambda on: on.floats(3).quantile(on.of(0.5).double()),
    "quantile: nothing": lambda on: on.floats(0).quantile(0.5),
    "quantile: integers": lambda on: on.ints(3).quantile(0.5),
    "quantile: interpolation": lambda on: on.floats(3).quantile(0.5, interpolation="cubic"),
    "searchsorted: rows": lambda on: torch.searchsorted(on.floats(2, 3), on.floats(3, 3)),
    "searchsorted: side": lambda on: torch.searchsorted(on.floats(3), on.floats(3), side="middle"),
    "searchsorted: two sides": lambda on: torch.searchsorted(on.floats(3), on.floats(3), right=True, side="left"),
    "searchsorted: sorter": lambda on: torch.searchsorted(on.floats(3), on.floats(3), sorter=on.of(0, 1)),
    "searchsorted: index of sorter": lambda on: torch.searchsorted(on.floats(3), on.floats(3), sorter=on.of(0, 1, 3)),
    "searchsorted: dtype of sorter": lambda on: torch.searchsorted(
        on.floats(3), on.floats(3), sorter=on.of(0, 1, 2).int()
    ),
    "searchsorted: a number": lambda on: torch.searchsorted(on.floats(1)[0], on.floats(3)),
    "bucketize": lambda on: torch.bucketize(on.floats(3), on.floats(2, 2)),
    "histc: bins": lambda on: on.floats(3).histc(0),
    "histc: range": lambda on: on.floats(3).histc(2, 1, 0),
    "histc: endless": lambda on: (on.floats(3) / 0).histc(2),
    "histc: endless range": lambda on: on.floats(3).histc(2, 0, float("inf")),
    "histc: integers": lambda on: on.ints(3).histc(2),
    "histogram: bins": lambda on: torch.histogram(on.floats(3), 0),
    "histogram: range": lambda on: torch.histogram(on.floats(3), 2, range=(1.0, 0.0)),
    "histogram: weight": lambda on: torch.histogram(on.floats(3), 2, weight=on.floats(2)),
    "histogram: edges": lambda on: torch.histogram(on.floats(3), on.floats(2, 2)),
    "histogram: dtypes": lambda on: torch.histogram(on.floats(3), on.floats(2).double()),
    "histogramdd: bins": lambda on: torch.histogramdd(on.floats(3, 2), [1]),
    "bincount: negative": lambda on: torch.bincount(on.of(-1)),
    "bincount: of floats": lambda on: torch.bincount(on.of(1.0)),
    "bincount: matrix": lambda on: torch.bincount(on.ints(2, 2)),
    "bincount: weights": lambda on: torch.bincount(on.of(1), on.floats(2)),
    "bincount: least": lambda on: torch.bincount(on.of(1), minlength=-1),
    "bincount: truth": lambda on: torch.bincount(on.of(True)),
    "unique: dimension": lambda on: torch.unique(on.floats(3), dim=1),
    "unique: complex": lambda on: torch.unique(on.floats(3).cfloat()),
    "isin: complex": lambda on: torch.isin(on.floats(3).cfloat(), on.floats(3).cfloat()),
}

REDUCTIONS = {
    "sum: dimension": lambda on: on.floats(3).sum(1),
    "sum: twice": lambda on: on.floats(3, 3).sum((0, 0)),
    "mean: integers": lambda on: on.ints(3).mean(),
    "prod: dimension": lambda on: on.floats(3).prod(1),
    "amax: complex": lambda on: on.floats(3).cfloat().amax(),
    "max: nothing": lambda on: on.floats(0).max(),
    "max: complex": lambda on: on.floats(3).cfloat().max(),
    "max: out": lambda on: torch.max(on.floats(3, 3), 0, out=(on.floats(3), on.floats(3))),
    "aminmax: nothing": lambda on: on.floats(0).aminmax(),
    "aminmax: complex": lambda on: on.floats(3).cfloat().aminmax(),
    "argmax: complex": lambda on: on.floats(3).cfloat().argmax(),
    "logsumexp: dimension": lambda on: on.floats(3).logsumexp(1),
    "logsumexp: no dimensions": lambda on: on.floats(3, 3).logsumexp(()),
    "std: twice": lambda on: on.floats(3, 3).std((0, 0)),
    "nanmean: integers": lambda on: on.ints(3).nanmean(),
    "count_nonzero": lambda on: on.floats(3).count_nonzero(1),
    "cumsum: dimension": lambda on: on.floats(3).cumsum(1),
    "cumprod: dimension": lambda on: on.floats(3).cumprod(-2),
    "cummax: dimension": lambda on: on.floats(3).cummax(1),
    "cummax: complex": lambda on: on.floats(3).cfloat().cummax(0),
    "logcumsumexp: dimension": lambda on: on.floats(3).logcumsumexp(1),
    "diff: negative": lambda on: on.floats(3).diff(-1),
    "diff: a number": lambda on: on.floats(1)[0].diff(),
    "trapezoid": lambda on: torch.trapezoid(on.floats(3), on.floats(2)),
    "trapezoid: integers": lambda on: torch.trapezoid(on.floats(3), dim=1),
    "gradient": lambda on: torch.gradient(on.floats(1)),
    "gradient: order of edges": lambda on: torch.gradient(on.floats(4), edge_order=3),
    "trace: a row": lambda on: on.floats(3).trace(),
    "softmax: dimension": lambda on: on.floats(3).softmax(1),
    "softmax: integers": lambda on: on.ints(3).softmax(0),
    "log_softmax: integers": lambda on: on.ints(3).log_softmax(0),
    "segment_reduce: sum of lengths": lambda on: torch.segment_reduce(on.floats(3), "sum", lengths=on.of(1, 1)),
    "segment_reduce: negative": lambda on: torch.segment_reduce(on.floats(3), "sum", lengths=on.of(4, -1)),
    "segment_reduce: nothing": lambda on: torch.segment_reduce(on.floats(3), "sum"),
    "segment_reduce: axis": lambda on: torch.segment_reduce(on.floats(3), "sum", lengths=on.of(3), axis=1),
    "segment_reduce: of floats": lambda on: torch.segment_reduce(on.floats(3), "sum", lengths=on.of(3.0)),
    "glu: odd": lambda on: F.glu(on.floats(3)),
    "glu: dimension": lambda on: F.glu(on.floats(4), 1),
    "glu: a number": lambda on: F.glu(on.floats(1)[0]),
}

LINEAR = {
    "mm: sizes": lambda on: on.floats(2, 3).mm(on.floats(2, 3)),
    "mm: a row": lambda on: on.floats(2, 3).mm(on.floats(3)),
    "mm: dtypes": lambda on: on.floats(2, 3).mm(on.floats(3, 2).double()),
    "mm: out": lambda on: torch.mm(on.floats(2, 3), on.floats(3, 2), out=on.floats(2, 2).double()),
    "mm: truth": lambda on: (on.floats(2, 2) > 0).mm(on.floats(2, 2) > 0),
    "bmm: batch": lambda on: on.floats(2, 2, 3).bmm(on.floats(3, 3, 2)),
    "bmm: sizes": lambda on: on.floats(2, 2, 3).bmm(on.floats(2, 2, 3)),
    "bmm: matrix": lambda on: on.floats(2, 3).bmm(on.floats(2, 3, 2)),
    "mv": lambda on: on.floats(2, 3).mv(on.floats(2)),
    "dot": lambda on: on.floats(3).dot(on.floats(2)),
    "dot: matrix": lambda on: on.floats(3, 1).dot(on.floats(3)),
    "dot: dtypes": lambda on: on.floats(3).dot(on.floats(3).double()),
    "matmul": lambda on: on.floats(2, 3) @ on.floats(2, 3),
    "matmul: a number": lambda on: on.floats(2, 3) @ on.floats(1)[0],
    "linear": lambda on: F.linear(on.floats(2, 3), on.floats(4, 2)),
    "linear: bias": lambda on: F.linear(on.floats(2, 3), on.floats(4, 3), on.floats(3)),
    "linear: dtypes": lambda on: F.linear(on.floats(2, 3), on.floats(4, 3).half()),
    "bilinear": lambda on: F.bilinear(on.floats(2, 3), on.floats(2, 4), on.floats(5, 4, 3)),
    "addmm: sizes": lambda on: torch.addmm(on.floats(3), on.floats(2, 3), on.floats(3, 2)),
    "addmm: dtypes": lambda on: torch.addmm(on.floats(2, 2).double(), on.floats(2, 3), on.floats(3, 2)),
    "addmv": lambda on: torch.addmv(on.floats(3), on.floats(2, 3), on.floats(3)),
    "addbmm": lambda on: torch.addbmm(on.floats(2, 2), on.floats(2, 2, 3), on.floats(3, 3, 2)),
    "baddbmm": lambda on: torch.baddbmm(on.floats(2, 2, 2), on.floats(2, 2, 3), on.floats(3, 3, 2)),
    "addr": lambda on: torch.addr(on.floats(2, 2), on.floats(2, 1), on.floats(2)),
    "outer": lambda on: torch.outer(on.floats(2, 1), on.floats(2)),
    "cross: sizes": lambda on: torch.linalg.cross(on.floats(2, 4), on.floats(2, 4)),
    "cross: dtypes": lambda on: torch.linalg.cross(on.floats(2, 3), on.floats(2, 3).double()),
    "vdot": lambda on: torch.vdot(on.floats(3), on.floats(2)),
    "kron: truth": lambda on: torch.tensordot(on.floats(2, 3), on.floats(2, 3), 1),
    "einsum": lambda on: torch.einsum("ij,jk", on.floats(2, 3), on.floats(2, 3)),
    "matrix_power: oblong": lambda on: torch.linalg.matrix_power(on.floats(2, 3), 2),
    "matrix_exp: oblong": lambda on: torch.matrix_exp(on.floats(2, 3)),
    "matrix_exp: integers": lambda on: torch.matrix_exp(on.ints(2, 2)),
    **{
        f"{f.__name__}: {why}": lambda on, f=f, x=x: f(x(on))
        for f in (
            torch.linalg.cholesky,
            torch.linalg.inv,
            torch.linalg.det,
            torch.linalg.slogdet,
            torch.linalg.eigh,
            torch.linalg.eig,
            torch.linalg.eigvals,
            torch.linalg.eigvalsh,
            torch.linalg.lu_factor,
            torch.linalg.ldl_factor,
        )
        for why, x in (
            ("oblong", lambda on: on.floats(2, 3)),
            ("a row", lambda on: on.floats(3)),
            ("integers", lambda on: on.ints(3, 3)),
            ("halves", lambda on: on.floats(3, 3).half()),
        )
        if not (why == "oblong" and f is torch.linalg.lu_factor)
    },
    **{
        f"{f.__name__}: {why}": lambda on, f=f, x=x: f(x(on))
        for f in (torch.linalg.svd, torch.linalg.qr, torch.linalg.pinv, torch.linalg.svdvals)
        for why, x in (
            ("a row", lambda on: on.floats(3)),
            ("integers", lambda on: on.ints(3, 3)),
            ("halves", lambda on: on.floats(3, 3).half()),
        )
    },
    "cholesky: not positive": lambda on: torch.linalg.cholesky(-torch.eye(3, device=on.place)),
    "inv: singular": lambda on: torch.linalg.inv(on.floats(3, 3) * 0),
    "solve: singular": lambda on: torch.linalg.solve(on.floats(3, 3) * 0, on.floats(3)),
    "lu_factor: singular": lambda on: torch.linalg.lu_factor(on.floats(3, 3) * 0),
    "solve: sizes": lambda on: torch.linalg.solve(on.floats(3, 3), on.floats(2)),
    "solve: dtypes": lambda on: torch.linalg.solve(on.floats(3, 3), on.floats(3).double()),
    "solve: oblong": lambda on: torch.linalg.solve(on.floats(3, 2), on.floats(3)),
    "solve_triangular: sizes": lambda on: torch.linalg.solve_triangular(on.floats(3, 3), on.floats(2, 1), upper=True),
    "solve_triangular: a row": lambda on: torch.linalg.solve_triangular(on.floats(3, 3), on.floats(3), upper=True),
    "cholesky_solve: sizes": lambda on: torch.cholesky_solve(on.floats(2, 1), on.floats(3, 3)),
    "cholesky_solve: dtypes": lambda on: torch.cholesky_solve(on.floats(3, 1), on.floats(3, 3).double()),
    "cholesky_inverse: oblong": lambda on: torch.cholesky_inverse(on.floats(2, 3)),
    "lu_solve: pivots": lambda on: torch.linalg.lu_solve(on.floats(3, 3), on.ints(3) + 1, on.floats(3, 1)),
    "lu_unpack: pivots": lambda on: torch.lu_unpack(on.floats(3, 3), on.ints(3) + 1),
    "householder_product: count": lambda on: torch.linalg.householder_product(on.floats(3, 2), on.floats(3)),
    "householder_product: wide": lambda on: torch.linalg.householder_product(on.floats(2, 3), on.floats(2)),
    "ormqr": lambda on: torch.ormqr(on.floats(3, 3), on.floats(2), on.floats(4, 3)),
    "lstsq: sizes": lambda on: torch.linalg.lstsq(on.floats(3, 2), on.floats(2, 1)),
    "qr: mode": lambda on: torch.linalg.qr(on.floats(3, 2), mode="full"),
    "eigh: triangle": lambda on: torch.linalg.eigh(on.floats(3, 3), UPLO="X"),
    "tensorinv": lambda on: torch.linalg.tensorinv(on.floats(2, 3, 4), ind=1),
    "tensorsolve": lambda on: torch.linalg.tensorsolve(on.floats(2, 3, 5), on.floats(2, 3)),
    "multi_dot: one": lambda on: torch.linalg.multi_dot([on.floats(2, 2)]),
    "matrix_rank: a row": lambda on: torch.linalg.matrix_rank(on.floats(3)),
    "vander": lambda on: torch.linalg.vander(on.floats(3), N=0),
}

TRANSFORMS = {
    "fft: no length": lambda on: torch.fft.fft(on.floats(4), 0),
    "fft: negative length": lambda on: torch.fft.fft(on.floats(4), -2),
    "fft: dimension": lambda on: torch.fft.fft(on.floats(4), dim=1),
    "fft: nothing": lambda on: torch.fft.fft(on.floats(0)),
    "fft: a number": lambda on: torch.fft.fft(on.floats(1)[0]),
    "fft: norm": lambda on: torch.fft.fft(on.floats(4), norm="unit"),
    "fft: halves": lambda on: torch.fft.fft(on.floats(4).half()),
    "fft: bfloat16": lambda on: torch.fft.fft(on.floats(4).bfloat16()),
    "rfft: complex": lambda on: torch.fft.rfft(on.floats(4).cfloat()),
    "irfft: no length": lambda on: torch.fft.irfft(on.floats(1)),
    "ihfft: complex": lambda on: torch.fft.ihfft(on.floats(4).cfloat()),
    "hfft: no length": lambda on: torch.fft.hfft(on.floats(1)),
    "fft2: twice": lambda on: torch.fft.fft2(on.floats(4, 4), dim=(0, 0)),
    "fft2: a row": lambda on: torch.fft.fft2(on.floats(4)),
    "fftn: lengths": lambda on: torch.fft.fftn(on.floats(4), (4, 4)),
    "fftn: lengths and dimensions": lambda on: torch.fft.fftn(on.floats(4, 4), (4,), (0, 1)),
    "fftfreq": lambda on: torch.fft.fftfreq(4, device=on.place, dtype=torch.int64),
    "stft: long": lambda on: torch.stft(on.floats(4), 16, center=False, return_complex=True),
    "stft: window": lambda on: torch.stft(on.floats(64), 16, window=on.floats(17), return_complex=True),
    "stft: step": lambda on: torch.stft(on.floats(64), 16, 0, window=on.floats(16), return_complex=True),
    "stft: dimensions": lambda on: torch.stft(on.floats(1, 1, 64), 16, window=on.floats(16), return_complex=True),
    "istft: real": lambda on: torch.istft(on.floats(9, 5), 16, window=on.floats(16)),
    "istft: frequencies": lambda on: torch.istft(on.floats(8, 5).cfloat(), 16, window=on.floats(16)),
    "istft: window of nothing": lambda on: torch.istft(on.floats(9, 5).cfloat(), 16, window=on.floats(16) * 0),
    "view_as_complex": lambda on: torch.view_as_complex(on.floats(3)),
    "view_as_real": lambda on: torch.view_as_real(on.floats(3)),
    "complex: integers": lambda on: torch.complex(on.ints(3), on.ints(3)),
    "polar: integers": lambda on: torch.polar(on.ints(3), on.ints(3)),
}

RANDOM = {
    "uniform_": lambda on: on.floats(3).uniform_(1, 0),
    "uniform_: integers": lambda on: on.ints(3).uniform_(),
    "uniform_: beyond the dtype": lambda on: on.floats(3).half().uniform_(0, 1e30),
    "normal_": lambda on: on.floats(3).normal_(0, -1),
    "normal_: integers": lambda on: on.ints(3).normal_(),
    "normal: negative": lambda on: torch.normal(on.floats(3), -on.floats(3) - 1),
    "normal: complex deviation": lambda on: torch.normal(0.0, on.floats(3).cfloat()),
    "normal: of integers": lambda on: torch.normal(on.ints(3), on.floats(3)),
    "normal: integers": lambda on: torch.normal(1.0, on.ints(3)),
    "normal: shapes": lambda on: torch.normal(on.floats(3), on.floats(2)),
    "exponential_": lambda on: on.floats(3).exponential_(0),
    "exponential_: negative": lambda on: on.floats(3).exponential_(-1),
    "exponential_: integers": lambda on: on.ints(3).exponential_(),
    "cauchy_": lambda on: on.floats(3).cauchy_(0, -1),
    "cauchy_: integers": lambda on: on.ints(3).cauchy_(),
    "geometric_: none": lambda on: on.floats(3).geometric_(0),
    "geometric_: all": lambda on: on.floats(3).geometric_(1),
    "log_normal_": lambda on: on.floats(3).log_normal_(0, -1),
    "log_normal_: integers": lambda on: on.ints(3).log_normal_(),
    "random_: nothing": lambda on: on.floats(3).random_(3, 3),
    "random_: too much": lambda on: on.ints(3).byte().random_(0, 999),
    "random_: below": lambda on: on.ints(3).byte().random_(-1, 9),
    "random_: negative": lambda on: on.ints(3).random_(-1),
    "bernoulli_: above": lambda on: on.floats(3).bernoulli_(1.5),
    "bernoulli_: below": lambda on: on.floats(3).bernoulli_(-0.5),
    "bernoulli_: complex": lambda on: on.floats(3).cfloat().bernoulli_(0.5),
    "bernoulli_: chances of integers": lambda on: on.floats(3).bernoulli_(on.ints(3)),
    "bernoulli: integers": lambda on: torch.bernoulli(on.ints(3)),
    "bernoulli: below": lambda on: torch.bernoulli(on.floats(3) - 2),
    "poisson: negative": lambda on: torch.poisson(on.floats(3) - 2),
    "poisson: integers": lambda on: torch.poisson(on.ints(3)),
    "binomial: integers": lambda on: torch.binomial(on.ints(3), on.floats(3)),
    "binomial: dtypes": lambda on: torch.binomial(on.floats(3), on.floats(3).double()),
    "binomial: shapes": lambda on: torch.binomial(on.floats(3), on.floats(2)),
    "binomial: complex chances": lambda on: torch.binomial(on.floats(3), on.floats(3).cfloat()),
    "multinomial: more than there are": lambda on: torch.multinomial(on.floats(3), 4),
    "multinomial: negative": lambda on: torch.multinomial(on.floats(3) - 2, 1),
    "multinomial: endless": lambda on: torch.multinomial(on.floats(3) / 0, 1),
    "multinomial: all zero": lambda on: torch.multinomial(on.floats(3) * 0, 1),
    "multinomial: integers": lambda on: torch.multinomial(on.ints(3), 1),
    "multinomial: dimensions": lambda on: torch.multinomial(on.floats(1, 1, 3), 1),
    "multinomial: a number": lambda on: torch.multinomial(on.floats(1)[0], 1),
    "randint": lambda on: torch.randint(3, 3, (2,), device=on.place),
    "randint: of bytes": lambda on: torch.randint(0, 999, (2,), device=on.place, dtype=torch.uint8),
    "randperm": lambda on: torch.randperm(-1, device=on.place),
    "randperm: too many": lambda on: torch.randperm(3000, device=on.place, dtype=torch.float16),
    "rand: integers": lambda on: torch.rand(3, device=on.place, dtype=torch.int64),
    "randn: negative": lambda on: torch.randn(-1, device=on.place),
    "dropout: above": lambda on: torch.dropout(on.floats(3), 1.5, True),
    "dropout: below": lambda on: torch.dropout(on.floats(3), -0.5, True),
    "native_dropout: integers": lambda on: torch.native_dropout(on.ints(3), 0.5, True),
    "alpha_dropout: above": lambda on: torch.alpha_dropout(on.floats(3), 1.5, True),
    "rrelu: bounds": lambda on: torch.rrelu(on.floats(3), 0.5, 0.1, True),
    "rrelu: integers": lambda on: torch.rrelu(on.ints(3), 0.1, 0.5, True),
}


def recurrent(gates: int, cells: int, f: Any, wrong: str) -> Callable[[On], Any]:
    def call(on: On) -> Any:
        shapes = {"x": [2, 3], "h": [2, 4], "wi": [gates * 4, 3], "wh": [gates * 4, 4], "b": [gates * 4]}
        shapes[wrong][-1] += 1
        x, h, wi, wh, b = (on.floats(*shape) for shape in shapes.values())
        return f(x, h if cells == 1 else [h, h], wi, wh, b, b)

    return call


NETWORKS = {
    **{
        f"{f.__name__}: {wrong}": recurrent(gates, cells, f, wrong)
        for f, gates, cells in (
            (torch.lstm_cell, 4, 2),
            (torch.gru_cell, 3, 1),
            (torch.rnn_tanh_cell, 1, 1),
            (torch.rnn_relu_cell, 1, 1),
        )
        for wrong in ("x", "h", "wi", "wh", "b")
    },
    "lstm: features": lambda on: torch.nn.LSTM(3, 4).to(on.place)(on.floats(5, 2, 2)),
    "lstm: states": lambda on: torch.nn.LSTM(3, 4).to(on.place)(
        on.floats(5, 2, 3), (on.floats(1, 3, 4), on.floats(1, 3, 4))
    ),
    "gru: features": lambda on: torch.nn.GRU(3, 4).to(on.place)(on.floats(5, 2, 2)),
    "rnn: dtype": lambda on: torch.nn.RNN(3, 4).to(on.place)(on.floats(5, 2, 3).double()),
    "attention: heads": lambda on: F.scaled_dot_product_attention(
        on.floats(2, 3, 5, 8), on.floats(2, 2, 5, 8), on.floats(2, 2, 5, 8)
    ),
    "attention: features": lambda on: F.scaled_dot_product_attention(
        on.floats(2, 2, 5, 8), on.floats(2, 2, 5, 7), on.floats(2, 2, 5, 8)
    ),
    "attention: dtypes": lambda on: F.scaled_dot_product_attention(
        on.floats(2, 2, 5, 8), on.floats(2, 2, 5, 8).half(), on.floats(2, 2, 5, 8)
    ),
    "attention: mask": lambda on: F.scaled_dot_product_attention(
        *(on.floats(2, 2, 5, 8) for _ in range(3)), attn_mask=on.floats(5, 4)
    ),
    "attention: mask of integers": lambda on: F.scaled_dot_product_attention(
        *(on.floats(2, 2, 5, 8) for _ in range(3)), attn_mask=on.ints(5, 5)
    ),
    "attention: a row": lambda on: F.scaled_dot_product_attention(*(on.floats(8) for _ in range(3))),
    "prelu: weight": lambda on: F.prelu(on.floats(2, 3), on.floats(2)),
    "prelu: dtypes": lambda on: F.prelu(on.floats(2, 3), on.floats(3).double()),
    "prelu: weight of two dimensions": lambda on: F.prelu(on.floats(2, 3), on.floats(1, 3)),
    "softplus: integers": lambda on: F.softplus(on.ints(3)),
    "hardshrink: integers": lambda on: F.hardshrink(on.ints(3)),
    "gelu: approximation": lambda on: F.gelu(on.floats(3), approximate="erf"),
    "gelu: integers": lambda on: F.gelu(on.ints(3)),
    "hardswish: integers": lambda on: F.hardswish(on.ints(3)),
    "mish: integers": lambda on: F.mish(on.ints(3)),
    "logsigmoid: integers": lambda on: F.logsigmoid(on.ints(3)),
    "hardtanh: bounds": lambda on: F.hardtanh(on.floats(3), 1.0, -1.0),
    "threshold: truth": lambda on: F.threshold(on.floats(3) > 0, 0, 1),
    "normalize: integers": lambda on: F.normalize(on.ints(3), dim=0),
}

SHAPES = {
    "cat: sizes": lambda on: torch.cat([on.floats(2, 3), on.floats(2, 4)]),
    "cat: nothing": lambda on: torch.cat([]),
    "cat: dimensions": lambda on: torch.cat([on.floats(2, 3), on.floats(2)]),
    "cat: dimension": lambda on: torch.cat([on.floats(2, 3)], 2),
    "stack: sizes": lambda on: torch.stack([on.floats(2), on.floats(3)]),
    "stack: dimension": lambda on: torch.stack([on.floats(2)], 2),
    "roll: dimensions": lambda on: on.floats(3).roll((1, 2), 0),
    "roll: dimensions of nothing": lambda on: on.floats(0, 3).roll((1, 2), 0),
    "roll: no shifts of nothing": lambda on: on.floats(0, 3).roll((), ()),
    "roll: dimension": lambda on: on.floats(3).roll(1, 1),
    "flip: twice": lambda on: on.floats(3).flip(0, 0),
    "flip: dimension": lambda on: on.floats(3).flip(1),
    "rot90: dimensions": lambda on: torch.rot90(on.floats(3, 3), 1, (0, 0)),
    "rot90: a row": lambda on: torch.rot90(on.floats(3)),
    "unfold: size": lambda on: on.floats(3).unfold(0, 4, 1),
    "unfold: step": lambda on: on.floats(3).unfold(0, 2, 0),
    "unfold_copy: size": lambda on: torch.unfold_copy(on.floats(3), 0, 4, 1),
    "repeat: dimensions": lambda on: on.floats(3, 3).repeat(2),
    "repeat: negative": lambda on: on.floats(3).repeat(-1),
    "expand": lambda on: on.floats(3).expand(2),
    "view": lambda on: on.floats(3).view(2),
    "reshape: two unknown": lambda on: on.floats(4).reshape(-1, -1),
    "permute: twice": lambda on: on.floats(3, 3).permute(0, 0),
    "diag: a volume": lambda on: torch.diag(on.floats(2, 2, 2)),
    "diagonal: dimensions": lambda on: torch.diagonal(on.floats(3, 3), 0, 0, 0),
    "diag_embed: dimensions": lambda on: torch.diag_embed(on.floats(3), 0, 0, 0),
    "tril: a row": lambda on: torch.tril(on.floats(3)),
    "triu: a row": lambda on: torch.triu(on.floats(3)),
    "chunk": lambda on: on.floats(3).chunk(0),
    "split": lambda on: on.floats(3).split([1, 1]),
    "split_with_sizes": lambda on: on.floats(3).split_with_sizes([4, -1]),
    "tensor_split": lambda on: on.floats(3).tensor_split(0),
    "unflatten": lambda on: on.floats(4).unflatten(0, (3, 2)),
    "block_diag": lambda on: torch.block_diag(on.floats(2, 2, 2)),
    "meshgrid: a matrix": lambda on: torch.meshgrid(on.floats(2, 2), indexing="ij"),
    "cartesian_prod": lambda on: torch.cartesian_prod(on.floats(2, 2)),
    "combinations": lambda on: torch.combinations(on.floats(2, 2)),
    "combinations: negative": lambda on: torch.combinations(on.floats(2), -1),
    "vander": lambda on: torch.vander(on.floats(2, 2)),
    "as_strided": lambda on: on.floats(4).as_strided((3,), (2,)),
    "as_strided: negative": lambda on: on.floats(4).as_strided((2,), (-1,)),
    "fill_diagonal_": lambda on: on.floats(3).fill_diagonal_(1),
    "fill_: a vector": lambda on: on.floats(3).fill_(on.floats(3)),
    "arange": lambda on: torch.arange(3, 1, device=on.place),
    "arange: no step": lambda on: torch.arange(1, 3, 0, device=on.place),
    "arange: endless": lambda on: torch.arange(0, float("inf"), device=on.place),
    "range": lambda on: torch.range(3, 1, device=on.place),
    "linspace": lambda on: torch.linspace(0, 1, -1, device=on.place),
    "logspace": lambda on: torch.logspace(0, 1, -1, device=on.place),
    "eye": lambda on: torch.eye(-1, device=on.place),
    "full": lambda on: torch.full((2,), 1j, device=on.place, dtype=torch.float32),
    "full: too large": lambda on: torch.full((2,), 300, device=on.place, dtype=torch.int8),
    "zeros": lambda on: torch.zeros(-1, device=on.place),
    "tril_indices": lambda on: torch.tril_indices(-1, 3, device=on.place),
    "tril_indices: of floats": lambda on: torch.tril_indices(3, 3, device=on.place, dtype=torch.complex64),
    "kaiser_window": lambda on: torch.kaiser_window(-1, device=on.place),
    "kaiser_window: integers": lambda on: torch.kaiser_window(3, device=on.place, dtype=torch.int64),
    "kaiser_window: complex": lambda on: torch.kaiser_window(3, device=on.place, dtype=torch.complex64),
    "hann_window": lambda on: torch.hann_window(-1, device=on.place),
}

ARITHMETIC = {
    "add: shapes": lambda on: on.floats(3) + on.floats(2),
    "add: alpha": lambda on: torch.add(on.ints(3), on.ints(3), alpha=0.5),
    "add_: larger": lambda on: on.floats(3).add_(on.floats(2, 3)),
    "add_: fractions to integers": lambda on: on.ints(3).add_(0.5),
    "sub: truth": lambda on: (on.floats(3) > 0) - (on.floats(3) > 0),
    "neg: truth": lambda on: -(on.floats(3) > 0),
    "integers by zero": lambda on: on.ints(3) // on.ints(3),
    "remainder of zero": lambda on: on.ints(3) % on.ints(3),
    "fmod of zero": lambda on: torch.fmod(on.ints(3), on.ints(3)),
    "integers to negative powers": lambda on: on.ints(3) ** -1,
    "bitwise_and: floats": lambda on: on.floats(3) & on.floats(3),
    "bitwise_not: floats": lambda on: ~on.floats(3),
    "shift: floats": lambda on: on.floats(3) << on.floats(3),
    "gcd: floats": lambda on: torch.gcd(on.floats(3), on.floats(3)),
    "clamp: nothing": lambda on: torch.clamp(on.floats(3)),
    "clamp: complex": lambda on: torch.clamp(on.floats(3).cfloat(), 0, 1),
    "maximum: complex": lambda on: torch.maximum(on.floats(3).cfloat(), on.floats(3)),
    "lt: complex": lambda on: on.floats(3).cfloat() < on.floats(3),
    "floor: complex": lambda on: on.floats(3).cfloat().floor(),
    "sign: complex": lambda on: on.floats(3).cfloat().sign(),
    "lerp: dtypes": lambda on: torch.lerp(on.floats(3), on.floats(3).double(), 0.5),
    "lerp: weight": lambda on: torch.lerp(on.floats(3), on.floats(3), on.floats(3).double()),
    "addcmul: shapes": lambda on: torch.addcmul(on.floats(3), on.floats(2), on.floats(3)),
    "addcmul: complex value": lambda on: torch.addcmul(on.floats(3), on.floats(3), on.floats(3), value=1j),
    "addcdiv: complex value": lambda on: torch.addcdiv(on.floats(3), on.floats(3), on.floats(3), value=1j),
    "where: condition": lambda on: torch.where(on.ints(3), on.floats(3), on.floats(3)),
    "where: shapes": lambda on: torch.where(on.floats(3) > 0, on.floats(2), on.floats(3)),
    "polygamma: negative": lambda on: torch.polygamma(-1, on.floats(3)),
    "mvlgamma: p": lambda on: torch.mvlgamma(on.floats(3) + 3, 0),
    "logit: integers into": lambda on: torch.logit(on.floats(3), out=on.ints(3)),
    "round: decimals of integers": lambda on: torch.round(on.ints(3), decimals=1),
    "nextafter: integers": lambda on: torch.nextafter(on.ints(3), on.ints(3)),
    "hypot: integers": lambda on: torch.hypot(on.ints(3), on.ints(3)),
    "igamma: integers": lambda on: torch.igamma(on.ints(3), on.ints(3)),
    "frexp: integers": lambda on: torch.frexp(on.ints(3)),
    "copysign: complex": lambda on: torch.copysign(on.floats(3).cfloat(), on.floats(3)),
    "isposinf: complex": lambda on: torch.isposinf(on.floats(3).cfloat()),
    "nan_to_num: complex": lambda on: torch.heaviside(on.floats(3).cfloat(), on.floats(3).cfloat()),
    "cov: weights": lambda on: torch.cov(on.floats(3, 4), fweights=on.ints(3)),
    "cov: negative weights": lambda on: torch.cov(on.floats(3, 4), fweights=on.ints(4) - 1),
    "cov: weights of floats": lambda on: torch.cov(on.floats(3, 4), fweights=on.floats(4)),
    "cov: dimensions": lambda on: torch.cov(on.floats(3, 4, 5)),
    "equal: devices": lambda on: torch.allclose(on.floats(3), on.floats(3).double()),
    "item: several": lambda on: on.floats(3).item(),
    "truth of several": lambda on: bool(on.floats(3)),
    "copy_: shapes": lambda on: on.floats(3).copy_(on.floats(2)),
}

# Indices are checked although no element is read or written.
NOTHING = {
    "index_select: a vector": lambda on: on.floats(0).index_select(0, on.of(0)),
    "index_select: no rows": lambda on: on.floats(0, 4).index_select(0, on.of(0)),
    "index_select: columns": lambda on: on.floats(0, 4).index_select(1, on.of(7)),
    "index_select": lambda on: on.floats(3, 0).index_select(0, on.of(7)),
    "index_select: negative": lambda on: on.floats(3, 0).index_select(0, on.of(-1)),
    "embedding": lambda on: F.embedding(on.of(7), on.floats(3, 0)),
    "embedding: negative": lambda on: F.embedding(on.of(-1), on.floats(3, 0)),
    "take": lambda on: on.floats(0).take(on.of(0)),
    "put": lambda on: on.floats(0).put(on.of(0), on.floats(1)),
    "index_reduce": lambda on: on.floats(3, 0).index_reduce(0, on.of(7), on.floats(1, 0), "amax"),
    "embedding_bag": lambda on: F.embedding_bag(on.of(7), on.floats(3, 0), on.of(0)),
    "embedding_bag: sum": lambda on: F.embedding_bag(on.of(7), on.floats(3, 0), on.of(0), mode="sum"),
    "embedding_bag: max": lambda on: F.embedding_bag(on.of(7), on.floats(3, 0), on.of(0), mode="max"),
    "one_hot": lambda on: F.one_hot(on.ints(0)),
    "nll_loss: no classes": lambda on: F.nll_loss(on.floats(2, 0), on.of(0, 0)),
    "nll_loss: no pixels": lambda on: F.nll_loss(on.floats(2, 3, 0, 4), on.ints(2, 1, 4)),
    "max_unpool2d": lambda on: F.max_unpool2d(on.floats(0, 2, 2, 2), on.ints(0, 2, 2, 3), 2),
    "repeat_interleave": lambda on: torch.repeat_interleave(on.floats(2, 0), on.of(1, -1), 0),
    "scatter": lambda on: on.floats(0, 3).scatter(1, on.ints(1, 1), on.floats(1, 1)),
    "scatter_add": lambda on: on.floats(0, 3).scatter_add(0, on.ints(1, 1), on.floats(1, 1)),
    "searchsorted: sorter": lambda on: torch.searchsorted(on.floats(3), on.floats(0), sorter=on.of(0, 1, 7)),
    "multinomial": lambda on: torch.multinomial(on.floats(2, 0), 1),
}

# These look at no index where there is nothing to move.
TAKEN = {
    "gather": lambda on: on.floats(3, 0).gather(0, on.ints(1, 0) + 7),
    "index": lambda on: on.floats(3, 0)[on.of(7)],
    "index: several": lambda on: on.floats(3, 3, 0)[on.of(1), on.of(7)],
    "index: negative": lambda on: on.floats(3, 0)[on.of(-4)],
    "index: second": lambda on: on.floats(0, 3)[:, on.of(7)],
    "index_put": lambda on: on.floats(3, 0).index_put((on.of(7),), on.floats(1)),
    "index_put: accumulate": lambda on: on.floats(3, 0).index_put((on.of(7),), on.floats(1), accumulate=True),
    "index_add": lambda on: on.floats(3, 0).index_add(0, on.of(7), on.floats(1, 0)),
    "index_copy": lambda on: on.floats(3, 0).index_copy(0, on.of(7), on.floats(1, 0)),
    "index_fill": lambda on: on.floats(3, 0).index_fill(0, on.of(7), 1.0),
    "embedding backward": lambda on: aten.embedding_dense_backward(on.floats(1, 0), on.of(7), 3, -1, False),
}

FAMILIES = {
    "convolution": CONVOLUTION,
    "pooling": POOLING,
    "resampling": RESAMPLING,
    "norms": NORMS,
    "indexing": INDEXING,
    "losses": LOSSES,
    "sorting": SORTING,
    "reductions": REDUCTIONS,
    "linear algebra": LINEAR,
    "transforms": TRANSFORMS,
    "random": RANDOM,
    "networks": NETWORKS,
    "shapes": SHAPES,
    "arithmetic": ARITHMETIC,
    "nothing": NOTHING,
}


def refusal(call: Callable[[On], Any], place: str) -> Exception | None:
    """What a call raises, by the end of its kernels."""
    try:
        call(On(place))
        if place != "cpu":
            torch.accelerator.synchronize(torch.device(place))
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    "call",
    [pytest.param(call, id=f"{family}: {why}") for family, calls in FAMILIES.items() for why, call in calls.items()],
)
@pytest.mark.filterwarnings("ignore")
def test_refused_as_on_the_cpu(call: Callable[[On], Any], device: str) -> None:
    expected = refusal(call, "cpu")
    assert expected is not None, "the CPU takes it"
    for _ in range(2):
        error = refusal(call, device)
        assert type(error) is type(expected), f"{error!r} in place of {expected!r}"


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
def test_taken_as_on_the_cpu(call: Callable[[On], Any], device: str) -> None:
    for place in ("cpu", device):
        assert refusal(call, place) is None


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_output_padding_is_refused_in_compiled_functions(dims: int, device: str, compiled_afresh: None) -> None:
    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        torch.compile(lambda x, w: getattr(F, f"conv_transpose{dims}d")(x, w, output_padding=1) + 1)(
            On(device).floats(1, 2, *[5] * dims), On(device).floats(2, 3, *[3] * dims)
        )
