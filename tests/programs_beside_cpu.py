"""Programs of many kinds that run on a device and on the CPU, and compare: results and gradients.

tests/test_refused_kernels.py runs them where a device's compiler refuses kernels, or there is none.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor


def close(name: str, actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=2e-4, atol=2e-5, msg=lambda text: f"{name}: {text}"
    )


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def compare(device: str, name: str, here: nn.Module, *inputs: Tensor, compiled: bool = False, steps: int = 1) -> None:
    """Results and gradients of a module."""
    there = copy.deepcopy(here).to(device)
    called = torch.compile(there) if compiled else there
    for _ in range(steps):
        own = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        sent = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
        actual, expected = (y if isinstance(y, Tensor) else y[0] for y in (called(*sent), here(*own)))
        close(name, actual, expected)
        actual.square().sum().backward()
        expected.square().sum().backward()
        for p, q in zip([*there.parameters(), *sent], [*here.parameters(), *own], strict=True):
            if q.grad is not None:
                assert p.grad is not None, name
                close(f"{name}, gradient", p.grad, q.grad)


def modules(device: str) -> None:
    """Layers, losses, linear algebra, copies."""
    check = partial(compare, device)
    x, image, long = torch.randn(4, 6), torch.randn(2, 4, 8, 8), torch.tensor([1, 0, 3, 2])
    check("linear", nn.Linear(6, 5), x)
    convolutions: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    for dims, convolution in enumerate(convolutions, 1):
        check(f"convolution {dims}d", convolution(2, 3, 3, padding=1), torch.randn(2, 2, *[5] * dims))
    check("depthwise convolution", nn.Conv2d(4, 4, 3, groups=4), image)
    check("transposed convolution", nn.ConvTranspose2d(4, 3, 3, 2), image)
    of_images = [
        *(nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 8, 8]), nn.RMSNorm(8)),
        *(nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(3), nn.LPPool2d(2, 2)),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelShuffle(2), nn.ReflectionPad2d(2)),
    ]
    for layer in of_images:
        check(type(layer).__name__, layer, image)
    of_rows = [
        *(nn.ReLU(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.Mish(), nn.PReLU(), nn.GLU()),
        *(nn.LogSoftmax(-1), nn.Softmax(1), nn.LayerNorm(6), nn.RNNCell(6, 5), nn.LSTMCell(6, 5), nn.GRUCell(6, 5)),
    ]
    for layer in of_rows:
        check(type(layer).__name__, layer, x)
    for network in (
        nn.RNN(6, 5),
        nn.RNN(6, 5, nonlinearity="relu"),
        nn.LSTM(6, 5, 2, bidirectional=True),
        nn.GRU(6, 5),
    ):
        check(type(network).__name__, network, torch.randn(3, 2, 6))
    causal = partial(F.scaled_dot_product_attention, is_causal=True)
    check("attention", Function(causal), *(torch.randn(2, 3, 5, 8) for _ in range(3)))
    check("embedding", nn.Embedding(5, 4), long)
    check("embedding bag", nn.EmbeddingBag(5, 4), long.view(2, 2))
    losses(check, x, long)
    algebra(check, x, long)
    for shape in ((2, 2), (3, 4), (1, 4, 2), (1, 1, 4, 4)):  # which one plan serves
        y = torch.randn(shape)
        close("square", y.to(device).pow(2), y.pow(2))
    there = x.to(device)
    for name, actual, expected in (
        ("strided copy", there.t().contiguous(), x.t().contiguous()),
        ("conversion", there.t().bfloat16().float(), x.t().bfloat16().float()),
        ("conjugate", torch.complex(there, there).conj().t().clone().imag, torch.complex(x, x).conj().t().clone().imag),
        ("histogram", torch.histc(there, 5, -1, 1), torch.histc(x, 5, -1, 1)),
        ("bincount", torch.bincount(long.to(device)), torch.bincount(long)),
    ):
        close(name, actual, expected)


def losses(check: Callable[..., None], x: Tensor, long: Tensor) -> None:
    def of_classes(loss: nn.Module) -> nn.Module:
        return Function(lambda y: loss(y, long.to(y.device)))

    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), nn.NLLLoss()):
        check(type(loss).__name__, of_classes(loss), x.log_softmax(-1))
    for loss in (nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss()):
        check(type(loss).__name__, loss, x, x.flip(0).sigmoid())
    check("divergence", nn.KLDivLoss(reduction="batchmean"), x.log_softmax(-1), x.flip(0).softmax(-1))
    labels, times, lengths = torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([7, 6]), torch.tensor([3, 2])
    ctc = Function(lambda y: F.ctc_loss(y.log_softmax(-1), labels.to(y.device), times, lengths))
    check("ctc", ctc, torch.randn(7, 2, 4))


def algebra(check: Callable[..., None], x: Tensor, long: Tensor) -> None:
    square = torch.randn(5, 5)
    definite = square @ square.T + 5 * torch.eye(5)

    def scattered(y: Tensor) -> Tensor:
        places = long.to(y.device)
        return y.index_select(0, places).scatter_add(0, places[:, None].expand(4, 6), y)

    check("eigenvalues", Function(torch.linalg.eigvalsh), definite)
    check("singular values", Function(torch.linalg.svdvals), square)
    check("solve", Function(lambda a, b: torch.linalg.solve(torch.linalg.cholesky(a), b)), definite, square)
    check("sort, cumsum", Function(lambda y: y.sort(-1).values.cumsum(-1)), x)
    check("scatter", Function(scattered), x)
    check("transform", Function(lambda y: torch.fft.rfft(y).abs()), x)


def optimizers(device: str) -> None:
    """Two steps of each."""
    kinds = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]
    for kind, foreach in itertools.product([*kinds, torch.optim.NAdam, torch.optim.Adadelta], (True, False)):
        here = nn.Linear(3, 2)
        there = copy.deepcopy(here).to(device)
        x = torch.randn(5, 3)
        for model, given in ((here, x), (there, x.to(device))):
            optimizer = kind(model.parameters(), lr=0.01, foreach=foreach)  # type: ignore[call-arg]
            for _ in range(2):
                optimizer.zero_grad()
                model(given).square().sum().backward()
                optimizer.step()
        for p, q in zip(there.parameters(), here.parameters(), strict=True):
            close(kind.__name__, p, q)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


def transformer(device: str) -> None:
    """Two training steps' gradients."""
    compare(device, "transformer", encoder(), torch.randn(2, 5, 16), steps=2)


