"""A fixed list of ops by the kernels of GPUs, compiled by rusticl for the CPU: another front end, by SPIR-V.

Each result is right, by a kernel or by the CPU. `make test-distribution` runs this where rusticl shows llvmpipe.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from torchgraft.plans.device import kernel_form

Call = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def device() -> str:
    properties = torch.ocl.get_device_properties(0)
    if properties.platform != "rusticl":
        pytest.skip("needs rusticl, as RUSTICL_ENABLE=llvmpipe with its .icd file alone in OCL_ICD_VENDORS")
    assert kernel_form(0) == "gpu"
    return "ocl"


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-50, 50, shape)


# A name, what is called, and its arguments.
CALLS: list[tuple[str, Call, Callable[[], tuple[torch.Tensor, ...]]]] = [
    ("add", torch.add, lambda: (floats(70, 33), floats(33))),
    ("strided mul", torch.mul, lambda: (floats(40, 60).t(), floats(60, 40))),
    ("exp", torch.exp, lambda: (floats(1000),)),
    ("tanh", torch.tanh, lambda: (floats(1000),)),
    ("gelu", F.gelu, lambda: (floats(1000),)),
    ("erf", torch.erf, lambda: (floats(1000),)),
    ("log1p", torch.log1p, lambda: (floats(1000).abs(),)),
    ("pow", torch.pow, lambda: (floats(1000).abs(), floats(1000))),
    ("float64 exp", torch.exp, lambda: (floats(300).double(),)),
    ("integer remainder", torch.remainder, lambda: (integers(500), integers(500).abs() + 1)),
    ("shift", torch.bitwise_left_shift, lambda: (integers(500), integers(500).abs() % 8)),
    ("where", lambda x, y: torch.where(x > 0, x, y), lambda: (floats(300), floats(300))),
    ("bfloat16", lambda x: (x.bfloat16() * 3).float(), lambda: (floats(500),)),
    ("float16", lambda x: (x.half() + 1).float(), lambda: (floats(500),)),
    ("sum", torch.sum, lambda: (floats(90, 70),)),
    ("sum of rows", lambda x: x.sum(1), lambda: (floats(90, 300),)),
    ("sum of columns", lambda x: x.sum(0), lambda: (floats(300, 90),)),
    ("argmax", lambda x: x.argmax(1), lambda: (floats(60, 77),)),
    ("amin of integers", lambda x: x.amin(0), lambda: (integers(60, 77),)),
    ("var", lambda x: x.var(1), lambda: (floats(60, 77),)),
    ("logsumexp", lambda x: x.logsumexp(1), lambda: (floats(60, 77),)),
    ("cumsum", lambda x: x.cumsum(1), lambda: (floats(30, 200),)),
    ("softmax", lambda x: x.softmax(-1), lambda: (floats(40, 130),)),
    ("log_softmax", lambda x: x.log_softmax(0), lambda: (floats(40, 130),)),
    ("layer_norm", lambda x: F.layer_norm(x, (64,)), lambda: (floats(30, 64),)),
    ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), lambda: (floats(4, 5, 8, 8),)),
    ("matmul", torch.matmul, lambda: (floats(70, 50), floats(50, 90))),
    ("matmul of few rows", torch.matmul, lambda: (floats(1, 500), floats(500, 30))),
    ("bmm", torch.bmm, lambda: (floats(3, 20, 30), floats(3, 30, 10))),
    ("linear", F.linear, lambda: (floats(17, 64), floats(32, 64), floats(32))),
    ("conv2d", lambda x, w: F.conv2d(x, w, padding=1), lambda: (floats(2, 3, 12, 12), floats(8, 3, 3, 3))),
    ("max_pool2d", lambda x: F.max_pool2d(x, 2), lambda: (floats(2, 3, 12, 12),)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2), lambda: (floats(2, 3, 13, 13),)),
    ("attention", F.scaled_dot_product_attention, lambda: tuple(floats(2, 2, 20, 16) for _ in range(3))),
    ("index", lambda x, i: x[i % 20], lambda: (floats(20, 7), integers(33))),
    ("gather", lambda x, i: x.gather(1, i % 30), lambda: (floats(20, 30), integers(20, 9))),
    ("embedding", lambda i, w: F.embedding(i % 25, w), lambda: (integers(4, 6), floats(25, 8))),
    ("scatter_add", lambda x, i, y: x.scatter_add(0, i % 9, y), lambda: (floats(9, 5), integers(40, 5), floats(40, 5))),
    ("sort", lambda x: x.sort(1).values, lambda: (floats(6, 200),)),
    ("topk", lambda x: x.topk(5).values, lambda: (floats(6, 200),)),
    ("cat", lambda x, y: torch.cat([x, y], 1), lambda: (floats(6, 20), floats(6, 11))),
    ("pad", lambda x: F.pad(x, (1, 2), value=3.0), lambda: (floats(6, 20),)),
    ("triu", torch.triu, lambda: (floats(30, 20),)),
    ("interpolate", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: (floats(1, 2, 9, 9),)),
    ("cholesky", lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(9).to(x.device)), lambda: (floats(9, 9),)),
    ("rfft", lambda x: torch.fft.rfft(x).abs(), lambda: (floats(5, 60),)),
    ("masked_select", lambda x: x[x > 0.3], lambda: (floats(200),)),
    ("nonzero", lambda x: (x > 20).nonzero(), lambda: (integers(60),)),
]  # fmt: skip
DIFFERENTIABLE = {"gelu", "softmax", "layer_norm", "linear", "conv2d", "attention", "sum of rows", "matmul"}


@pytest.mark.parametrize(("name", "call", "arguments"), CALLS, ids=[name for name, *_ in CALLS])
def test_op(device: str, name: str, call: Call, arguments: Callable[[], tuple[torch.Tensor, ...]]) -> None:
    given = arguments()
    own = [x.to(device) for x in given]
    differentiated = name in DIFFERENTIABLE
    if differentiated:
        for x in (*given, *own):
            x.requires_grad_()
    wanted, got = call(*given), call(*own)
    assert got.device.type == device
    torch.testing.assert_close(got.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-4)
    if differentiated:
        gradient = torch.randn_like(wanted)
        for x, y in zip(
            torch.autograd.grad(wanted, given, gradient),
            torch.autograd.grad(got, own, gradient.to(device)),
            strict=True,
        ):
            torch.testing.assert_close(y.cpu(), x, rtol=1e-4, atol=1e-4)


def test_a_training_step(device: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    copy = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    copy.load_state_dict(model.state_dict())
    copy.to(device)
    x, y = torch.randn(16, 20), torch.randint(4, (16,))
    for module, place in ((model, "cpu"), (copy, device)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(module(x.to(place)), y.to(place)).backward()
            optimizer.step()
    for wanted, got in zip(model.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), wanted.detach(), rtol=1e-3, atol=1e-4)
