"""GB/s and GFLOP/s of single ops, on the device and on torch's CPU in the same run.

python benchmarks/ops.py [--device ocl] [--only matmul] [--rounds 5] [--json FILE]

Every op writes into memory that was there before (out= or a warm cache), and the CPU's C library is told to keep its
heap, so that neither side pays for fresh pages. Bytes are the least that must move: each input and output once. A
figure is the median of rounds in which device and CPU take turns; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Make = Callable[[str], Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One workload: `make(device)` prepares its data and returns the call; `work` is in `unit` times 1e9 a call."""

    name: str
    make: Make
    work: float
    unit: str


def keep_heap() -> None:
    """Makes glibc reuse freed blocks instead of returning them: otherwise each large result costs page faults."""
    libc = ctypes.CDLL(None)
    m_trim_threshold, m_mmap_max = -1, -4
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(device)


def elementwise() -> Iterator[Case]:
    n = 1 << 24

    def contiguous(function: Callable[[torch.Tensor, torch.Tensor], object]) -> Make:
        def make(device: str) -> Callable[[], object]:
            a, b = randn(device, n), randn(device, n)
            return lambda: function(a, b)

        return make

    def two(function: Callable[[torch.Tensor, torch.Tensor], object], a: tuple[int, ...], b: tuple[int, ...]) -> Make:
        def make(device: str) -> Callable[[], object]:
            x, y = randn(device, *a), randn(device, *b)
            return lambda: function(x, y)

        return make

    yield Case("elementwise/add", contiguous(lambda a, b: a + b), 12 * n, "GB/s")
    yield Case("elementwise/add_", contiguous(lambda a, b: a.add_(b, alpha=1e-9)), 12 * n, "GB/s")
    yield Case("elementwise/mul scalar", contiguous(lambda a, b: a * 2.0), 8 * n, "GB/s")
    yield Case("elementwise/relu", contiguous(lambda a, b: torch.relu(a)), 8 * n, "GB/s")
    yield Case("elementwise/exp", contiguous(lambda a, b: torch.exp(a)), 8 * n, "GB/s")
    yield Case("elementwise/gelu", contiguous(lambda a, b: F.gelu(a)), 8 * n, "GB/s")
    yield Case("elementwise/sigmoid", contiguous(lambda a, b: torch.sigmoid(a)), 8 * n, "GB/s")
    yield Case("elementwise/tanh", contiguous(lambda a, b: torch.tanh(a)), 8 * n, "GB/s")
    yield Case("elementwise/addcmul", contiguous(lambda a, b: torch.addcmul(a, a, b)), 16 * n, "GB/s")
    yield Case("elementwise/to float16", contiguous(lambda a, b: a.half()), 6 * n, "GB/s")
    yield Case("elementwise/to int32", contiguous(lambda a, b: a.int()), 8 * n, "GB/s")
    side = 4096
    yield Case("elementwise/broadcast row", two(lambda a, b: a + b, (side, side), (side,)), 8 * n, "GB/s")
    yield Case("elementwise/broadcast column", two(lambda a, b: a + b, (side, side), (side, 1)), 8 * n, "GB/s")
    yield Case(
        "elementwise/every second", two(lambda a, b: a[:, ::2] + b[:, ::2], (side, side), (side, side)), 6 * n, "GB/s"
    )
    yield Case("elementwise/add transposed", two(lambda a, b: a.t() + b, (side, side), (side, side)), 12 * n, "GB/s")