class Network(nn.Module):
    """With buffers that are read, and one that is written."""

    table: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.register_buffer("table", torch.randn(5, 40))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.shape[0]
        y = F.max_pool2d(F.gelu(self.norm(self.a(x))), 2).mean((2, 3))
        return self.b(y).log_softmax(-1) @ self.table + torch.arange(40, device=x.device) * 0.1


def compiled(device: str) -> None:
    """Programs of torch.compile: training, sizes that change, random numbers, control flow, what is written."""
    compare(device, "transformer", encoder(), torch.randn(2, 5, 16), compiled=True, steps=3)
    compare(device, "network", Network(), torch.randn(2, 3, 10, 10), compiled=True, steps=3)
    compiled_layouts(device)
    compiled_sizes(device)
    compiled_random_numbers(device)
    compiled_functions(device)
    compiled_writes(device)


def compiled_layouts(device: str) -> None:
    """Arguments and results that are not contiguous, views of either, constants."""
    steps = torch.tensor([1.0, -2.0, 0.5])
    check = partial(compare, device, compiled=True)
    check("columns", Function(lambda x, w: (x[:, ::2] * w).sin()), torch.randn(6, 6), torch.randn(3))
    check("first rows", Function(lambda x, w: F.linear(x[:, 0], w).tanh()), torch.randn(3, 4, 6), torch.randn(5, 6))
    check("a view of a result", Function(lambda x: x.sin()[:, 1:]), torch.randn(5, 6))
    check("transposed", Function(lambda x, w: (x.t() @ w).cos().t()), torch.randn(5, 6), torch.randn(5, 4))
    check("constant", Function(lambda x: x.sin() + steps.to(x.device)), torch.randn(4, 3))
    own = Function(lambda x: x.sin() + torch.tensor([1.0, 2.0, 3.0], device=x.device))
    check("constant of the device", own, torch.randn(4, 3))
    x, w = torch.randn(8, 8), torch.randn(4)
    for name, view in (("strided", lambda t: t[:, ::2]), ("transposed", lambda t: t[:4].t())):
        here, there = (view(t).detach().requires_grad_() for t in (x, x.to(device)))
        (here * w).sin().sum().backward()
        torch.compile(lambda a, b: (a * b).sin())(there, w.to(device).requires_grad_()).sum().backward()
        assert here.grad is not None
        assert there.grad is not None
        close(f"{name} argument", there.grad, here.grad)


def compiled_sizes(device: str) -> None:
    def between(x: Tensor) -> Tensor:
        y = (x * 2).sin()
        torch._dynamo.graph_break()
        return y.sum(0) * y.shape[0] + y.amax(0)

    called = torch.compile(between, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 7)
        close("sizes that change", called(x.to(device)), between(x))


def compiled_random_numbers(device: str) -> None:
    """The gradient drops what the result has dropped."""
    x = torch.ones(1000, device=device, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x * 3, 0.4))(x)
    y.sum().backward()
    assert x.grad is not None
    assert 450 < (y != 0).sum().item() < 750
    close("dropout", x.grad, y.cpu())
    normal = torch.compile(lambda: torch.randn(20000, device=device))()
    assert abs(normal.mean().item()) < 0.05
    assert abs(normal.std().item() - 1) < 0.05
    whole = torch.compile(lambda: torch.randint(3, 9, (5000,), device=device))()
    assert whole.unique().tolist() == [3, 4, 5, 6, 7, 8]


def compiled_functions(device: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def branch(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + 0.1 * (i - j))

    for x in (torch.rand(6), -torch.rand(6)):
        close("branch", torch.compile(branch)(x.to(device)), branch(x))
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    close("attention", torch.compile(attention)(*(t.to(device) for t in (q, k, v))), attention(q, k, v))


def compiled_writes(device: str) -> None:
    """What a program writes to is written once."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(y.tanh())
        return x.sum()

    called = torch.compile(step)
    a, b = torch.randn(9), torch.randn(9)
    there = a.to(device)
    for _ in range(3):
        close("sum", called(there, b.to(device)), step(a, b))
        close("written", there, a)
