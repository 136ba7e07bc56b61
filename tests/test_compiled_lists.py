"""torch.compile of ops on lists, and of steps of optimisers: tensors share launches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config
import torch._inductor.utils
from torch import nn
from torch.testing import assert_close

from torchgraft.inductor.invariants import by_loop

pytestmark = pytest.mark.no_fallback

Lists = list[list[torch.Tensor]]
SHAPES = [(64, 64), (7,), (), (0, 3), (33, 5), (3, 4, 5), (4096,), (1,), (2000, 3)]


@pytest.fixture(autouse=True)
def _fresh(device: str, compiled_afresh: None, request: pytest.FixtureRequest) -> None:
    if device == "cxx" and "form" in request.fixturenames and request.getfixturevalue("form") == "gpu":
        pytest.skip("a group has one work-item")


def tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def same(device: str, work: Callable[..., Any], lists: Lists, **options: Any) -> str:
    """Compares results, and what has become of the lists, with the CPU's; gives the program."""
    expected = [[t.clone() for t in each] for each in lists]
    result = work(*expected)
    compiled = torch.compile(work, fullgraph=True, **options)
    text = ""
    for call in range(3):  # by Python, recorded, replayed
        given = [[t.clone().to(device) for t in each] for each in lists]
        if call == 0:
            got, (text, *_) = torch._inductor.utils.run_and_get_code(compiled, *given)
        else:
            got = compiled(*given)
        compare((got, given), (result, expected))
    return text


def compare(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        tolerance = 1e-2 if expected.element_size() < 4 and expected.is_floating_point() else 1e-5
        assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)
        return
    for one, other in zip(got or (), expected or (), strict=True):
        compare(one, other)


def launches(program: str) -> int:
    return len(re.findall(r"^        tg_kernel_\d+\(", program, re.MULTILINE))


