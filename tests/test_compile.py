"""Shapes without data: meta functions, fake tensors, torch.export, and torch.compile down to aten."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.exc
import torch._dynamo.utils
import torch.nn.functional as F
from conftest import Script
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import torchgraft
from torchgraft import plans

BACKENDS = ["eager", "aot_eager", "graft"]


@pytest.fixture(autouse=True)
def _fresh(device: str) -> None:
    if device == "npy":
        pytest.skip("the models here want native ops")
    torch._dynamo.reset()


class Net(nn.Module):
    """One of everything that a model has: convolution, norms, attention, embedding, dropout, views, a branch."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.words, self.layer_norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(8, 5)

    def forward(self, image: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.silu(self.norm(self.convolution(image))), 2)
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x, self.words(words)], 1)
        if x.shape[1] > 2:
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.dropout(self.layer_norm(x)).mean(1))


def inputs(batch: int = 4, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(11, (batch, 6))


def to(device: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.to(device) for t in tensors]


@pytest.mark.no_fallback
class TestCompile:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_training(self, device: str, backend: str) -> None:
        """A whole graph forward and backward, and the same losses as without."""
        image, words = to(device, *inputs())
        target = torch.randint(5, (4,), device=device)
        first = Net().to(device)
        losses = []
        for compiled in (False, True):
            model = copy.deepcopy(first)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            run: Any = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
            losses.append([])
            for _ in range(3):
                optimizer.zero_grad()
                loss = F.cross_entropy(run(image, words), target)
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        assert losses[0][-1] < losses[0][0]
        assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_step_as_one_graph(self, device: str, backend: str) -> None:
        w = torch.randn(4, 3, device=device, requires_grad=True)
        x = torch.randn(5, 4, device=device)

        def loss(w: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ w).pow(2).mean()

        step = torch.compile(torch.func.grad_and_value(loss), backend=backend, fullgraph=True)
        gradient, value = step(w.detach())
        assert_close(value, loss(w.detach()))
        loss(w).backward()
        assert_close(gradient, w.grad)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_shapes_that_change(self, device: str, backend: str) -> None:
        model = Net().to(device).eval()
        torch._dynamo.utils.counters.clear()
        run = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
        for batch, size in ((4, 8), (3, 8), (5, 10), (7, 12)):
            given = to(device, *inputs(batch, size))
            assert_close(run(*given), model(*given), rtol=1e-4, atol=1e-5)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_random_numbers(self, device: str, backend: str) -> None:
        model = Net(dropout=0.5).to(device)
        run = torch.compile(model, backend=backend, fullgraph=True)
        given = to(device, *inputs())
        torch.manual_seed(3)
        first = run(*given)
        second = run(*given)
        torch.manual_seed(3)
        assert torch.equal(run(*given), first)
        assert not torch.equal(second, first)
        torch.manual_seed(3)
        assert_close(model(*given), first, rtol=1e-4, atol=1e-5)

    @pytest.mark.quick(backend=["inductor", "graft"])
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_autocast(self, device: str, backend: str) -> None:
        model = Net().to(device)

        def run(image: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device, dtype=torch.bfloat16):
                return model(image, words)

        given = to(device, *inputs())
        result = torch.compile(run, backend=backend, fullgraph=True)(*given)
        assert result.dtype == torch.bfloat16
        assert_close(result, run(*given), rtol=2e-2, atol=2e-2)
        with torch.autocast(device, dtype=torch.bfloat16):
            outside = torch.compile(model, backend=backend, fullgraph=True)(*given)
        assert outside.dtype == torch.bfloat16

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_what_programs_do_besides(self, device: str, backend: str) -> None:
        """Factories, moves between devices, in-place writes, views that are returned, gradients switched off."""
        module = getattr(torch, device.split(":")[0])

        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.arange(x.shape[0], device=x.device, dtype=x.dtype) + torch.zeros_like(x)[0, 0]
            x = x.clone()
            x[1:] += 1
            x.t().mul_(2)
            with torch.no_grad():
                y = y.to("cpu").to(x.device) * module.device_count()
            return x, x[:1], y, torch.ones(2, device=device), torch.where(x > 0, x, y[0])

        x = torch.randn(3, 3, device=device)
        for result, by in zip(torch.compile(work, backend=backend, fullgraph=True)(x), work(x), strict=True):
            assert_close(result, by)
            assert result.device == by.device

    def test_no_graph_breaks(self, device: str) -> None:
        torch._dynamo.reset()
        explained = torch._dynamo.explain(Net(0.1).to(device))(*to(device, *inputs()))
        assert (explained.graph_count, explained.graph_break_count) == (1, 0)

    def test_checkpoints(self, device: str) -> None:
        from torch.utils.checkpoint import checkpoint

        w = torch.randn(4, 4, device=device, requires_grad=True)
        x = torch.randn(5, 4, device=device)

        def work(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda x: torch.tanh(x @ w) @ w, x, use_reentrant=False).sum()

        work(x).backward()
        expected, w.grad = w.grad, None
        torch.compile(work, backend="aot_eager", fullgraph=True)(x).backward()
        assert_close(w.grad, expected)


ON_ANOTHER = """
            import warnings
            import torch, torchgraft
            from torchgraft.inductor import versions
            from numpy_driver import NumpyDriver
            from cxx_driver import CxxDriver

            torchgraft.register("dev", [{driver}])
            warned = warnings.catch_warnings(record=True).__enter__()
            warnings.simplefilter("always")

            def compiled(number):
                try:
                    return torch.compile(lambda x: x + number)(torch.ones(2, device="dev")).tolist()
                except torch._dynamo.exc.BackendCompilerFailed as error:
                    return error
"""


class TestInductor:
    """Where there are no kernels for it: tests/test_inductor.py has the rest."""

    def test_it_says_what_works(self, script: Script) -> None:
        """A device without a compiler, and a torch whose Inductor is another."""
        out = script(f"""
            {ON_ANOTHER.format(driver="NumpyDriver()")}
            print(compiled(1))
        """)
        assert "has no kernel compiler" in out
        assert "generates no code for device 'dev'" in out and 'backend="aot_eager"' in out

    @pytest.mark.thorough
    def test_a_newer_torch_that_has_changed(self, script: Script) -> None:
        """It is not used, and the first of the names that are others is said."""
        out = script(f"""
            {ON_ANOTHER.format(driver="CxxDriver()")}
            import torch._inductor.lowering
            versions.VERSIONS = ((2, 1),)
            torch._inductor.lowering.to_dtype = lambda tensor: tensor
            print(compiled(1), compiled(2), *[each.message for each in warned if "is tested with" in str(each.message)])
        """)
        assert "is made for torch 2.1," in out
        assert "torch._inductor.lowering.to_dtype: its parameters are (tensor)" in out
        assert "generates no code for device 'dev'" in out and "is tested with" not in out

    def test_a_newer_torch_that_is_the_same(self, script: Script) -> None:
        """It is used, and that is said once."""
        out = script(f"""
            {ON_ANOTHER.format(driver="CxxDriver()")}
            versions.VERSIONS = ((2, 1),)
            print(compiled(1), compiled(2), *[each.message for each in warned if "is tested with" in str(each.message)])
        """)
        said = f"torch.compile for 'dev' is tested with torch 2.1. All that it uses of torch {torch.__version__} is as"
        assert out.startswith("[2.0, 2.0] [3.0, 3.0] ") and out.count(said) == 1

    @pytest.mark.thorough
    def test_nothing_is_imported_for_it(self, script: Script) -> None:
        script(
            """
            import sys
            import torch

            torch.ones(2, device="ocl") + 1
            assert not any(name.startswith("torch._inductor.") for name in sys.modules)
            """,
            autoload=True,
        )


@pytest.mark.no_fallback
def test_planners_are_not_compiled(device: str) -> None:
    """Where a function is not traced whole, ops that are called then are planned as ever."""
    from torch._dynamo.utils import counters
    from torch.testing._internal.common_utils import freeze_rng_state

    def work(x: torch.Tensor) -> torch.Tensor:
        with freeze_rng_state():  # which Dynamo cannot trace
            return torch.nn.functional.rrelu(x.mul(3), 0.2, 0.7, training=True)

    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        seen.extend(node.meta.get("stack_trace") or "" for node in module.graph.nodes)
        return module.forward

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(work, backend=backend)
    x = torch.randn(20, device=device, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad is not None
    torch._dynamo.reset()
    assert not any("/torchgraft/ops/" in trace or "/torchgraft/plans/" in trace for trace in seen)


class TestExport:
    def test_a_model(self, device: str) -> None:
        model = Net().to(device).eval()
        given = tuple(to(device, *inputs()))
        program = torch.export.export(model, given)
        assert_close(program.module()(*given), model(*given), rtol=1e-4, atol=1e-5)
        assert_close(program.run_decompositions().module()(*given), model(*given), rtol=1e-4, atol=1e-5)

    def test_any_batch(self, device: str) -> None:
        model = Net().to(device).eval()
        batch = torch.export.Dim("batch", min=2, max=64)
        program = torch.export.export(model, tuple(to(device, *inputs())), dynamic_shapes=({0: batch}, {0: batch}))
        for size in (2, 7):
            given = to(device, *inputs(size))
            assert_close(program.module()(*given), model(*given), rtol=1e-4, atol=1e-5)

    def test_saved_and_loaded(self, device: str, tmp_path: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.GELU()).to(device)
        x = torch.randn(2, 3, device=device)
        torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
        assert_close(torch.export.load(tmp_path / "model.pt2").module()(x), model(x))


class TestFakeTensors:
    @pytest.mark.thorough
    def test_nothing_is_opened(self, script: Script) -> None:
        """Not even where the fake tensors are of the device and a model is run on them."""
        out = script(
            """
            import torch
            from torch._subclasses.fake_tensor import FakeTensorMode

            with FakeTensorMode():
                x = torch.empty(4, 3, device="ocl")
                with torch.device("ocl"):
                    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
                y = model(x)
                y.sum().backward()
                print(y.device, y.shape, model[0].weight.grad.device)
                print((x.cpu() + 1).device, torch.ones(2).to("ocl:0").device)
            print(torch.ocl.is_initialized(), torch.ones(1, device="ocl").item())
            """,
            autoload=True,
        )
        assert out.splitlines() == ["ocl:0 torch.Size([4, 5]) ocl:0", "cpu ocl:0", "False 1.0"]

    def test_of_real_ones(self, device: str) -> None:
        model = Net().to(device)
        given = to(device, *inputs())
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = [mode.from_tensor(t) for t in given]
            with torch.no_grad():
                result = model.eval()(*fakes)
        assert (result.shape, result.device) == ((4, 5), given[0].device)

    def test_no_data_is_read(self, device: str) -> None:
        before = plans.stats()
        with FakeTensorMode():
            x = torch.ones(3, device=device)
            x.add_(1).exp().sort()
            with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
                x.sum().item()
        after = plans.stats()
        assert (after.hits, after.misses) == (before.hits, before.misses)


# Whose results' shapes or values depend on data; fake tensors have ways of their own with them.
DEPEND_ON_DATA = set(
    "equal masked_select masked_select.out bincount bincount.out _unique _unique2 unique_consecutive unique_dim".split()
)
# Run as functions for each call, and without a meta function in torch for any device.
NONE_IN_TORCH = set(
    "_ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor _histogramdd_bin_edges _histogramdd_from_bin_cts "
    "_histogramdd_from_bin_tensors histogram.bin_ct histogram.bin_ct_out histogram.bins_tensor "
    "histogram.bins_tensor_out linalg_lstsq.out _native_batch_norm_legit.out "
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts".split()
)
INTERNAL = {"_copy_from", "_nested_tensor_from_mask_left_aligned"}  # reached below what fake tensors see


def test_every_planned_op_has_a_meta_function() -> None:
    """torch's, or one that its planner has given."""
    from torchgraft.plans.meta import has_meta

    ours = {name: entry for name, entry in plans.ENTRIES.items() if name.startswith("aten::")}  # not other tests'
    without = {name.removeprefix("aten::") for name, entry in ours.items() if not has_meta(entry.op)}
    assert without - DEPEND_ON_DATA - NONE_IN_TORCH - INTERNAL == set()
    assert without >= {"equal", "masked_select"}  # the check can fail


class TestOwnOps:
    """torch.library.opcheck: schema, autograd registration, fake tensors, AOT dispatch."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _declared(cls) -> None:
        cls.library = torch.library.Library("compiling", "FRAGMENT")
        for schema in (
            "saxpy(Tensor x, Tensor y, *, float a=1.0) -> Tensor",
            "saxpy_(Tensor(c!) x, Tensor y, *, float a=1.0) -> ()",
            "energy(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor",
            "scaled(Tensor x, float eps=1e-6) -> Tensor",
            "doubled(Tensor x) -> Tensor",
            "kept(Tensor x) -> Tensor",
        ):
            cls.library.define(schema)
        torchgraft.ops.row("compiling::saxpy", "a * x + y")
        torchgraft.ops.reduction("compiling::energy", map="x * x", combine="a + b", identity="0")
        torchgraft.plans.decomposition("compiling::scaled")(
            lambda x, eps: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
        )
        kernel = plans.Kernel(
            "doubled",
            (plans.Pointer("out", "f32"), plans.Pointer("x", "f32", const=True), plans.Value("n", "i64")),
            "if (GLOBAL_ID(0) < n) out[GLOBAL_ID(0)] = 2 * x[GLOBAL_ID(0)];",
        )
        plans.planner("compiling::doubled", contiguous=True, meta=torch.empty_like)(
            lambda p, out, x: p.launch(kernel, (x.numel(),), out=out, x=x, n=x.numel())
        )
        plans.composite("compiling::kept")(lambda x: x[x > 0])
        torch.library.register_fake(
            "compiling::kept", lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size())
        )
        torch.library.register_autograd(
            "compiling::saxpy",
            lambda ctx, g: (ctx.a * g, g),
            setup_context=lambda ctx, inputs, keyword_only_inputs, output: setattr(ctx, "a", keyword_only_inputs["a"]),
        )

    def test_saxpy(self, device: str) -> None:
        op = torch.ops.compiling.saxpy.default
        x = torch.randn(3, 4, device=device)
        torch.library.opcheck(op, (x, x + 1), {"a": 2.0})
        torch.library.opcheck(op, (x.t(), x.t()))
        # With gradients one of its checks knows torch's own devices only.
        others = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        w = torch.randn(3, 4, device=device, requires_grad=True)
        torch.library.opcheck(op, (w, x), {"a": 2.0}, test_utils=others)
        torch.library.opcheck(op, (w.t(), x.t()), test_utils=others)
        with pytest.raises(torch.testing._internal.optests.OpCheckError, match="NYI devices other than CPU"):
            torch.library.opcheck(op, (w, x), test_utils="test_autograd_registration")

    def test_in_place(self, device: str) -> None:
        x = torch.randn(3, 4, device=device)
        torch.library.opcheck(torch.ops.compiling.saxpy_.default, (x, x + 1), {"a": 2.0})

    @pytest.mark.parametrize(
        "name,arguments", [("energy", ([1], True)), ("scaled", (1e-3,)), ("doubled", ()), ("kept", ())]
    )
    def test_others(self, device: str, name: str, arguments: tuple[Any, ...]) -> None:
        x = torch.randn(3, 4, device=device)
        op = getattr(torch.ops.compiling, name)
        torch.library.opcheck(op.default, (x, *arguments))
        if name != "kept":
            run: Callable[..., torch.Tensor] = torch.compile(
                lambda x: op(x, *arguments) + 1, backend="aot_eager", fullgraph=True, dynamic=True
            )
            for shape in ((3, 4), (5, 6)):
                x = torch.randn(shape, device=device)
                assert_close(run(x), op(x, *arguments) + 1)

    def test_an_override_is_traced(self, device: str) -> None:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(x: torch.Tensor) -> torch.Tensor:
                return torch.ops.compiling.doubled(x)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
                pass

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                return torch.ops.compiling.doubled(gradient) * 10

        torchgraft.autograd.override("compiling::doubled")(Double)
        x = torch.randn(3, 4, device=device, requires_grad=True)
        torch.compile(torch.ops.compiling.doubled, backend="aot_eager", fullgraph=True)(x).sum().backward()
        assert (x.grad == 20).all()
        torch.library.opcheck(torch.ops.compiling.doubled.default, (x.detach(),))
