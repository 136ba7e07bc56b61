"""Fourier transforms, against torch's CPU in float64."""

from __future__ import annotations

import gc
import math
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Script

import torchgraft
from torchgraft.codegen.dialects import dialect
from torchgraft.kernels.choice import choices
from torchgraft.kernels.fft.kernel import line_kernel
from torchgraft.kernels.fft.lines import Lines
from torchgraft.kernels.fft.stages import CPU_RADICES
from torchgraft.ops.fft import radices, twiddles

pytestmark = pytest.mark.no_fallback

COMPLEX = [torch.complex64, torch.complex128]
# Powers, products of small primes, primes that are summed up, primes that become convolutions, in one step and in two.
LENGTHS = [
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    24,
    30,
    48,
    60,
    61,
    64,
    67,
    101,
    169,
    243,
    256,
    343,
    900,
    1000,
    1009,
    2310,
    4096,
    10007,
    12288,
]
Function = Callable[[torch.Tensor], torch.Tensor]


def check(device: str, function: Function, x: torch.Tensor, n: int) -> None:
    """Compares with float64; errors of a transform grow with the logarithm of its length."""
    exact = x.to(torch.complex128 if x.is_complex() else torch.float64)
    expected = function(exact)
    got = function(x.to(device))
    assert got.device.type != "cpu"
    assert got.shape == expected.shape
    assert got.dtype == function(x).dtype
    scale = expected.abs().pow(2).mean().sqrt().item() if expected.numel() else 1.0
    limit = 2 * torch.finfo(x.dtype).eps * (2 + n.bit_length()) * scale
    assert torch.allclose(got.cpu().to(expected.dtype), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(device: str, n: int, dtype: torch.dtype) -> None:
    for rows in (1, 33) if n < 4000 else (1, 9):
        x = torch.randn(rows, n, dtype=torch.complex128).to(dtype)
        check(device, torch.fft.fft, x, n)
        check(device, torch.fft.ifft, x, n)
        check(device, torch.fft.rfft, x.real, n)
        check(device, torch.fft.fft, x.real, n)
        check(device, lambda a: torch.fft.irfft(a, n=n), torch.fft.rfft(x.real), n)
        check(device, lambda a: torch.fft.hfft(a, n=n), x[:, : n // 2 + 1], n)


@pytest.mark.quick(norm="ortho")
@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
def test_normalization(device: str, norm: str) -> None:
    x = torch.randn(3, 4, 6, 10, dtype=torch.complex64)
    for dims in ((0,), (1, 2), (3, 0), (0, 1, 2, 3), (2, 3, 1)):
        check(device, lambda a, d=dims: torch.fft.fftn(a, dim=d, norm=norm), x, 720)
        check(device, lambda a, d=dims: torch.fft.ifftn(a, dim=d, norm=norm), x, 720)
        check(device, lambda a, d=dims: torch.fft.rfftn(a, dim=d, norm=norm), x.real, 720)
        check(device, lambda a, d=dims: torch.fft.fftn(a, dim=d, norm=norm), x.real, 720)
        check(device, lambda a, d=dims: torch.fft.irfftn(a, dim=d, norm=norm), x, 720)
        check(device, lambda a, d=dims: torch.fft.irfftn(a, s=[7] * len(d), dim=d, norm=norm), x, 720)


def test_layouts(device: str) -> None:
    x = torch.randn(6, 10, 14, dtype=torch.complex64)
    y = x.to(device)
    for view in (
        lambda a: a.permute(2, 0, 1),
        lambda a: a[::2, 1:, ::3],
        lambda a: a.conj(),
        lambda a: a[:, :1].expand(6, 5, 14),
        lambda a: a.real,
        lambda a: a.imag.transpose(0, 2),
        lambda a: a.conj().imag,
    ):
        for dim in (0, 1, 2):
            got, expected = torch.fft.fft(view(y), dim=dim), torch.fft.fft(view(x), dim=dim)
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got.cpu(), expected)


def test_more_dimensions_than_merge(device: str) -> None:
    x = torch.randn(2, 3, 2, 3, 2, 3, 4, dtype=torch.complex64)[:, :2, :, :2, :, :2]
    torch.testing.assert_close(torch.fft.fft(x.to(device), dim=3).cpu(), torch.fft.fft(x, dim=3))
    torch.testing.assert_close(torch.fft.fftn(x.to(device)).cpu(), torch.fft.fftn(x))


def test_blocks_of_lines_end_inside_rows(device: str) -> None:
    for shape in ((5, 12, 17), (3, 300, 5), (2, 7, 40), (40, 16, 3), (3, 16, 50), (7, 67, 9)):
        x = torch.randn(shape, dtype=torch.complex64)
        for dim in (0, 1, 2):
            check(device, lambda a, d=dim: torch.fft.fft(a, dim=d), x, 300)
            check(device, lambda a, d=dim: torch.fft.irfft(a, dim=d), x, 600)
            check(device, lambda a, d=dim: torch.fft.rfft(a, dim=d), x.real, 300)


PLANES = [(64, 6, 10), (64, 2, 7), (33, 67, 20), (8, 40, 50), (2, 5, 12, 18), (3, 4, 5, 6, 7), (2, 270, 486)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", PLANES, ids=str)
@pytest.mark.quick(shape=PLANES[:5:2])
def test_planes(device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Two axes in one launch, where planes are many and small, and otherwise in two; also with convolutions, in blocks
    of lines that end inside planes, and in any order."""
    x = torch.randn(shape, dtype=dtype.to_complex())
    n = math.prod(shape[1:])
    for dims in ((-2, -1), (-1, -2), (0, -1), tuple(range(1, len(shape)))):
        check(device, lambda a, d=dims: torch.fft.fftn(a, dim=d), x, n)
        check(device, lambda a, d=dims: torch.fft.rfftn(a, dim=d), x.real, n)
        check(device, lambda a, d=dims: torch.fft.irfftn(a, dim=d), x, 2 * n)
        check(device, lambda a, d=dims: torch.fft.ifftn(a.transpose(0, 1), dim=d, norm="ortho"), x, n)
    check(device, lambda a: torch.fft.rfft2(a[::2, :, ::2]), x.real, n)
    check(device, lambda a: torch.fft.irfft2(a, s=(5, 9)), x, n)


WAYS = [(lanes, lines) for lanes in (4, 8, 16) for lines in (1, 2, 4) if lanes // lines >= 2]
of_cpus = pytest.mark.skipif(os.environ.get("TORCHGRAFT_KERNEL_FORM") == "gpu", reason="vectors are of CPUs")


@of_cpus
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize(("lanes", "lines"), WAYS)
@pytest.mark.parametrize("n", [16, 20, 36, 48, 64, 90, 112, 144, 256, 300, 1000, 1260, 8192])
@pytest.mark.quick(n=[20, 256])
def test_vectors_along_rows(
    device: str, n: int, lanes: int, lines: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ways to lay them, whatever processor this is."""
    stages = radices.row_stages(n, lanes, lines)
    if stages is None:
        firsts = [r for r in CPU_RADICES if n % r == 0 and min(r, n // r) >= lanes // lines]
        assert not firsts
        return
    assert math.prod(stages.radices) == n
    monkeypatch.setattr(radices, "along_rows", lambda m, *_: stages if m == n else None)
    torchgraft.plans.clear()
    for rows in (1, 2, 7):
        x = torch.randn(rows, n, dtype=torch.complex128).to(dtype)
        real = torch.randn(rows, 2 * n, dtype=torch.float64).to(x.real.dtype)
        check(device, torch.fft.fft, x, n)
        check(device, torch.fft.ifft, x, n)
        check(device, torch.fft.rfft, real, 2 * n)
        check(device, lambda a: torch.fft.fft(a.expand(3, *a.shape)[:, ::2]), x, n)
        same = x.to(device)
        torch.fft.fft(same, out=same)
        torch.testing.assert_close(same.cpu(), torch.fft.fft(x), rtol=1e-4, atol=1e-4)
    x = torch.randn(5, 6, n, dtype=torch.complex128).to(dtype)
    check(device, torch.fft.fft2, x, 6 * n)
    check(device, torch.fft.rfft2, torch.cat([x.real, x.imag], 2), 12 * n)
    x[2, 3, 1], x[4, 0, 0] = torch.nan, torch.inf
    with choices() as made:
        got = torch.fft.fft(x.to(device)).cpu()
    assert ("rows", "") in made[-1].ways
    assert torch.equal(got.isfinite().all(2), x.isfinite().all(2))
    torchgraft.plans.clear()


@of_cpus
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", [4, 6, 20, 49, 90, 256, 1000])
@pytest.mark.quick(n=20)
@pytest.mark.quick(n=256, lanes=8)
def test_vectors_along_columns(
    device: str, n: int, lanes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number, also in place, where no column may be transformed twice."""
    stages = radices.row_stages(n, lanes, lanes, columns=True)
    assert n == 4 or (stages and math.prod(stages.radices) == n)
    monkeypatch.setattr(radices, "along_columns", lambda m, *others: stages if m == n and others[-1] else None)
    torchgraft.plans.clear()
    for shape in ((n, 1), (n, 16), (n, 37), (3, n, 5), (4, n, 18), (2, 3, n, 7)):
        x = torch.randn(shape, dtype=torch.complex128).to(dtype)
        check(device, lambda a: torch.fft.fft(a, dim=-2), x, n)
        check(device, lambda a: torch.fft.ifft(a, dim=-2), x, n)
        same = x.to(device)
        with choices() as made:
            torch.fft.fft(same, dim=-2, out=same)
        assert (("columns", "") in made[-1].ways) == bool(stages and shape[-1] > 1)
        torch.testing.assert_close(same.cpu(), torch.fft.fft(x, dim=-2), rtol=1e-4, atol=1e-4)
    for shape in ((9, n, 20), (2, n, 33), (3, 4, n, 12)):
        x = torch.randn(shape, dtype=torch.complex128).to(dtype)
        check(device, torch.fft.fft2, x, n * shape[-1])
        check(device, torch.fft.rfft2, x.real, n * shape[-1])
        check(device, torch.fft.irfft2, x, 2 * n * shape[-1])
        # torch's CPU is asked for the last dimensions: of others it has been seen to write beyond its memory (2.13).
        got = torch.fft.fftn(x.to(device), dim=(0, 1)).movedim((0, 1), (-2, -1)).cpu()
        expected = torch.fft.fftn(x.movedim((0, 1), (-2, -1)).contiguous(), dim=(-2, -1))
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    x = torch.randn(3, n, 21, dtype=torch.complex128).to(dtype)
    x[1, 2, 4], x[2, 0, 20] = torch.nan, torch.inf
    got = torch.fft.fft2(x.to(device), dim=(1,)).cpu()
    assert torch.equal(got.isfinite().all(1), x.isfinite().all(1))
    torchgraft.plans.clear()


@pytest.mark.parametrize(
    ("source", "lines", "columns"),
    [("complex", 1, False), ("complex", 4, False), ("complex", 16, True), ("pairs", 1, False), ("pairs", 4, False)],
)
def test_rows_and_columns_as_cxx(source: Any, lines: int, columns: bool) -> None:
    """A C++ compiler takes the text, too."""
    stages = radices.row_stages(512, 16, lines, columns)
    assert stages
    kernel = line_kernel("f32", Lines(source, "complex", 2, stages.along), "cpu")
    text = dialect("c++").render(kernel, base_offset=False)
    command = ["g++", "-std=c++20", "-w", "-x", "c++", "-c", "-", "-o", os.devnull]
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stages_along_lines(dtype: torch.dtype) -> None:
    for simd_width in (1, 4, 8, 16):
        for n in range(1, 3000):
            for stages in (
                radices.along_rows(n, dtype, simd_width),
                radices.along_columns(n, dtype, simd_width, 99),
            ):
                if stages:
                    along, each = stages.along, stages.radices
                    assert math.prod(each) == n and len(each) > 1 and along.lanes % along.lines == 0
                    assert min(along.first, n // along.first) >= along.numbers
                    assert {along.first, *along.between, along.last} == set(each) <= set(CPU_RADICES)
    for n, is_short in ((1024, True), (1009, False), (1 << 20, False)):
        assert bool(radices.along_rows(n, dtype, 16)) == is_short
        assert bool(radices.along_columns(n, dtype, 16, 16)) == is_short
    assert not radices.along_columns(100, dtype, 16, 7)


def test_a_bad_line_spoils_no_other(device: str) -> None:
    x = torch.randn(20, 50)
    x[3, 7] = float("nan")
    x[8, 2] = float("inf")
    x[11] *= 1e30
    got, expected = torch.fft.rfft(x.to(device)).cpu(), torch.fft.rfft(x)
    torch.testing.assert_close(got[11] * 1e-30, expected[11] * 1e-30)
    fine = [row for row in range(20) if row not in (3, 8, 11)]
    torch.testing.assert_close(got[fine], expected[fine])
    assert got[[3, 8]].isnan().any(1).all()


def test_only_what_a_real_signal_has_is_read(device: str) -> None:
    x = torch.randn(3, 9, dtype=torch.complex64)
    x[:, 0] += 5j
    x[:, 8] += 7j
    for n in (15, 16):
        got, expected = torch.fft.irfft(x.to(device), n=n), torch.fft.irfft(x, n=n)
        torch.testing.assert_close(got.cpu(), expected)


def test_empty(device: str) -> None:
    assert torch.fft.fft(torch.empty(0, 4, device=device)).shape == (0, 4)
    assert torch.fft.rfft2(torch.empty(0, 4, 6, device=device)).shape == (0, 4, 4)
    assert torch.fft.irfft(torch.empty(0, 4, dtype=torch.complex64, device=device)).shape == (0, 6)
    for function in (torch.fft.fft, torch.fft.rfft, torch.fft.irfft):
        with pytest.raises(RuntimeError, match="number of data points"):
            function(torch.empty(3, 0, device=device))


def test_out(device: str) -> None:
    x = torch.randn(4, 12, dtype=torch.complex64)
    out = torch.zeros(12, 8, dtype=torch.complex64, device=device).t()
    torch.fft.fft(x.to(device), out=out[::2])
    torch.testing.assert_close(out[::2].cpu(), torch.fft.fft(x))
    assert not out[1::2].any()
    same = x.to(device)
    torch.fft.fft(same, out=same)
    torch.testing.assert_close(same.cpu(), torch.fft.fft(x))
    conjugate = torch.empty(4, 12, dtype=torch.complex64, device=device).conj()
    torch.fft.fft(x.to(device), out=conjugate)
    torch.testing.assert_close(conjugate.cpu(), torch.fft.fft(x))
    real = torch.empty(0, device=device)
    torch.fft.irfft(x.to(device), out=real)
    torch.testing.assert_close(real.cpu(), torch.fft.irfft(x))


def test_dtypes(device: str) -> None:
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        x = torch.randint(0, 2, (5, 9)).to(dtype)
        torch.testing.assert_close(torch.fft.fft(x.to(device)).cpu(), torch.fft.fft(x))
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(RuntimeError, match="Unsupported dtype"):
            torch.fft.fft(torch.ones(4, dtype=dtype, device=device))


def test_refusals(device: str) -> None:
    x = torch.randn(4, 5, dtype=torch.complex64, device=device)
    with pytest.raises((RuntimeError, TypeError), match="expects a real input"):  # the second from torch 2.14 on
        torch.fft.rfft(x)
    with pytest.raises(IndexError):
        torch.fft.fft(x, dim=2)
    with pytest.raises(RuntimeError, match="unique"):
        torch.fft.fftn(x, dim=(0, 0))
    with pytest.raises(RuntimeError, match="Invalid normalization mode"):
        torch.fft.fft(x, norm="both")
    with pytest.raises(RuntimeError, match="20 has 11 Fourier coefficients"):
        torch.ops.aten._fft_c2r(x, [1], 0, 20)


@pytest.mark.parametrize("n", [12, 13, 67])
def test_gradients(device: str, n: int) -> None:
    for function in (
        lambda a: torch.fft.fft(a),
        lambda a: torch.fft.rfft(a.real),
        lambda a: torch.fft.irfft(a, n=n),
        lambda a: torch.fft.hfft(a),
        lambda a: torch.fft.ifftn(a, norm="ortho"),
        lambda a: torch.fft.irfftn(a),
        lambda a: torch.fft.rfft2(a.imag),
    ):
        x = torch.randn(3, n, dtype=torch.complex128)
        gradients = []
        for where in (device, "cpu"):
            leaf = x.to(where).requires_grad_()
            result = function(leaf)
            weight = torch.linspace(1, 2, result.numel(), dtype=torch.float64).view(result.shape).to(where)
            (result * weight).abs().pow(2).sum().backward()
            assert leaf.grad is not None
            gradients.append(leaf.grad.cpu())
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-8)


def test_second_derivative(device: str) -> None:
    x = torch.randn(2, 10, dtype=torch.complex128, device=device, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda a: torch.fft.irfft(torch.fft.fft(a)), (x,))


def test_stft(device: str) -> None:
    x = torch.randn(2, 1000, dtype=torch.float64)
    window = torch.hann_window(128, dtype=torch.float64)
    for n, onesided in ((128, True), (128, False), (131, True)):
        results = []
        for where in (device, "cpu"):
            spectrum = torch.stft(
                x.to(where), n, 32, 128, window.to(where), onesided=onesided, return_complex=True, normalized=True
            )
            back = torch.istft(spectrum, n, 32, 128, window.to(where), onesided=onesided, length=1000, normalized=True)
            results.append((spectrum.cpu(), back.cpu()))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(results[0][1], x)


def test_long_lines(device: str) -> None:
    """Two steps, whose halves lie in scratch."""
    x = torch.randn(1 << 20, dtype=torch.complex64)
    check(device, torch.fft.fft, x, 1 << 20)
    check(device, lambda a: torch.fft.irfft(a, n=999_983), x[:499_992], 1 << 22)


def test_tables_are_exact() -> None:
    n = 3 * 2**20
    roots = torch.view_as_complex(twiddles.of_a_line(n))
    some = torch.tensor([0, n // 8, n // 4, n // 2, 3 * n // 4, 7 * n // 8])
    half = 0.5**0.5
    exact = torch.tensor([1, half - half * 1j, -1j, -1, 1j, half + half * 1j], dtype=torch.complex128)
    assert (roots[some] - exact).abs().max() <= 2.0**-53
    assert (roots.abs() - 1).abs().max() < 3e-16


@pytest.mark.parametrize(("n", "each"), [(1024, (8, 8, 4, 4)), (512, (8, 8, 8)), (210, (7, 5, 3, 2)), (1, ())])
def test_radices(n: int, each: tuple[int, ...]) -> None:
    assert radices.radices_of(n, "gpu") == each


@pytest.mark.parametrize("n", [1, 2, 61, 210, 256, 1000, 1024, 2**29, 13**8, 3**18])
def test_radices_of_cpus(n: int) -> None:
    each = radices.radices_of(n, "cpu")
    assert math.prod(each) == n
    assert len(each) <= 16


@pytest.mark.parametrize("form", ["cpu", "gpu"])
def test_convolution_lengths(form: str) -> None:
    for n in (67, 101, 1009, 10007):
        length = radices.convolution_length(n, form)
        assert 2 * n - 1 <= length < 2.3 * n
        assert max(radices.primes(length)) <= 5


@pytest.mark.thorough
def test_tables_go_with_their_plans(device: str, script: Script) -> None:
    """What plans keep on the device is given back when they are cleared."""
    script(f"""
        import gc, torch, torchgraft, torchgraft_opencl
        from torchgraft.ops.fft import twiddles

        torchgraft_opencl.register()
        x = torch.randn(4096, dtype=torch.complex64).to("{device}")
        before = torch.ocl.memory_allocated()
        torch.fft.fft(x)
        assert torch.ocl.memory_allocated() > before
        torchgraft.plans.clear()
        twiddles._tables.clear()
        gc.collect()  # what planned them
        assert torch.ocl.memory_allocated() == before, (torch.ocl.memory_allocated(), before)
    """)


@pytest.mark.thorough
def test_kernels_for_gpus(script: Script, device: str) -> None:
    """With lines in local memory and in scratch, in one step and in two."""
    script(
        f"""
        import torch, torchgraft, torchgraft_opencl

        torchgraft_opencl.register()
        with torchgraft.fallback("error"):
            for n in (1, 2, 9, 61, 67, 100, 1009, 1024, 4096, 4099, 2 * 3 * 5 * 7 * 11 * 13):
                for rows in (1, 5):
                    x = torch.randn(rows, n, dtype=torch.complex128)
                    y = x.to("{device}")
                    r = y.real.contiguous()
                    for got, expected in (
                        (torch.fft.fft(y), torch.fft.fft(x)),
                        (torch.fft.ifft(y.t(), dim=0), torch.fft.ifft(x.t(), dim=0)),
                        (torch.fft.rfft2(r), torch.fft.rfft2(x.real)),
                        (torch.fft.irfft(torch.fft.rfft(r), n=n), x.real),
                        (torch.fft.fft(y.to(torch.complex64)), torch.fft.fft(x)),
                    ):
                        precision = 1e-5 if got.dtype == torch.complex64 else 1e-13
                        error = (got.cpu() - expected).abs().max().item()
                        assert error <= precision * n**0.5, (n, rows, error)
        """,
        TORCHGRAFT_KERNEL_FORM="gpu",
    )


@pytest.mark.thorough
def test_the_tables_of_many_lengths_are_bounded(device: str) -> None:
    """Each length has tables of its own, of its own size: those of plans that are used no longer go."""
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated()
    length = 1 << 20
    gc.disable()  # what is planned is in no cycle: memory goes at once
    try:
        for n in range(length, length + 40):  # 8 MB and more a table; primes among them have three
            torch.fft.fft(torch.ones(n, dtype=torch.complex64, device=device))
        assert torch.accelerator.memory_allocated() - before < 192 << 20
    finally:
        gc.enable()
    x = torch.randn(length, dtype=torch.complex64)
    torch.testing.assert_close(torch.fft.fft(x.to(device)).cpu(), torch.fft.fft(x), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("without", "shape"), [("bluestein-fused", (8, 67, 68)), ("fft.rows", (8, 4, 4096))])
def test_planes_where_a_way_is_left_out(script: Script, without: str, shape: tuple[int, ...]) -> None:
    """Planes are for axes of one launch each, by the ways that are left."""
    text = f"""
        import torch
        x = torch.randn{shape}
        got, wanted = torch.fft.fft2(x.to("ocl")).cpu(), torch.fft.fft2(x.double())
        print((got - wanted).abs().max().item() < 1e-4 * wanted.abs().max().item())
    """
    assert script(text, autoload=True, TORCHGRAFT_WITHOUT_WAYS=without) == "True\n"
