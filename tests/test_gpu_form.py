"""What only the GPU form has: squares of several sizes, sums in parts, few rows, fragments of 16-bit floats (by words
that any device has), and sums in an order that is left to chance."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchgraft import _C, plans
from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.tuning import FewRows, MatrixUnits, Target, Tiles, Tuning
from torchgraft.driver import Capability
from torchgraft.kernels import fragments
from torchgraft.kernels.convolution import direct as convolution
from torchgraft.kernels.matmul import tile
from torchgraft.plans import device as traits

pytestmark = pytest.mark.no_fallback

# As many as a large GPU has, so that sums are divided.
UNITS = 100


def forget() -> None:
    """What is known of the device, and what was made for it."""
    traits.device_traits.cache_clear()
    traits.kernel_form.cache_clear()
    plans.clear()


@pytest.fixture
def gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Makes plans as for a GPU with matrix units; the names of the kernels that were asked for."""
    index = torch.device(device).index or 0
    known = _C.device_properties(index)
    if not int(known["capabilities"]) & Capability.COMPILER or known["dialect"] != "opencl-c":
        pytest.skip("work-items that meet are for kernels in OpenCL C")
    offered = {**known, "capabilities": int(known["capabilities"]) | Capability.FRAGMENTS, "compute_units": UNITS}
    monkeypatch.setattr(traits, "_C", SimpleNamespace(device_properties=lambda _: offered))
    monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", "gpu")
    forget()
    asked: set[str] = set()
    launch = plans.PlanBuilder.launch

    def record(self: Any, kernel: Kernel, *arguments: Any, **more: Any) -> Any:
        asked.add(kernel.name)
        return launch(self, kernel, *arguments, **more)

    monkeypatch.setattr(plans.PlanBuilder, "launch", record)
    yield asked
    monkeypatch.undo()
    forget()


def close(got: torch.Tensor, wanted: torch.Tensor, last_place: float = 0.0) -> None:
    """Within half a unit of the last place, and of sums that cancel what float32 leaves."""
    scale = wanted.abs().max().item() if wanted.numel() else 1.0
    torch.testing.assert_close(got.cpu().double(), wanted.double(), rtol=last_place + 1e-6, atol=2e-6 * scale)


LAST_PLACES = {torch.bfloat16: 4e-3, torch.float16: 5e-4}

# Whole squares, edges, depths that are no multiples, few rows, long sums.
SHAPES = [(128, 96, 128), (130, 70, 300), (64, 33, 257), (9, 17, 5), (1, 1000, 300), (7, 333, 500), (16, 4096, 100)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transposed", [*itertools.product((False, True), repeat=2)])
def test_products(gpu: set[str], device: str, shape: tuple[int, int, int], transposed: tuple[bool, bool]) -> None:
    m, k, n = shape
    a, b = torch.randn(k, m).t() if transposed[0] else torch.randn(m, k), torch.randn(k, n)
    b = b.t().contiguous().t() if transposed[1] else b
    c = torch.randn(n)
    wanted = a.double() @ b.double()
    close(a.to(device) @ b.to(device), wanted)
    close(torch.addmm(c.to(device), a.to(device), b.to(device), alpha=0.5, beta=2), wanted / 2 + 2 * c.double())
    assert ("matmul_rows" if m <= FewRows().gpu_rows else "matmul_tile") in gpu
    assert ("matmul_fold" in gpu) == (k >= 1000)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] > FewRows().gpu_rows])
