"""Automatic mixed precision: PyTorch's lists, regions, weights' cache, gradient scaling, training."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import Script
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils._pytree import tree_leaves, tree_map_only

from torchgraft.plans import versions

LOW = [torch.float16, torch.bfloat16]


@pytest.fixture
def name(device: str) -> str:
    """Of the device's type, as torch.autocast wants it."""
    return torch.device(device).type


# ---- the lists ----

# Only torch that is built for CUDA has the last of them there.
NOT_FOR_CUDA_ALONE = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::_cudnn_rnn"}


def registered(key: str) -> set[str]:
    """torch's own ops with a kernel for the key; other tests give policies to ops of theirs."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name for name in names if name.startswith("aten::")}


def test_every_op_of_cudas_lists_is_in_ours(device: str) -> None:
    """Enumerated from the dispatcher, so that what a new torch adds is noticed."""
    theirs = registered("AutocastCUDA") - NOT_FOR_CUDA_ALONE
    assert len(theirs) > 100
    assert registered("AutocastPrivateUse1") == theirs


def _image(*sizes: int) -> torch.Tensor:
    return torch.rand(1, 2, *sizes, dtype=torch.float16)


def _wide() -> torch.Tensor:
    return torch.rand(4, 4)


def _half() -> torch.Tensor:
    return torch.rand(4, 4, dtype=torch.float16)


aten = torch.ops.aten

# The ops that torch's own test lists leave out.
EXTRA: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "einsum": (torch.einsum, ("ij,jk->ik", _wide(), _wide())),
    "_thnn_fused_lstm_cell": (
        aten._thnn_fused_lstm_cell.default,
        (torch.rand(2, 12), torch.rand(2, 12), torch.rand(2, 3), torch.rand(12), torch.rand(12)),
    ),
    "_thnn_fused_gru_cell": (
        aten._thnn_fused_gru_cell.default,
        (torch.rand(2, 9), torch.rand(2, 9), torch.rand(2, 3), torch.rand(9), torch.rand(9)),
    ),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, (torch.rand(1, 2, 4, 8),) * 3),
    "_scaled_dot_product_flash_attention": (aten._scaled_dot_product_flash_attention, (torch.rand(1, 2, 4, 8),) * 3),
    "_upsample_bicubic2d_aa": (aten._upsample_bicubic2d_aa.default, (_image(4, 4), [6, 6], False)),
    "_upsample_bilinear2d_aa": (aten._upsample_bilinear2d_aa.default, (_image(4, 4), [6, 6], False)),
    "_upsample_nearest_exact1d": (aten._upsample_nearest_exact1d.default, (_image(4), [6])),
    "_upsample_nearest_exact2d": (aten._upsample_nearest_exact2d.default, (_image(4, 4), [6, 6])),
    "_upsample_nearest_exact3d": (aten._upsample_nearest_exact3d.default, (_image(4, 4, 4), [6, 6, 6])),
    "upsample_bicubic2d": (aten.upsample_bicubic2d.default, (_image(4, 4), [6, 6], False)),
    "upsample_bilinear2d": (aten.upsample_bilinear2d.default, (_image(4, 4), [6, 6], False)),
    "upsample_linear1d": (aten.upsample_linear1d.default, (_image(4), [6], False)),
    "upsample_nearest1d": (aten.upsample_nearest1d.default, (_image(4), [6])),
    "upsample_nearest2d": (aten.upsample_nearest2d.default, (_image(4, 4), [6, 6])),
    "upsample_nearest3d": (aten.upsample_nearest3d.default, (_image(4, 4, 4), [6, 6, 6])),
    "upsample_trilinear3d": (aten.upsample_trilinear3d.default, (_image(4, 4, 4), [6, 6, 6], False)),
    "frobenius_norm": (aten.frobenius_norm.dim, (_half(), [0])),
    "nuclear_norm": (aten.nuclear_norm.default, (_half(),)),
    "huber_loss": (F.huber_loss, (_half(), _half())),
    "linalg_matrix_norm": (aten.linalg_matrix_norm.str_ord, (_half(),)),
    "linalg_vector_norm": (torch.linalg.vector_norm, (_half(),)),
    "native_layer_norm": (torch.native_layer_norm, (_half(), [4], None, None, 1e-5)),
    "stack": (torch.stack, ([_wide(), _half()],)),
    "cat": (torch.cat, ([_half(), _wide()],)),
    "float64 stays": (torch.mm, (_wide().double(), _wide().double())),
    "integers stay": (torch.mul, (torch.arange(3), torch.arange(3))),
    "sum with a dtype": (lambda x: torch.sum(x, 0, dtype=torch.float16), (_half(),)),
    "sum of integers": (torch.sum, (torch.arange(5),)),
}
if [*versions.here(["linalg_matrix_sqrth"])]:
    EXTRA["linalg_matrix_sqrth"] = (aten.linalg_matrix_sqrth.default, (_half(),))


def _function(op: str) -> Callable[..., Any]:
    if op.startswith("__"):
        return getattr(torch.Tensor, op)
    places = (torch._C._linalg,) if op.startswith("linalg_") else (torch, torch._C._nn, torch.Tensor)
    return next(getattr(place, op) for place in places if hasattr(place, op))


def calls() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Calls of every op that autocast has a rule for, with CPU tensors."""
    for kind, entries in vars(AutocastTestLists(torch.device("cpu"))).items():
        if kind == "banned":
            continue
        for number, (op, *rest) in enumerate(entries):
            # CUDA's own; an operator of Python 2; a result that is no tensor; sizes that do not fit (it is in EXTRA).
            if op.startswith("cudnn") or op in ("__div__", "equal", "einsum"):
                continue
            args = rest[0]
            kwargs = rest[1] if len(rest) > 1 and isinstance(rest[1], dict) else {}
            yield f"{kind} {number}: {op}", _function(op), args, kwargs
    for op, (function, args) in EXTRA.items():
        yield op, function, args, {}


