"""Plans: made once in Python for each kind of call, run many times in C++."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
from conftest import Script
from torch.testing import assert_close

import torchgraft
from torchgraft import _C, plans
from torchgraft.codegen import Kernel, Pointer, Value
from torchgraft.codegen.compiler import simd_width
from torchgraft.plans import PlanBuilder, registry, versions
from torchgraft.plans.call import plan_call, plan_nested
from torchgraft.plans.device import device_traits

pytestmark = pytest.mark.no_fallback

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _compiler(device: str) -> None:
    if device == "npy":
        pytest.skip("the device has no compiler, so nothing is planned")


@pytest.fixture
def capacity() -> Iterator[Callable[[int], None]]:
    """Sets how many plans an op may keep."""
    plans.clear()
    yield _C.set_plan_capacity
    _C.set_plan_capacity(4096)


def misses(call: Callable[[], Any]) -> int:
    """How many plans Python makes for a call."""
    before = plans.stats().misses
    call()
    return plans.stats().misses - before


def kept(op: str) -> int:
    """How many plans an overload has."""
    return next(count[1] for count in _C.plan_counts() if count[0] == op)


# What is a new plan, and what is not


class TestKeys:
    def test_same_call(self, device: str) -> None:
        x = torch.ones(3, 4, device=device)
        plans.clear()
        assert misses(lambda: torch.sin(x)) == 1
        assert misses(lambda: torch.sin(x)) == 0
        assert misses(lambda: torch.sin(torch.zeros(3, 4, device=device))) <= 1  # of zeros
        assert kept("aten::sin") == 1

    def test_a_contiguous_call_has_one_plan_for_all_shapes(self, device: str) -> None:
        plans.clear()
        tensors = [
            torch.rand(shape).to(device) for shape in [(3, 4), (5,), (2, 3, 4), (70_000,), (1, 1), (0, 3), (257,)]
        ]
        for x in tensors:
            assert_close((x * x).cpu(), x.cpu() * x.cpu())
            y = x.clone()
            y.mul_(x)
            assert_close(y.cpu(), x.cpu() * x.cpu())
        assert (kept("aten::mul.Tensor"), kept("aten::mul_.Tensor")) == (1, 1)

    def test_scalars_of_zero_dimensions_are_apart(self, device: str) -> None:
        plans.clear()
        assert (torch.tensor(3.0, device=device) * torch.tensor(2.0, device=device)).item() == 6

    def test_other_strides_have_plans_of_their_own(self, device: str) -> None:
        x, y = torch.rand(6, 8).to(device), torch.rand(8, 6).to(device)
        plans.clear()
        for a, b in [(x, y.t()), (x.t(), y), (x[::2], x[1::2]), (x, x[:1])]:
            assert misses(functools.partial(torch.add, a, b)) == 1
            assert misses(functools.partial(torch.add, a, b)) == 0
            assert_close((a + b).cpu(), a.cpu() + b.cpu())

    def test_dtypes_have_plans_of_their_own(self, device: str) -> None:
        plans.clear()
        dtypes = [torch.float32, torch.int64, torch.bfloat16, torch.bool]
        for dtype in dtypes:
            x = torch.ones(3).to(dtype).to(device)
            assert torch.eq(x, x).tolist() == [True] * 3
        assert kept("aten::eq.Tensor") == len(dtypes)

    def test_static_arguments_have_plans_of_their_own(self, device: str) -> None:
        x = torch.arange(12.0).view(3, 4).to(device)
        plans.clear()
        results = [x.sum(dim).tolist() for dim in (0, 1, 0, [0, 1], None)]
        assert results == [[12, 15, 18, 21], [6, 22, 38], [12, 15, 18, 21], 66, 66]
        assert kept("aten::sum.dim_IntList") in (3, 4)  # torch may call sum() by either overload
        x.sum(1, keepdim=True)
        assert x.sum(1, dtype=torch.float16).dtype == torch.float16

    def test_deterministic_mode_has_plans_of_its_own(self, device: str) -> None:
        x = torch.ones(3, 4, device=device)
        torch.cos(x)
        was = torch.are_deterministic_algorithms_enabled()
        try:
            torch.use_deterministic_algorithms(True)
            plans_of_cos = kept("aten::cos")
            torch.cos(x)
            assert kept("aten::cos") == plans_of_cos + 1
        finally:
            torch.use_deterministic_algorithms(was)
        assert misses(lambda: torch.cos(x)) == 0

    @pytest.mark.thorough
    @pytest.mark.parametrize("deterministic", [True, False])
    def test_other_threads_see_nothing_of_plans_being_made(self, script: Script, deterministic: bool) -> None:
        """What torch and Python keep for the whole process stays as it is, however briefly another thread looks."""
        script(
            f"""
            import sys, threading, warnings
            import torch
            from torch.utils import _python_dispatch
            from torchgraft import plans

            torch.use_deterministic_algorithms({deterministic})
            x = torch.rand(6, 7, device="ocl")
            out = torch.empty(2, device="ocl")
            calls = [
                lambda: torch.median(x, 1),
                lambda: x.add(1.0),
                lambda: x.to(torch.int32).div_(2, rounding_mode="floor"),
                lambda: torch.addcdiv(x, x, x),  # a decomposition
                lambda: torch.nn.functional.huber_loss(x, x),
                lambda: torch.nn.functional.gelu(x),
                lambda: torch.mul(x, x, out=out.resize_(6, 7)),
                lambda: torch.sum(x, 1, out=out.resize_(6)),
            ]

            def state():
                return (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                    torch.get_default_dtype(),
                    tuple(map(id, warnings.filters)),
                    _python_dispatch.is_in_torch_dispatch_mode(),
                    torch.is_grad_enabled(),
                )

            def make_plans():
                for _ in range(25):
                    plans.clear()
                    for call in calls:
                        call()

            make_plans()  # whatever is imported then may add filters
            before = state()
            sys.setswitchinterval(1e-6)
            maker = threading.Thread(target=make_plans)
            maker.start()
            seen = set()
            looks = 0
            while maker.is_alive():
                seen.add(state())
                looks += 1
            assert seen == {{before}}, (before, seen)
            assert looks > 100, looks
            """,
            autoload=True,
        )

    @pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
    def test_a_plan_serves_all_divisors_but_zero(self, device: str, divide: Callable[..., torch.Tensor]) -> None:
        x = torch.tensor([7, -7, 100], dtype=torch.int8)
        mine = x.to(device)
        divide(mine, 3)
        numbers = (2, -3, 300, 5)
        found: list[list[int]] = []
        assert misses(lambda: found.extend(divide(mine, n).tolist() for n in numbers)) == 0
        assert found == [divide(x, n).tolist() for n in numbers]
        for zero in (0, 256):  # as an int8
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                divide(mine, zero)
        assert divide(mine, 2).tolist() == divide(x, 2).tolist()

    def test_conjugates_and_negatives(self, device: str) -> None:
        z = torch.randn(4, dtype=torch.complex64)
        on_device = z.to(device)
        for view in (lambda t: t, torch.conj, lambda t: torch._neg_view(t), lambda t: torch._neg_view(t.conj())):
            assert_close((view(on_device) * on_device).cpu(), view(z) * z)

    def test_an_op_inside_a_no_dispatch_mode(self, device: str) -> None:
        """A plan that is made while a mode of the user's watches does not show it the plan's insides."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func)
                return func(*args, **(kwargs or {}))

        x = torch.ones(3, 5, device=device)
        plans.clear()
        with Watch():  # type: ignore[no-untyped-call]
            torch.softmax(x, 1)
        assert [op.overloadpacket for op in seen] == [torch.ops.aten._softmax]