@pytest.mark.parametrize("transposed", [*itertools.product((False, True), repeat=2)])
@pytest.mark.quick(transposed=[(False, False), (True, True)])
def test_products_by_fragments(
    gpu: set[str], device: str, dtype: torch.dtype, shape: tuple[int, int, int], transposed: tuple[bool, bool]
) -> None:
    m, k, n = shape
    a, b = (torch.randn(k, m).t() if transposed[0] else torch.randn(m, k)).to(dtype), torch.randn(k, n).to(dtype)
    b = b.t().contiguous().t() if transposed[1] else b
    c = torch.randn(n).to(dtype)
    wanted = a.double() @ b.double()
    close(a.to(device) @ b.to(device), wanted, LAST_PLACES[dtype])
    close(torch.addmm(c.to(device), a.to(device), b.to(device)), wanted + c.double(), LAST_PLACES[dtype])
    assert "matmul_fragments" in gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fragments_amid_others(gpu: set[str], device: str, dtype: torch.dtype) -> None:
    """Matrices at odd places, a batch of them, columns apart: what lies around is NaN."""
    around = torch.full((3, 70, 100), torch.nan, dtype=dtype)
    a, b = around[:, 1:41, 3:93:2], torch.full((3, 60, 67), torch.nan, dtype=dtype)[:, 3:48, 5:65]
    a.copy_(torch.randn(a.shape))
    b.copy_(torch.randn(b.shape))
    held = [x.to(device).as_strided(x.size(), x.stride(), x.storage_offset()) for x in (around, b._base)]
    got = held[0][:, 1:41, 3:93:2] @ held[1][:, 3:48, 5:65]
    close(got, a.double() @ b.double(), LAST_PLACES[dtype])
    assert "matmul_fragments" in gpu


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 16, 13, 15), (24, 16, 3, 3), {"padding": 1}),
    "of small images": ((4, 32, 7, 7), (20, 32, 3, 3), {"padding": 1}),
    "strided": ((2, 20, 15, 14), (16, 20, 3, 3), {"padding": 1, "stride": 2}),
    "dilated": ((2, 16, 12, 12), (17, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "1x1": ((2, 32, 12, 12), (48, 32, 1, 1), {}),
    "grouped": ((2, 8, 12, 12), (16, 4, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 6, 30, 40), (6, 1, 5, 5), {"groups": 6, "padding": 2}),
    "few channels, strided": ((2, 3, 30, 31), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    "few channels, strided and dilated": ((2, 3, 20, 20), (8, 3, 3, 3), {"stride": 2, "dilation": 2, "padding": 2}),
    "beside each other": ((2, 3, 32, 33), (9, 3, 4, 4), {"stride": 4}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(gpu: set[str], device: str, name: str, dtype: torch.dtype) -> None:
    image, weight, options = CONVOLUTIONS[name]
    given = [torch.randn(shape).to(dtype) for shape in (image, weight, weight[:1])]
    on_device = [x.to(device).requires_grad_() for x in given]
    wide = [x.double().requires_grad_() for x in given]
    result, wanted = F.conv2d(*on_device, **options), F.conv2d(*wide, **options)
    grad = torch.randn(wanted.shape).to(dtype)
    results = [result, *torch.autograd.grad(result, on_device, grad.to(device))]
    for got, right in zip(results, [wanted, *torch.autograd.grad(wanted, wide, grad.double())], strict=True):
        close(got, right.detach(), LAST_PLACES.get(dtype, 0.0))
    few = "groups" in options or name in ("few channels, strided and dilated", "beside each other")
    assert ("matmul_fragments" in gpu) == (dtype != torch.float32 and not few)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8])
def test_sums_in_any_order(gpu: set[str], device: str, dtype: torch.dtype) -> None:
    """Many that meet in few places."""
    source, rows = (torch.randn(3000) * 3).to(dtype), (torch.randn(900, 33) * 3).to(dtype)
    places, lines = torch.randint(100, (3000,)), torch.randint(50, (900,))
    wide = torch.float64 if dtype.is_floating_point else dtype
    wanted = torch.zeros(100, dtype=wide).scatter_add(0, places, source.to(wide))
    close(torch.zeros(100, dtype=dtype, device=device).scatter_add(0, places.to(device), source.to(device)), wanted)
    wanted = torch.zeros(50, 33, dtype=wide).index_add(0, lines, rows.to(wide), alpha=2)
    got = torch.zeros(50, 33, dtype=dtype, device=device).index_add(0, lines.to(device), rows.to(device), alpha=2)
    close(got, wanted)
    assert gpu == {"add_at_once"}


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_a_sampled_image(gpu: set[str], device: str, mode: str, dtype: torch.dtype) -> None:
    """Many places of the grid have a few pixels."""
    given = [torch.randn(2, 3, 5, 7).to(dtype), (torch.rand(2, 40, 30, 2) * 2.4 - 1.2).to(dtype)]
    on_device, wide = ([x.to(where) for x in given] for where in (device, torch.float64))
    grad = torch.randn(2, 3, 40, 30).to(dtype)
    results = []
    for image, grid in (on_device, wide):
        image.requires_grad_()
        result = F.grid_sample(image, grid, mode, align_corners=False)
        results += torch.autograd.grad(result, image, grad.to(result))
    close(*results, last_place=LAST_PLACES.get(dtype, 0.0))
    assert any(name.endswith("at_once") for name in gpu)


def test_sums_in_order_where_asked(gpu: set[str], device: str) -> None:
    source, places = torch.randn(3000, device=device), torch.randint(100, (3000,)).to(device)
    torch.use_deterministic_algorithms(True)
    try:
        plans.clear()
        first, second = (torch.zeros(100, device=device).scatter_add(0, places, source) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
        plans.clear()
    assert torch.equal(first, second)
    assert "collect" in gpu
    assert "add_at_once" not in gpu


def test_an_index_out_of_range_is_told(gpu: set[str], device: str) -> None:
    places = torch.tensor([3] * 100 + [11]).to(device)
    with pytest.raises(RuntimeError, match="index 11 is out of bounds for dimension 0 with size 10"):
        torch.zeros(10, device=device).scatter_add(0, places, torch.ones(101, device=device)).cpu()


@pytest.mark.parametrize("count", [2, 5, 11])
@pytest.mark.parametrize("dim", [0, 1])
def test_joins_are_few_launches(gpu: set[str], device: str, count: int, dim: int) -> None:
    parts = [torch.randn(7 + (place if dim == 0 else 0), 9 + (place if dim else 0)) for place in range(count)]
    assert torch.equal(torch.cat([x.to(device) for x in parts], dim).cpu(), torch.cat(parts, dim))
    same = [torch.randn(7, 9) for _ in range(count)]
    assert torch.equal(torch.stack([x.to(device) for x in same], dim).cpu(), torch.stack(same, dim))
    assert gpu == {"join_elements"}


def test_few_long_rows(gpu: set[str], device: str) -> None:
    x = torch.randn(3, 5000)
    close(x.to(device).softmax(1), x.double().softmax(1))
    close(x.to(device).logsumexp(1), x.double().logsumexp(1))
    close(F.layer_norm(x.to(device), (5000,)), F.layer_norm(x.double(), (5000,)))
    for got, wanted in zip(x.to(device).max(1), x.max(1), strict=True):
        assert torch.equal(got.cpu(), wanted)


@pytest.mark.parametrize("shape", [(300_000,), (2, 200_001), (64, 100, 100), (30_001, 10)])
def test_reductions_in_many_parts(gpu: set[str], device: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape) + 1  # sums that cancel would be far less than what they are rounded by
    on_device = x.to(device)
    for dim in (*range(len(shape)), tuple(range(len(shape)))):
        close(on_device.sum(dim), x.double().sum(dim))
        close(on_device.var(dim), x.double().var(dim))
        assert torch.equal(on_device.amax(dim).cpu(), x.amax(dim))
        close(on_device.transpose(0, -1).sum(dim), x.double().transpose(0, -1).sum(dim))
    assert torch.equal(on_device.argmax().cpu(), x.argmax())
    assert any(name.startswith("combine_many") for name in gpu)


class TestTiles:
    def test_all_that_are_offered_are_even(self) -> None:
        sizes = Tuning().tiles.sizes
        assert [tiles.side for tiles in sizes] == [128, 64, 32]
        assert all(tiles.are_even and tiles.group == 16 for tiles in sizes)
        assert not Tiles(side=32, depth=16, item=8).are_even

    def test_large_products_have_large_squares(self) -> None:
        tiles, parts = tile.choose_tiles(Tiles(), 4096, 4096, 4096, 1, UNITS)
        assert (tiles.side, parts) == (128, 1)

    def test_small_products_have_small_squares_or_parts(self) -> None:
        tiles, parts = tile.choose_tiles(Tiles(), 512, 512, 512, 1, UNITS)
        assert tiles.side < 128 or parts > 1
        assert tile.choose_tiles(Tiles(), 32, 32, 100_000, 1, UNITS)[1] > UNITS // 4

    def test_fragments_have_no_smaller_squares_than_there_are_kernels_for(self) -> None:
        tuned = Target("gpu", UNITS, 16, Tuning()).matrix_tiles
        for size in (16, 64, 100, 1000):
            tiles, _ = tile.choose_tiles(tuned, size, size, size, 1, UNITS, MatrixUnits().speed)
            assert tiles.side >= fragments.LEAST_SIDE

    def test_a_single_unit_divides_no_sums(self) -> None:
        assert tile.choose_tiles(Tiles(), 32, 32, 100_000, 1, 1)[1] == 1

    def test_targets_without_matrix_units_have_none(self) -> None:
        assert not Target("gpu", UNITS, 16, Tuning()).matrix_units
        assert convolution.all_patches_kernel("bf16", "forward", False).local == (128, 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_long_permutations_are_sorted_numbers(gpu: set[str], device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    first = torch.randperm(9000, device=device, dtype=dtype)
    torch.manual_seed(7)
    assert torch.equal(torch.randperm(9000, device=device, dtype=dtype), first)
    assert torch.equal(first.cpu().sort().values, torch.arange(9000, dtype=dtype))
    second = torch.randperm(9000, device=device, dtype=dtype)
    # On average two numbers of 0 .. n are n / 3 apart, by a deviation of 0.24 n from place to place.
    apart = (first.cpu() - second.cpu()).abs().double().mean().item()
    assert abs(apart - 3000) < 6 * 0.24 * 9000 / 9000**0.5
    assert "randperm" not in gpu


@pytest.mark.parametrize("largest", [True, False])
def test_largest_of_long_rows(gpu: set[str], device: str, largest: bool) -> None:
    x = torch.randperm(18000).float().view(3, 6000) / 64  # no two equal: the places are the only right ones
    for got, wanted in zip(x.to(device).topk(5, largest=largest), x.topk(5, largest=largest), strict=True):
        assert torch.equal(got.cpu(), wanted)
    assert not any(name.startswith("top") for name in gpu)


@pytest.mark.parametrize(
    ("known", "form"),
    [
        ({"dialect": "opencl-c", "simd_width": 1}, "gpu"),
        ({"dialect": "opencl-c", "simd_width": 8}, "cpu"),
        ({"dialect": "c++", "simd_width": 1}, "cpu"),  # nobody has said anything of vectors
    ],
)
def test_a_cpu_whose_opencl_has_no_vectors_gets_it(
    device: str, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any], form: str
) -> None:
    """As rusticl on llvmpipe, whose compiler takes minutes for what the CPU's form writes out."""
    index = torch.device(device).index or 0
    offered = {**_C.device_properties(index), **known, "kind": "cpu"}
    monkeypatch.delenv("TORCHGRAFT_KERNEL_FORM", raising=False)
    monkeypatch.setattr(traits, "_C", SimpleNamespace(device_properties=lambda _: offered))
    forget()
    try:
        assert traits.kernel_form(index) == form
        monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", "cpu")
        traits.kernel_form.cache_clear()
        assert traits.kernel_form(index) == "cpu"
    finally:
        monkeypatch.undo()
        forget()
