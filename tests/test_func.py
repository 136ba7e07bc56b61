"""torch.func and forward mode: transforms of functions that run on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.testing import assert_close


@pytest.fixture(autouse=True)
def _forbidden(device: str, request: pytest.FixtureRequest) -> None:
    """Native all the way, where the device has kernels."""
    if device != "npy":
        request.getfixturevalue("no_fallback")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def on(device: str, value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, value)


def compare(function: Callable[..., Any], device: str, *args: Any) -> None:
    """Function of tensors, on the device and on the CPU."""
    there = function(*on(device, args))
    for tensor in torch.utils._pytree.tree_leaves(there):
        assert tensor.device.type == torch.device(device).type
    assert_close(on("cpu", there), function(*args), rtol=1e-4, atol=1e-4)


def curve(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * x.exp() + F.softplus(x) ** 2).sum()


class TestDerivatives:
    def test_grad(self, device: str) -> None:
        compare(grad(curve), device, torch.randn(5))
        compare(grad(grad(lambda x: x.sin() * x**2)), device, torch.randn(()))
        compare(grad_and_value(curve), device, torch.randn(5))

    def test_jacobians(self, device: str) -> None:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ w, -1)

        x, w = torch.randn(3, 4), torch.randn(4, 2)
        compare(jacrev(function, (0, 1)), device, x, w)
        compare(jacfwd(function, (0, 1)), device, x, w)

    def test_hessian(self, device: str) -> None:
        compare(hessian(curve), device, torch.randn(4))
        compare(jacrev(jacrev(curve)), device, torch.randn(4))

    def test_products(self, device: str) -> None:
        x, v = torch.randn(5), torch.randn(5)
        compare(lambda x, v: jvp(lambda x: x.cumsum(0).sigmoid(), (x,), (v,)), device, x, v)
        compare(lambda x, v: vjp(lambda x: x.cumsum(0).sigmoid(), x)[1](v), device, x, v)
        compare(lambda x, v: linearize(curve, x)[1](v), device, x, v)

    def test_forward_mode(self, device: str) -> None:
        def function(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x, v)
                return forward_ad.unpack_dual(F.gelu(dual) @ dual.t()).tangent

        compare(function, device, torch.randn(3, 4), torch.randn(3, 4))

    def test_forward_over_reverse(self, device: str) -> None:
        compare(lambda x, v: jvp(grad(curve), (x,), (v,))[1], device, torch.randn(4), torch.randn(4))

    def test_functionalize(self, device: str) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[1:].add_(2)
            return y.mul_(x)

        compare(functionalize(function), device, torch.randn(4))


class TestModules:
    def test_functional_call(self, device: str) -> None:
        net = model()
        parameters = {name: torch.randn_like(p) for name, p in net.named_parameters()}
        x = torch.randn(5, 4)
        expected = functional_call(net, parameters, (x,))
        assert_close(functional_call(net.to(device), on(device, parameters), (x.to(device),)).cpu(), expected)

    def test_gradients_of_each_sample(self, device: str) -> None:
        net = model()
        parameters = {name: p.detach() for name, p in net.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(functional_call(net, parameters, (x.unsqueeze(0),)), target.unsqueeze(0))

        x, target = torch.randn(6, 4), torch.randint(3, (6,))
        compare(vmap(grad(loss), (None, 0, 0)), device, parameters, x, target)

    def test_an_ensemble(self, device: str) -> None:
        nets = [model() for _ in range(3)]
        x = torch.randn(5, 4)
        expected = torch.stack([net(x) for net in nets])
        parameters, buffers = stack_module_state([net.to(device) for net in nets])
        skeleton = model().to("meta")
        run = vmap(lambda p, b, x: functional_call(skeleton, (p, b), (x,)), (0, 0, None))
        assert_close(run(parameters, buffers, x.to(device)).cpu(), expected)

    def test_convolutions_and_pooling(self, device: str) -> None:
        def function(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return F.max_pool2d(F.conv2d(x, w, padding=1), 2).pow(2).sum()

        w, x = torch.randn(4, 3, 3, 3), torch.randn(2, 3, 8, 8)
        compare(grad(function), device, w, x)
        compare(vmap(grad(function), (None, 0)), device, w, x.unsqueeze(1))

    def test_attention(self, device: str) -> None:
        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin().sum()

        q, k, v = torch.randn(3, 5, 2, 8, 4).unbind(0)
        compare(grad(function, (0, 1, 2)), device, q, k, v)
        compare(vmap(grad(function, (0, 1, 2))), device, q, k, v)
        compare(vmap(grad(function, (0, 1, 2)), (None, 1, 0)), device, q, k.unsqueeze(1), v.unsqueeze(0))

    @pytest.mark.parametrize("shape", [(8, 8), (2, 1, 8, 8), (1, 3, 1, 8)])
    @pytest.mark.parametrize("batched", [False, True])
    def test_attention_with_a_bias(self, device: str, shape: tuple[int, ...], batched: bool) -> None:
        def function(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, k, bias, scale=0.3).sin().sum()

        q, k = torch.randn(2, 5, 2, 3, 8, 4).unbind(0)
        bias = torch.randn(*[5] * batched, *shape)
        compare(vmap(grad(function, (0, 1, 2)), (0, 0, 0 if batched else None)), device, q, k, bias)

    def test_embedding_and_indexing(self, device: str) -> None:
        def function(w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return (F.embedding(index, w) * w[index]).sum()

        compare(vmap(grad(function), (None, 0)), device, torch.randn(7, 3), torch.randint(7, (4, 5)))


class TestBatches:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x.sum(0),
            lambda x: x.sort(0)[0],
            lambda x: x.t() @ x,
            lambda x: x.max(1),
            lambda x: torch.cat([x, x * 2], 1),
            lambda x: x[:, torch.tensor([1, 0], device=x.device)],
            lambda x: torch.where(x > 0, x, 0.0),
            lambda x: F.layer_norm(x, (4,)),
            lambda x: x.cumsum(1),
            lambda x: torch.linalg.vector_norm(x, dim=1),
            lambda x: x.clone().index_add_(0, torch.tensor([0, 2], device=x.device), x[:2]),
        ],
        ids="sum sort matmul max cat index where norm cumsum vector_norm index_add".split(),
    )
    def test_vmap(self, device: str, function: Callable[[torch.Tensor], Any]) -> None:
        compare(vmap(function), device, torch.randn(5, 3, 4))
        compare(vmap(function, in_dims=1), device, torch.randn(3, 5, 4))
        compare(vmap(vmap(function)), device, torch.randn(2, 5, 3, 4))
        compare(vmap(function, chunk_size=2), device, torch.randn(5, 3, 4))

    def test_a_batch_of_views(self, device: str) -> None:
        compare(vmap(lambda x: x.transpose(0, 1)[1:] + 1, out_dims=1), device, torch.randn(5, 3, 4))

    def test_what_depends_on_data_is_refused(self, device: str) -> None:
        with pytest.raises(RuntimeError, match=r"vmap: .*(item|data-dependent control flow)"):
            vmap(lambda x: x if x.sum().item() > 0 else -x)(torch.randn(3, 2, device=device))

    def test_random_numbers(self, device: str) -> None:
        x = torch.zeros(6, 1000, device=device)

        def noisy(x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

        with pytest.raises(RuntimeError, match="vmap: called random operation while in randomness error mode"):
            vmap(noisy)(x)
        same = vmap(noisy, randomness="same")(x)
        assert (same == same[0]).all()
        different = vmap(noisy, randomness="different")(x)
        assert different.unique().numel() > 5000
        for result in (same, different):
            assert abs(result.mean().item() - 0.5) < 0.05

    @pytest.mark.parametrize("mode", ["same", "different"])
    @pytest.mark.parametrize(
        "draw",
        [
            torch.randn_like,
            lambda x: torch.randint_like(x, 9),
            lambda x: torch.bernoulli(torch.full((100,), 0.5, device=x.device)),
            lambda x: F.dropout(torch.ones_like(x)),
            lambda x: torch.randperm(100, device=x.device).float(),
            lambda x: torch.empty_like(x).exponential_(),
        ],
        ids="randn randint bernoulli dropout randperm exponential".split(),
    )
    def test_randomness_of(self, device: str, draw: Callable[[torch.Tensor], torch.Tensor], mode: str) -> None:
        drawn = vmap(draw, randomness=mode)(torch.zeros(4, 100, device=device))
        if drawn.dim() == 1:  # made without the batch: equal for all
            drawn = drawn.expand(4, -1)
        assert drawn.device.type == torch.device(device).type
        if mode == "same":
            assert (drawn == drawn[0]).all()
        else:
            assert not (drawn == drawn[0]).all()

    def test_seeds_repeat(self, device: str) -> None:
        run = vmap(lambda x: F.dropout(x, 0.5), randomness="different")
        x = torch.ones(4, 50, device=device)
        torch.manual_seed(5)
        first = run(x)
        torch.manual_seed(5)
        assert torch.equal(run(x), first)
