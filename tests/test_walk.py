"""The two loops of kernels, in both forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from torchgraft.codegen.kernel import parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.walk import Walk
from torchgraft.kernels import reduce
from torchgraft.plans import PlanBuilder, planner

FORMS = ("cpu", "gpu")
library = torch.library.Library("loops", "FRAGMENT")


@pytest.fixture(scope="module", autouse=True)
def _declared(device: str) -> None:
    for form in FORMS:
        library.define(f"rows_{form}(Tensor x) -> Tensor")
        library.define(f"sum_{form}(Tensor x, int[] dims) -> Tensor")
        _declare_rows(form)
        _declare_sum(form)


def _declare_rows(form: str) -> None:
    walk = Walk(form, 2)
    body = walk.rows(
        f"""
        if (i0 % 3 == 1) continue;
        const long start = i0 * n1 + i1;
        for (int pass = 0; pass < 2; ++pass) {{
          {walk.along("if (x[start + j] < 0) continue; out[start + j] += x[start + j];")}
        }}"""
    )
    kernel = walk.kernel("rows", parameters("f32* out; const f32* x"), body)

    @planner(f"loops::rows_{form}", contiguous=True, meta=torch.empty_like)
    def rows(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor) -> None:
        p.form = form
        p.zero(out)
        p.launch(kernel, p.walk(x.shape), out=out, x=x)


def _declare_sum(form: str) -> None:
    from torchgraft.plans.reduction import plan_reduction

    @planner(f"loops::sum_{form}", meta=lambda x, dims: x.sum(dims))
    def sum_(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int]) -> None:
        p.form = form
        plan_reduction(p, reduce.total("f32", "f32"), [out], x, dims)


def _op(name: str, form: str) -> Any:
    return getattr(torch.ops.loops, f"{name}_{form}")


@pytest.mark.no_fallback
@pytest.mark.parametrize("form", FORMS)
class TestWalk:
    @pytest.mark.parametrize("shape", [(5, 1), (1, 7), (700, 130)])
    def test_continue_leaves_out_rows_and_elements(self, device: str, form: str, shape: tuple[int, int]) -> None:
        x = torch.randn(shape)
        expected = 2 * x.clamp(0)
        expected[1::3] = 0
        assert_close(_op("rows", form)(x.to(device)).cpu(), expected)


@pytest.mark.no_fallback
@pytest.mark.parametrize("form", FORMS)
class TestRuns:
    """Sums whose rows are several runs, along memory and across it, which groups share where there are few."""

    @pytest.mark.parametrize("dims", [(1, 3), (0, 2), (0, 1, 2, 3)])
    @pytest.mark.parametrize("shape", [(3, 40, 5, 70), (2, 1, 3, 1), (1, 900, 2, 33)])
    def test_rows(self, device: str, form: str, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
        x = torch.randn(shape)
        for view in (x, x[..., ::2], x.transpose(0, 3)):
            expected = view.double().sum(dims).float()  # of up to 59,400 numbers, which may nearly cancel
            assert_close(_op("sum", form)(_like(view, device), dims).cpu(), expected, rtol=1e-5, atol=1e-3)

    @pytest.mark.parametrize("shape", [(1, 1 << 20), (1 << 17, 16)])
    def test_long_sums_are_cascaded(self, device: str, form: str, shape: tuple[int, ...]) -> None:
        x, dim = torch.full(shape, 0.1), int(shape[0] == 1)
        assert_close(_op("sum", form)(x.to(device), [dim]).cpu(), x.double().sum(dim).float(), rtol=3e-6, atol=0)


def _like(view: torch.Tensor, device: str) -> torch.Tensor:
    """The values with the view's own strides on the device."""
    base = view._base if view._base is not None else view
    return base.to(device).as_strided(view.shape, view.stride(), view.storage_offset())


WIDTHS = (4, 8, 16)


@pytest.fixture(scope="module")
def _declared_rows(device: str) -> None:
    for width in WIDTHS:
        library.define(f"lanes_{width}(Tensor x) -> (Tensor, Tensor, Tensor)")
        _declare_lanes(width)


def _declare_lanes(width: int) -> None:
    team = Team(Layout("cpu", simd_width=width))
    kernel = team.kernel(
        "lanes",
        parameters("f64* sums; f32* largest; i64* places; const f32* x"),
        team.sum({"sum": "f64"}, f"A.sum += x[{team.at}];"),
        team.max("top", "f32", f"x[{team.at}]"),
        team.argmax("place", "f32", f"x[{team.at}]"),
        team.leader("sums[row] = sum; largest[row] = top; places[row] = place;"),
    )

    def meta(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x.new_empty(len(x), dtype=dtype) for dtype in (torch.float64, torch.float32, torch.int64))

    @planner(f"loops::lanes_{width}", contiguous=True, meta=meta)
    def lanes(p: PlanBuilder, out: tuple[torch.Tensor, ...], x: torch.Tensor) -> None:
        p.form = "cpu"
        sums, largest, places = out
        p.launch(kernel, p.long_rows(*x.shape), sums=sums, largest=largest, places=places, x=x)


@pytest.mark.no_fallback
@pytest.mark.usefixtures("_declared_rows")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 15, 16, 21, 64, 100, 1027, 4096, 4099, 9001])
def test_rows_of_any_length_in_registers_of_any_width(device: str, width: int, size: int) -> None:
    x = torch.randint(-1000, 1000, (3, size)).float()
    sums, largest, places = getattr(torch.ops.loops, f"lanes_{width}")(x.to(device))
    assert_close(sums.cpu(), x.double().sum(1), rtol=0, atol=0)
    assert_close(largest.cpu(), x.amax(1), rtol=0, atol=0)
    assert_close(places.cpu(), (x == x.amax(1, keepdim=True)).int().argmax(1), rtol=0, atol=0)
