"""Triton's kernels on the device, beside torch's CPU and Triton's own interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import SEED, Script

triton = pytest.importorskip("triton", reason="needs triton: pip install 'torchgraft[triton]'", minversion="3.7")

TESTS = Path(__file__).parent
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
GROUPS = os.environ.get("TORCHGRAFT_KERNEL_FORM") == "gpu"
INTEGERS = [torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    import triton_kernels

    return triton_kernels


#: What programs are translated for: a work-item each, a group of them, and one that has hardly any local memory.
FORMS = {"item": "/8", "group": ":256:32768", "little local memory": ":64:1024"}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def form(request: pytest.FixtureRequest, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgraft.triton import launch

    set_architecture(re.split("[:/]", launch.architecture())[0] + request.param, kernels, monkeypatch)


def set_architecture(name: str, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgraft.triton import launch

    monkeypatch.setattr(launch, "architecture", lambda: name)
    for each in vars(kernels).values():  # Triton asks once for each kernel
        if isinstance(each, triton.runtime.JITFunction):
            monkeypatch.setattr(each, "device_caches", type(each.device_caches)(each.device_caches.default_factory))


def close(mine: torch.Tensor, expected: torch.Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(mine.cpu(), expected, **tolerance)


@pytest.mark.usefixtures("form")
class TestKernels:
    def test_add(self, device: str, kernels: ModuleType) -> None:
        for n in (1, 1023, 98_432):
            x, y = torch.randn(n), torch.randn(n)
            out = torch.empty(n, device=device)
            kernels.add[(triton.cdiv(n, 1024),)](x.to(device), y.to(device), out, n, BLOCK=1024)
            close(out, x + y, rtol=0, atol=0)

    @pytest.mark.parametrize("columns", [1, 100, 781])
    def test_softmax(self, device: str, kernels: ModuleType, columns: int) -> None:
        x = torch.randn(37, columns)
        mine = x.to(device)
        out = torch.empty_like(mine)
        block = triton.next_power_of_2(columns)
        kernels.softmax[(5,)](out, mine, mine.stride(0), out.stride(0), 37, columns, BLOCK=block)
        close(out, x.softmax(-1))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_layer_norm(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        x, w, b = torch.randn(7, 300).to(dtype), torch.randn(300).to(dtype), torch.randn(300).to(dtype)
        mine = x.to(device)
        out = torch.empty_like(mine)
        kernels.layer_norm[(7,)](mine, out, w.to(device), b.to(device), mine.stride(0), 300, 1e-5, BLOCK=128)
        expected = F.layer_norm(x.double(), (300,), w.double(), b.double(), 1e-5).to(dtype)
        close(
            out,
            expected,
            rtol=2e-2 if dtype == torch.bfloat16 else 1e-5,
            atol=2e-2 if dtype == torch.bfloat16 else 1e-5,
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_matmul(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        for m, n, k in ((64, 32, 32), (50, 33, 70), (5, 100, 1)):
            a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype).t()
            x, y, c = a.to(device), b.to(device), torch.empty(m, n, dtype=dtype, device=device)
            strides = (*x.stride(), *y.stride(), *c.stride())
            kernels.matmul[lambda meta, m=m, n=n: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))](
                x, y, c, m, n, k, *strides
            )
            exact = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
            close(c, (a.double() @ b.double()).to(dtype), rtol=exact, atol=exact)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_attention(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        q, k, v = (torch.randn(3, 128, 32).to(dtype) for _ in range(3))
        out = torch.empty(3, 128, 32, dtype=dtype, device=device)
        args = [x.to(device) for x in (q, k, v)]
        kernels.attention[(2, 3)](*args, out, 32**-0.5, 128 * 32, 128, D=32, BM=64, BN=32)
        expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True).to(dtype)
        exact = 2e-2 if dtype == torch.bfloat16 else 1e-5
        close(out, expected, rtol=exact, atol=exact)

    def test_running_sums(self, device: str, kernels: ModuleType) -> None:
        """A mask that is the same before a barrier and behind it, and not for all elements of a row."""
        for rows, columns in ((100, 40), (16, 5), (33, 64)):
            x = torch.randn(rows, columns)
            out = torch.full((rows, columns), torch.nan, device=device)
            kernels.running_sums[(triton.cdiv(columns, 32),)](
                x.to(device), out, rows, columns, BR=16, BC=32, num_warps=2
            )
            close(out, x.cumsum(0), rtol=1e-4, atol=1e-4)

    def test_sums_begun_alike(self, device: str, kernels: ModuleType) -> None:
        """Products that begin with the same block in each turn of a loop."""
        a, b, w = torch.randn(16, 16), torch.randn(16, 16), torch.randn(4, 16, 16)
        out = torch.empty(16, 16, device=device)
        kernels.sums_begun_alike[(1,)](a.to(device), w.to(device), b.to(device), out, 4, N=16)
        close(out, (a @ w + 2 * b).relu().sum(0), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("halves", [True, False], ids=["halves", "rest"])
    def test_places_of_several_elements(self, device: str, kernels: ModuleType, halves: bool) -> None:
        """All is read before the first of them is written."""
        x = torch.randn(8)
        mine = x.to(device)
        kernels.doubled[(1,)](mine, 8, HALVES=halves, BLOCK=16)
        close(mine, 2 * x, rtol=0, atol=0)

    @pytest.mark.parametrize("sem", ["acq_rel", "relaxed"])
    def test_stores_before_an_atomic(self, device: str, kernels: ModuleType, sem: str) -> None:
        """Other programs that see the count see what the whole group has stored."""
        from torchgraft.triton.kernel import Translated

        x = torch.randn(4, 512)
        out, count = torch.empty(4, 512, device=device), torch.zeros(1, dtype=torch.int32, device=device)
        compiled = kernels.counted[(4,)](x.to(device), out, count, BLOCK=512, SEM=sem)
        close(out, x, rtol=0, atol=0)
        assert count.item() == 4
        translated = Translated.read(compiled.asm["tgk"])
        stored = translated.apart.index("store_f32(arg1")
        told = translated.apart.index("triton_add_i32(arg2")
        assert ("BARRIER;" in translated.apart[stored:told]) == (translated.items > 1)

    def test_sums_begun_anew(self, device: str, kernels: ModuleType) -> None:
        """A product in the place of its sums, which are read once more when new ones begin."""
        x = torch.randn(16, 16)
        out = torch.empty(2, 16, 16, device=device)
        kernels.sums_begun_anew[(1,)](x.to(device), out, N=16)
        close(out, torch.stack([2 * x @ x, 3 * x @ x]), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("form")
class TestAccumulators:
    @pytest.mark.parametrize("block", [16, 64, 128, 1024])
    @pytest.mark.parametrize("n", [0, 1, 500, 2048])
    def test_those_that_are_reduced(self, device: str, kernels: ModuleType, block: int, n: int) -> None:
        x = torch.randn(n)
        out = torch.empty(6, device=device)
        kernels.accumulators[(1,)](x.to(device), out, n, BLOCK=block)
        ends = torch.cat([x, torch.tensor([-1.5])]).max(), x.min() if n else torch.tensor(torch.inf)
        close(out, torch.stack([x.sum(), (x * x).sum(), (x > 0).sum(), *ends, 2 * x.sum()]), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("n", [0, 500, 2048])
    def test_those_that_are_not(self, device: str, kernels: ModuleType, n: int) -> None:
        x = torch.randn(n)
        out, blocks = torch.empty(4, device=device), torch.empty(256, device=device)
        kernels.whole_blocks[(1,)](x.to(device), out, blocks, n, BLOCK=256)
        rows = F.pad(x, (0, -n % 256)).view(-1, 256)
        sums, before = rows.sum(0), rows.cumsum(0)[:-1].sum()
        close(blocks, sums, rtol=1e-4, atol=1e-4)
        largest = sums.max() if n else torch.tensor(0.0)
        close(out, torch.stack([x.sum() + 256, largest, x.sum(), before]), rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(GROUPS, reason="work-items of a group have a share of each block")
def test_accumulators_are_narrow(device: str, kernels: ModuleType) -> None:
    x, out = torch.randn(600, device=device), torch.empty(6, device=device)
    text = kernels.accumulators[(1,)](x, out, 600, BLOCK=512).asm["tgk"]
    assert b"[64] ALIGN" in text
    assert b"[512] ALIGN" not in text


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_in_vectors(
    device: str, kernels: ModuleType, lanes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are no multiple of those in registers, and of fewer, and of columns that are."""
    from torchgraft.triton import launch

    set_architecture(f"{re.split('[:/]', launch.architecture())[0]}/{lanes}", kernels, monkeypatch)
    for m, n, k in ((1, 16, 4), (4, 32, 1), (16, 64, 8), (8, 4, 2)):
        x, y = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        out = torch.empty(m, n, dtype=dtype, device=device)
        kernels.product[(1,)](x.to(device), y.to(device), out, M=m, N=n, K=k)
        close(out, x @ y)


