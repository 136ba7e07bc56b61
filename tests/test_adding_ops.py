"""What docs/adding-ops.md promises of the ways to add an op; its own code is run by test_docs.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Script
from torch.testing import assert_close

import torchgraft
from torchgraft import ops, plans
from torchgraft.plans import (
    Kernel,
    PlanBuilder,
    Pointer,
    Value,
    composite,
    decomposition,
    only,
    other_out,
    planner,
    within,
)


@pytest.fixture(autouse=True)
def _compiler(device: str) -> None:
    if device == "npy":
        pytest.skip("the device has no compiler")


def define(*schemas: str) -> torch.library.Library:
    library = torch.library.Library("adding", "FRAGMENT")
    for schema in schemas:
        library.define(schema)
    return library


LIBRARIES = [
    define(
        "mul_add(Tensor x, Tensor y, *, float a=1.0) -> Tensor",
        "mul_add_(Tensor(c!) x, Tensor y, *, float a=1.0) -> Tensor(c!)",
        "mul_add.out(Tensor x, Tensor y, *, float a=1.0, Tensor(c!) out) -> Tensor(c!)",
        "sums(Tensor x, Tensor y) -> (Tensor, Tensor)",
        "sum_above(Tensor x, float floor, int dim, bool keepdim=False) -> Tensor",
        "sum_above.out(Tensor x, float floor, int dim, bool keepdim=False, *, Tensor(c!) out) -> Tensor(c!)",
        "twice(Tensor x) -> Tensor",
        "twice_(Tensor(a!) x) -> Tensor(a!)",
        "twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        "grown(Tensor x) -> Tensor",
        "grown_(Tensor(a!) x) -> Tensor(a!)",
        "grown.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        "odd(Tensor x, Tensor y) -> Tensor",
        "odd_(Tensor x, Tensor(a!) y) -> Tensor",
        "numbers(int n) -> Tensor",
        "listed(Tensor[] x) -> Tensor",
        "wrong(Tensor x) -> Tensor",
        "broken(Tensor x) -> Tensor",
        "no_meta(Tensor x) -> Tensor",
        "registered(Tensor x) -> Tensor",
        "replaced(Tensor x) -> Tensor",
        "raises(Tensor x) -> Tensor",
        "noted(Tensor x, float a) -> Tensor",
        "noted.out(Tensor x, float a, *, Tensor(a!) out) -> Tensor(a!)",
        "squares(Tensor x) -> Tensor",
        "parted(Tensor x) -> Tensor",
        "parted_(Tensor(a!) x) -> Tensor(a!)",
        "only_some(Tensor x) -> Tensor",
        "taken(Tensor x) -> Tensor",
    )
]
own = torch.ops.adding


@pytest.mark.no_fallback
class TestRows:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _declared(cls) -> None:
        ops.row("adding::mul_add", "a * x + y", integer="(T)a * x + y")
        ops.row("adding::sums", {"0": "x + y", "1": "x - y"})

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
    def test_dtypes(self, device: str, dtype: torch.dtype) -> None:
        x, y = (torch.arange(24).to(dtype).view(4, 6) for _ in range(2))
        assert_close(own.mul_add(x.to(device), y.to(device), a=2.0).cpu(), 2 * x + y)

    def test_the_three_forms_broadcast_over_strides(self, device: str) -> None:
        x, y = torch.randn(6, 4).t(), torch.randn(4, 1)
        there = [t.to(device) for t in (x, y)]
        expected = 0.5 * x + y
        assert_close(own.mul_add(*there, a=0.5).cpu(), expected)
        out = torch.empty(0, device=device)
        assert own.mul_add(*there, a=0.5, out=out) is out
        assert_close(out.cpu(), expected)
        assert own.mul_add_(*there, a=0.5) is there[0]
        assert_close(there[0].cpu(), expected)

    def test_in_place_does_not_grow(self, device: str) -> None:
        with pytest.raises(RuntimeError, match=r"output with shape \[4\] doesn't match the broadcast shape \[3, 4\]"):
            own.mul_add_(torch.ones(4, device=device), torch.ones(3, 4, device=device))

    def test_types_are_promoted(self, device: str) -> None:
        result = own.mul_add(torch.ones(3, dtype=torch.int32, device=device), torch.ones(3, device=device), a=3)
        assert result.dtype == torch.float32
        assert result.tolist() == [4, 4, 4]

    def test_several_results(self, device: str) -> None:
        x, y = torch.randn(3, 4), torch.randn(4)
        total, difference = own.sums(x.to(device), y.to(device))
        assert_close(total.cpu(), x + y)
        assert_close(difference.cpu(), x - y)

    def test_the_meta_function_follows(self) -> None:
        x = torch.empty(6, 4, device="meta", dtype=torch.float16).t()
        result = own.mul_add(x, torch.empty(6, device="meta", dtype=torch.float64))
        assert (result.shape, result.stride(), result.dtype) == ((4, 6), (1, 4), torch.float64)

    def test_one_plan_serves_all_values(self, device: str) -> None:
        x = torch.ones(3, device=device)
        own.mul_add(x, x, a=0.5)
        before = plans.stats().misses
        assert own.mul_add(x, x, a=7.0).tolist() == [8, 8, 8]
        assert plans.stats().misses == before


@pytest.mark.no_fallback
class TestReductions:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _declared(cls) -> None:
        ops.reduction("adding::sum_above", map="x > floor ? x : 0", combine="a + b", identity="0")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
    @pytest.mark.parametrize("shape", [(5, 7), (300, 2000), (0, 3)])
    def test_values(self, device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        x = torch.randint(-9, 9, shape).to(dtype)
        for dim in (0, 1, -1):
            expected = torch.where(x > 2, x, 0).sum(dim, dtype=dtype)
            assert_close(own.sum_above(x.to(device), 2.0, dim).cpu(), expected)
            assert_close(own.sum_above(x.t().to(device).t(), 2.0, dim, True).cpu(), expected.unsqueeze(dim))

    def test_out(self, device: str) -> None:
        x = torch.randn(3, 4)
        out = torch.empty(9, device=device)[::3]
        own.sum_above(x.to(device), 0.0, 1, out=out)
        assert_close(out.cpu(), x.clamp(0).sum(1))


@pytest.mark.no_fallback
class TestForms:
    """What is no row has the three forms too, with a meta function of its own."""

    def check(self, op: Any, device: str) -> None:
        x = torch.randn(4, 5)
        assert_close(op(x.to(device)).cpu(), 2 * x)
        out = torch.empty(0, device=device)
        op(x.to(device), out=out)
        assert_close(out.cpu(), 2 * x)
        given = x.to(device)
        assert getattr(own, f"{op.__name__}_")(given) is given
        assert_close(given.cpu(), 2 * x)

    def test_a_decomposition(self, device: str) -> None:
        decomposition("adding::twice")(lambda own_name: own_name + own_name)
        self.check(own.twice, device)
        assert own.twice(torch.empty(2, 3, device="meta")).shape == (2, 3)

    def test_a_planner(self, device: str) -> None:
        body = "if (GLOBAL_ID(0) < n) out[GLOBAL_ID(0)] = 2 * x[GLOBAL_ID(0)];"
        kernel = Kernel("grown", (Pointer("out", "f32"), Pointer("x", "f32", const=True), Value("n", "i64")), body)

        @planner("adding::grown", contiguous=True, meta=torch.empty_like)
        def grown(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor) -> None:
            p.launch(kernel, (x.numel(),), out=out, x=x, n=x.numel())

        self.check(own.grown, device)

    @pytest.mark.parametrize("results", ["any", "dense", "contiguous"])
    @pytest.mark.no_fallback
    def test_where_a_planner_writes(self, device: str, results: Any) -> None:
        name, seen = f"lying_{results}", []
        LIBRARIES.append(
            define(f"{name}(Tensor x) -> Tensor", f"{name}.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        )

        @planner(f"adding::{name}", results=results, meta=torch.empty_like)
        def lying(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor) -> None:
            seen.append(out.stride())
            p.copy(out, p.call(torch.ops.aten.mul.Tensor, x, 2))

        x = torch.randn(3, 4)
        for out in (
            torch.zeros(3, 4, device=device),
            torch.zeros(4, 3, device=device).t(),
            torch.zeros(3, 8, device=device)[:, ::2],
        ):
            getattr(own, name)(x.to(device), out=out)
            assert_close(out.cpu(), 2 * x)
        usual, turned, gaps = (4, 1), (1, 3), (8, 2)
        assert seen == [
            usual,
            usual if results == "contiguous" else turned,
            gaps if results == "any" else usual,
        ]

    @pytest.mark.no_fallback
    def test_products_over_nothing(self, device: str) -> None:
        LIBRARIES.append(
            define(
                "product(Tensor a, Tensor b) -> Tensor",
                "product.out(Tensor a, Tensor b, *, Tensor(c!) out) -> Tensor(c!)",
            )
        )

        @planner("adding::product", empty="zero", meta=lambda a, b: torch.mm(a, b))
        def product(p: PlanBuilder, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
            assert a.numel() and b.numel() and out.numel()
            p.call_out(torch.ops.aten.mm.default, out, a, b)

        for m, k, n in ((2, 3, 4), (2, 0, 4), (0, 3, 4), (2, 3, 0), (0, 0, 0)):
            a, b = torch.randn(m, k), torch.randn(k, n)
            assert_close(own.product(a.to(device), b.to(device)).cpu(), a @ b)
            out = torch.full((m, n), 7.0, device=device)
            own.product(a.to(device), b.to(device), out=out)
            assert_close(out.cpu(), a @ b)

    def test_options_that_are_none(self) -> None:
        with pytest.raises(ValueError, match="option is one of 'any', 'dense', 'contiguous', not 'packed'"):
            planner("adding::wrong", results="packed")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="option is one of 'planned', 'zero', not 'nothing'"):
            planner("adding::wrong", empty="nothing")  # type: ignore[arg-type]


class TestReplacing:
    def test_is_asked_for(self, device: str) -> None:
        ops.row("adding::replaced", "x + 1")
        x = torch.zeros(2, device=device)
        assert own.replaced(x).tolist() == [1, 1]
        with pytest.raises(ValueError, match=r"adding::replaced has a planner already; replace=True"):
            ops.row("adding::replaced", "x + 2")
        ops.row("adding::replaced", "x + 2", replace=True)
        assert own.replaced(x).tolist() == [2, 2]  # not by the plan that was there
        composite("adding::replaced", replace=True)(lambda x: x + 3)
        assert own.replaced(x).tolist() == [3, 3]

    def test_counts_go_on(self, device: str) -> None:
        before = plans.stats()
        ops.row("adding::replaced", "x + 4", replace=True)
        assert plans.stats().misses == before.misses
        assert plans.stats().hits == before.hits

    @pytest.mark.quick(opened=True)
    @pytest.mark.parametrize("opened", [False, True])
    def test_an_op_of_torchs(self, script: Script, opened: bool) -> None:
        out = script(
            f"""
            import torch, torchgraft
            if {opened}:
                print(torch.ones(2, device="ocl").asinh_().tolist())
            try:
                torchgraft.ops.row("asinh", "self * 10")
            except ValueError as error:
                print(error)
            torchgraft.ops.row("asinh", "self * 10", replace=True)
            x = torch.ones(2, device="ocl")
            print(x.asinh().tolist(), x.asinh_().tolist(), torch.asinh(x, out=torch.empty_like(x)).tolist())
            """,
            autoload=True,
        )
        assert "aten::asinh has a planner already" in out
        assert "[10.0, 10.0] [10.0, 10.0] [100.0, 100.0]" in out

    @pytest.mark.thorough
    def test_what_torch_library_registers_stays(self, script: Script) -> None:
        out = script(
            """
            import torch
            torch.library.impl("aten::sinh", "ocl", func=lambda x: x + 100)
            print(torch.zeros(2, device="ocl").sinh().tolist(), torch.zeros(2, device="ocl").cosh().tolist())
            torch.library.define("mine::op", "(Tensor x) -> Tensor")
            torch.library.impl("mine::op", "ocl", func=lambda x: x + 1)
            print(torch.ops.mine.op(torch.zeros(1, device="ocl")).item())
            """,
            autoload=True,
        )
        assert out.split("\n")[:2] == ["[100.0, 100.0] [1.0, 1.0]", "1.0"]


class TestCompositesForSome:
    """`composite(when=...)`: a function for some calls, beside what there is for others."""

    @pytest.mark.parametrize("planner_first", [True, False])
    @pytest.mark.no_fallback
    def test_others_are_left_to_the_planner(self, device: str, planner_first: bool) -> None:
        name = f"parted_{planner_first}"
        LIBRARIES.append(define(f"{name}(Tensor x) -> Tensor", f"{name}_(Tensor(a!) x) -> Tensor(a!)"))
        declarations = [
            lambda: ops.row(f"adding::{name}", "x + 1"),
            lambda: composite(f"adding::{name}", when=lambda x: x.dim() == 2)(lambda x: x * 10),
        ]
        for declare in declarations if planner_first else reversed(declarations):
            declare()
        x, y = torch.ones(3, device=device), torch.ones(1, 3, device=device)
        assert getattr(own, name)(x).tolist() == [2] * 3
        assert getattr(own, name)(y).tolist() == [[10] * 3]
        assert getattr(own, f"{name}_")(y) is y
        assert y.tolist() == [[10] * 3]

    @pytest.mark.no_fallback
    def test_the_last_goes_first(self, device: str) -> None:
        composite("adding::parted", when=lambda x: x.dim() > 0)(lambda x: x * 10)
        composite("adding::parted_", when=lambda x: x.dim() > 1)(lambda x: x.mul_(20))
        ops.row("adding::parted", "x + 1")
        x = torch.ones(2, 1, device=device)
        assert own.parted(x).tolist() == [[10], [10]]
        assert own.parted_(x) is x
        assert x.tolist() == [[20], [20]]
        assert own.parted_(torch.ones(1, device=device)).tolist() == [10]
        assert own.parted(torch.ones((), device=device)).item() == 2

    def test_others_go_to_the_cpu(self, device: str) -> None:
        torch.library.impl("adding::only_some", "CPU", func=lambda x: x - 1)
        composite("adding::only_some", when=lambda x: x.dim() == 2)(lambda x: x * 10)
        assert own.only_some(torch.ones(1, 2, device=device)).tolist() == [[10, 10]]
        with torchgraft.fallback("silent"):
            assert own.only_some(torch.ones(2, device=device)).tolist() == [0, 0]

    def test_one_for_all_is_no_other(self) -> None:
        composite("adding::taken", when=lambda x: False)(lambda x: x)
        composite("adding::taken")(lambda x: x)
        with pytest.raises(ValueError, match="has a planner already"):
            composite("adding::taken")(lambda x: x)


@pytest.mark.no_fallback
class TestRefusals:
    def test_what_a_row_refuses(self, device: str) -> None:
        def check(x: torch.Tensor, **_: Any) -> None:
            if x.dtype == torch.bfloat16:
                raise ValueError("too few digits")

        ops.row(
            "adding::noted",
            "T halved = x / 2; halved + a",
            refuses=(only("float"), within({"a": (0, 1, "a is {}")}), check, other_out),
        )
        x = torch.ones(3, device=device)
        assert own.noted(x, 0.5).tolist() == [1, 1, 1]
        with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
            own.noted(x.int(), 0.5)
        for _ in range(2):  # in a call that makes a plan, and in one that there is a plan for
            with pytest.raises(RuntimeError, match=r"a is 2\.0"):
                own.noted(x, 2.0)
        with pytest.raises(ValueError, match="too few digits"):
            own.noted(x.bfloat16(), 0.5)
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype Float, but got Double instead"):
            own.noted(x, 0.5, out=torch.empty(3, dtype=torch.float64, device=device))

    def test_a_composite_is_checked_at_each_call(self, device: str) -> None:
        def check(x: torch.Tensor) -> None:
            if x.dtype == torch.bool:
                raise TypeError("no squares of truth")

        composite("adding::squares", refuses=(check, other_out))(lambda x: x * x)
        assert own.squares(torch.tensor([3], device=device)).item() == 9
        for _ in range(2):
            with pytest.raises(TypeError, match="no squares of truth"):
                own.squares(torch.ones(1, dtype=torch.bool, device=device))

    def test_what_is_no_refusal(self) -> None:
        with pytest.raises(ValueError, match="takes refusals and functions, not 'float'"):
            ops.row("adding::wrong", "x", refuses="float")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="types are 'float', 'integer' or 'number'"):
            only("real")
        with pytest.raises(ValueError, match="one of a kind"):
            ops.row("adding::wrong", "x", refuses=(only("float"), only("number")))
        with pytest.raises(ValueError, match="only a row knows"):
            planner("adding::wrong", refuses=only("float"))
        with pytest.raises(ValueError, match="an operand is one of"):
            ops.row("adding::wrong", "x", operands={"x": "kept"})


class TestRefused:
    def test_names(self) -> None:
        with pytest.raises(ValueError, match="there is no op adding::nothing"):
            ops.row("adding::nothing", "x")
        with pytest.raises(ValueError, match="there is no op aten::ad"):
            planner("ad")(lambda p: None)
        with pytest.raises(ValueError, match=r"there is no op aten::add\.Tensors"):
            composite("add.Tensors")(lambda x: x)

    def test_schemas(self) -> None:
        with pytest.raises(RuntimeError, match="torchgraft knows no rule for that"):
            ops.row("adding::odd", "x + y")
        assert "adding::odd" not in plans.ENTRIES
        with pytest.raises(ValueError, match="has no tensor among its arguments"):
            ops.row("adding::numbers", "n")
        with pytest.raises(ValueError, match="has no tensor among its arguments"):
            ops.row("adding::listed", "x")
        with pytest.raises(ValueError, match="has no argument alpha"):
            ops.row("adding::wrong", "x", operands={"alpha": "promotes"})
        for wrong in ("x + alpha", "T y = x; y * alpha", lambda alpha, **_: "x"):
            with pytest.raises(ValueError, match="adding::wrong has no argument alpha, which "):
                ops.row("adding::wrong", wrong)
        with pytest.raises(ValueError, match="has no argument alpha, which a function of its row names"):
            ops.row("adding::wrong", "x", kind=lambda alpha, **_: ops.Kind.DEFAULT)
        assert "adding::wrong" not in plans.ENTRIES
        with pytest.raises(ValueError, match="is no reduction of one tensor to one"):
            ops.reduction("adding::mul_add", combine="a + b", identity="0")
        with pytest.raises(ValueError, match="torch has no decomposition of adding::wrong"):
            plans.decompose("adding::wrong")

    @pytest.mark.thorough
    def test_ops_that_would_lose_their_gradient(self, script: Script) -> None:
        script(
            """
            import torch, torchgraft
            try:
                torchgraft.ops.row("selu", "self * 5")
            except ValueError as error:
                assert "torch composes aten::selu of other ops" in str(error), error
            else:
                raise AssertionError("declared")

            @torchgraft.autograd.override("selu")
            class Selu(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return torch.selu(x)
                @staticmethod
                def backward(ctx, gradient):
                    return gradient * 5

            x = torch.ones(2, device="ocl", requires_grad=True)
            assert torch.allclose(torch.selu(x).cpu(), torch.selu(x.detach().cpu()))
            torchgraft.ops.row("selu", "self * 5")
            y = torch.selu(x)
            y.sum().backward()
            assert y.tolist() == [5, 5] and x.grad.tolist() == [5, 5]
            """,
            autoload=True,
        )

    def test_a_kernel_that_does_not_compile(self, device: str) -> None:
        ops.row("adding::broken", "x + nonsense(x)")
        for _ in range(2):
            with pytest.raises(plans.KernelCompileError, match="kernel adding__broken_f32 does not compile") as error:
                own.broken(torch.ones(3, device=device))
            line = next(line for line in str(error.value).splitlines() if "x + nonsense(x)" in line and "float" in line)
            assert error.value.log
            assert "nonsense" in error.value.source.splitlines()[int(line.split()[0]) - 1]

    def test_a_planner_that_raises(self, device: str) -> None:
        @planner("adding::raises", meta=torch.empty_like)
        def raises(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor) -> None:
            raise LookupError("not today")

        for _ in range(2):
            with pytest.raises(LookupError, match="not today"):
                own.raises(torch.ones(3, device=device))

    def test_a_planner_without_shapes(self, device: str) -> None:
        planner("adding::no_meta")(lambda p, out, x: p.copy(out, x))
        with pytest.raises(NotImplementedError, match="fake impl"):
            own.no_meta(torch.ones(3, device=device))
        torch.library.register_fake("adding::no_meta", torch.empty_like)
        assert own.no_meta(torch.ones(3, device=device)).tolist() == [1, 1, 1]


def test_custom_op(device: str) -> None:
    """What torch.library.custom_op makes is planned as well, in place of its own function."""

    @torch.library.custom_op("adding::custom", mutates_args=())
    def custom(x: torch.Tensor, by: float) -> torch.Tensor:
        return x + by

    x = torch.zeros(3, device=device)
    assert custom(x, 2.0).tolist() == [2, 2, 2]
    ops.row("adding::custom", "x - by")
    assert custom(x, 2.0).tolist() == [-2, -2, -2]
    assert custom(x.cpu(), 2.0).tolist() == [2, 2, 2]
    assert custom(x.to("meta"), 2.0).shape == (3,)


@pytest.mark.parametrize(
    "policy,dtypes",
    [
        ("lower_precision", (torch.bfloat16, torch.bfloat16)),
        ("float32", (torch.float32, torch.float32)),
        ("promote", (torch.float32, torch.float16)),
        ("none", (torch.float32, torch.float16)),
    ],
)
def test_autocast(device: str, policy: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    name = f"cast_{policy}"
    LIBRARIES.append(define(f"{name}(Tensor x, Tensor[] more) -> Tensor"))
    composite(f"adding::{name}")(lambda x, more: x.sum() + more[0].sum())
    torchgraft.autocast.policy(f"adding::{name}", policy)
    op = getattr(own, name)
    single, half = torch.ones(3, device=device), torch.ones(3, device=device, dtype=torch.float16)
    with torch.autocast(device, dtype=torch.float16 if policy == "promote" else torch.bfloat16):
        assert op(single, [half]).dtype == dtypes[0]
        assert op(half, [half]).dtype == dtypes[1]
        whole = torch.ones(3, device=device, dtype=torch.int32)
        assert op(whole, [whole]).item() == 6
    assert op(half, [half]).dtype == torch.float16


def test_autocast_policies_are_named(device: str) -> None:
    with pytest.raises(ValueError, match="an autocast policy is one of 'lower_precision'"):
        torchgraft.autocast.policy("adding::sums", "half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no op adding::nothing"):
        torchgraft.autocast.policy("adding::nothing", "none")


@pytest.mark.thorough
def test_autocast_of_an_op_of_torchs(script: Script) -> None:
    out = script(
        """
        import warnings
        warnings.simplefilter("error")
        import torch, torchgraft
        x = torch.ones(3, 3, device="ocl")
        with torch.autocast("ocl", dtype=torch.bfloat16):
            print((x @ x).dtype)
            torchgraft.autocast.policy("aten::mm", "float32")
            torchgraft.autocast.policy("aten::matmul", "float32")
            print((x @ x).dtype)
        """,
        autoload=True,
    )
    assert out.splitlines() == ["torch.bfloat16", "torch.float32"]
