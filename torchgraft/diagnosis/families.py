"""A small call of each family of kernels, whose results are compared with the CPU's: a device's compiler may take one
kernel and refuse the next. What is refused runs on the CPU, so that only the report of fallbacks tells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["FAMILIES", "Family", "differences"]

Tensors = list[torch.Tensor]
Family = Callable[[Callable[..., torch.Tensor], torch.device], Tensors]

#: By their names: what is called with a function that makes the same random tensor on each device, and the device.
FAMILIES: dict[str, Family] = {}


def _family(name: str) -> Callable[[Family], Family]:
    def add(family: Family) -> Family:
        FAMILIES[name] = family
        return family

    return add


def differences(family: Family, device: torch.device) -> tuple[int, int]:
    """How many of a family's results are not the CPU's, within what rounding may do, and how many there are."""

    def results(on: torch.device) -> Tensors:
        numbers = torch.Generator().manual_seed(7)

        def make(*shape: int, grad: bool = False) -> torch.Tensor:
            return torch.randn(shape, generator=numbers).to(on).requires_grad_(grad)

        return [result.detach().cpu().double() for result in family(make, on)]

    pairs = list(zip(results(device), results(torch.device("cpu")), strict=True))
    return sum(not torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs), len(pairs)


def _with_gradients(result: torch.Tensor, *inputs: torch.Tensor) -> Tensors:
    return [result, *torch.autograd.grad(result.square().sum(), inputs)]


@_family("elementwise")
def _elementwise(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x, y = make(33, 17, grad=True), make(17)
    gated = F.gelu(x, approximate="tanh") * torch.sigmoid(y) + F.gelu(x) / (1 + y.square())
    return [*_with_gradients(gated, x), torch.where(x > y, x.exp(), y), x.clamp(-1, 1).pow(3), x.abs().log1p()]


@_family("copies and conversions")
def _copies(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x = make(33, 17)
    halves = [x.half().float(), x.bfloat16().float(), (10 * x).long(), x > 0]
    return [x.t().contiguous(), torch.cat([x, x.flip(0)]), x.repeat(2, 3), *halves]


@_family("reductions")
def _reductions(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x = make(70, 300)
    return [x.sum(), x.mean(0), x.amax(1), x.std(), x.var(1), x.argmax(1), (x > 0).any(0), x.norm(dim=1)]


@_family("softmax and losses")
def _softmax(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x, classes = make(33, 17, grad=True), torch.arange(33, device=device) % 17
    loss = F.cross_entropy(x, classes)
    return [
        *_with_gradients(x.softmax(-1), x),
        x.log_softmax(0),
        *_with_gradients(loss, x),
        F.mse_loss(x, make(33, 17)),
    ]


@_family("normalisation")
def _norms(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x, weight, bias = make(4, 8, 6, 6, grad=True), make(8, grad=True), make(8, grad=True)
    rows, scale = make(33, 64, grad=True), make(64, grad=True)
    batch = F.batch_norm(x, torch.zeros_like(weight), torch.ones_like(weight), weight, bias, training=True)
    group = F.group_norm(x, 2, weight, bias)
    layer, root = F.layer_norm(rows, (64,), scale, scale), F.rms_norm(rows, (64,), scale)
    return [
        *_with_gradients(batch, x, weight, bias),
        *_with_gradients(group, x, weight, bias),
        *_with_gradients(layer, rows, scale),
        *_with_gradients(root, rows, scale),
    ]


@_family("matrix products")
def _products(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x, weight, bias = make(64, 96, grad=True), make(128, 96, grad=True), make(128, grad=True)
    batch = make(3, 20, 24) @ make(3, 24, 28)
    return [*_with_gradients(F.linear(x, weight, bias), x, weight, bias), batch, make(64, 96) @ make(96)]


@_family("convolution")
def _convolution(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x, weight, bias = make(2, 4, 12, 12, grad=True), make(8, 4, 3, 3, grad=True), make(8, grad=True)
    depthwise, transposed, line = make(4, 1, 3, 3), make(4, 6, 2, 2), make(6, 4, 3)
    return [
        *_with_gradients(F.conv2d(x, weight, bias, padding=1), x, weight, bias),
        F.conv2d(x, depthwise, groups=4),
        F.conv_transpose2d(x, transposed, stride=2),
        F.conv1d(make(2, 4, 30), line),
    ]


@_family("pooling and resizing")
def _pooling(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x = make(2, 4, 12, 12, grad=True)
    pooled = F.max_pool2d(x, 2) + F.avg_pool2d(x, 2)
    resized = F.interpolate(x, scale_factor=2.0, mode="bilinear")
    return [*_with_gradients(pooled, x), *_with_gradients(resized, x), F.adaptive_avg_pool2d(x, 3), F.pad(x, (1, 2))]


@_family("attention")
def _attention(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    q, k, v = (make(2, 4, 16, 16, grad=True) for _ in range(3))
    return _with_gradients(F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)


@_family("recurrent cells")
def _recurrent(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    results = []
    for cell in (nn.LSTM(8, 12), nn.GRU(8, 12)):
        for parameter in cell.parameters():
            parameter.data = make(*parameter.shape) / 4
        x = make(5, 3, 8, grad=True)
        results += _with_gradients(cell(x)[0], x, *cell.parameters())
    return results


@_family("indexing")
def _indexing(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    rows, places = make(20, 6, grad=True), torch.arange(40, device=device) * 7 % 20
    columns = places[:20].view(20, 1) % 6
    added = torch.zeros(20, 6, device=device).index_add(0, places, make(40, 6))
    scattered = torch.zeros(20, 6, device=device).scatter_add(1, columns, make(20, 6))
    chosen = [rows.gather(1, columns), rows[places, places % 6], rows.masked_fill(rows > 0, 2.0)]
    return [*_with_gradients(F.embedding(places, rows), rows), *chosen, added, scattered]


@_family("sorting and scans")
def _sorting(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x = make(5, 200)
    top = x.topk(7, 1)
    return [*x.sort(1), x.sort(0, descending=True).values, top.values, x.cumsum(1), (x > 0).nonzero(), x.median(1)[0]]


@_family("Fourier transforms")
def _transforms(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x = make(3, 60)
    spectrum = torch.fft.rfft(x)
    return [torch.view_as_real(spectrum), torch.fft.irfft(spectrum, 60), torch.view_as_real(torch.fft.fft(x, 64))]


@_family("linear algebra")
def _linear_algebra(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    x = make(6, 6)
    positive = x @ x.t() + 6 * torch.eye(6, device=device)
    return [torch.linalg.cholesky(positive), torch.linalg.inv(positive), torch.linalg.eigvalsh(positive)]


@_family("optimisers")
def _optimisers(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    parameters = [nn.Parameter(make(7, 5)), nn.Parameter(make(11))]
    for optimiser in (
        torch.optim.SGD(parameters, 0.1, momentum=0.9),
        torch.optim.AdamW(parameters, 0.1),
        torch.optim.AdamW(parameters, 0.1, fused=True),
    ):
        for parameter in parameters:
            parameter.grad = make(*parameter.shape)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
    return [parameter.data for parameter in parameters]


@_family("random numbers")
def _random(make: Callable[..., torch.Tensor], device: torch.device) -> Tensors:
    """Other ones on each device: whether they are such as were asked for."""
    uniform, normal = torch.rand(20_000, device=device), torch.randn(20_000, device=device)
    kept = F.dropout(torch.ones(20_000, device=device), 0.25)
    order = torch.randperm(1000, device=device).sort().values
    die = torch.randint(6, (20_000,), device=device)
    return [
        ((uniform >= 0) & (uniform < 1)).all() & ((uniform.mean() - 0.5).abs() < 0.05),
        (normal.mean().abs() < 0.05) & ((normal.std() - 1).abs() < 0.05),
        ((kept > 0).float().mean() - 0.75).abs() < 0.05,
        (order == torch.arange(1000, device=device)).all(),
        torch.bincount(die, minlength=6) > 3000,
    ]