class TestScalars:
    def test_a_scalar_that_is_passed_on_is_dynamic(self, device: str) -> None:
        x, y = torch.ones(5, device=device), torch.full((5,), 2.0, device=device)
        torch.add(x, y, alpha=0.5)
        for alpha in (2.0, -3.25, 1e30, float("inf")):
            assert misses(functools.partial(torch.add, x, y, alpha=alpha)) == 0
            assert_close(torch.add(x, y, alpha=alpha).cpu(), torch.add(x.cpu(), y.cpu(), alpha=alpha))

    def test_the_type_of_a_scalar_is_part_of_the_key(self, device: str) -> None:
        x = torch.ones(5, dtype=torch.int32, device=device)
        assert (x + 1).dtype == torch.int32
        assert (x + 1.5).tolist() == [2.5] * 5
        assert (x + True).dtype == torch.int32

    def test_a_scalar_that_is_read_is_static(self, device: str) -> None:
        x = torch.rand(5).to(device)
        exponents = [2, 3, 2.5, -1, 7, 0.125]
        for _ in range(2):
            for exponent in exponents:
                assert_close(torch.pow(x, exponent).cpu(), torch.pow(x.cpu(), exponent))
        # From the first read on the value is looked at, of either type.
        assert misses(lambda: [torch.pow(x, exponent) for exponent in exponents]) == 0
        assert misses(lambda: torch.pow(x, 11.0)) == 1

    def test_a_zero_dim_cpu_tensor_is_read_when_the_plan_runs(self, device: str) -> None:
        x, number = torch.arange(3.0).to(device), torch.tensor(10.0)
        assert (x + number).tolist() == [10, 11, 12]
        number.fill_(20)
        assert misses(lambda: x + number) == 0
        assert (x + number).tolist() == [20, 21, 22]
        assert (number - x).tolist() == [20, 19, 18]
        assert (x * torch.tensor(2, dtype=torch.int64)).tolist() == [0, 2, 4]
        assert (x * torch.tensor(1.5, dtype=torch.float64)).dtype == torch.float32

    def test_a_value_that_no_plan_is_for_is_refused(self, device: str) -> None:
        """A dynamic scalar's bounds hold for hits too."""
        x = torch.empty(8, device=device)
        x.bernoulli_(0.5)
        x.bernoulli_(0.25)
        with pytest.raises(RuntimeError, match="p"):
            x.bernoulli_(1.5)
        x.bernoulli_(0.75)