def copies() -> Iterator[Case]:
    n, side = 1 << 24, 4096

    def one(function: Callable[[torch.Tensor], object], *shape: int) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = randn(device, *shape)
            return lambda: function(x)

        return make

    def from_host(count: int) -> Make:
        def make(device: str) -> Callable[[], object]:
            source, target = torch.randn(count), torch.empty(count, device=device)
            return lambda: target.copy_(source)

        return make

    def to_host(count: int) -> Make:
        def make(device: str) -> Callable[[], object]:
            source, target = randn(device, count), torch.empty(count)
            return lambda: target.copy_(source)

        return make

    yield Case("copy/clone", one(lambda x: x.clone(), n), 8 * n, "GB/s")
    yield Case("copy/transpose", one(lambda x: x.t().contiguous(), side, side), 8 * n, "GB/s")
    yield Case(
        "copy/nchw to nhwc",
        one(lambda x: x.contiguous(memory_format=torch.channels_last), 16, 64, 128, 128),
        8 * n,
        "GB/s",
    )
    for size, count in (("", n), (" 1 MB", 1 << 18), (" 4 KB", 1 << 10)):
        yield Case(f"copy/host to device{size}", from_host(count), 8 * count, "GB/s")
        yield Case(f"copy/device to host{size}", to_host(count), 8 * count, "GB/s")
    yield Case("copy/clone 1 MB", one(lambda x: x.clone(), 1 << 18), 8 << 18, "GB/s")
    yield Case("copy/zero_ 1 MB", one(lambda x: x.zero_(), 1 << 18), 4 << 18, "GB/s")
    yield Case("copy/cat", one(lambda x: torch.cat([x, x]), n // 2), 8 * n, "GB/s")


def reductions() -> Iterator[Case]:
    side = 4096
    n = side * side

    def one(function: Callable[[torch.Tensor], object]) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = randn(device, side, side)
            return lambda: function(x)

        return make

    for name, function in {
        "sum": lambda x: x.sum(),
        "sum of columns": lambda x: x.sum(0),
        "sum of rows": lambda x: x.sum(1),
        "amax of rows": lambda x: x.amax(1),
        "argmax of rows": lambda x: x.argmax(1),
        "var of rows": lambda x: x.var(1),
        "norm": lambda x: x.norm(),
    }.items():
        yield Case(f"reduction/{name}", one(function), 4 * n, "GB/s")
    yield Case("reduction/softmax", one(lambda x: torch.softmax(x, 1)), 8 * n, "GB/s")
    yield Case("reduction/log softmax", one(lambda x: torch.log_softmax(x, 1)), 8 * n, "GB/s")

    def layer_norm(device: str) -> Callable[[], object]:
        x, weight, bias = randn(device, 8192, 1024), randn(device, 1024), randn(device, 1024)
        return lambda: F.layer_norm(x, (1024,), weight, bias)

    def batch_norm(device: str) -> Callable[[], object]:
        x = randn(device, 16, 64, 56, 56)
        mean, var = torch.zeros(64, device=device), torch.ones(64, device=device)
        return lambda: F.batch_norm(x, mean, var, training=True)

    yield Case("reduction/layer norm", layer_norm, 8 * 8192 * 1024, "GB/s")
    yield Case("reduction/batch norm", batch_norm, 8 * 16 * 64 * 56 * 56, "GB/s")


def matmuls() -> Iterator[Case]:
    def product(m: int, n: int, k: int, layout: str) -> Make:
        def make(device: str) -> Callable[[], object]:
            a = randn(device, m, k) if layout[0] == "n" else randn(device, k, m).t()
            b = randn(device, k, n) if layout[1] == "n" else randn(device, n, k).t()
            return lambda: a @ b

        return make

    for size in (256, 512, 1024, 2048):
        yield Case(f"matmul/nn {size}", product(size, size, size, "nn"), 2 * size**3, "GFLOP/s")
    for layout in ("nt", "tn"):
        yield Case(f"matmul/{layout} 1024", product(1024, 1024, 1024, layout), 2 * 1024**3, "GFLOP/s")
    yield Case("matmul/vector 1x4096x4096", product(1, 4096, 4096, "nt"), 2 * 4096**2, "GFLOP/s")

    def batched(device: str) -> Callable[[], object]:
        a, b = randn(device, 16, 128, 64), randn(device, 16, 64, 128)
        return lambda: a @ b

    yield Case("matmul/batched 16x128x64x128", batched, 2 * 16 * 128 * 64 * 128, "GFLOP/s")

    def linear(device: str) -> Callable[[], object]:
        x, w, b = randn(device, 512, 1024), randn(device, 1024, 1024), randn(device, 1024)
        return lambda: F.linear(x, w, b)

    yield Case("matmul/linear 512x1024x1024", linear, 2 * 512 * 1024 * 1024, "GFLOP/s")


def convolutions() -> Iterator[Case]:
    def conv(n: int, c: int, size: int, out: int, kernel: int, stride: int, groups: int, backward: bool) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = randn(device, n, c, size, size).requires_grad_(backward)
            w = randn(device, out, c // groups, kernel, kernel).requires_grad_(backward)
            if not backward:
                return lambda: F.conv2d(x, w, None, stride, kernel // 2, 1, groups)
            grad = randn(device, n, out, size // stride, size // stride)

            def step() -> object:
                return torch.autograd.grad(F.conv2d(x, w, None, stride, kernel // 2, 1, groups), (x, w), grad)

            return step

        return make

    for name, (n, c, size, out, kernel, stride, groups) in {
        "3x3 64 56x56 n16": (16, 64, 56, 64, 3, 1, 1),
        "1x1 64-256 56x56 n16": (16, 64, 56, 256, 1, 1, 1),
        "7x7 stride 2 3-64 224x224 n8": (8, 3, 224, 64, 7, 2, 1),
        "depthwise 3x3 128 56x56 n16": (16, 128, 56, 128, 3, 1, 128),
    }.items():
        flops = 2 * n * out * (size // stride) ** 2 * (c // groups) * kernel**2
        yield Case(f"convolution/{name}", conv(n, c, size, out, kernel, stride, groups, False), flops, "GFLOP/s")
        yield Case(
            f"convolution/{name} with gradients",
            conv(n, c, size, out, kernel, stride, groups, True),
            3 * flops,
            "GFLOP/s",
        )


def attentions() -> Iterator[Case]:
    batch, heads, length, width = 8, 6, 256, 64

    def attention(backward: bool) -> Make:
        def make(device: str) -> Callable[[], object]:
            q, k, v = (randn(device, batch, heads, length, width).requires_grad_(backward) for _ in range(3))
            if not backward:
                return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
            grad = randn(device, batch, heads, length, width)
            return lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), grad)

        return make

    flops = 4 * batch * heads * length * length * width / 2  # causal: half of the scores
    yield Case("attention/causal 8x6x256x64", attention(False), flops, "GFLOP/s")
    yield Case("attention/causal 8x6x256x64 with gradients", attention(True), 3.5 * flops, "GFLOP/s")


def indexing() -> Iterator[Case]:
    def embedding(backward: bool) -> Make:
        def make(device: str) -> Callable[[], object]:
            table = randn(device, 50257, 384).requires_grad_(backward)
            index = torch.randint(0, 50257, (2048,)).to(device)
            if not backward:
                return lambda: F.embedding(index, table)
            grad = randn(device, 2048, 384)
            return lambda: torch.autograd.grad(F.embedding(index, table), table, grad)

        return make

    def gather(device: str) -> Callable[[], object]:
        x, index = randn(device, 4096, 4096), torch.randint(0, 4096, (4096, 4096)).to(device)
        return lambda: x.gather(1, index)

    yield Case("indexing/embedding 2048x384", embedding(False), 8 * 2048 * 384, "GB/s")
    yield Case("indexing/embedding backward", embedding(True), 4 * 50257 * 384, "GB/s")
    yield Case("indexing/gather 4096", gather, 16 * 4096 * 4096, "GB/s")


def randoms() -> Iterator[Case]:
    n = 1 << 24

    def one(function: Callable[[torch.Tensor], object]) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = torch.empty(n, device=device)
            return lambda: function(x)

        return make

    yield Case("random/uniform", one(lambda x: x.uniform_()), 4 * n, "GB/s")
    yield Case("random/normal", one(lambda x: x.normal_()), 4 * n, "GB/s")
    yield Case("random/bernoulli", one(lambda x: x.bernoulli_(0.5)), 4 * n, "GB/s")
    yield Case("random/dropout", one(lambda x: F.dropout(x, 0.1)), 9 * n, "GB/s")


def transforms() -> Iterator[Case]:
    """A transform counts as 5 n log2 n operations, whatever it takes; one of real numbers as half of that."""

    def one(function: Callable[[torch.Tensor], object], dtype: torch.dtype, *shape: int) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = torch.randn(shape, dtype=dtype).to(device)
            return lambda: function(x)

        return make

    def work(*shape: int, dims: int = 1) -> float:
        return 5 * math.prod(shape) * math.log2(math.prod(shape[-dims:]))

    single, double, fft = torch.complex64, torch.complex128, torch.fft
    rows = (1024, 1024)
    yield Case("transform/rows of 1024", one(lambda x: fft.fft(x), single, *rows), work(*rows), "GFLOP/s")
    yield Case("transform/rows of 1024, float64", one(lambda x: fft.fft(x), double, *rows), work(*rows), "GFLOP/s")
    yield Case("transform/columns of 1024", one(lambda x: fft.fft(x, dim=0), single, *rows), work(*rows), "GFLOP/s")
    yield Case("transform/2**20", one(lambda x: fft.fft(x), single, 1 << 20), work(1 << 20), "GFLOP/s")
    yield Case("transform/rows of 1009", one(lambda x: fft.fft(x), single, 1000, 1009), work(1000, 1009), "GFLOP/s")
    yield Case(
        "transform/16 images", one(lambda x: fft.fft2(x), single, 16, 256, 256), work(16, 256, 256, dims=2), "GFLOP/s"
    )
    photos = (24, 224, 224)
    real = work(*photos, dims=2) / 2
    yield Case("transform/24 real images", one(lambda x: fft.rfft2(x), torch.float32, *photos), real, "GFLOP/s")
    yield Case("transform/to 24 real images", one(lambda x: fft.irfft2(x), single, 24, 224, 113), real, "GFLOP/s")
    frames = (2000, 400)
    yield Case(
        "transform/2000 frames", one(lambda x: fft.rfft(x), torch.float32, *frames), work(*frames) / 2, "GFLOP/s"
    )


def recurrents() -> Iterator[Case]:
    def network(kind: type[torch.nn.RNNBase], batch: int, steps: int, size: int, backward: bool) -> Make:
        def make(device: str) -> Callable[[], object]:
            torch.manual_seed(0)
            model, x = kind(size, size).to(device).requires_grad_(backward), randn(device, steps, batch, size)
            if not backward:
                return lambda: model(x)
            weights = list(model.parameters())
            return lambda: torch.autograd.grad(model(x)[0].sum(), weights)

        return make

    for kind, gates in ((torch.nn.LSTM, 4), (torch.nn.GRU, 3)):
        for batch, steps, size in ((16, 100, 64), (32, 50, 128), (32, 64, 256), (1, 50, 128)):
            name, work = f"recurrent/{kind.__name__} {steps}x{batch}x{size}", 4 * gates * steps * batch * size * size
            yield Case(name, network(kind, batch, steps, size, False), work, "GFLOP/s")
            yield Case(f"{name} with gradients", network(kind, batch, steps, size, True), 3 * work, "GFLOP/s")


def images() -> Iterator[Case]:
    size = 128

    def one(function: Callable[[torch.Tensor], torch.Tensor], backward: bool = False) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = randn(device, 4, 16, size, size).requires_grad_(backward)
            if not backward:
                return lambda: function(x)
            y = function(x)
            grad = randn(device, *y.shape)
            return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)

        return make

    pixels = 4 * 16 * size * size
    for mode in ("nearest", "bilinear", "bicubic"):

        def double(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
            return F.interpolate(x, scale_factor=2, mode=mode)

        def halve(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
            return F.interpolate(x, scale_factor=0.5, mode=mode, antialias=True)

        yield Case(f"image/{mode} doubled", one(double), 4 * 5 * pixels, "GB/s")
        yield Case(f"image/{mode} doubled, backward", one(double, True), 4 * 5 * pixels, "GB/s")
        if mode != "nearest":
            yield Case(f"image/{mode} halved, antialiased", one(halve), 4 * 1.25 * pixels, "GB/s")

    def sample(mode: str, backward: bool) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = randn(device, 4, 16, size, size).requires_grad_(backward)
            grid = (torch.rand(4, size, size, 2) * 2 - 1).to(device).requires_grad_(backward)
            y = F.grid_sample(x, grid, mode=mode, align_corners=False)
            if not backward:
                return lambda: F.grid_sample(x, grid, mode=mode, align_corners=False)
            grad = randn(device, *y.shape)
            return lambda: torch.autograd.grad(y, (x, grid), grad, retain_graph=True)

        return make

    moved = 4 * (2 * pixels + 4 * size * size * 2)
    for mode in ("nearest", "bilinear", "bicubic"):
        yield Case(f"image/grid sample {mode}", sample(mode, False), moved, "GB/s")
    yield Case("image/grid sample bilinear, backward", sample("bilinear", True), 2 * moved, "GB/s")
    yield Case("image/max pool 3x3", one(lambda x: F.max_pool2d(x, 3, 2, 1)), 4 * 1.25 * pixels, "GB/s")


def all_cases() -> Iterator[Case]:
    for family in (
        elementwise,
        copies,
        reductions,
        matmuls,
        convolutions,
        attentions,
        transforms,
        recurrents,
        indexing,
        images,
        randoms,
    ):
        yield from family()


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def seconds(call: Callable[[], object], device: str, at_least: float) -> float:
    """Seconds a call, over as many calls as fill `at_least` seconds, with one wait at the end."""
    count = 0
    synchronize(device)
    start = time.perf_counter()
    while True:
        call()
        count += 1
        if device == "cpu":
            if time.perf_counter() - start > at_least:
                break
        elif count % 4 == 0:  # a queue without end would measure how quickly work is submitted
            synchronize(device)
            if time.perf_counter() - start > at_least:
                break
    return (time.perf_counter() - start) / count


def main(cases: Callable[[], Iterator[Case]] = all_cases, description: str | None = __doc__) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each round and side")
    parser.add_argument("--json")
    options = parser.parse_args()
    keep_heap()
    figures: dict[str, dict[str, float | str]] = {}
    print(f"{'':55s} {'CPU':>9s} {options.device:>9s}            ratio")
    for case in cases():
        if options.only not in case.name:
            continue
        calls = {device: case.make(device) for device in ("cpu", options.device)}
        for device, call in calls.items():
            call()
            seconds(call, device, 0.02)
        rounds: dict[str, list[float]] = {device: [] for device in calls}
        for _ in range(options.rounds):
            for device, call in calls.items():
                rounds[device].append(seconds(call, device, options.seconds))
        cpu, ours = (case.work / statistics.median(times) / 1e9 for times in rounds.values())
        ratio = statistics.median(c / o for c, o in zip(*rounds.values(), strict=True))
        figures[case.name] = {"cpu": cpu, "device": ours, "ratio": ratio, "unit": case.unit}
        print(f"{case.name:55s} {cpu:9.2f} {ours:9.2f} {case.unit:8s} {ratio:8.2f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