class TestArguments:
    def test_reinterpreted_tensors(self, device: str, kernels: ModuleType) -> None:
        x = torch.randint(-(2**31), 2**31, (64,), dtype=torch.int32)
        for given, kind, shown in ((x, "uint32", torch.uint32), (x.view(torch.float32), "int32", torch.int32)):
            mine = given.to(device)
            out = torch.empty(64, dtype=torch.int32, device=device)
            kernels.halves[(1,)](triton.reinterpret(mine, getattr(triton.language, kind)), out, BLOCK=64)
            close(out, torch.div(given.view(shown).long(), 2, rounding_mode="trunc").to(torch.int32))
            in_place = mine if kind == "uint32" else mine.view(torch.int32)
            wrapped = triton.reinterpret(mine, getattr(triton.language, kind))
            kernels.halves[(1,)](wrapped, wrapped, BLOCK=64)
            close(in_place, out.cpu())

    @pytest.mark.parametrize("padding", ["zero", "nan"])
    def test_descriptors(self, device: str, kernels: ModuleType, padding: str) -> None:
        from triton.tools.tensor_descriptor import TensorDescriptor

        x = torch.randn(30, 36)
        mine = TensorDescriptor.from_tensor(x.to(device), block_shape=[8, 16], padding=padding)
        out = torch.empty(30, 36, device=device)
        kernels.described[(4, 3)](mine, out, 30, 36, M=8, N=16)
        beyond = torch.full((30, 1), torch.nan if padding == "nan" else 0.0)
        close(out, torch.cat([x[:, 1:] * 2, beyond], 1), rtol=0, atol=0, equal_nan=True)

    def test_tuples(self, device: str, kernels: ModuleType) -> None:
        x, y = torch.randn(2, 64, device=device)
        out = torch.empty(64, device=device)
        kernels.of_tuples[(1,)]((x, (y, out)), (3.0, 1), BLOCK=64)
        close(out, x.cpu() * 3 + y.cpu() + 1)

    def test_options(self, device: str, kernels: ModuleType) -> None:
        """Those of other devices mean nothing, and what none has is refused."""
        x, out = torch.randn(64, device=device), torch.empty(64, device=device)
        kernels.calls[(1,)](x, out, BLOCK=64, num_warps=8, maxnreg=64, waves_per_eu=2)
        v = x.cpu()
        close(out, v * (v[0] * 2) + (v[0] + v[1]))
        with pytest.raises((KeyError, TypeError), match="num_wraps"):
            kernels.calls[(1,)](x, out, BLOCK=64, num_wraps=8)