# A hit is C++ alone


class TestHits:
    def test_the_planner_is_not_asked(self, device: str) -> None:
        x, y = torch.rand(4, 6).to(device), torch.rand(6, 4).to(device)

        def work() -> list[torch.Tensor]:
            z = torch.relu(x + y.t())
            z.mul_(2).add_(x, alpha=0.5)
            return [z, (x @ y), z.sum(1), torch.softmax(z, 1), z.t().contiguous(), torch.cat([x, z])]

        expected = [t.cpu() for t in work()]

        def refuse(*_: Any) -> Any:
            raise AssertionError("a plan was asked for")

        _C.set_planner(refuse)
        try:
            for result, by in zip(work(), expected, strict=True):
                assert torch.equal(result.cpu(), by)
            with pytest.raises(AssertionError, match="a plan was asked for"):
                torch.add(x[::2], x[1::2])
        finally:
            _C.set_planner(plan_call)
        torch.add(x[::2], x[1::2])

    def test_python_runs_nothing(self, device: str) -> None:
        x = torch.rand(4, 6).to(device)
        torch.exp(x)
        calls = []
        sys.setprofile(lambda frame, event, argument: calls.append(event) if event == "call" else None)
        torch.exp(x)
        sys.setprofile(None)
        assert calls == []

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchScript, which runs ops in threads of its own
    def test_the_gil_is_not_needed(self, device: str) -> None:
        """Another thread runs hundreds of ops while this one holds the GIL without a break."""

        def repeat(x: torch.Tensor, n: int) -> torch.Tensor:
            for _ in range(n):
                x = torch.add(x, 1.0)
            return x

        scripted = torch.jit.script(repeat)
        x = torch.zeros(5, device=device)
        for _ in range(3):
            scripted(x, 3)  # what TorchScript compiles at first
        hold = ctypes.PyDLL(None).usleep  # unlike time.sleep
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        try:
            until = time.monotonic() + 20
            future = torch.jit.fork(scripted, x, 300)
            while not future.done() and time.monotonic() < until:
                hold(1000)
            done = future.done()
        finally:
            sys.setswitchinterval(interval)
        assert torch.jit.wait(future).tolist() == [300.0] * 5
        assert done


class TestThreads:
    def test_hits_and_misses_at_once(self, device: str) -> None:
        plans.clear()
        shapes = [(n, m) for n in range(1, 7) for m in range(1, 7)]
        begin = threading.Barrier(6)

        def work(number: int) -> None:
            begin.wait()
            for i in range(len(shapes)):
                n, m = shapes[(i + number * 5) % len(shapes)]
                a, b = torch.rand(n, m), torch.rand(m, n)
                x, y = a.to(device), b.to(device)
                assert_close((x + y.t() * number).cpu(), a + b.t() * number)
                assert_close(x.sum(0).cpu(), a.sum(0))
                assert_close(torch.pow(x, number).cpu(), torch.pow(a, number))

        with ThreadPoolExecutor(6) as pool:
            for future in [pool.submit(work, number) for number in range(6)]:
                future.result()

    def test_plans_are_forgotten_while_they_run(self, device: str, capacity: Callable[[int], None]) -> None:
        capacity(2)
        stop = threading.Event()

        def forget() -> None:
            while not stop.wait(0.002):
                plans.clear()

        def work(number: int) -> None:
            for i in range(60):
                x = torch.full((2 + i % 5, 3), float(number), device=device)
                assert (x.t() + x.t()[:, :1]).cpu().unique().tolist() == [2.0 * number]

        with ThreadPoolExecutor(4) as pool:
            forgetting = pool.submit(forget)
            try:
                for future in [pool.submit(work, number) for number in range(3)]:
                    future.result()
            finally:
                stop.set()
            forgetting.result()


class TestCapacity:
    def test_the_oldest_are_forgotten(self, device: str, capacity: Callable[[int], None]) -> None:
        capacity(8)
        tensors = [torch.rand(n, 3).to(device).t() for n in range(2, 40)]
        favourite = tensors[0]
        for x in tensors:
            assert_close(torch.neg(x).cpu(), -x.cpu())
            torch.neg(favourite)
            assert kept("aten::neg") <= 8
        assert misses(lambda: torch.neg(favourite)) == 0
        assert misses(lambda: torch.neg(tensors[-1])) == 0
        assert misses(lambda: torch.neg(tensors[1])) == 1

    def test_counts_outlive_plans(self, device: str, capacity: Callable[[int], None]) -> None:
        capacity(4)
        before = plans.stats()
        tensors = [torch.rand(n, 3).to(device).t() for n in range(2, 12)]
        calls = plans.stats().hits + plans.stats().misses
        for x in tensors:
            torch.neg(x)
            torch.neg(x)
        plans.clear()
        after = plans.stats()
        assert after.hits + after.misses == calls + 20
        assert after.hits >= before.hits
        assert after.plans == 0


# Results