class TestLists:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str)
    def test_of_other_sizes(self, device: str, form: str, dtype: torch.dtype) -> None:
        """As many launches as there are texts: a tensor without dimensions has another one."""

        def work(x: list[torch.Tensor], y: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return torch._foreach_mul(torch._foreach_add(x, y), 2)

        text = same(device, work, [tensors(SHAPES, dtype), tensors(SHAPES, dtype)])
        assert launches(text) <= 3

    @pytest.mark.thorough
    def test_more_than_a_launch_can_take(self, device: str) -> None:
        shapes = [(k % 5 + 1, 3) for k in range(149)]
        text = same(device, lambda x, y: torch._foreach_add(x, y), [tensors(shapes), tensors(shapes)])
        assert launches(text) == 6  # of 29 and 30 tensors: three pointers and the end of each
        assert len(re.findall(r"^tg_kernel_\d+ = ", text, re.MULTILINE)) == 1

    def test_in_place(self, device: str, form: str) -> None:
        def work(x: list[torch.Tensor], y: list[torch.Tensor]) -> None:
            torch._foreach_mul_(x, 0.9)
            torch._foreach_addcdiv_(x, y, [t.abs() + 1 for t in y], value=-0.5)
            torch._foreach_sqrt_(torch._foreach_abs(y))

        same(device, work, [tensors(SHAPES), tensors(SHAPES)])

    def test_what_one_writes_another_reads(self, device: str) -> None:
        """In the order of the list, whatever shares a launch."""

        def shifted(x: list[torch.Tensor]) -> None:
            torch._foreach_add_(x[:-1], x[1:])

        def rotated(x: list[torch.Tensor], y: list[torch.Tensor]) -> list[torch.Tensor]:
            torch._foreach_copy_(x, y)
            torch._foreach_add_(y, [*x[1:], x[0]])
            return torch._foreach_mul(x, y)

        shapes = [(65, 64)] * 12
        same(device, shifted, [tensors(shapes)])
        same(device, rotated, [tensors(shapes), tensors(shapes)])

    def test_what_one_makes_another_reads(self, device: str) -> None:
        def work(x: list[torch.Tensor]) -> list[torch.Tensor]:
            doubled = torch._foreach_mul(x, 2)
            added = torch._foreach_add(doubled, [*doubled[1:], doubled[0]])
            return [*torch._foreach_sub(added, [doubled[3].exp()] * len(x)), *doubled]

        same(device, work, [tensors([(65, 64)] * 12)])

    def test_parts_of_one_tensor(self, device: str) -> None:
        def work(x: list[torch.Tensor]) -> list[torch.Tensor]:
            torch._foreach_add_(list(x[0].chunk(4)), 1)
            torch._foreach_mul_(list(x[0].unbind(1)), 2)
            return torch._foreach_exp(list(x[0].t().split(5)))

        same(device, work, [tensors([(32, 20)])])

    def test_a_number_that_is_a_tensor(self, device: str) -> None:
        """Of the CPU: it is given to the kernel by value."""
        scale = torch.tensor(0.3)
        shapes = [(k + 2, 5) for k in range(40)]
        same(device, lambda x, y: torch._foreach_add(torch._foreach_mul(x, scale), y), [tensors(shapes) for _ in "xy"])

    def test_strides(self, device: str, form: str) -> None:
        def work(x: list[torch.Tensor], y: list[torch.Tensor]) -> list[torch.Tensor]:
            return torch._foreach_add([t.t() for t in x], [t[::2, 1:] for t in y])

        shapes = [(k + 3, 2 * k + 4) for k in range(6)]
        wider = [(2 * b, a + 1) for a, b in shapes]
        same(device, work, [tensors(shapes), tensors(wider)])

    def test_sizes_that_change(self, device: str) -> None:
        with torch._inductor.config.patch(combo_kernel_foreach_dynamic_shapes=True):
            shapes = [(5, 6), (70, 80), (9,)]
            same(device, lambda x, y: torch._foreach_sub(x, y), [tensors(shapes), tensors(shapes)], dynamic=True)

    def test_a_list_among_other_ops(self, device: str) -> None:
        def work(x: list[torch.Tensor]) -> tuple[Any, ...]:
            norms = torch._foreach_norm(x)
            total = torch.linalg.vector_norm(torch.stack(norms))
            return total, torch._foreach_mul(x, (1 / (total + 1e-6)).clamp(max=1)), [t.softmax(-1) for t in x]

        same(device, work, [tensors([(64, 64), (33, 5), (2000, 3), (4096,)])])

    def test_kernels_that_are_combined_on_demand(self, device: str, form: str) -> None:
        """Inductor's option: of sums, and of what may report an error, each has its launch."""

        def work(x: list[torch.Tensor], y: list[torch.Tensor]) -> tuple[Any, ...]:
            index = torch.arange(3, device=x[0].device)
            return [t.sin() for t in x], [t.sum(-1) for t in x], y[0].exp(), y[1][index], [t.amax() for t in y]

        with torch._inductor.config.patch(combo_kernels=True, combo_kernels_autotune=0):
            same(device, work, [tensors([(64, 64), (33, 5), (40, 3)]), tensors([(64, 64), (33, 5)])])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, capturable=p[0].device.type != "cpu", foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1, foreach=True),
}


@pytest.mark.quick(which=["SGD", "AdamW"])
@pytest.mark.parametrize("which", OPTIMIZERS)
def test_optimizers(device: str, which: str) -> None:
    torch.manual_seed(0)
    begin, gradients = tensors(SHAPES), [tensors(SHAPES) for _ in range(4)]
    results = []
    torch._dynamo.utils.counters.clear()
    for on in ("cpu", device):
        parameters = [nn.Parameter(t.clone().to(on)) for t in begin]
        optimizer = OPTIMIZERS[which](parameters)
        step = optimizer.step if on == "cpu" else torch.compile(optimizer.step)
        for each in gradients:
            for parameter, gradient in zip(parameters, each, strict=True):
                parameter.grad = gradient.to(on)
            step()
        results.append([p.detach().cpu() for p in parameters])
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert not [why for why in torch._dynamo.utils.counters["graph_break"] if "torchgraft" in why]


