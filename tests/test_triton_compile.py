"""Triton's kernels in functions that torch.compile compiles, beside torch's CPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._inductor.utils
import torch.nn.functional as F
from torch.library import triton_op, wrap_triton

import torchgraft
from torchgraft.inductor import options, replay
from torchgraft.plans.versions import HERE

triton = pytest.importorskip("triton", reason="needs triton: pip install 'torchgraft[triton]'", minversion="3.7")

TESTS = Path(__file__).parent
BACKENDS = ["inductor", "graft", "aot_eager"]
SIZES = [1000, 77, 1, 128]

Function = Callable[..., Any]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    import triton_compile_kernels

    return triton_compile_kernels


@pytest.fixture(autouse=True)
def _afresh(compiled_afresh: None) -> None:
    """What was compiled before is forgotten."""


def same(device: str, function: Function, expected: Function, *given: torch.Tensor, **tolerance: float) -> None:
    """Compares a compiled function with another on the CPU, thrice: by Python, recorded and replayed; with other values
    each time, and with what becomes of its arguments."""
    for _ in range(3):
        given = tuple(torch.randn_like(each) if each.is_floating_point() else each for each in given)
        mine = [each.to(device) for each in given]
        results = function(*mine)
        torch.testing.assert_close(results.cpu(), expected(*given), **tolerance)
        for one, other in zip(mine, given, strict=True):
            torch.testing.assert_close(one.cpu(), other, **tolerance)


def blocks(n: int, block: int) -> tuple[int]:
    return (triton.cdiv(n, block),)


class TestCalls:
    """In the function itself; the graph is whole."""

    @pytest.mark.quick(dynamic=True, backend="inductor")
    @pytest.mark.quick(dynamic=False, backend="graft")
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_sizes(self, device: str, kernels: ModuleType, backend: str, dynamic: bool) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.axpy[blocks(x.numel(), 64)](x * 2, y, out, 1.5, x.numel(), BLOCK=64)
            return out.relu() + 1

        compiled = torch.compile(work, backend=backend, dynamic=dynamic, fullgraph=True)
        for n in SIZES:
            same(device, compiled, lambda x, y: (x * 3 + y).relu() + 1, torch.randn(n), torch.randn(n))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_dtypes(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.tuned[lambda meta: blocks(x.numel(), meta["BLOCK"])](x, out, x.numel())
            return out + 1

        exact = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-6)
        same(device, torch.compile(work, fullgraph=True), lambda x: x * 2 + 1, torch.randn(300, dtype=dtype),
             rtol=exact, atol=exact)  # fmt: skip

    @pytest.mark.quick(dynamic=True, backend="inductor")
    @pytest.mark.quick(dynamic=False, backend="graft")
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_autotuned(self, device: str, kernels: ModuleType, backend: str, dynamic: bool) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out, total = torch.empty_like(x), torch.ones(1, device=x.device)
            kernels.tuned[lambda meta: blocks(x.numel(), meta["BLOCK"])](x + 1, out, x.numel())
            kernels.tuned_sum[lambda meta: blocks(x.numel(), meta["BLOCK"])](out, total, x.numel())
            return out + total

        def expected(x: torch.Tensor) -> torch.Tensor:
            return (x + 1) * 2 + ((x + 1) * 2).sum() + 1

        compiled = torch.compile(work, backend=backend, dynamic=dynamic, fullgraph=True)
        for n in SIZES[:3]:
            same(device, compiled, expected, torch.randn(n), rtol=1e-4, atol=1e-3)

    def test_heuristics(self, device: str, kernels: ModuleType) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.tuned_by_heuristics[lambda meta: blocks(x.numel(), meta["BLOCK"])](x, out, x.numel())
            return out * 2

        compiled = torch.compile(work, dynamic=False, fullgraph=True)
        same(device, compiled, lambda x: (x + 1) * 2, torch.randn(128))
        same(device, compiled, lambda x: (x + 2) * 2, torch.randn(100))

    def test_heuristics_alone(self, device: str, kernels: ModuleType) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.by_heuristics[(1,)](x, out, x.numel())
            return out * 2

        same(device, torch.compile(work), lambda x: (x - 1) * 2, torch.randn(100))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_arguments_that_are_written(self, device: str, kernels: ModuleType, backend: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            before = y * 1
            kernels.increment[blocks(y.numel(), 64)](y, y.numel(), 2.0, BLOCK=64)
            part = x[10:20]
            kernels.increment[(1,)](part, 10, 5.0, BLOCK=16)
            return before + y + x

        def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            before = y.clone()
            y += 2
            x[10:20] += 5
            return before + y + x

        compiled = torch.compile(work, backend=backend, fullgraph=True)
        same(device, compiled, expected, torch.randn(100), torch.randn(100))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_views(self, device: str, kernels: ModuleType, backend: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            turned = x.t()[1:]  # an offset, and strides
            out = torch.empty(turned.shape[1], device=x.device)
            kernels.row_sums[(turned.shape[1],)](turned.t(), out, x.stride(0), turned.shape[0], BLOCK=64)
            return out * 2

        same(device, torch.compile(work, backend=backend, fullgraph=True), lambda x: x[:, 1:].sum(1) * 2,
             torch.randn(7, 50))  # fmt: skip

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_arguments_that_share_memory(self, device: str, kernels: ModuleType, backend: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            kernels.axpy[(1,)](x[:100], x[10:], x[10:], 2.0, 100, BLOCK=128)
            return x + 1

        def expected(x: torch.Tensor) -> torch.Tensor:
            x[10:] = 2 * x[:100] + x[10:]
            return x + 1

        same(device, torch.compile(work, backend=backend, fullgraph=True), expected, torch.randn(110))

    @pytest.mark.parametrize("with_bias", [False, True])
    def test_constants(self, device: str, kernels: ModuleType, with_bias: bool) -> None:
        import triton.language as tl

        def work(x: torch.Tensor) -> torch.Tensor:
            out, bias = torch.empty_like(x), x + 1 if with_bias else None
            kernels.constants[(1,)](x, bias, out, x.numel(), "negative's", tl.float64, float("inf"), BLOCK=128)
            kernels.constants[(1,)](x, bias, out, x.numel(), 'plain"\\', tl.float32, 0.1, BLOCK=128)
            return out

        same(device, torch.compile(work, fullgraph=True), lambda x: (x + (x + 1 if with_bias else 0)) * 0.1,
             torch.randn(100))  # fmt: skip

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_numbers_that_are_not_specialized(self, device: str, kernels: ModuleType, dynamic: bool) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.counted[(1,)](x, out, x.shape[0], x.numel(), BLOCK=128)
            return out

        compiled = torch.compile(work, fullgraph=True, dynamic=dynamic)
        for rows in (1, 4, 1):
            same(device, compiled, lambda x: x * x.shape[0], torch.randn(rows, 30))

    def test_functions_and_globals(self, device: str, kernels: ModuleType) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.calls[(1,)](x, out, x.numel(), BLOCK=128)
            return out

        same(device, torch.compile(work, fullgraph=True), lambda x: (x * 5 + 3) / 2, torch.randn(100))

    def test_within_a_choice_of_the_device(self, device: str, kernels: ModuleType) -> None:
        """As libraries call their kernels."""
        module = getattr(torch, torch.device(device).type)
        if module.device_count() > 1:
            pytest.skip("what is chosen among several devices breaks the graph")

        def work(x: torch.Tensor) -> torch.Tensor:
            with module.device(x.device):
                out = torch.empty_like(x)
                kernels.calls[(1,)](x, out, x.numel(), BLOCK=128)
            return out + 1

        same(device, torch.compile(work, fullgraph=True), lambda x: (x * 5 + 3) / 2 + 1, torch.randn(100))

    def test_gradients(self, device: str, kernels: ModuleType) -> None:
        class Axpy(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                out = torch.empty_like(x)
                kernels.axpy[blocks(x.numel(), 64)](x, y, out, 3.0, x.numel(), BLOCK=64)
                return out

            @staticmethod
            def backward(ctx: Any, upward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                x, y = torch.empty_like(upward), torch.empty_like(upward)
                kernels.gradients[blocks(x.numel(), 64)](upward.contiguous(), x, y, 3.0, x.numel(), BLOCK=64)
                return x, y

        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            apply: Function = Axpy.apply  # type: ignore[assignment]
            out: torch.Tensor = apply(x.sin(), y)
            return out.exp()

        compiled = torch.compile(work, fullgraph=True)
        for _ in range(3):
            x, y = torch.randn(200), torch.randn(200)
            gradients = []
            for function, where in ((compiled, device), (lambda x, y: (3 * x.sin() + y).exp(), "cpu")):
                given = [each.to(where).requires_grad_() for each in (x, y)]
                function(*given).square().sum().backward()
                gradients.append([each.grad.cpu() for each in given if each.grad is not None])
            torch.testing.assert_close(*gradients)


class TestOps:
    """Of torch.library.triton_op."""

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_forward_and_backward(self, device: str, kernels: ModuleType, backend: str, dynamic: bool) -> None:
        name = f"torchgraft_test_triton_compile::twice_{backend}_{dynamic}"

        @triton_op(name, mutates_args={})
        def twice(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            wrap_triton(kernels.tuned)[lambda meta: blocks(x.numel(), meta["BLOCK"])](x, out, x.numel())
            return out

        twice.register_autograd(lambda ctx, g: twice(g.contiguous()))
        compiled = torch.compile(lambda x: twice(x.sin()).exp(), backend=backend, fullgraph=True, dynamic=dynamic)
        for n in (100, 64, 300):
            for _ in range(3):
                x = torch.randn(n)
                mine, given = x.to(device).requires_grad_(), x.clone().requires_grad_()
                result, expected = compiled(mine), (given.sin() * 2).exp()
                torch.testing.assert_close(result.cpu(), expected)
                result.sum().backward()
                expected.sum().backward()
                assert mine.grad is not None and given.grad is not None
                torch.testing.assert_close(mine.grad.cpu(), given.grad)

    def test_written_arguments(self, device: str, kernels: ModuleType) -> None:
        @triton_op("torchgraft_test_triton_compile::increment_", mutates_args={"x"})
        def increment(x: torch.Tensor, by: float) -> None:
            wrap_triton(kernels.increment)[blocks(x.numel(), 64)](x, x.numel(), by, BLOCK=64)

        def work(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            increment(y, 0.1)
            increment(x, 1.0)
            return x + y

        def expected(x: torch.Tensor) -> torch.Tensor:
            y = x * 2 + 0.1
            x += 1
            return x + y

        same(device, torch.compile(work, fullgraph=True), expected, torch.randn(150))


class TestAround:
    def test_recordings(self, device: str, kernels: ModuleType) -> None:
        """A program with kernels of Triton's is one recording."""
        from torchgraft import plans

        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.tuned[lambda meta: blocks(x.numel(), meta["BLOCK"])](x + 1, out, x.numel())
            return out.cos()

        compiled = torch.compile(work, fullgraph=True, dynamic=False)
        gc.collect()  # recordings of other tests
        before = plans.stats()
        same(device, compiled, lambda x: (x * 2 + 2).cos(), torch.randn(100))
        after = plans.stats()
        assert after.compiled_graphs == before.compiled_graphs + 1
        assert after.compiled_replays >= before.compiled_replays + 1
        assert not replay.refusals and not replay.splits

    def test_graphs(self, device: str, kernels: ModuleType) -> None:
        module = getattr(torch, torch.device(device).type)

        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.tuned[lambda meta: blocks(x.numel(), meta["BLOCK"])](x + 1, out, x.numel())
            return out.cos()

        compiled = torch.compile(work, fullgraph=True)
        x = torch.randn(100, device=device)
        compiled(x)
        graph = module.Graph()
        with module.graph(graph):
            result = compiled(x)
        for _ in range(2):
            x.copy_(torch.randn(100))
            graph.replay()
            torch.testing.assert_close(result.cpu(), (x.cpu() * 2 + 2).cos())

    def test_programs_from_the_disk(self, device: str, tmp_path: Path) -> None:
        """A second process, whose table of kernels is another, takes the programs of the first."""
        text = """
import sys, torch, triton_compile_kernels as kernels
from torch._dynamo.utils import counters

def tuned(x):
    out = torch.empty_like(x)
    kernels.tuned[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, out, x.numel())
    return out + 1

def called(x):
    out = torch.empty_like(x)
    kernels.calls[(1,)](x, out, x.numel(), BLOCK=128)
    return out

expected = {tuned: lambda x: x * 2 + 1, called: lambda x: (x * 5 + 3) / 2}
for function in (tuned, called) if sys.argv[2] == "first" else (called, tuned):
    compiled = torch.compile(function, fullgraph=True)
    for _ in range(3):
        x = torch.randn(100)
        torch.testing.assert_close(compiled(x.to(sys.argv[1])).cpu(), expected[function](x))
hits, misses = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
assert (hits, misses) == ((0, 2) if sys.argv[2] == "first" else (2, 0)), (hits, misses)
"""
        script = tmp_path / "script.py"
        script.write_text(text)
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        for which in ("first", "second"):
            done = subprocess.run(
                [sys.executable, str(script), device, which],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr[-4000:]


FUNCTIONS: dict[str, Function] = {
    "add": lambda x, y: x + y * 2,
    "gelu": lambda x, y: F.gelu(x) * y,
    "where": lambda x, y: torch.where(x > y, x.tanh(), y.abs().log1p()),
    "softmax": lambda x, y: (x * 2).softmax(-1),
    "softmax of columns": lambda x, y: x.softmax(0) + y,
    "layer norm": lambda x, y: F.layer_norm(x, x.shape[-1:]) * y,
    "rms norm": lambda x, y: F.silu(F.rms_norm(x, x.shape[-1:])),
    "variance": lambda x, y: x.var(-1),
    "sum": lambda x, y: (x * y).sum(),
    "sum of columns": lambda x, y: x.sum(0),
    "cumulative sum": lambda x, y: x.cumsum(-1) + 1,
    "place of the largest": lambda x, y: (x * 2).argmax(-1),
    "place of the least of all": lambda x, y: (x + y).argmin(),
    "largest, and its place": lambda x, y: torch.stack([*x.max(-1)]),
    "largest of booleans": lambda x, y: (x > 1).int().argmax(-1) + (x > 1).any(-1),
    "transposed": lambda x, y: x.t().contiguous() + y.t(),
    "shifts": lambda x, y: (x * 100).int() << (y * 20).int() >> (x * 20).int(),
    "without a kernel in Triton": lambda x, y: torch.special.i1e(x) + y,
}


class TestByTriton:
    """Inductor's own kernels, as Triton's: the option codegen."""

    @pytest.fixture(autouse=True)
    def _option(self) -> Iterator[None]:
        with options.patch(codegen="triton"):
            yield

    @pytest.mark.quick(dynamic=False)
    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_functions(self, device: str, name: str, dynamic: bool) -> None:
        function, compiled = FUNCTIONS[name], torch.compile(FUNCTIONS[name], dynamic=dynamic, fullgraph=True)
        for sizes in ((7, 33), (100, 3000), (3000, 8)):
            same(device, compiled, function, torch.randn(sizes), torch.randn(sizes), rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64], ids=str)
    @pytest.mark.parametrize("name", ["add", "sum of columns", "place of the largest", "transposed"])
    def test_dtypes(self, device: str, name: str, dtype: torch.dtype) -> None:
        x, y = (torch.randint(-8, 9, (50, 70)).to(dtype) for _ in range(2))  # exact, in all of them
        function = FUNCTIONS[name]
        result = torch.compile(function, fullgraph=True)(x.to(device), y.to(device))
        torch.testing.assert_close(result.cpu(), function(x, y))

    def test_training(self, device: str) -> None:
        def network() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.LayerNorm(30),
                                       torch.nn.Linear(30, 5))  # fmt: skip

        mine, expected = network().to(device), network()
        mine.load_state_dict(expected.state_dict())
        compiled = torch.compile(mine, fullgraph=True)
        for _ in range(3):
            x = torch.randn(16, 20)
            losses = [model(x.to(where)).log_softmax(-1)[:, 0].mean() for model, where in
                      ((compiled, device), (expected, "cpu"))]  # fmt: skip
            torch.testing.assert_close(losses[0].cpu(), losses[1])
            for loss in losses:
                loss.backward()
            for one, other in zip(mine.parameters(), expected.parameters(), strict=True):
                assert one.grad is not None and other.grad is not None
                torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)

    def test_what_is_generated(self, device: str) -> None:
        """Programs with Triton's kernels and none of the device's language, recorded; and Triton's driver is what it
        was."""
        from triton.runtime import driver

        before = driver.active
        work = FUNCTIONS["softmax"]
        x = torch.randn(40, 50)
        compiled = torch.compile(work)
        result, (program,) = torch._inductor.utils.run_and_get_code(compiled, x.to(device), x.to(device))
        torch.testing.assert_close(result.cpu(), work(x, x))
        assert "tl.load" in program and "tg_generated(" not in program and "set_driver" not in program
        assert driver.active is before
        same(device, compiled, work, x, x)
        assert not replay.refusals and not replay.splits

    def test_with_kernels_of_ones_own(self, device: str, kernels: ModuleType) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.tuned[lambda meta: blocks(x.numel(), meta["BLOCK"])](x.sin(), out, x.numel())
            return out.softmax(-1)

        same(device, torch.compile(work, fullgraph=True), lambda x: (x.sin() * 2).softmax(-1), torch.randn(70))

    def test_a_number_that_is_a_tensor(self, device: str) -> None:
        compiled = torch.compile(lambda x, y: x * y + 1, fullgraph=True)
        for _ in range(3):
            x, y = torch.randn(40), torch.randn(())
            torch.testing.assert_close(compiled(x.to(device), y).cpu(), x * y + 1)

    def test_kernels_that_are_combined_on_demand(self, device: str) -> None:
        with torch._inductor.config.patch(combo_kernels=True):
            compiled = torch.compile(lambda x, y: (x * 2).sum(0).sum() + (y + 1).sum(0).sum(), fullgraph=True)
            same(device, compiled, lambda x, y: x.sum() * 2 + (y + 1).sum(), torch.randn(30, 70), torch.randn(90, 7),
                 rtol=1e-4, atol=1e-3)  # fmt: skip

    def test_kernels_that_there_are_not(self, device: str) -> None:
        with torch._inductor.config.patch({"triton.force_cooperative_reductions": True}):
            x = torch.randn(30, 7000, device=device)
            with pytest.raises(Exception, match="no kernels of the kind 'cooperative_reduction'"):
                torch.compile(lambda x: x.sum(-1))(x)

    def test_numbers_of_indices(self, device: str) -> None:
        """Of more bits than the indices have."""

        def work(x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(0, 7 * 10**9, 10**9, device=x.device)

        for dynamic in (False, True):
            x = torch.randint(9, (5, 7))
            same(device, torch.compile(work, dynamic=dynamic, fullgraph=True), work, x)

    def test_indices(self, device: str) -> None:
        """They are looked at, in recorded programs as well."""
        work = lambda x, i: F.embedding(i, x) * 2 + x[i + 1]  # noqa: E731
        compiled = torch.compile(work, fullgraph=True)
        x, i = torch.randn(10, 30), torch.randint(0, 9, (6,))
        same(device, compiled, work, x, i)
        i[3] = 9
        with pytest.raises(RuntimeError, match="index out of bounds"):
            compiled(x.to(device), i.to(device))
        same(device, compiled, work, x, i.clamp(max=8))

    def test_an_op_that_is_a_row(self, device: str) -> None:
        """It is called, since its expression is in the device's language."""
        torch.library.define("torchgraft_test_triton_compile::axpy", "(Tensor x, Tensor y, *, float a=1.0) -> Tensor")
        torchgraft.ops.row("torchgraft_test_triton_compile::axpy", "T z = a * x; z + @exp(-y)")
        axpy = torch.ops.torchgraft_test_triton_compile.axpy
        compiled = torch.compile(lambda x, y: axpy(x.abs(), y, a=2.5).relu() + 1, fullgraph=True)
        same(device, compiled, lambda x, y: (2.5 * x.abs() + (-y).exp()).relu() + 1, torch.randn(30), torch.randn(30))


def test_the_option_is_of_one_compilation(device: str) -> None:
    x = torch.randn(30, device=device)
    compiled = torch.compile(lambda x: x * 2 + 1)
    for option, word in (("triton", "tg_triton_loops("), ("", "tg_generated("), ("triton", "tg_triton_loops(")):
        torch._dynamo.reset()
        with options.patch(codegen=option):
            _, (program,) = torch._inductor.utils.run_and_get_code(compiled, x)
        assert word in program.partition("def call")[0].partition("async_compile.wait")[0]


def test_a_generator_that_there_is_not(device: str) -> None:
    x = torch.randn(30, device=device)
    with options.patch(codegen="cuda"), pytest.raises(Exception, match="codegen is 'triton', or not given"):
        torch.compile(lambda x: x * 2 + 1)(x)


@pytest.mark.skipif(HERE < (2, 15), reason="torch takes no options of devices before 2.15")
def test_by_the_devices_name(device: str) -> None:
    x = torch.randn(30, device=device)
    compiled = torch.compile(lambda x: x * 2 + 1, options={f"{torch.device(device).type}.codegen": "triton"})
    result, (program,) = torch._inductor.utils.run_and_get_code(compiled, x)
    torch.testing.assert_close(result.cpu(), x.cpu() * 2 + 1)
    assert "tl.load" in program


class TestRefusals:
    def test_what_triton_refuses(self, device: str, kernels: ModuleType) -> None:
        """By the same words as without torch.compile."""

        def work(x: torch.Tensor) -> torch.Tensor:
            kernels.assembled[(1,)](x, 64, BLOCK=64)
            return x + 1

        x = torch.zeros(64, device=device)
        with pytest.raises(NotImplementedError, match=r"tt\.elementwise_inline_asm"):
            torch.compile(work)(x)
        assert (x == 0).all()

    def test_names_with_two_meanings(self, device: str, kernels: ModuleType) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernels.means_two_things[(1,)](x, out, x.numel(), BLOCK=64)
            return out

        x = torch.randn(64)
        with pytest.raises(Exception, match=r"means_two_things.*different things by 'CLASH'"):
            torch.compile(work)(x.to(device))
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(work, backend="graft")(x.to(device)).cpu(), x * 10 + 1)
