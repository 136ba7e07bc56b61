"""Nested tensors of both layouts do on the device what they do on the CPU; most of it by the device's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from conftest import Script
from torch import nn
from torch.testing import assert_close

import torchgraft

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
]

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _silent(device: str) -> Iterator[None]:
    if device == "npy":
        pytest.skip("every op falls back there")
    with torchgraft.fallback("silent"):
        yield


@pytest.fixture
def parts() -> list[torch.Tensor]:
    return [torch.randn(3, 8), torch.randn(5, 8)]


def nested(parts: list[torch.Tensor], device: str, layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor(parts, device=device, layout=layout, requires_grad=parts[0].is_floating_point())


def dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [part.detach().cpu() for part in tensor.unbind()] if tensor.is_nested else [tensor.detach().cpu()]


def gradient(function: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The function's result, and a gradient of it where there is one."""
    x = x.detach().requires_grad_()
    y = function(x)
    if y.requires_grad:
        (y.values() if y.is_nested else y).pow(2).sum().backward()
    return y, y if x.grad is None else x.grad


def attend(x: torch.Tensor) -> torch.Tensor:
    """Two heads of self-attention over a batch of sequences."""
    if x.layout == torch.jagged:
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
    else:
        q = x.reshape(2, -1, 2, 4).transpose(1, 2).contiguous()
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).contiguous()


ON_THE_DEVICE: dict[str, Function] = {
    "arithmetic": lambda x: (x * 2 + x) / 3 - x * x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softmax": lambda x: x.softmax(-1),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.5),
    "from padded": lambda x: torch._nested_from_padded(
        torch.nested.to_padded_tensor(x.detach(), 0.0), torch.tensor([[3, 8], [5, 8]])
    ),
    "matrix product": lambda x: x @ x.transpose(1, 2),
    "part": lambda x: x[1],
    "heads": lambda x: x.view(2, -1, 2, 4).transpose(1, 2).contiguous(),
    "in place": lambda x: x.clone().mul_(3).relu_(),
    "half": lambda x: x.to(torch.float16).to(torch.float32),
    "copy": lambda x: torch.zeros_like(x).copy_(x),
    "attention": attend,
}
ON_THE_CPU: dict[str, Function] = {
    "sum": lambda x: x.sum(-1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, [8], torch.ones(8, device=x.device), torch.ones(8, device=x.device)),
    "mask": lambda x: torch._nested_tensor_from_mask(
        torch.nested.to_padded_tensor(x.detach(), 0.0),
        torch.tensor([[True] * 3 + [False] * 2, [True] * 5], device=x.device),
    ),
}


class TestStrided:
    @pytest.mark.parametrize("name", [*ON_THE_DEVICE, *ON_THE_CPU])
    def test_as_on_the_cpu(self, device: str, parts: list[torch.Tensor], name: str) -> None:
        function = {**ON_THE_DEVICE, **ON_THE_CPU}[name]
        expected = gradient(function, nested(parts, "cpu"))
        torchgraft.reset_fallback_report()
        for mine, theirs in zip(gradient(function, nested(parts, device)), expected, strict=True):
            assert mine.device.type == torch.device(device).type and mine.is_nested == theirs.is_nested
            for part, by in zip(dense(mine), dense(theirs), strict=True):
                assert_close(part, by, rtol=1e-4, atol=1e-5)
        assert (len(torchgraft.fallback_report()) > 0) == (name in ON_THE_CPU)

    def test_made_moved_and_printed(self, device: str, parts: list[torch.Tensor]) -> None:
        made = torch.nested.nested_tensor(parts, device=device)
        moved = torch.nested.nested_tensor(parts).to(device)
        for x in (made, moved, torch.nested.as_nested_tensor([part.to(device) for part in parts])):
            assert x.is_nested and x.device.type == torch.device(device).type and x.layout == torch.strided
            for part, by in zip(dense(x), parts, strict=True):
                assert torch.equal(part, by)
        assert torch.equal(made.cpu().unbind()[1], parts[1])
        assert repr(made).startswith("nested_tensor([\n") and f"device='{made.device}'" in repr(made)

    def test_what_the_cpu_has_not_either(self, device: str, parts: list[torch.Tensor]) -> None:
        for place in ("cpu", device):
            with pytest.raises(NotImplementedError, match="aten::exp"):
                nested(parts, place).exp()

    def test_an_encoder(self, device: str, parts: list[torch.Tensor]) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        with torch.no_grad():
            expected = layer(nested(parts, "cpu"))
            result = layer.to(device)(nested(parts, device))
        for part, by in zip(dense(result), dense(expected), strict=True):
            assert_close(part, by, rtol=1e-4, atol=1e-5)

    def test_memory_that_the_host_cannot_read(self, script: Script) -> None:
        """There a nested tensor goes to the CPU and back by its buffer."""
        script("""
            import torch, torchgraft
            from numpy_driver import NumpyDriver

            torchgraft.register("npy", [NumpyDriver()])
            torchgraft.fallback.set_mode("silent")
            parts = [torch.randn(3, 8), torch.randn(5, 8)]
            x, y = (torch.nested.nested_tensor(parts, device=place) for place in ("npy", "cpu"))
            for work in (lambda x: x.sum(-1, keepdim=True), lambda x: x.clone().mul_(2), lambda x: x.softmax(-1)):
                for part, by in zip(work(x).unbind(), work(y).unbind(), strict=True):
                    assert part.device.type == "npy"
                    torch.testing.assert_close(part.cpu(), by)
        """)


@pytest.mark.no_fallback
class TestJagged:
    def test_attention(self, device: str, parts: list[torch.Tensor]) -> None:
        expected = gradient(attend, nested(parts, "cpu", torch.jagged))
        result = gradient(attend, nested(parts, device, torch.jagged))
        for mine, theirs in zip(result, expected, strict=True):
            assert mine.layout == torch.jagged and mine.device.type == torch.device(device).type
            for part, by in zip(dense(mine), dense(theirs), strict=True):
                assert_close(part, by, rtol=1e-4, atol=1e-5)