class TestInvariants:
    def test_sorted_by_what_they_depend_on(self) -> None:
        found = by_loop(
            [
                "float tmp0 = load_f32(in_ptr0, q0 + 8*q1);",
                "float tmp1 = load_f32(in_ptr1, q1);",
                "float tmp2 = load_f32(in_ptr2, 0);",
                "float tmp3 = (tg_pow_f32((tmp2), (tmp2)));",
                "float tmp4 = ((tmp1) * (tmp3));",
                "float tmp5 = ((tmp0) + (tmp4));",
                "store_f32(out_ptr0, q0 + 8*q1, tmp5);",
            ],
            ["q1"],
            ["q0"],
        )
        assert [line.split()[1] for line in found.once] == ["tmp2", "tmp3"]
        assert [line.split()[1] for line in found.row] == ["tmp1", "tmp4"]
        assert [line.split()[1] for line in found.each] == ["tmp0", "tmp5", "q0"]

    def test_what_must_stay(self) -> None:
        """What is assigned later, what may be out of bounds, and integers that may be divided by zero."""
        lines = [
            "float tmp0 = 0.0f;",
            "if (tmp9) {",
            "float tmp1 = load_f32(in_ptr0, 0);",
            "tmp0 = tmp1; }",
            "long tmp2 = load_i64(in_ptr1, 0);",
            "if (tmp2 < 0) { tg_report(tg_errors, tg_code + 0, tmp2); continue; }",
            "float tmp3 = load_f32(in_ptr2, tmp2);",
            "long tmp4 = ((tmp2) / (tmp2));",
            "long tmp5 = tg_div_floor_i64((tmp2), (tmp2));",
            "float tmp6 = ((tmp0) + (tmp3));",
        ]
        found = by_loop(lines, ["q1"], ["q0"])
        assert found.once == ["long tmp2 = load_i64(in_ptr1, 0);"]
        assert found.row == []
        assert [line for line in lines if line not in found.once] == found.each

    def test_values_of_rows(self, device: str, form: str) -> None:
        """A mask and an index that only depend on the row."""

        def work(x: list[torch.Tensor]) -> torch.Tensor:
            image, scale, numbers = x
            padded = torch.constant_pad_nd(scale.rsqrt()[:, None], (0, 0, 1, 2), 3.0)
            chosen = scale[numbers.abs().long().clamp(max=4)]
            return image * padded + chosen[:, None] * numbers[:, None].exp() + scale[0].pow(1.5)

        same(device, work, [[torch.randn(12, 50), torch.rand(9) + 0.5, torch.randn(12) * 2]])

    def test_values_of_rows_in_reductions(self, device: str, form: str) -> None:
        """Of a loop around the innermost one, within a row; masked and looked up too."""

        def work(x: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            image, mean, variance, numbers = x
            scale = (variance + 1e-5).rsqrt() * mean[numbers.abs().long().clamp(max=5)]
            normed = (image - mean[:, None]) * scale[:, None]
            padded = torch.constant_pad_nd(normed.exp(), (0, 0, 1, 1), 0.5)
            return normed.flatten(1).softmax(-1), padded.sum((1, 2)), padded.var((0, 2)), normed.argmax()

        same(device, work, [[torch.randn(8, 6, 100), torch.randn(6), torch.rand(6) + 0.5, torch.randn(6) * 3]])

    @pytest.mark.parametrize("numbers", [[3, 5], [3, 0]])
    def test_a_number_that_may_be_zero(self, device: str, form: str, numbers: list[int]) -> None:
        x, y = torch.arange(100, device=device), torch.tensor(numbers, device=device)
        work = torch.compile(lambda x, y: x // y[1])
        if numbers[1] == 0:
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                work(x, y)
        else:
            assert work(x, y).tolist() == [k // 5 for k in range(100)]