Into = Callable[[torch.Tensor, dict[str, torch.Tensor]], Any]  # a call with a matrix and perhaps with out=

# of three by three floating-point numbers
EXACT: dict[str, Into] = {
    "bucketize": lambda x, to: torch.bucketize(x, x[0].sort()[0], **to),
    "clamp to numbers": lambda x, to: torch.clamp(x, 0.5, 1, **to),
    "cross": lambda x, to: torch.linalg.cross(x, x, **to),
    "gelu": lambda x, to: torch._C._nn.gelu(x, **to),
    "index_add": lambda x, to: torch.index_add(x, 0, torch.arange(3, device=x.device), x, **to),
    "index_select": lambda x, to: torch.index_select(x, 0, torch.arange(2, device=x.device), **to),
    "inverse": lambda x, to: torch.linalg.inv(x, **to),
    "isin": lambda x, to: torch.isin(x, x[0], **to),
    "isnan": lambda x, to: aten.isnan.out(x, **to) if to else x.isnan(),
    "lerp of tensors": lambda x, to: torch.lerp(x, x, x, **to),
    "mm": lambda x, to: torch.mm(x, x, **to),
    "msort": lambda x, to: torch.msort(x, **to),
    "narrow_copy": lambda x, to: aten.narrow_copy.out(x, 0, 1, 2, **to) if to else x[1:].clone(),
    "not": lambda x, to: torch.bitwise_not(x > 1, **to),
    "norm": lambda x, to: torch.linalg.vector_norm(x, **to),
    "softmax": lambda x, to: torch.softmax(x, 0, **to),
    "take": lambda x, to: torch.take(x, torch.arange(3, device=x.device), **to),
    "tril": lambda x, to: torch.tril(x, **to),
    "where": lambda x, to: torch.where(x > 1, x, -x, **to),
}
CONVERTING: dict[str, Into] = {
    "addr": lambda x, to: torch.addr(x, x[0], x[1], **to),
    "cat": lambda x, to: torch.cat([x, x], **to),
    "clamp to tensors": lambda x, to: torch.clamp(x, x[0], x[1], **to),
    "largest": lambda x, to: torch.max(x, **to),
    "lerp": lambda x, to: torch.lerp(x, x.t(), 0.25, **to),
    "loss": lambda x, to: torch._C._nn.mse_loss(x, x.t(), 0, **to),
    "mean": lambda x, to: torch.mean(x, 0, **to),
    "stack": lambda x, to: torch.stack([x, x], **to),
}
if [*versions.here(["cholesky"])]:
    CONVERTING["cholesky"] = lambda x, to: torch.cholesky(x, **to)


class TestOut:
    def test_an_empty_one_is_resized(self, device: str) -> None:
        x = torch.rand(3, 4).to(device)
        for _ in range(2):
            out = torch.empty(0, device=device)
            assert torch.add(x, x, out=out) is out
            assert_close(out.cpu(), x.cpu() * 2)

    def test_one_of_another_shape_is_resized_with_a_warning(self, device: str) -> None:
        x = torch.rand(3, 4).to(device)
        for _ in range(2):
            out = torch.ones(5, device=device)
            with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
                torch.mul(x, x, out=out)
            assert_close(out.cpu(), x.cpu() * x.cpu())

    def test_one_of_another_dtype_is_converted_into(self, device: str) -> None:
        x = torch.tensor([1.5, -2.5]).to(device)
        out = torch.empty(2, dtype=torch.float64, device=device)
        assert torch.add(x, x, out=out).tolist() == [3, -5]
        with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Int"):
            torch.add(x, x, out=torch.empty(2, dtype=torch.int32, device=device))

    @pytest.mark.parametrize("op", EXACT.values(), ids=EXACT)
    def test_one_of_another_dtype_is_refused(self, op: Into, device: str) -> None:
        other = {torch.float32: torch.float64, torch.int64: torch.int32, torch.bool: torch.uint8}
        for place in ("cpu", device, device):
            matrix = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]], device=place)
            result = op(matrix, {})
            for layout in (result, result.t() if result.dim() == 2 else result):
                out = torch.empty_like(layout, dtype=other[result.dtype])
                with pytest.raises(RuntimeError):
                    op(matrix, {"out": out})

    @pytest.mark.parametrize("op", CONVERTING.values(), ids=CONVERTING)
    def test_one_of_another_dtype_gets_what_torch_casts(self, op: Into, device: str) -> None:
        matrix = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
        for dtype in (torch.float64, torch.float16, torch.complex64):
            out = torch.empty(0, dtype=dtype, device=device)
            op(matrix.to(device), {"out": out})
            assert_close(out.cpu(), op(matrix, {"out": torch.empty(0, dtype=dtype)}), rtol=1e-3, atol=1e-3)
        for place in ("cpu", device):
            with pytest.raises((RuntimeError, TypeError)):
                op(matrix.to(place), {"out": torch.empty(0, dtype=torch.int64, device=place)})

    def test_one_with_strides(self, device: str) -> None:
        x = torch.rand(3, 4).to(device)
        base = torch.zeros(4, 6, device=device)
        torch.mul(x, 2, out=base.t()[::2])
        expected = torch.zeros(4, 6)
        torch.mul(x.cpu(), 2, out=expected.t()[::2])
        assert_close(base.cpu(), expected)

    def test_one_that_is_an_input(self, device: str) -> None:
        ops: list[tuple[Callable[..., torch.Tensor], int]] = [(torch.mm, 2), (torch.sub, 2), (torch.neg, 1)]
        for op, takes in ops:
            a = torch.rand(4, 4)
            x = a.to(device)
            assert_close(op(*[x] * takes, out=x).cpu(), op(*[a] * takes))


