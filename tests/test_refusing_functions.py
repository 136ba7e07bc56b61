"""Functions in the place of a plan that refuse a call: what else is declared of the op does it, or the CPU, and the
reason is told."""

from __future__ import annotations

import pytest
import torch
from conftest import Script, in_threads

import torchgraft
from torchgraft.plans import Unsupported, composite, planner, show

LIBRARY = torch.library.Library("refusing", "DEF")
LIBRARY.define("scaled(Tensor x, float by) -> Tensor")
LIBRARY.define("scaled_(Tensor(a!) x, float by) -> Tensor(a!)")
LIBRARY.define("scaled.out(Tensor x, float by, *, Tensor(a!) out) -> Tensor(a!)")
LIBRARY.define("chained(Tensor x) -> Tensor")
LIBRARY.define("powered(Tensor x, float by) -> Tensor")


@pytest.fixture(scope="module")
def declared(device: str) -> dict[str, int]:
    """How often each function was asked."""
    asked = {"scaled": 0, "first": 0, "second": 0, "powered": 0}
    torchgraft.ops.row("refusing::scaled", "by * x")

    @composite("refusing::scaled", when=lambda **_: True)
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        asked["scaled"] += 1
        if x.dim() == 2 or by > 10:
            raise Unsupported(f"the library has nothing of {x.dim()} dimensions by {by:g}")
        if by < 0:
            raise ValueError("by is negative")
        return x * by + 0

    torchgraft.ops.row("refusing::chained", "x + 1")

    @composite("refusing::chained", when=lambda x: x.dim() > 0)
    def second(x: torch.Tensor) -> torch.Tensor:
        asked["second"] += 1
        if x.dim() > 1:
            raise Unsupported("one dimension")
        return x + 2

    @composite("refusing::chained", when=lambda x: True)  # the last declared comes first
    def first(x: torch.Tensor) -> torch.Tensor:
        asked["first"] += 1
        if x.dim() > 0:
            raise Unsupported("no dimension")
        return x + 3

    @planner("refusing::powered", contiguous=True, meta=lambda x, by: torch.empty_like(x))
    def powered(p: object, out: torch.Tensor, x: torch.Tensor, by: object) -> None:
        p.copy(out, p.call(torch.ops.aten.pow.Tensor_Scalar, x, float(by)))  # type: ignore[attr-defined]

    @composite("refusing::powered", when=lambda **_: True)
    def never(x: torch.Tensor, by: float) -> torch.Tensor:
        asked["powered"] += 1
        raise Unsupported("never")

    return asked


@pytest.mark.no_fallback
class TestThePlannerGoesOn:
    def test_in_all_forms(self, device: str, declared: dict[str, int]) -> None:
        for shape in ((5,), (3, 4), (0, 4), ()):
            x = torch.randn(shape)
            there = x.to(device)
            for by in (2.0, 3.5, 11.0, 12.5):
                before = declared["scaled"]
                torch.testing.assert_close(torch.ops.refusing.scaled(there, by).cpu(), x * by)
                out = torch.empty(0, device=device)
                torch.ops.refusing.scaled(there, by, out=out)
                torch.testing.assert_close(out.cpu(), x * by)
                mine = there.clone()
                assert torch.ops.refusing.scaled_(mine, by) is mine
                torch.testing.assert_close(mine.cpu(), x * by)
                assert declared["scaled"] == before + 3  # each call asks once
        assert "runs other ops" in show("refusing::scaled") and "  or refusing::scaled: 1 steps" in show(
            "refusing::scaled"
        )

    def test_what_is_no_refusal_reaches_the_caller(self, device: str, declared: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="by is negative"):
            torch.ops.refusing.scaled(torch.ones(3, device=device), -1.0)

    def test_one_function_after_the_other(self, device: str, declared: dict[str, int]) -> None:
        chained = torch.ops.refusing.chained
        assert [chained(torch.zeros(shape, device=device)).sum().item() for shape in ((), (1,), (1, 1))] == [3, 2, 1]
        assert (declared["first"], declared["second"]) == (3, 2)

    def test_a_plan_that_reads_numbers_is_for_those(self, device: str, declared: dict[str, int]) -> None:
        x = torch.rand(6) + 1
        for by in (2.0, 3.0, 2.0, -1.5, 3.0, 2.0):
            torch.testing.assert_close(torch.ops.refusing.powered(x.to(device), by).cpu(), x**by)
        assert declared["powered"] == 6

    def test_in_threads(self, device: str, declared: dict[str, int]) -> None:
        torchgraft.plans.clear()
        x = torch.randn(7, 3)

        def work() -> None:
            for by in (2.0, 11.0) * 20:
                torch.testing.assert_close(torch.ops.refusing.scaled(x.to(device), by).cpu(), x * by)

        in_threads(*[work] * 4)


def test_torchs_composition_goes_on(script: Script) -> None:
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver
        torchgraft.register("npy", [NumpyDriver()])
        torchgraft.fallback.set_mode("silent")
        asked = []
        @torchgraft.plans.recomposed("cosine_similarity")
        def cosine(x1, x2, dim=1, eps=1e-8):
            asked.append(dim)
            if dim == 0:
                raise torchgraft.plans.Unsupported("the first dimension")
            return (x1 * x2).sum(dim) * 0
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        there = x.to("npy").requires_grad_()
        cosine_similarity = torch.nn.functional.cosine_similarity
        assert not cosine_similarity(there, y.to("npy"), 1).any()
        mine, other = cosine_similarity(there, y.to("npy"), 0), cosine_similarity(x.requires_grad_(), y, 0)
        torch.testing.assert_close(mine.cpu(), other)
        mine.sum().backward(), other.sum().backward()
        torch.testing.assert_close(there.grad.cpu(), x.grad)
        assert asked == [1, 0], asked
    """)


ON_THE_CPU = """
import warnings
import torch, torchgraft
from torchgraft import plans