@pytest.mark.usefixtures("form")
class TestOps:
    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
    def test_two_operands(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        names = ["add", "sub", "mul", "maximum", "minimum", "less", "ne"]
        names += ["truediv", "where"] if dtype.is_floating_point else ["and", "xor", "floordiv", "mod"]
        x = torch.randint(-100 if dtype != torch.uint8 else 0, 100, (64,)).to(dtype)
        y = torch.randint(1, 100, (64,)).to(dtype)
        if dtype.is_floating_point:
            x, y = x / 7, y / 3
        for name in names:
            expected = self._expected(name, x, y)
            out = torch.empty_like(expected, device=device)
            kernels.binary[(1,)](x.to(device), y.to(device), out, BLOCK=64, OP=name)
            close(out, expected, rtol=1e-6 if dtype == torch.float32 else 0, atol=0)

    @staticmethod
    def _expected(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """C's division of integers, as Triton has it."""
        match name:
            case "floordiv":
                return torch.div(x, y, rounding_mode="trunc")
            case "mod":
                return torch.fmod(x, y)
            case "less":
                return x < y
            case "where":
                return torch.where(x > y, x, -y)
            case "and" | "xor":
                return x & y if name == "and" else x ^ y
        return getattr(torch, {"truediv": "div"}.get(name, name))(x, y)

    @pytest.mark.parametrize("source", [*FLOATS, torch.int32, torch.int64, torch.int8, torch.bool], ids=str)
    @pytest.mark.parametrize("target", [*FLOATS, torch.int32, torch.int64, torch.int16], ids=str)
    def test_casts(self, device: str, kernels: ModuleType, source: torch.dtype, target: torch.dtype) -> None:
        x = (torch.randn(64) * 50).to(source)
        out = torch.empty(64, dtype=target, device=device)
        kernels.cast[(1,)](x.to(device), out, BLOCK=64)
        close(out, x.to(target), rtol=0, atol=0)

    def test_functions(self, device: str, kernels: ModuleType) -> None:
        x = torch.randn(256)
        out = torch.empty(10, 256, device=device)
        kernels.functions[(1,)](x.to(device), out, BLOCK=256)
        v = x.double()
        expected = [v.exp(), v.abs().log(), v.sin() + v.cos(), v.tanh(), v.erf(), v.abs() ** 1.5, v.sigmoid(),
                    v.floor() + v.ceil(), v.abs().rsqrt(), v.exp2() + v.abs().log2()]  # fmt: skip
        close(out, torch.stack(expected).float(), rtol=2e-6, atol=2e-6)

    @pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 128), (32, 8), (2, 512)])
    def test_reductions(self, device: str, kernels: ModuleType, m: int, n: int) -> None:
        x = torch.randint(-5, 6, (m, n)) / 2  # with equal ones
        out = torch.zeros(5 * m + n, device=device)
        indices = torch.zeros(m + n, dtype=torch.int32, device=device)
        kernels.reductions[(1,)](x.to(device), out, indices, M=m, N=n)
        means = [x.mean(1), x.var(1, correction=0), x.amax(1), (x * x).sum(1)]
        got = out.cpu()
        close(got[: 4 * m], torch.cat(means))
        close(got[4 * m], x.sum())
        close(got[5 * m :], x.amin(0))
        first = torch.cat([(x == x.amax(1, True)).int().argmax(1), (x == x.amin(0)).int().argmax(0)])
        close(indices, first.int())

    @pytest.mark.parametrize(("m", "n"), [(1, 8), (4, 16), (16, 2)])
    def test_scans(self, device: str, kernels: ModuleType, m: int, n: int) -> None:
        x = torch.randn(m, n)
        out = torch.empty(4, m, n, device=device)
        kernels.scans[(1,)](x.to(device), out, M=m, N=n)
        a, b = x.clone(), x + 1
        for j in range(1, n):
            a[:, j], b[:, j] = a[:, j - 1] * x[:, j], b[:, j - 1] * x[:, j] + (x[:, j] + 1)
        close(out, torch.stack([x.cumsum(1), x.flip(0).cumsum(0).flip(0), x.cumprod(1), a + b]))

    @pytest.mark.parametrize("n", [2, 16])
    def test_moves(self, device: str, kernels: ModuleType, n: int) -> None:
        x, index = torch.randn(n, n), torch.randint(0, n, (n, n), dtype=torch.int32)
        out = torch.zeros(7 * n * n, device=device)
        kernels.moves[(1,)](x.to(device), index.to(device), out, N=n)
        got = out.cpu().split(n * n)
        pairs = (x[:, ::2] - x[:, 1::2]).flatten()
        for mine, expected in zip(got, [x.t(), x.t(), None, x, x.gather(1, index.long()), x.sort(1)[0], x.flip(1)],
                                  strict=True):  # fmt: skip
            close(mine[: pairs.numel()], pairs) if expected is None else close(mine.view(n, n), expected.contiguous())

    def test_histogram(self, device: str, kernels: ModuleType) -> None:
        x = torch.randint(0, 8, (128,), dtype=torch.int32)
        out = torch.zeros(8, dtype=torch.int32, device=device)
        kernels.histogram[(1,)](x.to(device), out, N=128, BINS=8)
        close(out, torch.bincount(x, minlength=8).int())

    def test_atomics(self, device: str, kernels: ModuleType) -> None:
        n, programs = 5000, 40
        x, index = torch.randint(-9, 9, (n,)).float(), torch.randint(0, 7, (n,), dtype=torch.int32)
        sums = torch.zeros(7, device=device)
        largest, least = (torch.full((7,), v, dtype=torch.int32, device=device) for v in (-1, n))
        old = torch.zeros(programs + 1, dtype=torch.int32, device=device)
        kernels.atomics[(programs,)](x.to(device), index.to(device), sums, largest, least, old, n, BLOCK=128)
        close(sums, torch.zeros(7).index_add(0, index.long(), x))
        places = [(index == k).nonzero().flatten() for k in range(7)]
        close(largest, torch.tensor([int(p.max()) for p in places], dtype=torch.int32))
        close(least, torch.tensor([int(p.min()) for p in places], dtype=torch.int32))
        assert old[0] == programs
        assert sorted(old[1:].tolist()) == list(range(programs))  # each found a place of its own

    def test_branches_and_loops(self, device: str, kernels: ModuleType) -> None:
        x = torch.rand(50) + 0.01
        out = torch.full((64,), 7.0, device=device)
        kernels.control[(64,)](x.to(device), out, 50, 3.0)
        expected = torch.full((64,), 7.0)
        for k, value in enumerate(x.tolist()):
            steps = 0
            while value < 3.0:
                value, steps = value * 2, steps + 1
            expected[k] = -value if steps % 2 == 0 else value + 0.5
        close(out, expected)

    def test_arguments_that_share_memory(self, device: str, kernels: ModuleType) -> None:
        x = torch.randn(512)
        mine = x.to(device)
        kernels.shifted[(1,)](mine, mine, BLOCK=512)
        close(mine, x.roll(1))
        whole = torch.randn(513)
        mine = whole.to(device)
        kernels.shifted[(1,)](mine[:512], mine[1:], BLOCK=512)
        close(mine[1:], whole[:512].roll(1))
        out = torch.empty(512, device=device)
        kernels.shifted[(1,)](x.to(device), out, BLOCK=512)
        close(out, x.roll(1))

    def test_a_block_that_is_large(self, device: str, kernels: ModuleType) -> None:
        x = torch.randint(-1000, 1000, (1 << 16,), dtype=torch.int32)
        out = torch.empty(1 << 16, dtype=torch.int32, device=device)
        kernels.enormous[(1,)](x.to(device), out, BLOCK=1 << 16)
        close(out, x.cumsum(0).flip(0).int())