class TestOverlap:
    def raises_as_on_cpu(self, call: Callable[[str], Any], device: str) -> None:
        with pytest.raises(RuntimeError) as there:
            call("cpu")
        for _ in range(2):
            with pytest.raises(RuntimeError) as here:
                call(device)
            assert str(here.value).splitlines()[0] == str(there.value).splitlines()[0]

    def test_half_over_an_input(self, device: str) -> None:
        def transposed(device: str) -> None:
            x = torch.ones(3, 3, device=device)
            x.add_(x.t())

        def shifted(device: str) -> None:
            x = torch.ones(10, device=device)
            torch.mul(x[:-1], 2, out=x[1:])

        self.raises_as_on_cpu(transposed, device)
        self.raises_as_on_cpu(shifted, device)

    def test_over_itself(self, device: str) -> None:
        def in_place(device: str) -> None:
            torch.ones(1, 3, device=device).expand(4, 3).add_(1)

        def out(device: str) -> None:
            torch.add(torch.ones(4, 3, device=device), 1, out=torch.ones(1, 3, device=device).expand(4, 3))

        self.raises_as_on_cpu(in_place, device)
        self.raises_as_on_cpu(out, device)

    def test_neighbours_do_not_overlap(self, device: str) -> None:
        def work(device: str) -> torch.Tensor:
            x = torch.arange(8.0, device=device)
            x[:4].add_(x[4:])
            x[::2].mul_(x[1::2])
            x[::2].add_(x[::2])
            x.add_(x)
            y = x.view(2, 4)
            torch.sum(y[:, ::2], 1, out=y[:, 1])
            return x

        assert_close(work(device).cpu(), work("cpu"))


# Calls without a plan


