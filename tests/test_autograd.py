"""Gradients: overrides from Python and from C++, the fallback of ops without a formula, and every native op's own."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Script
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import torchgraft

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_gradient.cpp"

LIBRARY = torch.library.Library("gradients", "FRAGMENT")
for _schema in (
    "cube(Tensor x, float scale=1.0) -> Tensor",
    "cube_(Tensor(a!) x, float scale=1.0) -> Tensor(a!)",
    "pair(Tensor x, Tensor y, *, bool swap=False) -> (Tensor, Tensor)",
    "plain(Tensor x) -> Tensor",
    "listed(Tensor[] x) -> Tensor",
    "fresh(Tensor x) -> Tensor",
):
    LIBRARY.define(_schema)
own = torch.ops.gradients

calls: list[str] = []


class Cube(torch.autograd.Function):
    """x ** 3, with notes of what was called."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, scale: float) -> torch.Tensor:
        calls.append("forward")
        return own.cube(x, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, ctx.scale = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        calls.append("backward")
        (x,) = ctx.saved_tensors
        return 3 * ctx.scale * x * x * gradient, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: None) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * ctx.scale * x * x * tangent


class Pair(torch.autograd.Function):
    """Sum and product, written in the older style."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, swap: bool) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        ctx.save_for_backward(x, y)
        ctx.swap = swap
        first, second = own.pair(x, y, swap=swap)
        return first, second

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        total, product = (second, first) if ctx.swap else (first, second)
        return total + y * product, total + x * product, None


@pytest.fixture(scope="module", autouse=True)
def _declared(device: str) -> None:
    if device == "npy":
        pytest.skip("the ops here are planned, which needs a compiler")
    torchgraft.ops.row("gradients::cube", "x * x * x * scale")
    torchgraft.plans.decomposition("gradients::pair")(
        lambda x, y, swap=False: (x * y, x + y) if swap else (x + y, x * y)
    )
    torchgraft.ops.row("gradients::plain", "x * 2")
    torchgraft.autograd.override("gradients::cube")(Cube)
    torchgraft.autograd.override("gradients::pair")(Pair)


def leaf(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(device).requires_grad_()


@pytest.mark.no_fallback
class TestOverride:
    def test_forward_and_backward_are_the_authors(self, device: str) -> None:
        x = leaf(device, 3, 4)
        calls.clear()
        y = own.cube(x, 2.0)
        assert calls == ["forward"]
        assert y.grad_fn.name() == "CubeBackward"
        y.sum().backward()
        assert calls == ["forward", "backward"]
        assert_close(y.cpu(), 2 * x.cpu() ** 3)
        assert_close(x.grad.cpu(), 6 * x.cpu() ** 2)  # type: ignore[union-attr]

    def test_defaults_are_filled_in(self, device: str) -> None:
        x = leaf(device, 3)
        own.cube(x).sum().backward()
        assert_close(x.grad.cpu(), 3 * x.cpu() ** 2)  # type: ignore[union-attr]

    def test_gradcheck(self, device: str) -> None:
        assert gradcheck(own.cube, (leaf(device, 4), 1.5))
        assert gradgradcheck(own.cube, (leaf(device, 4), 1.5))
        assert gradcheck(own.cube, (leaf(device, 4), 1.5), check_forward_ad=True, check_backward_ad=False)
        assert gradcheck(own.pair, (leaf(device, 4), leaf(device, 4)))
        assert gradgradcheck(own.pair, (leaf(device, 4), leaf(device, 4)))
        assert gradcheck(functools.partial(own.pair, swap=True), (leaf(device, 4), leaf(device, 4)))

    def test_nothing_is_kept_where_no_gradient_is_wanted(self, device: str) -> None:
        x = leaf(device, 3)
        with torch.no_grad():
            assert own.cube(x).grad_fn is None
        assert own.cube(x.detach()).grad_fn is None
        with torch.inference_mode():
            assert own.cube(x).is_inference()

    def test_in_place(self, device: str) -> None:
        x = leaf(device, 3)
        y = x * 1
        z = own.cube_(y, 2.0)
        assert z is y
        z.sum().backward()
        assert_close(x.grad.cpu(), 6 * x.cpu() ** 2)  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
            own.cube_(x)

    def test_the_cpu_is_as_it_was(self, device: str) -> None:
        with pytest.raises(NotImplementedError, match="gradients::cube"):
            own.cube(torch.ones(3))

    def test_an_op_of_torchs(self, device: str) -> None:
        seen = []

        class Silu(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                ctx.save_for_backward(x)
                return torch.nn.functional.silu(x)

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                seen.append(gradient.shape)
                (x,) = ctx.saved_tensors
                s = torch.sigmoid(x)
                return gradient * s * (1 + x * (1 - s))

        torchgraft.autograd.override("silu")(Silu)
        assert gradcheck(torch.nn.functional.silu, leaf(device, 3))
        assert seen
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.SiLU(inplace=True), torch.nn.Linear(3, 1))
        data = torch.randn(5, 3)
        model(data).sum().backward()
        expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        model.to(device)(data.to(device)).sum().backward()
        for parameter, by in zip(model.parameters(), expected, strict=True):
            assert_close(parameter.grad.cpu(), by)  # type: ignore[union-attr]

    def test_refused(self) -> None:
        with pytest.raises(ValueError, match=r"gradients::cube is overridden already; replace=True"):
            torchgraft.autograd.override("gradients::cube")(Cube)
        torchgraft.autograd.override("gradients::cube", replace=True)(Cube)
        with pytest.raises(ValueError, match="there is no op gradients::nothing"):
            torchgraft.autograd.override("gradients::nothing")
        with pytest.raises(ValueError, match="writes its arguments"):
            torchgraft.autograd.override("gradients::cube_")
        with pytest.raises(ValueError, match="takes a list of tensors"):
            torchgraft.autograd.override("gradients::listed")
        with pytest.raises(TypeError, match=r"is a subclass of torch\.autograd\.Function"):
            torchgraft.autograd.override("gradients::fresh")(lambda x: x)  # type: ignore[type-var]

        class Half(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                return x

        with pytest.raises(TypeError, match="Half needs both forward and backward"):
            torchgraft.autograd.override("gradients::fresh")(Half)


@pytest.fixture
def fallback_mode() -> Iterator[Any]:
    before = torch._C._get_autograd_fallback_mode()
    yield torch._C._set_autograd_fallback_mode
    torch._C._set_autograd_fallback_mode(before)


class TestWithoutAFormula:
    """As on any other device: torch's autograd fallback."""

    def test_backward_warns(self, device: str, fallback_mode: Any) -> None:
        fallback_mode("warn")
        y = own.plain(leaf(device, 3))
        with pytest.warns(UserWarning, match="gradients::plain: an autograd kernel was not registered"):
            y.sum().backward()

    def test_register_autograd_is_enough(self, device: str, fallback_mode: Any) -> None:
        fallback_mode("warn")
        torchgraft.ops.row("gradients::fresh", "x * 3")
        torch.library.register_autograd("gradients::fresh", lambda ctx, gradient: gradient * 3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x = leaf(device, 3)
            own.fresh(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [3, 3, 3]

    def test_none_of_it_if_wished(self, device: str, fallback_mode: Any) -> None:
        fallback_mode("nothing")
        x = leaf(device, 3)
        assert not own.plain(x).requires_grad


@pytest.mark.thorough
def test_from_cpp(device: str, script: Script) -> None:
    """The example in C++, compiled once: what torch keeps of it is used again."""
    script(
        f"""
        import torch
        from torch.autograd import gradcheck, gradgradcheck
        from torch.utils import cpp_extension

        cpp_extension.load("own_gradient", [{str(EXAMPLE)!r}], extra_cflags=["-O1", "-g0"], is_python_module=False)
        calls = torch.ops.own_gradient.backward_calls
        x = torch.randn(5, dtype=torch.float64, device={device!r}, requires_grad=True)
        y = torch.tanh(x)
        assert y.grad_fn.name() == "torch::autograd::CppNode<(anonymous namespace)::Tanh>", y.grad_fn
        y.sum().backward()
        assert calls() == 1
        torch.testing.assert_close(x.grad.cpu(), 1 - torch.tanh(x.detach().cpu()) ** 2)
        assert gradcheck(torch.tanh, x) and gradgradcheck(torch.tanh, x)
        before = calls()
        torch.tanh(x.detach().cpu().requires_grad_()).sum().backward()
        assert calls() == before  # the CPU's is torch's own
        """,
        autoload=True,
        timeout=600,
    )


# What models are made of, as torch's own tests call it (torch.testing's op_db).
OPS = """
add sub mul div pow atan2 where maximum minimum clamp lerp addcmul addcdiv exp log log1p sqrt rsqrt sin cos tanh sigmoid
erf abs logaddexp xlogy nn.functional.gelu nn.functional.silu nn.functional.mish nn.functional.softplus
nn.functional.elu nn.functional.hardswish nn.functional.leaky_relu nn.functional.prelu softmax log_softmax logsumexp sum
mean prod var std amax norm linalg.vector_norm cumsum cumprod logcumsumexp matmul mm bmm addmm baddbmm einsum outer
nn.functional.linear nn.functional.bilinear nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose2d
nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.layer_norm
nn.functional.group_norm nn.functional.batch_norm nn.functional.instance_norm nn.functional.embedding
nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss nn.functional.huber_loss
nn.functional.binary_cross_entropy_with_logits nn.functional.kl_div nn.functional.cosine_similarity
nn.functional.scaled_dot_product_attention nn.functional.pad index_select gather scatter scatter_add index_put index_add
masked_fill take cat stack split roll flip sort topk tril triu diagonal trace unfold repeat expand
""".split()


@functools.cache
def op_infos() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.name: op for op in reversed(op_db)}  # of several variants the first


def small_samples(op: Any) -> list[Any]:
    """Two of an op's samples: the smallest that have elements."""

    def size(sample: Any) -> int:
        leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        sizes = [leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return sum(sizes) if 0 not in sizes else 0

    samples = [sample for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True) if size(sample) > 1]
    return sorted(samples, key=size)[:2]


@pytest.mark.no_fallback
@pytest.mark.parametrize("name", OPS)
@pytest.mark.quick(name=OPS[::3])
def test_gradients_of_torchs_ops(device: str, name: str) -> None:
    """First and second derivatives in float64, natively."""
    op = op_infos()[name]

    def there(x: Any) -> Any:
        return x.detach().to(device).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    samples = small_samples(op)
    assert samples
    for sample in samples:
        arguments = torch.utils._pytree.tree_map(there, (sample.input, sample.args, sample.kwargs))
        leaves, spec = torch.utils._pytree.tree_flatten(arguments)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

        def function(*tensors: torch.Tensor, leaves: Any = leaves, places: Any = places, spec: Any = spec) -> Any:
            given = [tensors[places.index(i)] if i in places else leaf for i, leaf in enumerate(leaves)]
            first, args, kwargs = torch.utils._pytree.tree_unflatten(given, spec)
            results = torch.utils._pytree.tree_leaves(op(first, *args, **kwargs))
            return tuple(r for r in results if isinstance(r, torch.Tensor) and r.requires_grad)

        inputs = tuple(leaves[i] for i in places)
        assert inputs
        assert gradcheck(function, inputs, fast_mode=True, nondet_tol=op.gradcheck_nondet_tol)
        assert gradgradcheck(function, inputs, fast_mode=True, nondet_tol=op.gradcheck_nondet_tol)