@contextmanager
def autocasting(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """torch.autocast without its question whether there is such a device."""
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, False)
        torch.set_autocast_dtype(device_type, torch.float16)


# Their meta kernels for device "cuda" ask for CUDA.
NEED_CUDA = ("gru_cell", "_thnn_fused_gru_cell", "grid_sampler")


def result_dtypes(device_type: str, dtype: torch.dtype) -> dict[str, Any]:
    """What every op results in under autocast, computed without data: that needs no device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: dict[str, Any] = {}
    given = list(calls())
    with FakeTensorMode(), autocasting(device_type, dtype):
        for label, function, args, kwargs in given:

            def there(t: torch.Tensor) -> torch.Tensor:
                return torch.empty(t.shape, dtype=dtype if t.dtype == torch.float16 else t.dtype, device=device_type)

            if device_type == "cuda" and label.endswith(NEED_CUDA):
                continue
            result = function(*tree_map_only(torch.Tensor, there, args), **kwargs)
            found[label] = tree_map_only(torch.Tensor, lambda t: t.dtype, result)
    return found


@pytest.mark.parametrize("dtype", LOW)
def test_policies_are_cudas(name: str, dtype: torch.dtype) -> None:
    ours, theirs = result_dtypes(name, dtype), result_dtypes("cuda", dtype)
    assert len(ours) > 130
    assert {label: (ours[label], theirs[label]) for label in theirs if ours[label] != theirs[label]} == {}
    assert set(ours) - set(theirs) == {label for label in ours if label.endswith(NEED_CUDA)}
    expected = dict.fromkeys(NEED_CUDA, dtype) | {"grid_sampler": torch.float32}
    assert all(tree_leaves(ours[label])[0] == expected[label.rsplit(" ", 1)[-1]] for label in set(ours) - set(theirs))
    assert set(map(str, ours.values())) >= {str(dtype), "torch.float32"}


def test_those_calls_reach_every_op(device: str) -> None:
    reached = {label.rsplit(" ", 1)[-1] for label, *_ in calls()}
    listed = {op.removeprefix("aten::").split(".")[0] for op in registered("AutocastPrivateUse1")}
    assert listed - reached == {"binary_cross_entropy"}


@pytest.mark.parametrize("dtype", LOW)
def test_results_are_those_of_casting_by_hand(device: str, name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(16, 16, device=device), torch.randn(16, 16, device=device)
    with torch.autocast(name, dtype=dtype):
        product, soft, mixed = x @ y, torch.softmax(x.to(dtype), 0), torch.addcmul(x, x.to(dtype), x.to(dtype))
    assert (product.dtype, soft.dtype, mixed.dtype) == (dtype, torch.float32, torch.float32)
    torch.testing.assert_close(product.cpu(), (x.to(dtype) @ y.to(dtype)).cpu())
    torch.testing.assert_close(soft.cpu(), torch.softmax(x.to(dtype).float(), 0).cpu())


def test_binary_cross_entropy_is_banned(device: str, name: str) -> None:
    x = torch.rand(4, device=device)
    with torch.autocast(name):
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.BCELoss()(x, x)
        F.binary_cross_entropy_with_logits(x, x)
        with torch.autocast(name, enabled=False):
            F.binary_cross_entropy(x, x)


# ---- regions ----


def test_the_modules_functions(device: str, name: str) -> None:
    module = torch.get_device_module(device)
    assert torch.amp.is_autocast_available(name)
    assert set(module.get_amp_supported_dtype()) == set(LOW)
    assert not module.is_autocast_enabled()
    assert module.get_autocast_dtype() == torch.get_autocast_dtype(name) == torch.float16
    module.set_autocast_enabled(True)
    module.set_autocast_dtype(torch.bfloat16)
    try:
        x = torch.ones(4, 4, device=device)
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast(name):
            assert (x @ x).dtype == torch.bfloat16
        assert module.is_autocast_enabled()
    finally:
        module.set_autocast_enabled(False)
        module.set_autocast_dtype(torch.float16)
    assert (x @ x).dtype == torch.float32


def test_nested_and_disabled_regions(device: str, name: str) -> None:
    x = torch.ones(4, 4, device=device)
    with torch.autocast(name, dtype=torch.bfloat16):
        with torch.autocast(name, dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
            with torch.autocast(name, enabled=False):
                assert (x @ x).dtype == torch.float32
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):  # a region of another device changes nothing here
            assert (x @ x).dtype == torch.bfloat16
            assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16
        assert (x.cpu() @ x.cpu()).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
    with pytest.raises(ZeroDivisionError), torch.autocast(name):
        _ = 1 / 0
    assert (x @ x).dtype == torch.float32


def test_as_a_decorator_and_with_backward(device: str, name: str) -> None:
    @torch.autocast(name, dtype=torch.float16)
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    x = torch.randn(4, 4, device=device, requires_grad=True)
    y = multiply(x, x)
    assert y.dtype == torch.float16
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(
        x.grad.cpu(), (x.detach().sum(0)[:, None] + x.detach().sum(1)[None, :]).cpu(), atol=2e-2, rtol=1e-2
    )


def test_other_threads_are_not_in_the_region(device: str, name: str) -> None:
    import threading

    x = torch.ones(4, 4, device=device)
    seen = []
    with torch.autocast(name):
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert seen == [torch.float32]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32])
def test_an_unsupported_dtype_disables_with_a_warning(device: str, name: str, dtype: torch.dtype) -> None:
    x = torch.ones(4, 4, device=device)
    with pytest.warns(UserWarning, match="target dtype is not supported"):
        region = torch.autocast(name, dtype=dtype)
    with region:
        assert (x @ x).dtype == torch.float32


def test_what_is_left_alone(device: str, name: str) -> None:
    wide, whole = torch.ones(4, 4, dtype=torch.float64, device=device), torch.arange(4, device=device)
    with torch.autocast(name):
        assert (wide @ wide).dtype == torch.float64
        assert wide.exp().dtype == torch.float64
        assert (whole + whole).dtype == torch.int64
        assert whole.sum().dtype == torch.int64
        assert torch.relu(torch.ones(3, dtype=torch.bfloat16, device=device)).dtype == torch.bfloat16
        assert torch.ones(3, device=device).to(torch.float16).dtype == torch.float16
        out = torch.empty(4, 4, device=device)
        assert torch.mm(out.fill_(1), out.clone(), out=out).dtype == torch.float32  # out= is never cast
        x = torch.ones(4, 4, device=device)
        assert x.addmm_(x.clone(), x.clone()).dtype == torch.float32  # nor is what is written in place


# ---- the cache of weights ----


class Casts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts casts."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_weights_are_cast_once(device: str, name: str) -> None:
    layer = nn.Linear(8, 8, bias=False).to(device)
    x = torch.randn(4, 8, device=device, dtype=torch.float16)

    def casts(cache: bool, regions: int) -> int:
        with Casts() as mode:
            for _ in range(regions):
                with torch.autocast(name, cache_enabled=cache):
                    layer(x)
                    layer(x)
        return mode.count

    assert casts(cache=True, regions=1) == 1
    assert casts(cache=True, regions=3) == 3  # forgotten at the end of a region
    assert casts(cache=False, regions=1) == 2
    with torch.autocast(name), Casts() as mode:
        layer(x)
        with torch.autocast(name):  # an inner region shares it
            layer(x)
        assert mode.count == 1
        torch.clear_autocast_cache()
        layer(x)
        assert mode.count == 2


def test_the_cache_sees_a_step_of_the_optimiser(device: str, name: str) -> None:
    layer = nn.Linear(2, 2, bias=False).to(device)
    x = torch.eye(2, device=device)
    for value in (1.0, 2.0):
        with torch.no_grad():
            layer.weight.fill_(value)
        with torch.autocast(name):
            assert layer(x).cpu().unique().tolist() == [value]


# ---- ops of one's own ----

custom = torch.library.Library("torchgraft_test_amp", "FRAGMENT")


def test_register_autocast(device: str, name: str) -> None:
    @torch.library.custom_op("torchgraft_test_amp::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_autocast(name, torch.bfloat16)
    custom.define("thrice(Tensor x) -> Tensor")
    custom.impl("thrice", lambda x: x * 3, "CompositeExplicitAutograd")
    torch.library.register_autocast("torchgraft_test_amp::thrice", name, torch.float32)
    custom.define("same(Tensor x) -> Tensor")
    custom.impl("same", lambda x: x.clone(), "CompositeExplicitAutograd")
    x = torch.ones(3, device=device)
    with torch.autocast(name, dtype=torch.float16):
        assert twice(x).dtype == torch.bfloat16
        assert torch.ops.torchgraft_test_amp.thrice(x.half()).dtype == torch.float32
        assert torch.ops.torchgraft_test_amp.same(x.half()).dtype == torch.float16  # falls through
        assert torch.ops.torchgraft_test_amp.same(x).dtype == torch.float32
    assert twice(x).dtype == torch.float32
    assert twice(x).cpu().tolist() == [2.0] * 3


def test_custom_fwd_and_bwd(device: str, name: str) -> None:
    seen: list[tuple[torch.dtype, bool]] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=name, cast_inputs=torch.float32)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            seen.append((a.dtype, torch.is_autocast_enabled(name)))
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type=name)
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            seen.append((grad.dtype, torch.is_autocast_enabled(name)))
            return grad @ b.T, a.T @ grad

    class InRegion(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=name)
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            seen.append((a.dtype, torch.is_autocast_enabled(name)))
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type=name)
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append((grad.dtype, torch.is_autocast_enabled(name)))
            return grad

    a = torch.randn(4, 4, device=device, dtype=torch.float16, requires_grad=True)
    with torch.autocast(name):
        y = Product.apply(a, a)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert seen == [(torch.float32, False), (torch.float32, False)]
    seen.clear()
    with torch.autocast(name):
        y = InRegion.apply(a)
    y.sum().backward()
    assert seen == [(torch.float16, True), (torch.float16, True)]


# ---- gradient scaling ----


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unscaling(device: str, dtype: torch.dtype, bad: float) -> None:
    grads = [torch.full(shape, 8.0, dtype=dtype, device=device) for shape in ((3,), (1000,), (), (0,), (5, 7))]
    grads.append(torch.full((6, 4), 8.0, dtype=dtype, device=device).t()[::2])
    found, by = torch.zeros(1, device=device), torch.tensor([0.25], device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, by)
    assert found.item() == 0
    assert all((each.cpu() == 2).all() for each in grads)
    grads[1][999] = bad
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, by)
    assert found.item() == 1
    torch._amp_foreach_non_finite_check_and_unscale_(grads[:1], found, by)
    assert found.item() == 1  # never set back
    assert (grads[4].cpu() == 0.5).all()
    assert (grads[5].cpu() == 0.5).all()


@pytest.mark.usefixtures("no_fallback")
def test_updating_the_scale(device: str) -> None:
    def run(where: str) -> list[tuple[float, int]]:
        scale, tracker = torch.full((1,), 8.0, device=where), torch.zeros(1, dtype=torch.int32, device=where)
        found = torch.zeros(1, device=where)
        states = []
        for infinite in (0, 0, 0, 1, 0, 0, 1, 1):
            torch._amp_update_scale_(scale, tracker, found.fill_(infinite), 2.0, 0.5, 2)
            states.append((scale.item(), tracker.item()))
        largest = torch.full((1,), 3e38, device=where)
        torch._amp_update_scale_(largest, tracker, found.fill_(0), 2.0, 0.5, 1)
        return [*states, (largest.item(), tracker.item())]  # a scale that would overflow does not grow

    assert run(device) == run("cpu")


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    f"{kind.__name__} {how}": lambda parameters, kind=kind, options=options: kind(parameters, lr=0.1, **options)  # type: ignore[misc]
    for kind, (how, options) in itertools.product(
        (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW),
        (("plain", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})),
    )
}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_scaled_training_is_unscaled_training(device: str, name: str, optimiser: str) -> None:
    """Scaling by powers of two changes nothing, and steps with infinite gradients are left out."""
    torch.manual_seed(3)
    start = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = [torch.randn(16, 6) for _ in range(6)]
    broken = {2, 3}

    def train(where: str, scaled: bool) -> tuple[list[torch.Tensor], list[float]]:
        model = copy.deepcopy(start).to(where)
        chosen = OPTIMISERS[optimiser](model.parameters())
        scaler = torch.amp.GradScaler(torch.device(where).type, init_scale=1024.0, growth_interval=2, enabled=scaled)
        scales = []
        for step, batch in enumerate(batches):
            if not scaled and step in broken:
                continue
            chosen.zero_grad()
            loss = model(batch.to(where)).square().mean()
            if step in broken:
                loss = loss * math.inf
            scaler.scale(loss).backward()
            scaler.step(chosen)
            scaler.update()
            scales.append(scaler.get_scale())
        return [p.detach().cpu() for p in model.parameters()], scales

    ours, scales = train(device, scaled=True)
    plain, _ = train(device, scaled=False)
    on_cpu, _ = train("cpu", scaled=False)
    assert scales == [1024, 2048, 1024, 512, 512, 1024]
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, on_cpu, rtol=1e-4, atol=1e-5)


def test_clipping_between_unscale_and_step(device: str, name: str) -> None:
    model = nn.Linear(4, 4).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler(name, init_scale=2.0**12)
    with torch.autocast(name):
        loss = model(torch.ones(2, 4, device=device)).float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimiser)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e9).item() < 100
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimiser)
    scaler.step(optimiser)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimiser)
    scaler.update()
    optimiser.zero_grad()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimiser)


def test_state_of_the_scaler(device: str, name: str) -> None:
    scaler = torch.amp.GradScaler(name, init_scale=64.0, growth_interval=7)
    scaler.scale(torch.ones(1, device=device))
    state = scaler.state_dict()
    assert state["scale"] == 64.0
    other = torch.amp.GradScaler(name)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.scale(torch.ones(2, device=device)).cpu().tolist() == [64.0, 64.0]
    disabled = torch.amp.GradScaler(name, enabled=False)
    assert disabled.state_dict() == {}
    assert disabled.scale(torch.ones(1)).item() == 1


def test_float16_gradients_are_refused(device: str, name: str) -> None:
    model = nn.Linear(2, 2).to(device).half()
    scaler = torch.amp.GradScaler(name)
    scaler.scale(model(torch.ones(1, 2, device=device).half()).sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("dtype", LOW)
def test_training(device: str, name: str, dtype: torch.dtype) -> None:
    """A small network, in mixed precision and in float32, learns alike."""

    def train(low: bool) -> list[float]:
        torch.manual_seed(0)
        x = torch.randn(64, 1, 8, 8)
        y = (x.mean((1, 2, 3)) > 0).long()
        model = nn.Sequential(
            *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LayerNorm(288), nn.Linear(288, 2)),
        ).to(device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        scaler = torch.amp.GradScaler(name, enabled=low and dtype == torch.float16)
        losses = []
        for _ in range(12):
            optimiser.zero_grad()
            with torch.autocast(name, dtype=dtype, enabled=low):
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
            assert loss.dtype == torch.float32
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
            losses.append(loss.item())
        return losses

    low, full = train(low=True), train(low=False)
    assert low[-1] < low[0] / 2
    torch.testing.assert_close(low, full, rtol=0.05, atol=0.02)


def test_in_a_fresh_process(script: Script) -> None:
    """Autocast may be the first thing that is asked of the device."""
    script(
        """
        import torch
        with torch.autocast("ocl", dtype=torch.bfloat16):
            assert not torch.ocl.is_initialized()
            x = torch.ones(4, 4, device="ocl")
            assert (x @ x).dtype == torch.bfloat16
        scaler = torch.amp.GradScaler("ocl")
        assert scaler.is_enabled() and scaler.get_scale() == 2.0**16
        """,
        autoload=True,
    )