class TestFallback:
    def test_a_dtype_that_kernels_do_not_have(self, device: str) -> None:
        x = torch.tensor([1, 2, 3], dtype=torch.uint16).to(device)
        torchgraft.reset_fallback_report()  # of another dtype the reason is another
        with torchgraft.fallback("silent"):
            assert torch.eq(x, x).tolist() == [True] * 3
        why = "kernels have no element type for torch.uint16"
        assert torchgraft.fallback_report()["aten::eq.Tensor"].reason == why
        with pytest.raises(
            NotImplementedError, match=rf"aten::eq\.Tensor has no kernel for device .* this call: {why}"
        ):
            torch.eq(x, x)
        assert "CPU fallback: kernels have no element type for torch.uint16" in plans.show("aten::eq.Tensor")

    def test_a_planner_may_refuse(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(p: PlanBuilder, *_: Any, **__: Any) -> None:
            raise plans.Unsupported("today is Sunday")

        entry = plans.ENTRIES["aten::sinh"]
        monkeypatch.setitem(
            plans.ENTRIES, "aten::sinh", registry.Entry(entry.op, entry.functional, entry.kind, refuse, entry.options)
        )
        plans.clear()
        x = torch.ones(3, device=device)
        with torchgraft.fallback("silent"):
            assert_close(torch.sinh(x).cpu(), torch.sinh(torch.ones(3)))
        assert plans.show("sinh") == "aten::sinh: CPU fallback: today is Sunday\n"
        plans.clear()

    def test_an_error_of_the_planner_is_the_callers(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(p: PlanBuilder, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError("in the planner")

        entry = plans.ENTRIES["aten::cosh"]
        plans.clear()
        x = torch.ones(3, device=device)
        with monkeypatch.context() as patch:
            patch.setitem(
                plans.ENTRIES, "aten::cosh", registry.Entry(entry.op, entry.functional, entry.kind, fail, entry.options)
            )
            for _ in range(2):  # a failure is not kept
                with pytest.raises(ZeroDivisionError, match="in the planner"):
                    torch.cosh(x)
        assert_close(torch.cosh(x).cpu(), torch.cosh(torch.ones(3)))

    def test_devices_must_agree(self, device: str) -> None:
        x = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            x + torch.ones(3)


# What can be seen of plans


def refused_in_place(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(torch.ones(2, 5, device=x.device))


def with_a_number_of_the_cpu(x: torch.Tensor) -> None:
    """As a value, and by an op that has it put on the device first."""
    number = torch.tensor(2.5)
    assert_close((x + number).cpu(), x.cpu() + 2.5)
    assert_close(torch.addmm(number, x.view(-1, 1), x.view(1, -1)).cpu(), torch.outer(x.cpu(), x.cpu()) + 2.5)


class TestOwners:
    """Calls borrow their tensors: afterwards each has the owners that it had, whatever became of the call."""

    CALLS: ClassVar[dict[str, Callable[[torch.Tensor], Any]]] = {
        "functional": lambda x: x + x,
        "in place": lambda x: x.mul_(1),
        "out=": lambda x: torch.add(x, x, out=torch.empty_like(x)),
        "out= that grows": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
        "of the argument itself": lambda x: x.contiguous(),
        "from the boxed dispatcher": lambda x: aten.add.Tensor(x, x, alpha=2),
        "with a number of the CPU": with_a_number_of_the_cpu,
        "refused": refused_in_place,
        "with gradients": lambda x: (x.detach().requires_grad_() * x).sum().backward(),
        "vectorised": lambda x: torch.vmap(torch.sin)(x),
    }

    @staticmethod
    def owners(x: torch.Tensor) -> tuple[int, int, int]:
        """Of the tensor, of its storage, and of its Python object."""
        gc.collect()
        return x._use_count(), torch._C._storage_Use_Count(x.untyped_storage()._cdata), sys.getrefcount(x)

    @pytest.mark.quick(call=["in place", "out=", "refused", "with gradients"])
    @pytest.mark.parametrize("call", CALLS)
    def test_they_are_as_before(self, device: str, call: str) -> None:
        x = torch.randn(5, device=device)
        held = x.view(5)  # a second owner of the storage
        self.CALLS[call](x)  # a plan, and whatever else is kept
        counts = self.owners(x)
        for _ in range(20):
            self.CALLS[call](x)
        assert self.owners(x) == counts
        assert held.cpu().isfinite().all()

    def test_what_nobody_holds_is_freed(self, device: str) -> None:
        x = torch.randn(1000, device=device)
        y = x + 1
        gone = weakref.ref(x), weakref.ref(y)
        y.add_(x)
        torch.mul(x, y, out=x)
        del x, y
        gc.collect()
        assert [reference() for reference in gone] == [None, None]

    def test_results_outlive_their_arguments(self, device: str) -> None:
        results = [(torch.full((3,), float(i), device=device) + i).neg_() for i in range(50)]
        assert [result.tolist() for result in results] == [[-2.0 * i] * 3 for i in range(50)]

    def test_a_fallback_owns_what_it_is_given(self, device: str) -> None:
        x = torch.tensor([1, 2, 3], dtype=torch.uint16).to(device)
        counts = self.owners(x)
        with torchgraft.fallback("silent"):
            for _ in range(5):
                assert torch.eq(x, x).tolist() == [True] * 3
        assert self.owners(x) == counts


class TestReports:
    def test_stats(self, device: str) -> None:
        x = torch.ones(3, device=device)
        plans.clear()
        torch.tan(x)
        before = plans.stats()
        torch.tan(x)
        after = plans.stats()
        assert (after.hits - before.hits, after.misses - before.misses, after.plans) == (1, 0, before.plans)
        assert before.plans >= 1
        assert after.kernels_compiled + after.kernels_loaded > 0
        plans.clear()
        assert plans.stats().plans == 0
        assert plans.stats().hits == after.hits

    def test_show(self, device: str) -> None:
        x = torch.ones(3, device=device)
        plans.clear()
        for _ in range(3):
            torch.asinh(x)
        text = plans.show("aten::asinh")
        assert text.startswith(
            "aten::asinh: 1 steps, 0 temporaries (0 bytes), 2 hits\n  launch asinh_f32 groups (numel / chunk) of ("
        )
        assert "asinh_f32(" not in text
        assert "asinh_f32(" in plans.show("asinh", source=True)
        assert plans.show("acosh") == ""
        with pytest.raises(ValueError, match="no planned op is called no_such_op"):
            plans.show("no_such_op")


# What planners hand to the core


def plan_of(*steps: Any, slots: int = 1, outputs: Sequence[_C.Output] = ()) -> _C.Plan:
    return _C.Plan(
        "aten::none",
        outputs=outputs,
        resizes=[],
        steps=steps,
        temporaries=[],
        arena_bytes=0,
        slots=slots,
        philox_count=0,
        guards=[],
    )


class TestRecords:
    @pytest.mark.parametrize(
        ("make", "raises", "says"),
        [
            (lambda: _C.LaunchArgument.constant("f31", 1), ValueError, "no value type is called 'f31'"),
            (lambda: _C.LaunchArgument.scalar(0, "int"), ValueError, "no value type is called 'int'"),
            (lambda: _C.LaunchArgument.constant("i32", 1.5), TypeError, "number of type i32 is an integer, not float"),
            (lambda: _C.LaunchArgument.constant("f32", 1j), TypeError, "number of type f32 is a number, not complex"),
            (lambda: _C.LaunchArgument.constant("c64", "1"), TypeError, "number of type c64 is a complex number"),
            (lambda: _C.LaunchArgument.constant("i16", 2**15), RuntimeError, "int16_t without overflow"),
            (lambda: _C.LaunchArgument.constant("i64", 2**64), OverflowError, "number of type i64 cannot hold"),
            (lambda: _C.LaunchArgument.pointer(-1, 0), TypeError, "slot:"),
            (lambda: _C.LaunchArgument.table([1.0], 0), TypeError, "tensor:"),
            (lambda: _C.LaunchStep(None, [1], []), TypeError, "kernel:"),
            (lambda: _C.CopyStep(_C.Address(0, 0), (0, 0), 4), TypeError, "source:"),
            (lambda: _C.FillStep(_C.Address(0, 0), 4, b""), ValueError, "pattern has 1 to 16 bytes, not 0"),
            (lambda: _C.FillStep(_C.Address(0, 0), 4, bytes(17)), ValueError, "pattern has 1 to 16 bytes, not 17"),
            (lambda: _C.Output.new(0, [1], [1], "float32"), TypeError, "dtype:"),
            (lambda: _C.Output.constant("one"), TypeError, "value:"),
            (lambda: _C.Guard.within(1.0, None, None), TypeError, "subject:"),
            (lambda: _C.Chunking(0, 1, 1, 0), ValueError, "multiple must be positive, not 0"),
            (lambda: _C.Chunking(256, 1, 0, 0), ValueError, "per_group must be positive, not 0"),
            (lambda: _C.Chunking(256, 1, 1, 0).divide(-1), ValueError, "numel must not be negative, but is -1"),
            (lambda: plan_of(("copy", 0, 0, 0, 0, 4)), TypeError, "steps:"),
        ],
    )
    def test_what_is_wrong_is_named(self, make: Callable[[], Any], raises: type[Exception], says: str) -> None:
        with pytest.raises(raises, match=says):
            make()

    def test_steps_stay_within_the_plan(self) -> None:
        fill = _C.FillStep(_C.Address(2, 0), 4, b"a")
        assert "fill 4 bytes" in plan_of(fill, slots=3).describe()
        with pytest.raises(ValueError, match="the plan of aten::none uses slot 2 of 2"):
            plan_of(fill, slots=2)
        with pytest.raises(ValueError, match="uses slot 5 of 2"):
            plan_of(_C.CopyStep(_C.Address(0, 0), _C.Address(5, 0), 4), slots=2)

    def test_results_stay_within_the_plan(self) -> None:
        new = _C.Output.new(1, [2], [1], torch.float32)
        plan_of(slots=2, outputs=[new])
        with pytest.raises(ValueError, match="the plan of aten::none uses slot 1 of 1"):
            plan_of(slots=1, outputs=[_C.Output.list([_C.Output.undefined(), new])])

    def test_plans_without_steps(self) -> None:
        assert _C.Plan.fallback("aten::none", "of no reason").describe() == "aten::none: CPU fallback: of no reason\n"
        assert _C.Plan.eager("aten::none", print, None).describe() == "aten::none: runs other ops, 0 hits\n"

    @pytest.mark.parametrize(
        ("rule", "dealt"),
        [
            ((256, 16384, 4096, 64), {0: (0, 256), 1: (1, 256), 16384: (1, 16384), 16385: (5, 3328)}),
            ((256, 16384, 4096, 64), {10**6: (64, 15872), 2**40: (64, 2**34)}),
            ((256, 0, 1024, 0), {1: (1, 256), 1025: (2, 768), 2**20: (1024, 1024)}),
        ],
    )
    def test_chunking(self, rule: tuple[int, int, int, int], dealt: dict[int, tuple[int, int]]) -> None:
        chunking = _C.Chunking(*rule)
        assert (chunking.multiple, chunking.single, chunking.per_group, chunking.max_groups) == rule
        assert {numel: chunking.divide(numel) for numel in dealt} == dealt

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"n": 3}, "argument 'by' of kernel halve is missing"),
            ({"by": 2.0}, "argument 'n' of kernel halve is missing"),
            ({"by": 2.0, "n": 3, "more": 1, "most": 2}, "kernel halve has no parameter 'more', 'most'"),
            ({"by": "one", "n": 3}, "argument 'by' of kernel halve is a number of type f32, not str"),
            ({"by": None, "n": 3}, "argument 'by' of kernel halve is a number of type f32, not NoneType"),
            ({"by": 1j, "n": 3}, r"argument 'by' of kernel halve is a number of type f32, not 1j"),
            ({"by": 2.0, "n": 2.5}, "argument 'n' of kernel halve is a number of type i64, not 2.5"),
            (
                {"by": torch.empty(1, device="meta"), "n": 3},
                "'by' of kernel halve is a number of type f32, not a tensor",
            ),
            ({"x": 1.0, "by": 2.0, "n": 3}, "'x' of kernel halve is a pointer: give a spec or None, not float"),
            ({"x": [1.0], "by": 2.0, "n": 3}, "'x' of kernel halve is a pointer: give a spec or None, not list"),
            (
                {"x": torch.empty(1, dtype=torch.int32, device="meta"), "by": 2.0, "n": 3},
                "points to f32, not to elements",
            ),
        ],
    )
    def test_a_launch_says_what_is_wrong(self, device: str, given: dict[str, Any], says: str) -> None:
        kernel = Kernel("halve", (Pointer("x", "f32"), Value("by", "f32"), Value("n", "i64")), "x[0] /= by;")
        p = PlanBuilder(device_traits(0), "cpu", "aten::none", nested=plan_nested)
        with pytest.raises(TypeError, match=says):
            p.launch(kernel, (1,), **{"x": p.empty((1,), torch.float32), **given})
        with pytest.raises(TypeError, match="kernel halve has 1 dimensions, not 2"):
            p.launch(kernel, (1, 1), x=None, by=2.0, n=3)
        assert p.step_count == 0
        p.launch(kernel, (1,), x=None, by=2, n=True)
        assert p.step_count == 1

    def test_numbers_stand_where_the_call_has_them(self, device: str) -> None:
        """Lists, tensors that are left out and numbers that are left out, in one call."""
        seen: list[list[tuple[str, int, int]]] = []

        def look(name: str, arguments: list[Any], places: list[_C.Place], *rest: Any) -> Any:
            if name == "aten::index_put" or name == "aten::clamp":
                seen.append([(place.kind.name, place.first, place.count) for place in places])
            return plan_call(name, arguments, places, *rest)

        x, at = torch.rand(3, 4).to(device), torch.tensor([0, 2]).to(device)
        plans.clear()
        _C.set_planner(look)
        try:
            x.clamp(max=0.5)
            torch.ops.aten.index_put(x, [None, at], torch.tensor(1.0).to(device))
        finally:
            _C.set_planner(plan_call)
        assert seen == [
            [("Tensor", 0, 1), ("Scalar", 0, 0), ("Scalar", 0, 1)],
            [("Tensor", 0, 1), ("TensorList", 1, 2), ("Tensor", 3, 1), ("Static", 0, 0)],
        ]


