"""torch.compile with its default compiler: kernels made for the device, compared with the CPU without a compiler."""

from __future__ import annotations

import copy
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import torch._inductor.metrics
import torch._inductor.utils
import torch.nn.functional as F
from conftest import Script
from torch import nn
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import torchgraft
from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.inductor.kernels import GeneratedKernel, Text
from torchgraft.inductor.registration import register
from torchgraft.inductor.runtime import _say_without_effect
from torchgraft.plans import versions
from torchgraft.plans.device import kernel_form

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2}

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh(device: str, compiled_afresh: None, request: pytest.FixtureRequest) -> None:
    if device == "cxx" and "form" in request.fixturenames and request.getfixturevalue("form") == "gpu":
        pytest.skip("a group has one work-item")


@pytest.fixture
def gpu_form(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels have the form that GPUs get."""
    if device == "cxx":
        pytest.skip("a group has one work-item")
    monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", "gpu")
    kernel_form.cache_clear()
    yield
    monkeypatch.undo()
    kernel_form.cache_clear()


def same(device: str, function: Function, *given: torch.Tensor, gradients: bool = False, **options: Any) -> None:
    """Compares a function that is compiled for the device with the same on the CPU: results, strides and dtypes of
    results, what has become of the inputs, and gradients."""
    tolerance = max(TOLERANCE.get(t.dtype, 1e-4) for t in given)
    compiled = torch.compile(function, fullgraph=True, **options)

    def results(on: str, run: Function) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        inputs = [t.detach().clone().to(on) for t in given]
        for t in inputs:
            t.requires_grad_(gradients and t.is_floating_point())
        result = run(*inputs)
        gained = inputs
        if gradients:
            result.backward(torch.linspace(-1, 1, result.numel(), device=on).reshape(result.shape))
            gained = [t.grad for t in inputs if t.grad is not None]
        return [t for t in tree_leaves((result, gained)) if isinstance(t, torch.Tensor)], inputs

    expected, _ = results("cpu", function)
    # The first call is Python's, the second is recorded, the third replays that with other addresses.
    calls = [results(device, compiled) for _ in range(3)]
    for got, _ in calls:
        for one, other in zip(expected, got, strict=True):
            assert other.device.type == torch.device(device).type
            if not gradients:
                assert other.stride() == one.stride()
            assert_close(other.cpu(), one, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.no_fallback
class TestPointwise:
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_chains(self, device: str, form: str, dtype: torch.dtype) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x * 2 + y).tanh() * x.sigmoid() - y.exp().clamp(max=3) / (x.abs() + 1)

        same(device, work, torch.randn(33, 65).to(dtype), torch.randn(65).to(dtype))

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_integers(self, device: str, dtype: torch.dtype) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = y | 1
            return x * y + 3, x // z, x % z, (x > y) | (x == 2), x & y, x << 1, x >> 2, ~x, -x, x.float() / 2

        same(device, work, *(torch.randint(-40, 40, (20, 30)).to(dtype) for _ in range(2)))

    @pytest.mark.quick(dtype=[torch.uint8, torch.int64])
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_shifts_by_any_number(self, device: str, dtype: torch.dtype) -> None:
        bits = torch.iinfo(dtype).bits
        x = torch.randint(-(2**7), 2**7, (12, 50)).to(dtype)
        places = torch.tensor([0, 1, 7, 8, 9, bits - 1, bits, bits + 1, 120, -1, -3, -100]).to(dtype)
        same(device, lambda x, y: (x >> y, x << y), x, places[:, None])

    @pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.bool])
    def test_bits(self, device: str, source: torch.dtype) -> None:
        """Of types of the same size: between kernels, and within one where that can be."""
        targets = [dtype for dtype in (*FLOATS, *INTEGERS, torch.bool) if dtype.itemsize == source.itemsize]
        given = [torch.tensor([-7, 3.14159, 0, 1]), torch.tensor([[-1, float("nan")], [float("inf"), 1.0003]])]
        x = torch.cat([t.nan_to_num(9).flatten() if not source.is_floating_point else t.flatten() for t in given])
        bits = torch.int8 if source == torch.bool else source

        def work(x: torch.Tensor) -> list[torch.Tensor]:
            return [x.view(dtype) for dtype in targets] + [
                x.float().nan_to_num(9).to(source).view(dtype) + 1 for dtype in targets
            ]

        same(device, work, x.to(bits).to(source))

    def test_booleans(self, device: str) -> None:
        same(
            device,
            lambda x, y: (x & y, x | y, ~x, x ^ y, x + y, x.float() * 3, torch.where(x, 1.5, y.float())),
            torch.randn(20, 30) > 0,
            torch.randn(30) > 0,
        )

    def test_booleans_are_not_bytes(self, device: str) -> None:
        """Though both are bytes in a kernel: False and 0 of uint8 are two values."""
        x = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
        same(device, lambda x: (torch.heaviside(x, x + 1), torch.where(x == 0, ~(x < 0), x > 0), x * 0 + ~x), x)

    def test_conversions_round(self, device: str) -> None:
        x = torch.tensor([1e30, -1e30, 65504.0, 65520.0, 1e-8, 0.0, -0.0, 1.0003, 3.14159])
        same(device, lambda x: (x.half().float(), x.bfloat16().float() + 1, x.half() * 3, x.double()), x)

    def test_views(self, device: str, form: str) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                x.t() + x.t().contiguous(),
                x[::2, 1:] + 1,
                x.reshape(10, -1).permute(1, 0) * 2,
                x.flip(0) + x.roll(3, 1),
                x.unfold(1, 3, 2) + 1,
                x.view(4, 5, 10).transpose(0, 2).reshape(-1) + 1,
                torch.cat([x, x * 2], 1) + 1,
                x.repeat(2, 3) + 1,
                x.expand(3, 20, 10).reshape(60, 10) + 1,
                F.pad(x, (1, 2, 3, 4)) + 1,
                x.diagonal() * 2,
            )

        same(device, lambda x: work(x[:20]), torch.randn(20, 10))

    def test_a_number_that_is_a_tensor(self, device: str) -> None:
        """Of the CPU, and first among the operands."""
        number = torch.tensor(2.5)
        work = torch.compile(lambda x: number * x + number, fullgraph=True)
        result = work(torch.ones(3, device=device))
        assert result.device.type == torch.device(device).type
        assert result.tolist() == [5, 5, 5]

    def test_special_functions(self, device: str) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            special = torch.special
            return (
                *(x.erf(), x.lgamma(), x.digamma(), x.log1p(), x.expm1(), x.atan2(x + 1), x.fmod(2.0), x.round()),
                *(x.remainder(1.5), x.rsqrt(), x.pow(2.5), x.sign(), x.nan_to_num(), torch.hypot(x, x), x.frexp()[0]),
                *(special.i0(x), special.ndtr(x), torch.polygamma(3, x + 1), special.zeta(x + 1, x)),
            )

        same(device, work, torch.rand(12, 33) + 0.1)

    def test_in_place(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(y)
            x[1:].mul_(2)
            x.t().sub_(1)
            x[2:5].copy_(y[:3])
            return y.relu_() + x

        same(device, work, torch.randn(20, 30), torch.randn(20, 30))

    def test_nothing_to_do(self, device: str) -> None:
        same(device, lambda x: (x + 1, x.sum(0)), torch.randn(0, 33))
        same(device, lambda x: (x + 1, x.sum()), torch.randn(()))
        same(device, lambda x: (torch.var_mean(x), x.mean(), x.std(0)), torch.randn(0, 3))

    def test_no_divisions_where_loops_will_do(self, device: str) -> None:
        """Rows that are permuted, broadcast and sliced are loops."""
        x, y = torch.randn(6, 7, 8, device=device), torch.randn(7, 8, device=device)
        work = torch.compile(lambda x, y: (x + y).permute(2, 0, 1).contiguous() + x[1:2].permute(2, 0, 1))
        _, (program,) = torch._inductor.utils.run_and_get_code(work, x, y)
        body = program[program.index("tg_kernel_0 =") : program.index("async_compile.wait")]
        lines = [line for line in body.splitlines() if "load_" in line or "store_" in line]
        assert lines
        assert not any("/" in line or "%" in line for line in lines)

    @pytest.mark.quick(dtype=[torch.float32, torch.bool], count=3)
    @pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool])
    @pytest.mark.parametrize("count", [2, 3, 5, 7, 8])
    def test_short_rows(self, device: str, form: str, count: int, dtype: torch.dtype) -> None:
        """Whose elements vectors do not go along."""

        def work(x: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.where(row, x, ~x) if x.dtype == torch.bool else x * 2 + row
            image = y.view(3, 11, -1, count)
            colours = image.permute(0, 3, 1, 2).contiguous()
            padded = F.pad(y, (1, 2, 0, 1), value=True)  # a load under a condition
            taken = y[row.nonzero_static(size=count, fill_value=0)[:, 0].clamp(max=count - 1)]  # indices from memory
            return y, image.permute(0, 2, 1, 3).contiguous(), colours, colours + colours.flip(1), padded, taken

        x = torch.randint(0, 9, (3 * 11 * 13, count)).to(dtype)
        same(device, work, x, torch.randint(0, 9, (count,)).to(dtype))

    def test_short_rows_of_large_numbers(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(0, 7 * 10**9, 10**9, device=x.device)

        same(device, work, torch.zeros(64, 7, dtype=torch.int64))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_what_is_added_in_place_is_rounded_before(self, device: str, form: str, dtype: torch.dtype) -> None:
        def work(x: torch.Tensor, where: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return x.index_put((where,), (values * 1.0).to(dtype), accumulate=True)

        x, where = torch.tensor([-6e4, -6e4, 1, 0]).to(dtype), torch.tensor([1, 2, 3])
        same(device, work, x, where, torch.tensor([7e4, 2**-8 * 1.001, 1.001]))

    @pytest.mark.quick(factor=3, dynamic=False)
    @pytest.mark.parametrize("factor", [2, 3, 9])
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_divided_indices(self, device: str, form: str, factor: int, dynamic: bool) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            large = F.pixel_shuffle(x, factor) * 2
            return (
                *(large, F.pixel_unshuffle(large + 1, factor) * x, F.interpolate(x, scale_factor=2.0) + 1),
                *(x.repeat_interleave(3, 2) + 1, x.tile(1, 1, 2, 3) + 1, F.channel_shuffle(large, 2) + large),
            )

        same(device, work, torch.randn(2, 2 * factor**2, 5, 6), dynamic=dynamic)

    @pytest.mark.parametrize("form", ["cpu"], indirect=True)
    def test_divided_indices_are_loops(self, device: str, form: str) -> None:
        work = torch.compile(lambda x: F.pixel_shuffle(x, 3) + 1)
        _, (program,) = torch._inductor.utils.run_and_get_code(work, torch.randn(2, 18, 5, 6, device=device))
        lines = [line for line in program.splitlines() if "= load_" in line]
        assert lines
        assert not any("/" in line or "%" in line for line in lines)


@pytest.mark.no_fallback
class TestReductions:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.quick(shape=(7, 40, 33), dtype=[torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("shape", [(7, 40, 33), (2, 300, 70)])
    def test_kinds(self, device: str, form: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                *(x.mean(0), x.var(1), x.std(2), x.amax((0, 2)), x.amin(-1), x[:, :3].prod(2), x.argmax(1)),
                *((x > 1).any(0), (x > -9).all(), x.sum((0, 1)), x.logsumexp(1), torch.softmax(x, 0)),
            )

        same(device, work, torch.randn(shape).to(dtype))

    def test_first_of_equals(self, device: str, form: str) -> None:
        x = torch.randint(0, 3, (70, 200)).float()
        same(device, lambda x: (x.argmax(), x.argmax(1), x.argmin(0), x.max(1), x.min(0)), x)

    def test_places_are_in_the_order_of_dimensions(self, device: str, form: str) -> None:
        """Whatever the order in memory."""

        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            last = x.permute(3, 0, 2, 1)
            return x.argmax(), last.argmin(), (last + 1).argmax(), x.flip(1).transpose(1, 2).argmax(), last.amax((0, 1))

        image = torch.randn(2, 5, 6, 7)
        same(device, work, image)
        same(device, work, image.contiguous(memory_format=torch.channels_last), dynamic=True)
        same(device, work, torch.randint(-9, 9, image.shape))

    def test_places_in_windows(self, device: str, form: str) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return F.max_pool2d(x.transpose(2, 3), 5, padding=1, return_indices=True)

        same(device, work, torch.randn(2, 3, 17, 13))

    def test_nan_wins(self, device: str, form: str) -> None:
        x = torch.where(torch.randn(50, 60) > 2, float("nan"), torch.randn(50, 60))
        same(device, lambda x: (x.amax(1), x.argmax(1), x.min(), x.amin(0), torch.maximum(x, x.flip(0))), x)

    def test_large(self, device: str) -> None:
        same(device, lambda x: (x.sum(), x.mean(1), x.var(0), x.sum(0), x.var()), torch.randn(300, 3000))

    @pytest.mark.quick(dynamic=False)
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_sums_of_many(self, device: str, form: str, dynamic: bool) -> None:
        """What comes last counts as what came first, along rows and across them."""

        def work(x: torch.Tensor, rows: torch.Tensor, short: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                *(x.sum(0), rows.sum(1), x.sum(), rows.mean(1), rows.bfloat16().float().sum(1), short.sum((0, 2))),
                *((x * 1000 - 99).var(0), (rows * 1000 - 99).std(1)),
            )

        x = 0.1 + 1e-4 * torch.rand(65536, 128)
        given = x, x.t().contiguous(), x.view(-1, 8, 16)
        exact, single = work(*(t.double() for t in given)), work(*given)
        results = torch.compile(work, fullgraph=True, dynamic=dynamic)(*(t.to(device) for t in given))
        for got, expected, cpu in zip(results, exact, single, strict=True):
            error, error_of_cpu = ((t.cpu() / expected - 1).abs().max().item() for t in (got, cpu))
            assert error < max(1e-5, 2 * error_of_cpu)

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_integers(self, device: str, dtype: torch.dtype) -> None:
        x = torch.randint(-40, 40, (20, 50)).to(dtype)
        same(device, lambda x: (x.sum(), x.amax(1), x.argmin(0), x.prod(0)), x)

    @pytest.mark.quick(dynamic=False, shape=(3, 7, 9, 11))
    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize("shape", [(5, 1000), (3, 7, 9, 11), (70, 100)])
    def test_long_rows(self, device: str, form: str, shape: tuple[int, ...], dynamic: bool) -> None:
        """Which the work-items of a group share on a GPU: along memory, in several loops and across memory."""

        def work(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
            last, rows, ends = x.dim() - 1, tuple(range(1, x.dim())), (0, *range(2, x.dim()))
            return (
                *(x.sum(rows), x.mean(0), x.var(rows), x.std(), (x * 0.1 + 1).prod(last), x.logsumexp(rows)),
                *(y.amax(rows), y.amin(ends), y.amax(), y.argmax(last), y.argmin(0), y.argmin()),
                *(y.flatten(1).argmax(1), y.transpose(0, 1).flatten(1).argmax(1), x.var(ends), n.sum(ends)),
                *((n > 8).any(last), (n > -9).all(0), (n == 9).any(), (n == n).all(), n.sum(rows), n.amin()),
                *(n.argmax(), n.flatten(1).argmax(1), n.amax(0), n.prod(last), torch.softmax(x, last)),
                F.layer_norm(x, x.shape[1:]),
            )

        x, n = torch.randn(shape), torch.randint(-9, 9, shape)
        y = torch.where(torch.rand(shape) > 0.999, float("nan"), n.float())
        y[0] = float("nan")
        same(device, work, x, y, n, dynamic=dynamic)

    def test_teams_have_rows_that_are_long_or_few(self, device: str, gpu_form: None) -> None:
        for shape, dim, shared in (
            *(((40, 1000), 1, True), ((2, 50), 1, True), ((40, 60), 1, False), ((2, 8), 1, False)),
            *(((1000, 40), 0, True), ((100, 3000), 0, False), ((30, 3000), 0, False), ((3, 4, 300), (0, 2), True)),
        ):
            x, work = torch.ones(shape, device=device), torch.compile(lambda x, dim=dim: (x + 1).amax(dim))
            result, (program,) = torch._inductor.utils.run_and_get_code(work, x)
            assert ("together=True" in program) == shared, shape
            assert (result == 2).all()

    def test_rows_of_teams_have_values_of_their_own(self, device: str, form: str) -> None:
        """Which one work-item stores, in place of what others have read, and which later loops read."""

        def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y.add_((x * y[:, None]).sum(1)).mul_(2)
            scaled = x / y[:, None]
            y.sub_(scaled.amax(1))
            return scaled, (scaled - y[:, None]).sum(1) + y

        same(device, work, torch.rand(9, 700) + 1, torch.rand(9) + 1)

    @pytest.mark.thorough
    @pytest.mark.parametrize("size", [17, 64, 65])
    def test_rows_with_members_that_have_nothing_to_do(self, device: str, form: str, size: int) -> None:
        """And a value of the row that is stored last."""

        def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x - x.mean(0), y + x.mean(0), (x / x.amax(0)).relu()

        same(device, work, torch.randn(size, 1), torch.randn(1))

    def test_long_rows_of_wrong_indices(self, device: str, form: str) -> None:
        x, work = torch.ones(5, 300, device=device), torch.compile(lambda x, i: (x[i] * 2).sum(1) / x[i, i])
        assert work(x, torch.tensor([1, 2, -1], device=device)).tolist() == [600, 600, 600]
        with pytest.raises(IndexError, match="index 5 is out of bounds for a dimension of size 5"):
            work(x, torch.tensor([0, 5, 1], device=device))
        assert work(x, torch.tensor([1, 2, 3], device=device)).tolist() == [600, 600, 600]

    def test_any_of_bytes_is_a_byte(self, device: str) -> None:
        """And of all else a truth."""
        x = torch.tensor([[0, 2, 0], [0, 0, 0]], dtype=torch.uint8)
        same(device, lambda x: (x.any(), x.any(1), x.all(0), (x > 1).any(0), x.int().any()), x)

    @pytest.mark.quick(norm=["layer", "batch"])
    @pytest.mark.parametrize("norm", ["layer", "batch", "group", "rms"])
    def test_norms(self, device: str, norm: str) -> None:
        functions: dict[str, Function] = {
            "layer": lambda x, w: F.layer_norm(x, (64,), w),
            "batch": lambda x, w: F.batch_norm(x.transpose(1, 2), None, None, w, training=True),
            "group": lambda x, w: F.group_norm(x.transpose(1, 2), 4, w),
            "rms": lambda x, w: F.rms_norm(x, (64,), w),
        }
        same(device, functions[norm], torch.randn(9, 33, 64), torch.randn(64), gradients=True)


POOLINGS: dict[str, Function] = {
    "overlapping": lambda x: F.max_pool2d(x.sin(), 3, 2, 1),
    "side by side": lambda x: F.max_pool2d(x, 2),
    "dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 1), (2, 3), ceil_mode=True),
    "an image": lambda x: F.max_pool2d(x[0], 3, 1, 1),
    "rows": lambda x: F.max_pool1d(x.flatten(0, 1), 5, 2, 2),
    "volumes": lambda x: F.max_pool3d(x[None], (2, 3, 2), (1, 2, 2), 1),
    "channels last": lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 3, 2, 1),
}


@pytest.mark.no_fallback
class TestPooling:
    @pytest.mark.quick(dtype=torch.float32, form="cpu")
    @pytest.mark.quick(dtype=torch.float32, form="gpu", which=["overlapping", "volumes"])
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("which", POOLINGS)
    def test_max(self, device: str, form: str, which: str, dtype: torch.dtype) -> None:
        # All different, so that there is one largest in any rounding; 40 wide, for whole vectors and a rest.
        x = torch.randperm(2 * 3 * 11 * 40).reshape(2, 3, 11, 40).to(dtype)
        x = x if dtype in (torch.float32, torch.float64) else x.fmod(200)
        same(device, lambda x: POOLINGS[which](x / 256), x, gradients=True)

    def test_no_op_is_called_that_is_not_known(self, device: str) -> None:
        """Inductor's option: those of the toolkit are."""
        with torch._inductor.config.patch(implicit_fallbacks=False):
            same(device, lambda x: F.max_pool2d(x, 3, 2), torch.randn(2, 3, 9, 9), gradients=True)

    def test_sizes_that_change(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            return F.max_pool2d(x, 3, 2, 1)

        compiled = torch.compile(work, dynamic=True, fullgraph=True)
        for size in ((2, 3, 9, 40), (1, 3, 12, 33), (4, 5, 7, 64)):
            x = torch.randn(size)
            a, b = x.clone().requires_grad_(), x.to(device).requires_grad_()
            work(a).sum().backward()
            compiled(b).sum().backward()
            assert b.grad is not None
            assert_close(b.grad.cpu(), a.grad)

    def test_nothing_is_larger_than_the_lowest(self, device: str) -> None:
        """The gradient goes to the first tap then, which lies within the image; and a NaN is larger than all."""
        x = torch.full((1, 2, 6, 70), -torch.inf)
        x[0, 1, 2:5, 30] = torch.nan
        same(device, lambda x: F.max_pool2d(x, 3, 2, 1), x, gradients=True)
        same(device, lambda x: F.max_pool2d(x, 2, 1, 1, 2), x, gradients=True)

    @pytest.mark.parametrize("form", ["cpu"], indirect=True)
    def test_by_the_devices_kernels(self, device: str, form: str) -> None:
        """Where the gradient needs places; otherwise a pooling is fused."""
        compiled = torch.compile(lambda x: F.max_pool2d(x.relu(), 3, 2, 1))
        x = torch.randn(1, 2, 20, 20, device=device)
        _, (program,) = torch._inductor.utils.run_and_get_code(compiled, x)
        assert "aten.max_pool" not in program and "max_pool2d_with_indices(" not in program
        x.requires_grad_()
        _, (forward, backward) = torch._inductor.utils.run_fw_bw_and_get_code(lambda: compiled(x))
        assert "torchgraft.max_pool_offsets.default(" in forward
        assert "torchgraft.max_pool_offsets_backward.default(" in backward
        assert "ATOMIC" not in backward


@pytest.mark.no_fallback
class TestIndexing:
    def test_gathers(self, device: str, form: str) -> None:
        index = torch.randint(-20, 20, (15,))
        same(
            device,
            lambda x, i: (x[i] * 2, x[:, i.abs() % 30], F.embedding(i.abs() % 20, x)),
            torch.randn(20, 30),
            index,
        )

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
    def test_sums_into_places(self, device: str, form: str, dtype: torch.dtype) -> None:
        def work(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                x.index_add(0, i, v),
                x.index_put((i,), v, accumulate=True),
                x.scatter_add(0, i[:, None] * (v == v), v),
            )

        given = torch.randint(-9, 9, (20, 8)).to(dtype), torch.randint(20, (90,)), torch.ones(90, 8).to(dtype)
        same(device, work, *given)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.int16])
    def test_sums_into_places_are_shared_out(self, device: str, dtype: torch.dtype, gpu_form: None) -> None:
        """By replacing words of 32 and 64 bits as long as another was quicker: every value is as it was rounded before,
        and neighbours in a word do not see each other."""
        if dtype.is_floating_point:
            numbers = [0.0, -0.0, 1.0, 6e-8, 2.5e-5, 6.1e-5, 6.2e-5, 0.1, 3.14159, 65504.0, 1e30, float("inf")]
            x = torch.tensor([*numbers, *(-n for n in numbers), float("nan")]).to(dtype)
        else:
            x = torch.tensor([0, 1, -1, 100, torch.iinfo(dtype).max, torch.iinfo(dtype).min, 7]).to(dtype)
        y = x.flip(0).repeat(x.numel()).reshape(x.numel(), -1).t().flatten()
        work = torch.compile(lambda x, i, y: x.scatter_add(0, i, y))
        given = x.repeat(x.numel())[:-1], torch.randperm(y.numel() - 1), y[:-1]
        result, (program,) = torch._inductor.utils.run_and_get_code(work, *(t.to(device) for t in given))
        assert "tg_add_into_place" in program and "serial=True" not in program
        assert_close(result.cpu(), given[0].scatter_add(0, *given[1:]), rtol=0, atol=0, equal_nan=True)
        same(device, lambda x, i: x.scatter_add(0, i, torch.ones_like(i, dtype=dtype)), x[:3], torch.arange(100) % 3)

    def test_gradients(self, device: str) -> None:
        same(
            device,
            lambda w, i: F.embedding(i, w).tanh(),
            torch.randn(20, 30),
            torch.randint(20, (5, 7)),
            gradients=True,
        )

    @pytest.mark.parametrize("index", [[0, 7], [-6, 0]])
    def test_out_of_range(self, device: str, form: str, index: list[int]) -> None:
        x, work = torch.ones(5, 3, device=device), torch.compile(lambda x, i: x[i] * 2)
        assert work(x, torch.tensor([-5, 4], device=device)).sum().item() == 12
        wrong = next(i for i in index if i)
        for dtype in (torch.int64, torch.int32):
            with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for a dimension of size 5"):
                work(x, torch.tensor(index, device=device, dtype=dtype))
        assert work(x, torch.tensor([1, 2], device=device)).sum().item() == 12

    def test_targets_out_of_range(self, device: str) -> None:
        work = torch.compile(F.cross_entropy)
        with pytest.raises(IndexError, match="index 3 is out of bounds"):
            work(torch.ones(2, 3, device=device), torch.tensor([0, 3], device=device))

    @pytest.mark.parametrize(
        "work",
        [
            lambda x, i: x.sin().gather(0, i),
            lambda x, i: x.scatter(0, i, x) + 1,
            lambda x, i: x.scatter(0, i, 1.0),
            lambda x, i: x.scatter_add(0, i, x),
            lambda x, i: x.scatter_reduce(0, i, x, "sum"),
            lambda x, i: x.index_add(0, i[0], x[:1]),
            lambda x, i: F.max_unpool1d(x, i, 1),
            lambda x, i: F.multi_margin_loss(x, i[0].expand(3)),
            lambda x, i: F.embedding(i * 0, x).softmax(-1)[0].gather(0, i),
            lambda x, i: F.embedding(i, x) + x.gather(0, i * 0),
            lambda x, i: x.index_select(0, i[0]) * 2,
            lambda x, i: x.take(i * 4),
            lambda x, i: x.index_copy(0, i[0], x[:1]),
            lambda x, i: x.index_put((i[0],), x[0]),
            lambda x, i: F.nll_loss(x, i[0].expand(3)),
        ],
    )
    def test_errors_of_indices(self, device: str, form: str, work: Callable[..., torch.Tensor]) -> None:
        """Some are a RuntimeError, as the op itself has it."""
        x, index = torch.ones(3, 4), torch.tensor([[5]])
        with pytest.raises((IndexError, RuntimeError)) as expected:
            work(x, index)
        with pytest.raises(expected.type):
            torch.compile(work)(x.to(device), index.to(device))

    def test_integers_divided_by_zero(self, device: str) -> None:
        x, work = torch.ones(3, dtype=torch.int64, device=device), torch.compile(lambda x, y: x // y + x % y)
        assert work(x, x).tolist() == [1, 1, 1]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            work(x, x - 1)


def train(
    device: str, model: nn.Module, *given: torch.Tensor, loss: Function = F.cross_entropy, **options: Any
) -> None:
    """Compares three steps of training."""
    losses: list[list[float]] = []
    parameters = []
    for on in ("cpu", device):
        copied = copy.deepcopy(model).to(on)
        run = copied if on == "cpu" else torch.compile(copied, **options)
        optimizer = torch.optim.SGD(copied.parameters(), lr=1e-2)
        inputs, *rest = (t.to(on) for t in given)
        losses.append([])
        for _ in range(3):
            optimizer.zero_grad()
            value = loss(run(inputs), *rest)
            value.backward()
            optimizer.step()
            losses[-1].append(value.item())
        parameters.append([p.detach().cpu() for p in copied.parameters()])
    assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
    assert_close(parameters[1], parameters[0], rtol=2e-3, atol=2e-3)


class Words(nn.Module):
    """Classes of sequences, by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(30, 12), nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.words(x))[0][:, -1])


class TestModels:
    def test_mlp(self, device: str) -> None:
        model = nn.Sequential(nn.Linear(20, 50), nn.GELU(), nn.LayerNorm(50), nn.Linear(50, 5))
        train(device, model, torch.randn(16, 20), torch.randint(5, (16,)), fullgraph=True)

    @pytest.mark.thorough
    def test_cnn(self, device: str) -> None:
        model = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(
                nn.Conv2d(8, 16, 3),
                nn.BatchNorm2d(16),
                nn.SiLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(16, 5),
            ),
        )
        train(device, model, torch.randn(4, 3, 16, 16), torch.randint(5, (4,)), fullgraph=True)

    @pytest.mark.thorough
    def test_lstm(self, device: str) -> None:
        """The graph breaks at the cells; what runs between graphs is left alone."""
        train(device, Words(), torch.randint(30, (4, 7)), torch.randint(5, (4,)))

    @pytest.mark.thorough
    def test_transformer(self, device: str) -> None:
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, activation="gelu")
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        train(device, model, torch.randn(3, 10, 32), loss=lambda y: y.square().mean(), fullgraph=True)

    def test_autocast(self, device: str) -> None:
        model = nn.Sequential(nn.Linear(20, 50), nn.GELU(), nn.LayerNorm(50), nn.Linear(50, 5)).to(device)
        x = torch.randn(16, 20, device=device)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            expected, got = model(x), torch.compile(model, fullgraph=True)(x)
        assert got.dtype == expected.dtype == torch.bfloat16
        assert_close(got, expected, rtol=3e-2, atol=3e-2)

    @pytest.mark.thorough
    def test_an_optimizer(self, device: str) -> None:
        results = []
        for compiled in (False, True):
            x = torch.ones(5, 5, device=device, requires_grad=True)
            x.grad = torch.full_like(x, 0.3)
            optimizer = torch.optim.Adam([x], lr=0.1)
            step = torch.compile(optimizer.step) if compiled else optimizer.step
            step()
            step()
            results.append(x.detach())
        assert_close(*results)

    def test_the_ops_own_kernels(self, device: str) -> None:
        """Of products, convolutions, attention and sorting."""

        def work(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
            image = F.conv2d(x.reshape(2, 3, 8, 8), w, padding=1).relu()
            q = image.reshape(2, 4, 16, 16)
            attended = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            return image * 2, attended + 1, (attended @ q).softmax(-1), x.sort(1).values + 1, x.cumsum(0) * 2

        same(device, work, torch.randn(6, 64), torch.randn(16, 3, 3, 3) * 0.2)


class TestPrograms:
    def test_sizes_that_change(self, device: str) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.softmax(-1) + x.sum(0), x.reshape(-1)[::2] + 1, x.view(x.shape[0] // 2, -1).mean(0)

        torch._dynamo.utils.counters.clear()
        run = torch.compile(work, dynamic=True, fullgraph=True)
        for rows, columns in ((12, 33), (8, 5), (40, 300)):
            x = torch.randn(rows, columns)
            assert_close([t.cpu() for t in run(x.to(device))], list(work(x)), rtol=1e-4, atol=1e-4)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

    def test_numbers_that_are_rounded(self, device: str) -> None:
        def work(x: torch.Tensor, i: int) -> tuple[torch.Tensor, ...]:
            y = i / 2 * 123.4567
            return x + round(y, 2), x + round(y, 0), x + round(y, -2), x + round(y), x + y, x + i / 3, x + i**0.5

        run = torch.compile(work, dynamic=True, fullgraph=True)
        x = torch.zeros(3, dtype=torch.float64)
        for i in (2, 3, 11):
            assert_close([each.cpu() for each in run(x.to(device), i)], list(work(x, i)), rtol=1e-12, atol=0)

    def test_random_numbers(self, device: str) -> None:
        run = torch.compile(
            lambda x: (F.dropout(x, 0.3), torch.randn_like(x), torch.randint(10, (9999,), device=device))
        )
        x = torch.ones(100, 1000, device=device)
        torch.manual_seed(3)
        first, second = run(x), run(x)
        torch.manual_seed(3)
        assert all(map(torch.equal, run(x), first))
        assert not any(map(torch.equal, first, second))
        dropped, normal, whole = (t.cpu() for t in first)
        assert abs((dropped == 0).float().mean() - 0.3) < 0.01
        assert abs(normal.mean()) < 0.01
        assert abs(normal.std() - 1) < 0.01
        assert whole.unique().tolist() == list(range(10))

    def test_the_same_random_numbers_as_without(self, device: str) -> None:
        x = torch.ones(100, 100, device=device)
        results = []
        for run in (F.dropout, torch.compile(F.dropout)):
            torch.manual_seed(3)
            with torch._inductor.config.patch(fallback_random=True):
                results.append(run(x))
        assert torch.equal(*results)

    def test_dropout_drops_the_gradient_alike(self, device: str) -> None:
        x = torch.ones(50, 50, device=device, requires_grad=True)
        result = torch.compile(lambda x: F.dropout(x, 0.5).tanh())(x)
        result.sum().backward()
        assert torch.equal(result == 0, x.grad == 0)

    def test_several_graphs(self, device: str) -> None:
        model = nn.Linear(4, 4).to(device)
        first, second = torch.compile(lambda x: model(x).relu()), torch.compile(lambda x: model(x).tanh() + 1)
        for rows in (3, 4, 5, 3):
            x = torch.randn(rows, 4, device=device)
            assert_close(first(x), model(x).relu())
            assert_close(second(x), model(x).tanh() + 1)
        with torch.no_grad():
            assert_close(first(x), model(x).relu())
        with torch.inference_mode():
            assert_close(first(x), model(x).relu())

    def test_threads(self, device: str) -> None:
        run = torch.compile(lambda x: x.softmax(-1) * 2 + x.sum(0), dynamic=True)
        given = [torch.randn(20 + k, 30, device=device) for k in range(4)]
        expected = [x.softmax(-1) * 2 + x.sum(0) for x in given]
        run(given[0])
        wrong: list[BaseException] = []

        def work(x: torch.Tensor, expected: torch.Tensor) -> None:
            try:
                for _ in range(20):
                    assert_close(run(x), expected)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=each) for each in zip(given, expected, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_data_decides_on_sizes(self, device: str) -> None:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
            same(device, lambda x: x[x > 0].square().sum() + x.sum().item() * x.mean(), torch.randn(50, 60))

    def test_other_elements(self, device: str) -> None:
        """What no kernel can hold is left to the ops."""
        same(device, lambda x: x.to(torch.uint16).to(torch.int32) + 1, torch.rand(5, 6) * 100)
        same(device, lambda x: torch.view_as_real(torch.complex(x, x) * 2) + 1, torch.randn(5, 6))

    @pytest.mark.thorough
    def test_two_devices(self, device: str) -> None:
        run = torch.compile(lambda x, y: (x * 2 + 1, (y + x.cpu()).exp(), y.to(x.device) * x))
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        for got, expected in zip(run(x.to(device), y), (x * 2 + 1, (y + x).exp(), y * x), strict=True):
            assert_close(got.cpu(), expected)

    @pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
    def test_modes(self, device: str, mode: str) -> None:
        same(device, lambda x: (x @ x.t()).softmax(0) + 1, torch.randn(20, 20), mode=mode)

    def test_nothing_to_tune(self, device: str) -> None:
        """It is said once."""
        _say_without_effect.cache_clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for size in (5, 6):
                same(device, lambda x: (x @ x) * 2, torch.randn(size, size), mode="max-autotune")
        assert len([each for each in warned if "max-autotune' and the" in str(each.message)]) == 1

    def test_cudagraphs(self, device: str, caplog: pytest.LogCaptureFixture) -> None:
        _say_without_effect.cache_clear()
        with caplog.at_level("INFO", "torchgraft.inductor"):
            same(device, lambda x: (x @ x) + 1, torch.randn(5, 5), options={"triton.cudagraphs": True})
        assert "in any case" in caplog.text

    def test_a_graph_of_a_compiled_function(self, device: str) -> None:
        module: Any = getattr(torch, torch.device(device).type)
        run, x = torch.compile(lambda x: (x * 2).softmax(-1)), torch.randn(5, 10, device=device)
        run(x)
        graph = module.Graph()
        with module.graph(graph):
            result = run(x)
        x.fill_(1)
        graph.replay()
        assert_close(result.cpu(), torch.full((5, 10), 0.1))


PROGRAM = """
    import torch
    import torch._inductor.config
    import torchgraft, torchgraft_opencl

    x = torch.randn(9, 40, device="ocl", requires_grad=True)
    torch.compile(lambda x: (x * 3).softmax(-1).square().sum())(x).backward()
    print(torchgraft.plans.stats().kernels_compiled)
"""


def test_a_kernel_that_does_not_compile_names_the_users_line(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the graph's nodes. The device is usable then."""
    made = GeneratedKernel.text
    monkeypatch.setattr(GeneratedKernel, "text", lambda self: broken(made(self)))

    def broken(text: Text) -> Text:
        return replace(text, statements=f"{text.statements}\nthis does not compile;")

    def of_the_user(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return doubled.tanh().sum(1)

    x = torch.ones(6, 5, device=device)
    with torchgraft.fallback("error"), torch._inductor.utils.fresh_cache(), pytest.raises(KernelCompileError) as raised:
        torch.compile(of_the_user)(x)
    assert raised.value.kernel == "tg_fused_mul_sum_tanh"
    text = str(raised.value)
    assert "nodes mul, tanh, sum_1" in text
    line = r"test_inductor.py:\d+ in of_the_user: doubled = x \* 2\n"
    assert re.search(line, text)
    torch._dynamo.reset()
    with torchgraft.fallback("warn"), torch._inductor.utils.fresh_cache(), pytest.warns(UserWarning, match=line):
        assert_close(torch.compile(of_the_user)(x).cpu(), of_the_user(x.cpu()))
    monkeypatch.undo()
    torch._dynamo.reset()
    assert_close(torch.compile(of_the_user)(x).cpu(), of_the_user(x.cpu()))


@pytest.mark.thorough
def test_a_second_process_compiles_nothing(device: str, script: Script, tmp_path: Any) -> None:
    if device != "ocl":
        pytest.skip("the program is for the device 'ocl'")
    places = {
        "TORCHGRAFT_CACHE_DIR": str(tmp_path / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "programs"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    counts = [int(script(PROGRAM, fresh=True, **places).splitlines()[-1]) for _ in range(2)]
    assert counts[0] > 0
    assert counts[1] == 0


@pytest.mark.thorough
def test_programs_of_the_cpu_are_torchs(script: Script, tmp_path: Any) -> None:
    """The text that is generated for the CPU is the same with and without a backend, before and after its first use."""
    text = """
        import re, sys, torch
        import torch._inductor.config, torch._inductor.utils

        {}
        work = lambda x, s: (s * x).softmax(-1).sum(0) + x[x.argmax(0)]
        x = torch.ones(8, 8)
        _, (code,) = torch._inductor.utils.run_and_get_code(torch.compile(work), x, torch.tensor(2.0))
        print(hash(re.sub(r"\\S*/\\S*|0x\\w+|# .*|AOT ID.*", "", code)))
    """
    setups = (
        "",
        "import torchgraft_opencl; torch.compile(lambda x: x + 1)(torch.ones(3, device='ocl')); torch._dynamo.reset()",
    )
    places = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "PYTHONHASHSEED": "0",
    }
    plain, beside = (script(text.format(setup), fresh=True, **places).splitlines()[-1] for setup in setups)
    assert plain == beside


def test_pointwise_results_are_on_the_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch is still needed: without it, the result is where the first operand is."""
    from torch._inductor import lowering

    register()
    monkeypatch.setattr(lowering, "is_gpu", lowering.is_gpu.__wrapped__)
    number = torch.tensor(2.5)
    result = torch.compile(lambda x: number * x, fullgraph=True)(torch.ones(3, device=device))
    assert result.device.type == "cpu"


@pytest.mark.parametrize("form", ["cpu"], indirect=True)
def test_costly_values_are_kept(device: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch is still needed: without it, exponential functions are made twice."""
    import torch._inductor.ir

    register()

    def times() -> int:
        torch._dynamo.reset()
        x = torch.randn(4, 100, device=device)
        _, (program,) = torch._inductor.utils.run_and_get_code(torch.compile(lambda x: torch.softmax(x, -1)), x)
        # One loop for whole vectors, and others for what is left of a row.
        return len(re.findall(r"VECTORIZE[^}]*tg_exp_f32\(", program))

    assert times() == 1
    monkeypatch.setattr(torch._inductor.ir, "is_cpu", torch._inductor.ir.is_cpu.__wrapped__)
    assert times() == 2


@pytest.mark.parametrize("form", ["cpu"], indirect=True)
def test_short_variances_take_two_steps(device: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch is still needed: without it, each element of a row takes divisions."""
    from torch._inductor import lowering

    register()

    def is_welford() -> bool:
        torch._dynamo.reset()
        x = torch.randn(40, 100, device=device)
        _, (program,) = torch._inductor.utils.run_and_get_code(torch.compile(lambda x: F.layer_norm(x, (100,))), x)
        return "_weight" in program

    assert not is_welford()
    monkeypatch.setattr(lowering, "use_two_step_variance", lowering.use_two_step_variance.__wrapped__)
    assert is_welford()


def test_extremes_have_places(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch is still needed: without it, places are those in memory."""
    from torch._inductor import ir

    register()
    monkeypatch.setattr(ir.Reduction, "create", ir.Reduction.create.__wrapped__)
    x = torch.randn(30, 40)
    place = torch.compile(lambda x: x.t().argmax(), fullgraph=True)(x.to(device)).item()
    assert place != x.t().argmax()
    assert divmod(place, 40) == divmod(int(x.argmax()), 40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_of_halves_are_calls(device: str, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are rounded once, in place and not; sums of the same size beside each other have memory of their own."""

    def sums(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = torch.ones(3, dtype=x.dtype, device=x.device)
        added = start.clone()
        added.index_put_((i,), x * 2, accumulate=True)
        planes = torch.zeros(3, 2, dtype=x.dtype, device=x.device)
        return (
            start.scatter_add(0, i, x),
            start.scatter_reduce(0, i, x * 0.5, "sum"),
            start.index_add(0, i, x),
            start.index_put((i,), x, accumulate=True) + 1,
            added,
            planes.index_put((i, i % 2), x, accumulate=True),
        )

    x, i = torch.rand(6000).to(dtype), torch.arange(6000) % 3
    for got, exact in zip(torch.compile(sums)(x.to(device), i.to(device)), sums(x.double(), i), strict=True):
        assert got.dtype == dtype
        assert ((got.cpu().double() - exact).abs() <= 1.1 * exact.abs() * torch.finfo(dtype).eps).all()
    from torch._inductor import lowering

    for name in ("needs_fallback_due_to_atomic_add_limitations", "use_scatter_fallback"):
        monkeypatch.setattr(lowering, name, getattr(lowering, name).__wrapped__)
    torch._dynamo.reset()
    rounded = torch.compile(sums)(x.to(device), i.to(device))
    pairs = zip(rounded, sums(x.double(), i), strict=True)
    assert any((got.cpu().double() - exact).abs().max() > 2 for got, exact in pairs)


def test_convolutions_keep_their_layout(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch is still needed: without it, images and weights are copied to lie by channels last."""
    from torch._inductor.graph import GraphLowering

    register()
    x, w = torch.randn(2, 65, 9, 9), torch.randn(70, 65, 3, 3)
    wanted = torch.conv2d(x, w).relu()

    def operands() -> str:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, w: torch.conv2d(x, w).relu(), fullgraph=True)
        with torch.no_grad():
            result, (program,) = torch._inductor.utils.run_and_get_code(compiled, x.to(device), w.to(device))
        assert_close(result.cpu(), wanted, rtol=1e-4, atol=1e-4)
        (found,) = re.findall(r"convolution\((\w+, \w+),", program)
        return str(found)

    assert operands() == "arg0_1, arg1_1"
    with torch._inductor.config.patch(force_layout_optimization=True):
        assert operands() == "buf0, buf1"
    plain = GraphLowering.decide_layout_opt.__wrapped__
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(plain))
    assert operands() == "buf0, buf1"


def test_gradients_of_convolutions_keep_their_layout(device: str) -> None:
    """The same for a backward graph, of which torch asks from 2.15 on."""
    from torch._inductor.graph import GraphLowering
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradients(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        none = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
        return torch.ops.aten.convolution_backward(grad, x, w, *none)

    register()
    given = (torch.randn(shape, device=device) for shape in ((2, 70, 7, 7), (2, 65, 9, 9), (70, 65, 3, 3)))
    graph = make_fx(gradients, tracing_mode="fake")(*given)
    assert not GraphLowering.decide_layout_opt(graph, is_inference=False)
    assert GraphLowering.decide_layout_opt.__wrapped__(graph, is_inference=False) == (versions.HERE >= (2, 15))


def test_every_operation_is_there() -> None:
    """Operations that inductor knows are the kernel language's too, but for those that are Triton's alone."""
    from torch._inductor.ops_handler import OP_NAMES

    from torchgraft.inductor.operations import Operations

    missing = {name for name in OP_NAMES if Operations._is_unimplemented(name)}
    assert missing == {"partial_accumulate", "rand_eager"}


def test_kernels_are_counted(device: str) -> None:
    before = torchgraft.plans.stats()
    torch.compile(lambda x: x * 1.234567 + 7.654321)(torch.ones(3, device=device))
    after = torchgraft.plans.stats()
    assert after.kernels_compiled + after.kernels_loaded > before.kernels_compiled + before.kernels_loaded


class TestRows:
    """Ops that are declared by a row fuse: `torchgraft.ops.row`."""

    @pytest.fixture(scope="class", autouse=True)
    def _declared(self, device: str) -> None:
        torch.library.define("compiled_rows::axpy", "(Tensor x, Tensor y, *, float a=1.0) -> Tensor")
        torch.library.define("compiled_rows::odd", "(Tensor x) -> Tensor")
        torchgraft.ops.row("compiled_rows::axpy", "T z = a * x; z + @exp(-y)")
        torchgraft.ops.row(
            "compiled_rows::odd", "x != 0.0", integer="(x & 1) != 0", kind=torchgraft.ops.Kind.ALWAYS_BOOL
        )

    @pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
    def test_with_their_neighbours(self, device: str, form: str, dtype: torch.dtype) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.ops.compiled_rows.axpy(x.abs(), y * 0.5, a=2.5).relu() + 1

        def wanted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (2.5 * x.abs() + (-(y * 0.5)).exp()).relu() + 1

        x, y = (torch.randn(6, 1) * 3).to(dtype), torch.randn(5).to(dtype)
        torch._inductor.metrics.reset()
        compiled = torch.compile(work, fullgraph=True)
        for _ in range(3):
            got = compiled(x.to(device), y.to(device))
        tolerance = TOLERANCE.get(dtype, 1e-4)
        assert_close(got.cpu(), wanted(x, y).to(got.dtype), rtol=tolerance, atol=tolerance)
        assert_close(got, work(x.to(device), y.to(device)), rtol=tolerance, atol=tolerance)
        if dtype.is_floating_point:
            assert torch._inductor.metrics.generated_kernel_count == 1

    def test_of_integers_and_booleans(self, device: str) -> None:
        compiled = torch.compile(lambda x: torch.ops.compiled_rows.odd(x + 1).sum())
        assert compiled(torch.arange(9, device=device)).item() == 5
        assert compiled(torch.tensor([0.5, -1.0, 2.0], device=device)).item() == 2

    def test_a_row_that_changes(self, device: str) -> None:
        """Programs on disk are those of other rows."""
        from torchgraft.inductor import rows

        before = rows.digest()
        torch.library.define("compiled_rows::late", "(Tensor x) -> Tensor")
        torchgraft.ops.row("compiled_rows::late", "x * 3")
        assert rows.digest() != before
        assert torch.compile(lambda x: torch.ops.compiled_rows.late(x) - 1)(torch.ones(2, device=device)).tolist() == [
            2,
            2,
        ]