class TestReports:
    def test_assertions(self, device: str, kernels: ModuleType) -> None:
        """That fail raise an error; programs end there, before what follows them."""
        module = getattr(torch, device.split(":")[0])
        x, index = torch.randn(64, device=device), torch.arange(64, dtype=torch.int32, device=device)
        out = torch.zeros(4, 64, device=device)
        kernels.asserts[(3,)](x, index, out, 64, BLOCK=64, debug=True)
        close(out[:3], x.cpu().expand(3, 64))
        with pytest.raises(
            RuntimeError, match=r"program 3 of the Triton kernel asserts: assertion failed \(.*kernels.py"
        ):
            kernels.asserts[(4,)](x, index, out, 64, BLOCK=64, debug=True)
            module.synchronize()
        assert (out[3] == 0).all()
        index[17] = -(2**31)
        told = r'assertion failed: index {} is "100%" out of range \(.*triton_kernels.py:\d+\) \(on ' + device
        with pytest.raises(RuntimeError, match=told):
            kernels.asserts[(1,)](x, index, out, 64, BLOCK=64, debug=True)
            module.synchronize()
        module.synchronize()  # it is raised once

    def test_assertions_in_graphs(self, device: str, kernels: ModuleType) -> None:
        module = getattr(torch, device.split(":")[0])
        x, index = torch.randn(64, device=device), torch.arange(64, dtype=torch.int32, device=device)
        out = torch.zeros(1, 64, device=device)
        kernels.asserts[(1,)](x, index, out, 64, BLOCK=64, debug=True)
        graph = module.Graph()
        with module.graph(graph):
            kernels.asserts[(1,)](x, index, out, 64, BLOCK=64, debug=True)
        x.mul_(2)
        graph.replay()
        close(out[0], x.cpu())
        index[5] = 64
        graph.replay()
        with pytest.raises(RuntimeError, match="out of range"):
            module.synchronize()

    def test_assertions_only_where_debugging(self, device: str, kernels: ModuleType) -> None:
        x, index = torch.randn(4, device=device), torch.zeros(4, dtype=torch.int32, device=device)
        kernels.asserts[(1,)](x, index, torch.zeros(4, device=device), 0, BLOCK=4)
        getattr(torch, device.split(":")[0]).synchronize()

    @pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint8], ids=str)
    def test_overflow(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        """Is found where debugging, as by Triton's other devices."""
        most = torch.tensor([torch.iinfo(dtype).max], dtype=dtype, device=device)
        out = torch.zeros(1, dtype=dtype, device=device)
        for by, fails in ((1, False), (2, True)):
            expected = pytest.raises(RuntimeError, match="overflow") if fails else contextlib.nullcontext()
            with expected:
                kernels.overflows[(1,)](most, torch.full_like(most, by), out, debug=True)
                getattr(torch, device.split(":")[0]).synchronize()
        kernels.overflows[(1,)](most, torch.full_like(most, 2), out)
        getattr(torch, device.split(":")[0]).synchronize()

    def test_sums_where_debugging(self, device: str, kernels: ModuleType) -> None:
        """Integers' are made by a function with assertions, which are not looked at."""
        x = torch.randint(-100, 100, (32,), dtype=torch.int32)
        out = torch.empty_like(x, device=device)
        kernels.sums[(1,)](x.to(device), out, BLOCK=32, debug=True)
        close(out, (x.cumsum(0) + x.sum()).int())

    def test_prints(self, device: str, kernels: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
        x = torch.tensor([1.5, -2.0, 0.25, 65536.0])
        kernels.prints[(1, 2)](x.to(device), 300, BLOCK=4)
        getattr(torch, device.split(":")[0]).synchronize()
        ctypes.CDLL(None).fflush(None)
        expected = []
        for p in range(2):
            head = f"pid (0, {p}, 0) "
            expected += [f'{head}begin 10% "so"', f"{head}idx () n: (operand 0) 300", f"{head}idx () n: (operand 1) 44"]
            expected += [f"{head}idx ({k}) v: {value:f}" for k, value in enumerate(x.tolist())]
            kinds = [(torch.float32, torch.int32, 8), (torch.float16, torch.int16, 4), (torch.bfloat16, torch.int16, 4)]
            for number, (kind, same, width) in enumerate(kinds):
                values = (x.to(kind).view(same).long() % 2 ** (4 * width)).tolist()
                expected += [f"{head}idx ({k}) hex: (operand {number}) 0x{v:0{width}x}" for k, v in enumerate(values)]
            values = [v % 2**64 for v in (x * 4).long().tolist()]
            expected += [f"{head}idx ({k}) hex: (operand 3) 0x{v:016x}" for k, v in enumerate(values)]
        assert sorted(capfd.readouterr().out.splitlines()) == sorted(expected)


class TestSixteenBits:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("start", [0, 1])
    def test_atomic_sums(self, device: str, kernels: ModuleType, dtype: torch.dtype, start: int) -> None:
        """Of small whole numbers, which are exact in any order; what lies beside them stays."""
        n = 1000
        x, index = torch.randint(-3, 4, (n,)).to(dtype), torch.randint(0, 40, (n,), dtype=torch.int32)
        out = torch.full((43,), 0.5, dtype=dtype, device=device)
        out[start : start + 40] = 0
        kernels.adds[(triton.cdiv(n, 64),)](x.to(device), index.to(device), out[start:], n, BLOCK=64)
        expected = torch.full((43,), 0.5)
        expected[start : start + 40] = torch.zeros(40).index_add(0, index.long(), x.float())
        close(out, expected.to(dtype), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [*FLOATS, torch.int16, torch.int32, torch.int64], ids=str)
    def test_exchanges(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        x, new = (torch.randint(-100, 100, (64,)).to(dtype) for _ in range(2))
        expected = torch.where(torch.rand(64) < 0.5, x, x + 1)
        mine, old = x.to(device), torch.empty(64, dtype=dtype, device=device)
        kernels.exchanges[(1,)](mine, expected.to(device), new.to(device), old, BLOCK=64)
        close(old, x)
        close(mine, torch.where(x == expected, new, x))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_all_bits(self, device: str, kernels: ModuleType, dtype: torch.dtype) -> None:
        """Every float of 16 bits becomes its bits and comes back; a NaN stays one."""
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
        x = bits.view(dtype)
        out = torch.empty(2**16, dtype=torch.int16, device=device)
        kernels.bits[(1,)](x.to(device), out, BLOCK=2**16, TO=triton.language.int16)
        numbers = ~x.isnan()
        close(out.cpu()[numbers], bits[numbers])
        assert out.cpu().view(dtype)[~numbers].isnan().all()
        back = torch.empty(2**16, dtype=dtype, device=device)
        kernels.bits[(1,)](bits.to(device), back, BLOCK=2**16, TO=getattr(triton.language, str(dtype)[6:]))
        close(back, x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("spins", lambda i: (i, i), "a loop that waits for other programs"),
        ("assembled", lambda i: (i, i, 64), "tt.elementwise_inline_asm"),
        pytest.param(
            "enormous",
            lambda i: (i, i, 1 << 20),
            "2 MiB in one program",
            marks=pytest.mark.skipif(GROUPS, reason="a GPU has them in global memory"),
        ),
    ],
)
def test_what_is_refused(
    device: str, kernels: ModuleType, name: str, arguments: Callable[[Any], tuple[Any, ...]], words: str
) -> None:
    """With the op and the program's line, and nothing is launched."""
    x = torch.zeros(64, dtype=torch.int32, device=device)
    with pytest.raises(NotImplementedError, match=words) as caught:
        getattr(kernels, name)[(1,)](*arguments(x))
    assert "triton_kernels.py:" in str(caught.value) or "standard.py:" in str(caught.value), caught.value
    assert (x == 0).all()


class TestAround:
    def test_the_target_is_the_device(self, device: str) -> None:
        """Libraries take its name for that of a module of torch and of a device."""
        active = triton.runtime.driver.active
        name = active.get_current_target().backend
        assert name == torch.device(device).type == active.get_active_torch_device().type
        assert getattr(torch, name).device_count() > active.get_current_device()

    def test_graphs_and_profiler(self, device: str, kernels: ModuleType) -> None:
        module = getattr(torch, device.split(":")[0])
        x, y, out = torch.randn(100, device=device), torch.randn(100, device=device), torch.empty(100, device=device)
        kernels.add[(1,)](x, y, out, 100, BLOCK=128)
        graph = module.Graph()
        with module.graph(graph):
            kernels.add[(1,)](x, y, out, 100, BLOCK=128)
            twice = out * 2
        x.copy_(torch.randn(100))
        graph.replay()
        close(twice, 2 * (x.cpu() + y.cpu()))
        with torch.profiler.profile() as profile:
            kernels.add[(1,)](x, y, out, 100, BLOCK=128)
            module.synchronize()
        assert any(event.name == "triton_add" for event in profile.events())

    def test_ops_of_ones_own(self, device: str, kernels: ModuleType) -> None:
        from torch.library import triton_op, wrap_triton

        @triton_op("torchgraft_test_triton::add", mutates_args={})
        def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            wrap_triton(kernels.add)[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
            return out

        x, y = torch.randn(300), torch.randn(300)
        close(add(x.to(device), y.to(device)), x + y)
        compiled = torch.compile(lambda x, y: add(x * 2, y).relu() + 1, backend="graft")
        for _ in range(3):
            close(compiled(x.to(device), y.to(device)), (x * 2 + y).relu() + 1)

    def test_threads(self, device: str, kernels: ModuleType) -> None:
        failures: list[BaseException] = []

        def work(n: int) -> None:
            try:
                for k in range(20):
                    x = torch.full((n,), float(k), device=device)
                    out = torch.empty_like(x)
                    kernels.add[(triton.cdiv(n, 64),)](x, x, out, n, BLOCK=64)
                    assert (out == 2 * k).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(100 + n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures

    def test_a_device_in_c(self, script: Script) -> None:
        """The device that `torchgraft new --kernels c++` writes, whose kernels are C++, runs the same kernels."""
        script(
            """
            import torch, torchgraft, c_driver, triton
            torchgraft.register("cxx", [torchgraft.SharedLibrary(c_driver.library())])
            import triton_kernels as kernels
            x = torch.randn(7, 100)
            mine = x.to("cxx")
            out = torch.empty_like(mine)
            kernels.softmax[(3,)](out, mine, 100, 100, 7, 100, BLOCK=128)
            torch.testing.assert_close(out.cpu(), x.softmax(-1))
            q, k, v = (torch.randn(2, 64, 32) for _ in range(3))
            out = torch.empty(2, 64, 32, device="cxx")
            kernels.attention[(2, 2)](*(x.to("cxx") for x in (q, k, v)), out, 1.0, 2048, 64, D=32, BM=32, BN=32)
            expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0, is_causal=True)
            torch.testing.assert_close(out.cpu(), expected)
            """,
            fresh=True,
            TORCHGRAFT_KERNEL_FORM="",  # C++ has no groups
        )


PROGRAMS = """
import os, pickle, sys
from pathlib import Path
import numpy, torch, triton
from triton_programs import OUT, ROWS, STRIDE, Program
numpy.seterr(all="ignore")
seeds, folder, device = range(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3]), sys.argv[4]
results = {}
for seed in seeds:
    program = Program(seed)
    kernel = triton.jit(program.module(folder).kernel)
    torch.manual_seed(seed)
    size = ROWS * STRIDE * 2
    data = [torch.randn(size), torch.randn(size), torch.randint(0, 1000, (size,), dtype=torch.int32)]
    data += [torch.zeros(3 * OUT), torch.zeros(3 * 4096)]
    data = [each.to(device) for each in data]
    kernel[(3,)](*data, 24, 19, 0.75, OUT=OUT, M=program.m, N=program.n)
    results[seed] = torch.cat(data[3:]).cpu()
torch.save(results, folder / f"results-{device}.pt")
"""


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("variables", [{}, {"TORCHGRAFT_KERNEL_FORM": "gpu"}], ids=["item", "group"])
@pytest.mark.quick(part=[0])
def test_random_programs(device: str, tmp_path: Path, part: int, variables: dict[str, str]) -> None:
    """Of loads with masks, arithmetic, reductions, scans, views, loops, branches, and memory that is read in another
    order than it was written in: what Triton's interpreter says of each."""
    first, count = SEED % 100_000 + 1000 * part, 8
    for where, more in ((device, variables), ("cpu", {"TRITON_INTERPRET": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMS, str(first), str(first + count), str(tmp_path), where],
            cwd=TESTS,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    mine, expected = (torch.load(tmp_path / f"results-{where}.pt") for where in (device, "cpu"))
    for seed, values in expected.items():
        torch.testing.assert_close(mine[seed], values, rtol=1e-3, atol=1e-4, equal_nan=True, msg=f"program {seed}")


class TestTools:
    """What `torchgraft doctor` and `torchgraft conformance` say of Triton."""

    def probe(self, device: str) -> str:
        from torchgraft import _C
        from torchgraft.diagnosis.probes import PROBES

        index = torch.empty(0, device=device).device.index
        return PROBES["Triton"](torch.device(device.split(":")[0], index), _C.device_properties(index))

    def test_doctor(self, device: str) -> None:
        assert re.fullmatch(rf"{re.escape(version('triton'))} launches on it.*; a softmax is right", self.probe(device))

    def test_doctor_without_triton(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from torchgraft.diagnosis.probes import NotThere

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(NotThere, match=r"triton is not installed: pip install 'torchgraft\[triton\]'"):
            self.probe(device)

    def test_doctor_finds_wrong_values(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from torchgraft.diagnosis import triton_kernels

        monkeypatch.setattr(triton_kernels, "softmax", triton_kernels.conversion)
        monkeypatch.setattr(triton_kernels.conversion, "run", lambda *_, **__: None)
        with pytest.raises(AssertionError, match="not close"):
            self.probe(device)

    def test_conformance(self, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Names what is wrong and goes on; a kernel that ends the process is told, too."""
        from torchgraft.testing.triton import runs_triton

        (tmp_path / "one_wrong.py").write_text(
            "import torch\nfrom torchgraft.diagnosis import triton_samples as s\n"
            "right = s.SAMPLES['elementwise'][0]\n"
            "def wrong(device, dtype):\n    assert dtype != torch.int32, 'values'\n    right(device, dtype)\n"
            "kept = (torch.float32, torch.int32, torch.int8)\ns.SAMPLES.clear()\n"
            "s.SAMPLES['elementwise'] = wrong, kept\n"
        )
        (tmp_path / "one_ends.py").write_text(
            "import os, torch\nfrom one_wrong import s\n"
            "s.SAMPLES['scan'] = (lambda device, dtype: os._exit(3)), (torch.float64,)\n"
        )
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        lines, summary = runs_triton(device, ["one_wrong"], 300)
        assert lines == ["Triton, elementwise in int32: AssertionError: values"]
        assert summary == f"runs Triton {version('triton')}: 2 of 3 kernels are right"
        lines, summary = runs_triton(device, ["one_ends"], 300)
        assert len(lines) == 2 and lines[1].startswith("Triton, scan in float64: the process ended with status 3")
        assert summary.endswith("2 of 4 kernels are right")

    def test_samples(self, device: str) -> None:
        """All of them, as a conformance run has them."""
        from torchgraft.testing.triton import runs_triton

        lines, summary = runs_triton(device, [], 600)
        assert not lines, lines
        assert re.search(r"(\d+) of \1 kernels are right", summary), summary


def test_the_catalogue_of_tritons_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as it was written; more than it says, a kind that it has not, and less than it says are told."""
    import triton_core as core

    refusal = "Refused: torchgraft does not compile tt.x: nothing (/a/b.py:3)"
    kinds = [core.kind_of("test_a[1]", refusal), core.kind_of("test_a[2]", refusal), core.kind_of("test_b", "assert")]
    assert kinds == [("not compiled: tt.x: nothing", "test_a")] * 2 + [("", "test_b")]
    monkeypatch.setattr(core, "CATALOGUE", tmp_path / "catalogue.toml")
    core.write("3.7.1", Counter(kinds))
    version, known = core.read()
    assert (version, known) == ("3.7.1", Counter(kinds))
    assert core.compare(Counter(kinds), known, whole=True) == ([], [])
    more, fewer = core.compare(Counter([*kinds[1:], kinds[2]]), known, whole=True)
    assert more == ["test_b: 2, not 1: fails"]
    assert fewer == ["test_a: 1, not 2: not compiled: tt.x: nothing"]
    other = core.kind_of("test_a[3]", "AssertionError: values")
    assert core.compare(Counter([kinds[0], other]), known, whole=False) == (["test_a: 1, not 0: fails"], [])


def test_the_driver_may_be_imported_first(script: Script) -> None:
    script(
        """
        from torchgraft_triton.driver import Driver
        import triton
        driver = Driver()
        triton.runtime.driver.set_active(driver)
        assert triton.runtime.driver.active is driver
        """,
        fresh=True,
    )


def test_triton_imports_little_of_it() -> None:
    """What is installed beside Triton must not keep it from being imported."""
    text = """
import sys, triton, triton.backends
assert "torchgraft" in triton.backends.backends
heavy = [name for name in sys.modules if name.split(".")[0] in ("torch", "torchgraft")]
assert not heavy, heavy
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", text], cwd=TESTS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