class TestTraits:
    @pytest.mark.parametrize(("forced", "width"), [("1", 1), ("8", 8), ("16", 16)])
    def test_the_width_of_registers(self, monkeypatch: pytest.MonkeyPatch, forced: str, width: int) -> None:
        own = device_traits(0).simd_width
        assert own.bit_count() == 1
        monkeypatch.setenv("TORCHGRAFT_SIMD_WIDTH", forced)
        assert simd_width.__wrapped__(0) == width
        monkeypatch.delenv("TORCHGRAFT_SIMD_WIDTH")
        assert simd_width.__wrapped__(0) == own

    @pytest.mark.parametrize("forced", ["0", "12", "-8", "wide"])
    def test_no_such_width(self, monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
        monkeypatch.setenv("TORCHGRAFT_SIMD_WIDTH", forced)
        with pytest.raises(ValueError, match="TORCHGRAFT_SIMD_WIDTH is a power of two"):
            simd_width.__wrapped__(0)


class TestDeclaring:
    def test_no_such_op(self) -> None:
        with pytest.raises(ValueError, match="there is no op aten::no_such_op"):
            plans.planner("no_such_op")(lambda p: None)

    def test_twice(self) -> None:
        with pytest.raises(ValueError, match=r"aten::add.Tensor has a planner already"):
            plans.planner("add.Tensor")(lambda p: None)


def test_modes_that_are_left_behind_end_with_a_trace() -> None:
    """Else the trace itself would stay, and every op of the thread would be planned and not run."""
    from torch.utils._python_dispatch import _push_mode

    from torchgraft.plans.mode import ThreadMode

    before = torch._C._len_torch_dispatch_stack()
    with ThreadMode().active():
        _push_mode(ThreadMode())
    assert torch._C._len_torch_dispatch_stack() == before


def test_modes_end_at_the_limit_of_recursion() -> None:
    """Wherever it is met: in the body of the mode, on the way into it or out of it."""
    from torchgraft.plans.mode import ThreadMode

    def in_mode(more: int) -> None:
        if more:
            in_mode(more - 1)
        with ThreadMode().active():
            deeper()

    def deeper() -> None:
        deeper()

    limit = sys.getrecursionlimit()
    for calls in range(limit - 150, limit):
        with pytest.raises(RecursionError):
            in_mode(calls)
        assert torch._C._len_torch_dispatch_stack() == 0, calls


def test_an_op_that_comes_down_to_itself(device: str) -> None:
    """It is refused, where there would be no end."""
    from torchgraft.compiler.fused import new_builder

    p = new_builder(0, "as_strided_scatter")
    x, part = (p.adopt(torch.empty(n, device="meta"), "argument", n) for n in (8, 3))
    with pytest.raises(plans.Unsupported, match=r"as_strided_scatter\.default comes down to itself"):
        p.call(torch.ops.aten.as_strided_scatter.default, x, part, [3], [2])
    assert p.decomposed == []
    x, part = torch.randn(8), torch.randn(3)
    assert_close(x.to(device).as_strided_scatter(part.to(device), [3], [2]).cpu(), x.as_strided_scatter(part, [3], [2]))