def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught]

def refused(call):
    with torchgraft.fallback("error"):
        try:
            call()
        except NotImplementedError as error:
            return str(error)
    raise AssertionError("not refused")

x, y = torch.randn(3, 4), torch.randn(4, 2)
"""


def test_without_a_compiler(script: Script) -> None:
    """The CPU, with the reason in the error and in the report; in captures and gradients too."""
    script(
        ON_THE_CPU
        + """
from numpy_driver import NumpyDriver
torchgraft.register("npy", [NumpyDriver()])
plain = []
@plans.composite("mm", replace=True)
def mm(a, b):
    if a.dtype != torch.float32:
        raise plans.Unsupported(f"the library has no mm of {a.dtype}")
    plain.append(a.shape)
    return (a.unsqueeze(2) * b).sum(1)
mine = [t.to("npy") for t in (x, y)]
torchgraft.fallback.set_mode("silent")
torch.testing.assert_close(torch.mm(*mine).cpu(), x @ y)
torchgraft.reset_fallback_report()
for dtype in (torch.float64, torch.bfloat16, torch.float64):
    torch.testing.assert_close(torch.mm(*(t.to(dtype) for t in mine)).cpu(), x.to(dtype) @ y.to(dtype))
    out = torch.empty(0, dtype=dtype, device="npy")
    torch.mm(*(t.to(dtype) for t in mine), out=out)
    torch.testing.assert_close(out.cpu(), x.to(dtype) @ y.to(dtype))
assert plain == [(3, 4)], plain
rows = torchgraft.fallback_report()
reasons = {"the library has no mm of torch.float64": 2, "the library has no mm of torch.bfloat16": 1}
assert rows["aten::mm"].reasons == rows["aten::mm.out"].reasons == reasons, rows
assert "the library has no mm of torch.float64 and 1 more" in str(rows), rows
text = refused(lambda: torch.mm(*(t.double() for t in mine)))
assert "for device 'npy:0' that serves this call: the library has no mm of torch.float64, and" in text, text
# Gradients.
a, b = (t.double().to("npy").requires_grad_() for t in (x, y))
c, d = (t.double().requires_grad_() for t in (x, y))
(a @ b).square().sum().backward(), (c @ d).square().sum().backward()
torch.testing.assert_close(a.grad.cpu(), c.grad), torch.testing.assert_close(b.grad.cpu(), d.grad)
# A capture has what the CPU does.
static = torch.zeros(3, 4, dtype=torch.float64, device="npy")
graph = torch.npy.Graph()
with torch.npy.graph(graph):
    result = static @ b.detach()
static.copy_(x)
graph.replay()
torch.testing.assert_close(result.cpu(), x.double() @ y.double())
"""
    )


def test_with_operators(script: Script) -> None:
    """The library's operators are asked behind it; what both say is told."""
    script(
        ON_THE_CPU
        + """
from operator_driver import OperatorDriver
driver = OperatorDriver()
torchgraft.register("npu", [driver])
@plans.composite("mm", when=lambda **_: True)
def mm(a, b):
    raise plans.Unsupported("the fast path is closed")
mine = [t.to("npu") for t in (x, y)]
with torchgraft.fallback("error"):
    torch.testing.assert_close(torch.mm(*mine).cpu(), x @ y)
assert driver.log == ["matmul"], driver.log
driver.refuses = {"matmul"}
plans.clear()
(text,) = told(lambda: torch.mm(*mine))
assert "aten::mm runs on the CPU" in text and "the fast path is closed; matmul: " in text, text
assert "the library has no matmul" in text, text
assert "the fast path is closed; matmul: " in refused(lambda: torch.mm(*mine))
assert "the fast path is closed; matmul: " in torchgraft.fallback_report()["aten::mm"].reason
"""
    )


def test_a_kernel_of_it_that_does_not_compile(script: Script) -> None:
    script(
        ON_THE_CPU
        + """
from cxx_driver import CxxDriver
torchgraft.register("cxx", [CxxDriver()])
broken = torchgraft.kernel(plans.Kernel("broken", (plans.Pointer("x", "f32"),), "  no such words;"))
@plans.composite("mm", replace=True)
def mm(a, b):
    broken[1](a)
mine = [t.to("cxx") for t in (x, y)]
(text,) = told(lambda: torch.testing.assert_close(torch.mm(*mine).cpu(), x @ y))
assert "aten::mm runs on the CPU" in text and "kernel broken does not compile" in text, text
assert torchgraft.fallback_report()["aten::mm"].reason == "kernel broken does not compile"

def raises(call):
    try:
        call()
    except plans.KernelCompileError as error:
        assert "kernel broken does not compile" in str(error)
    else:
        raise AssertionError

with torchgraft.fallback("error"):
    raises(lambda: torch.mm(*mine))

# One that writes into its argument has changed it by then: the CPU would start from that.
@plans.composite("relu_", when=lambda **_: True)
def relu_(x):
    x.add_(1)
    broken[1](x)
raises(lambda: mine[0].relu_())
"""
    )
