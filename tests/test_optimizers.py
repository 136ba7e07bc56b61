"""Steps of optimizers, ops on lists of tensors, scaling of gradients: against torch on the CPU in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import torchgraft.plans

pytestmark = pytest.mark.no_fallback

SHAPES = [
    (3, 4),
    (5,),
    (64, 32),
    (100, 100),
    (7,),
    (1,),
    (),
    (2, 3, 4),
    (300,),
    (0,),
    (8, 1, 3),
    (33, 65),
    (9,),
    (10,),
    (11,),
    (12,),
    (13,),
    (14,),
]


def tensors(seed: int, dtype: torch.dtype = torch.float64, shapes: Any = SHAPES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def steps(kind: Any, device: str, dtype: torch.dtype, **options: Any) -> list[torch.Tensor]:
    params = [torch.nn.Parameter(t.to(device)) for t in tensors(0, dtype)]
    if isinstance(options.get("lr"), torch.Tensor):
        options["lr"] = options["lr"].to(device)
    optimizer = kind(params, **options)
    for step in range(4):
        for p, g in zip(params, tensors(step + 1, dtype), strict=True):
            p.grad = g.to(device)
        optimizer.step()
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] *= 0.9
    return [p.detach().cpu() for p in params]


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.01}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
]


@pytest.mark.parametrize("how", [{}, {"foreach": False}, {"fused": True}], ids=["foreach", "single", "fused"])
@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
@pytest.mark.quick(form="cpu", how=[{}, {"fused": True}])
@pytest.mark.quick(form="gpu", kind=torch.optim.AdamW, how={})
def test_optimizers(device: str, form: str, kind: Any, options: dict[str, Any], how: dict[str, bool]) -> None:
    if kind is torch.optim.RMSprop and "fused" in how:
        pytest.skip("torch has no fused RMSprop")
    expected = steps(kind, "cpu", torch.float64, **options, foreach=False)
    torch.testing.assert_close(steps(kind, device, torch.float64, **options, **how), expected, rtol=1e-11, atol=1e-12)
    single = steps(kind, device, torch.float32, **options, **how)
    torch.testing.assert_close([t.double() for t in single], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_learning_rate_as_tensor(device: str, kind: Any) -> None:
    expected = steps(kind, "cpu", torch.float64, lr=0.01, foreach=False) if kind is not torch.optim.SGD else None
    options: dict[str, Any] = {"lr": torch.tensor(0.01, dtype=torch.float64), "fused": True}
    got = steps(kind, device, torch.float64, **options)
    expected = steps(kind, "cpu", torch.float64, **options)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


def test_low_precision(device: str) -> None:
    for dtype, tolerance in ((torch.bfloat16, 0.03), (torch.float16, 4e-3)):
        expected = steps(torch.optim.AdamW, "cpu", torch.float64, lr=0.01)
        got = steps(torch.optim.AdamW, device, dtype, lr=0.01, fused=True)
        torch.testing.assert_close([t.double() for t in got], expected, rtol=tolerance, atol=tolerance)


def test_a_changing_rate_needs_no_new_plan(device: str) -> None:
    params = [torch.nn.Parameter(t.to(device)) for t in tensors(0, torch.float32)]
    for options in ({"fused": True}, {}):
        optimizer = torch.optim.AdamW(params, lr=0.1, **options)
        misses = []
        for step in range(6):
            for p, g in zip(params, tensors(step, torch.float32), strict=True):
                p.grad = g.to(device)
            before = torchgraft.plans.stats().misses
            optimizer.step()
            misses.append(torchgraft.plans.stats().misses - before)
            optimizer.param_groups[0]["lr"] *= 0.7
        assert misses[3:] == [0, 0, 0]


def test_parameters_of_other_layouts(device: str) -> None:
    """Strides that are dense, and strides that are not, in parameters, gradients and state."""
    base = torch.randn(6, 8, dtype=torch.float64)
    grad = torch.randn(6, 8, dtype=torch.float64)
    for fused in (False, True):
        results = []
        for where in ("cpu", device):
            params = [
                torch.nn.Parameter(base.to(where, copy=True).t()),
                torch.nn.Parameter(base.to(where, copy=True)[:, ::2]),
                torch.nn.Parameter(base.to(where, copy=True).clone()),
            ]
            # Not torch's fused kernel for the CPU: it takes gradients to have the parameters' strides.
            options = {"foreach": False} if where == "cpu" else {"fused": fused}
            optimizer = torch.optim.Adam(params, lr=0.1, **options)
            for _ in range(2):
                params[0].grad = grad.to(where).t().contiguous()
                params[1].grad = grad.to(where)[:, ::2]
                params[2].grad = grad.to(where).t().contiguous().t()
                optimizer.step()
            results.append([p.detach().cpu() for p in params])
        torch.testing.assert_close(results[1], results[0], rtol=1e-11, atol=1e-12)


UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()


def compare(name: str, device: str, *args: Any, tolerance: float = 1e-12) -> None:
    """The functional and the in-place form against the CPU."""

    def moved(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(where, copy=True)
        return [moved(v, where) for v in value] if isinstance(value, list) else value

    function = getattr(torch, f"_foreach_{name}")
    expected = function(*args)
    torch.testing.assert_close(
        moved(list(function(*moved(list(args), device))), "cpu"),
        list(expected),
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
    )
    inplace = getattr(torch, f"_foreach_{name}_", None)
    if (
        inplace is not None
        and isinstance(args[0], list)
        and all(e.dtype == a.dtype for e, a in zip(expected, args[0], strict=True))
    ):
        own = moved(list(args), device)
        inplace(*own)
        torch.testing.assert_close(moved(own[0], "cpu"), list(expected), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_unary_lists(device: str, name: str) -> None:
    compare(name, device, [t.abs() * 0.9 % 1 for t in tensors(1)])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow"])
@pytest.mark.quick(form="cpu")
@pytest.mark.quick(form="gpu", name="div")
def test_binary_lists(device: str, form: str, name: str) -> None:
    a, b = [t.abs() + 0.5 for t in tensors(1)], tensors(2)
    compare(name, device, a, b)
    compare(name, device, a, 0.7)
    compare(name, device, a, 2)
    compare(name, device, a, [0.1 * i for i in range(len(a))])
    if name in ("add", "mul", "div"):
        compare(name, device, a, torch.tensor(1.7, dtype=torch.float64))


def test_ternary_lists(device: str, form: str) -> None:
    a, b, c = tensors(1), tensors(2), [t.abs() + 1 for t in tensors(3)]
    for name in ("addcmul", "addcdiv"):
        compare(name, device, a, b, c, 0.3)
        compare(name, device, a, b, c, [0.1 * i for i in range(len(a))])
    compare("lerp", device, a, b, 0.3)
    compare("lerp", device, a, b, 0.8)
    compare("lerp", device, a, b, c)
    got = torch._foreach_add([t.to(device) for t in a], [t.to(device) for t in b], alpha=2)
    torch.testing.assert_close([t.cpu() for t in got], list(torch._foreach_add(a, b, alpha=2)))


def test_lists_of_mixed_types_and_layouts(device: str) -> None:
    base = torch.randn(8, 6, dtype=torch.float64)
    mixed = [
        base.float(),
        base,
        base.t(),
        base[:, ::2],
        base.half(),
        (base * 9).long(),
        torch.ones(3, dtype=torch.int32),
        base > 0,
    ]
    moved = [t.to(device) for t in mixed]
    for name, other in (("add", 2), ("mul", 1.5), ("add", moved)):
        function = getattr(torch, f"_foreach_{name}")
        expected = function(mixed, mixed if other is moved else other)
        got = function(moved, other)
        assert [t.dtype for t in got] == [t.dtype for t in expected]
        torch.testing.assert_close([t.cpu() for t in got], list(expected), rtol=2e-3, atol=1e-3)
    torch._foreach_zero_(moved)
    assert all((t.cpu() == 0).all() for t in moved)
    assert (torch.ocl.current_device()) == 0  # type: ignore[attr-defined]


@pytest.mark.quick(form="cpu")
@pytest.mark.parametrize("order", [1, 2, math.inf, 3])
def test_norms(device: str, form: str, order: float) -> None:
    xs = [t for t in tensors(4, shapes=[*SHAPES, (70_001,), (513, 129)]) if t.numel()]
    torch.testing.assert_close(
        [t.cpu() for t in torch._foreach_norm([x.to(device) for x in xs], order)], list(torch._foreach_norm(xs, order))
    )
    xs = [x.float() for x in xs]
    expected = torch._foreach_norm([x.double() for x in xs], order)
    got = [t.cpu().double() for t in torch._foreach_norm([x.to(device) for x in xs], order)]
    torch.testing.assert_close(got, list(expected), rtol=1e-6, atol=1e-6)


def test_clipping(device: str) -> None:
    def clipped(where: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        params = [torch.nn.Parameter(t.to(where)) for t in tensors(0)]
        for p, g in zip(params, tensors(1), strict=True):
            p.grad = g.to(where)
        norm = torch.nn.utils.clip_grad_norm_(params, 3.0)
        torch.nn.utils.clip_grad_value_(params, 0.02)
        return norm.cpu(), [p.grad.cpu() for p in params if p.grad is not None]

    torch.testing.assert_close(clipped(device), clipped("cpu"))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scaling(device: str, kind: Any, fused: bool) -> None:
    """As on the CPU, over steps with and without an infinity; the scale grows and shrinks alike."""

    def run(where: str) -> tuple[list[torch.Tensor], list[float]]:
        params = [torch.nn.Parameter(t.to(where)) for t in tensors(0, torch.float32)]
        optimizer = kind(params, lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler(where, init_scale=1024.0, growth_interval=2)
        scales = []
        for step in range(6):
            for p, g in zip(params, tensors(step, torch.float32), strict=True):
                p.grad = (g * scaler.get_scale()).to(where)
            if step == 3:
                params[3].grad[5, 5] = math.inf  # type: ignore[index]
            scaler.scale(torch.ones((), device=where))
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [p.detach().cpu() for p in params], scales

    got, expected = run(device), run("cpu")
    assert got[1] == expected[1]
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)


def test_fractions_among_lists_of_integers(device: str) -> None:
    """As with single tensors: cut off where they are no operand, else the result is fractional."""
    xs = [torch.randint(-9, 10, (5,)) for _ in range(3)]
    ys = [x.to(device) for x in xs]
    for value in (2.5, [2.5, -1.5, 3]):
        got, expected = torch._foreach_addcmul(ys, ys, ys, value), torch._foreach_addcmul(xs, xs, xs, value)
        assert all(torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in zip(got, expected, strict=True))
    got, expected = torch._foreach_mul(ys, 2.5), torch._foreach_mul(xs, 2.5)
    assert all(torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in zip(got, expected, strict=True))
