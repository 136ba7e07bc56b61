"""examples/onednn: a device of operators in C++, with streams that run by themselves and addresses of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Script

from torchgraft.driver_table import Table, TableDriver, driver_table
from torchgraft.testing.protocol import OperatorProtocol, TableProtocol

EXAMPLE = Path(__file__).parents[1] / "examples/onednn"
HEADER = Path("/usr/include/dnnl.hpp")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not HEADER.exists() or shutil.which("g++") is None, reason="needs g++ and oneDNN (apt-get install libdnnl-dev)"
    ),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pip installs it."""
    folder = tmp_path_factory.mktemp("onednn")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("*.so", "build"))
    include = Path(__file__).parents[1] / "torchgraft/include"
    environment = {**os.environ, "TORCHGRAFT_INCLUDE": str(include)}
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder]
    subprocess.run([*wheel, folder / "source"], check=True, env=environment)
    (path,) = folder.glob("*.whl")
    shutil.unpack_archive(path, folder / "installed", "zip")
    return folder / "installed/onednn_device/libonednn_device.so"


class TestProtocol(TableProtocol):
    @pytest.fixture
    def table(self, library: Path) -> Table:
        return driver_table(library)


def test_torch_finds_it_when_it_is_installed(script: Script, library: Path) -> None:
    script(
        """
        import torch
        x = torch.randn(3, 4)
        torch.testing.assert_close((x.to("onednn") @ x.t().to("onednn")).cpu(), x @ x.t())
        """,
        autoload=True,
        TORCHGRAFT_BACKEND="onednn",
        TORCHGRAFT_FALLBACK="error",
        PYTHONPATH=os.pathsep.join([str(library.parents[1]), *filter(None, sys.path)]),
    )


class TestOperators(OperatorProtocol):
    @pytest.fixture(scope="class")
    def driver(self, library: Path) -> TableDriver:
        return TableDriver.load(library)


def test_networks_train_without_fallback(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "train.py", "--library", library],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TORCHGRAFT_FALLBACK": "error"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no op has run on the CPU for lack of a kernel" in done.stdout


def test_attention(script: Script, library: Path) -> None:
    script(
        f"""
        import torch, torchgraft
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torchgraft.register("npu", [torchgraft.SharedLibrary({str(library)!r})])
        torchgraft.fallback.set_mode("error")
        attention, randn = F.scaled_dot_product_attention, torch.randn

        def differentiated(function, *tensors, needed=None, tolerance=1e-4):
            results = []
            for device in ("npu", "cpu"):
                given = [t.clone().to(device).requires_grad_(needed in (None, i)) for i, t in enumerate(tensors)]
                y = function(*given)
                (y * torch.linspace(-1, 1, y.numel()).view(y.shape).to(device)).sum().backward()
                results.append([y.detach().cpu(), *(t.grad.cpu() for t in given if t.grad is not None)])
            torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)

        # Blocks of queries that are whole and that are not, other sizes of values, one query, one key.
        for batch, heads, queries, keys, size, of_value in (
            (2, 3, 5, 7, 8, 8), (1, 2, 130, 70, 16, 16), (2, 4, 64, 128, 32, 8), (1, 1, 1, 1, 1, 1),
            (3, 2, 200, 200, 5, 7), (1, 3, 1, 9, 4, 4), (2, 2, 9, 1, 4, 4),
        ):
            q, k, v = (randn(batch, heads, n, d) for n, d in ((queries, size), (keys, size), (keys, of_value)))
            differentiated(attention, q, k, v)
            differentiated(lambda q, k, v: attention(q, k, v, is_causal=True), q, k, v)
            seen = torch.rand(queries, keys) > 0.4
            seen[0] = False
            differentiated(lambda q, k, v: attention(q, k, v, attn_mask=seen.to(q.device)), q, k, v)
            for mask in (randn(batch, 1, queries, keys), randn(keys)):
                differentiated(lambda q, k, v, m: attention(q, k, v, attn_mask=m, scale=0.3), q, k, v, mask)
            for one in range(3):
                differentiated(attention, q, k, v, needed=one)
            # Heads between each other's rows, columns in the place of rows, no batch.
            joined = randn(batch, queries, 3 * heads * size)
            differentiated(lambda x: attention(
                *(t.view(batch, queries, heads, size).transpose(1, 2) for t in x.chunk(3, -1)), is_causal=True), joined)
            differentiated(lambda q, k, v: attention(q, k.mT.contiguous().mT, v), q, k, v)
            differentiated(lambda q, k, v: attention(q[0], k[0], v[0]), q, k, v)

        q, k, v = randn(2, 6, 50, 8), randn(2, 2, 70, 8), randn(2, 2, 70, 8)
        for causal in (False, True):
            differentiated(lambda q, k, v: attention(q, k, v, enable_gqa=True, is_causal=causal), q, k, v)
        far = randn(1, 2, 40, 8) * 30
        differentiated(attention, far, far, far, tolerance=1e-3)
        q[0, 0, 0, 0], q[0, 1], k[0, 1, 3, 2] = float("nan"), float("nan"), float("inf")
        with sdpa_kernel(SDPBackend.MATH):  # torch's fused one loses what is no number
            expected = attention(q, k, v, enable_gqa=True)
        found = attention(q.to("npu"), k.to("npu"), v.to("npu"), enable_gqa=True).cpu()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)

        still = torch.zeros(1, 2, 40, 8, device="npu")
        graph = torch.npu.Graph()
        with torch.npu.graph(graph):
            result = attention(still, still, still)
        for _ in range(3):
            x = randn(1, 2, 40, 8)
            still.copy_(x)
            graph.replay()
            torch.testing.assert_close(result.cpu(), attention(x, x, x), rtol=1e-4, atol=1e-4)
        """,
    )


def test_functions_that_are_written_for_vectors(script: Script, library: Path) -> None:
    script(
        f"""
        import torch, torchgraft
        import torch.nn.functional as F

        torchgraft.register("npu", [torchgraft.SharedLibrary({str(library)!r})])
        torchgraft.fallback.set_mode("error")
        ends = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e30, torch.inf, -torch.inf, torch.nan])
        wide, x = torch.cat([torch.linspace(-95, 95, 9993), ends]), torch.randn(10000)
        wide = torch.cat([wide, wide[:999]])
        for given, function in (
            (wide, F.gelu), (wide, lambda x: torch.ops.aten.gelu_backward(x, x)),
            (wide, lambda x: torch.lerp(x, x * 2, 0.2)), (wide, lambda x: torch.lerp(x, x * 2, 0.7)),
            (wide, lambda x: x.view(-1, 2).log_softmax(1)), (wide, lambda x: x[:9990].view(-1, 10).softmax(1)),
            (wide, lambda x: x.view(-1, 100).softmax(0)), (wide, lambda x: x * 2 + x.view(-1, 1)[:1, 0]),
            (x, lambda x: x.view(100, 100).log_softmax(0)), (x, lambda x: x.view(50, 200).sum(0)),
            (x, lambda x: x.view(10, 200, 5).sum(1)), (x, lambda x: x.view(50, 200).mean(0)),
            (x, lambda x: x.view(50, 200)[:, ::2].sum(1)), (x, lambda x: x.view(50, 200).amax(1)),
            (x, lambda x: x.view(50, 200).t().sum(0)), (x, lambda x: x[None].expand(3, -1).sum(0)), (x, torch.norm),
            (x, lambda x: F.layer_norm(x.view(50, 200), (200,))),
        ):
            torch.testing.assert_close(
                function(given.to("npu")).cpu(), function(given), rtol=2e-5, atol=2e-6, equal_nan=True)
        """,
    )


def test_streams_graphs_threads_and_errors(script: Script, library: Path) -> None:
    script(
        f"""
        import threading
        import torch, torchgraft
        import torch.nn.functional as F

        torchgraft.register("npu", [torchgraft.SharedLibrary({str(library)!r})])

        # Two streams, one of which waits for the other.
        x = torch.randn(300, 300)
        side = torch.npu.Stream()
        a = x.to("npu")
        for _ in range(20):
            a = a @ a / 40
        with torch.npu.stream(side):
            side.wait_stream(torch.npu.default_stream())
            b = a + 1
        torch.npu.current_stream().wait_stream(side)
        expected = x
        for _ in range(20):
            expected = expected @ expected / 40
        torch.testing.assert_close((b * 2).cpu(), (expected + 1) * 2, rtol=1e-3, atol=1e-3)

        # A graph, with other contents and a number that each replay has.
        still = torch.zeros(8, 16, device="npu")
        weight = torch.randn(16, 4)
        other = weight.to("npu")
        graph = torch.npu.Graph()
        with torch.npu.graph(graph):
            y = ((still @ other) * 0.25 + 1).relu().softmax(1)
        for _ in range(3):
            x = torch.randn(8, 16)
            still.copy_(x)
            graph.replay()
            torch.testing.assert_close(y.cpu(), ((x @ weight) * 0.25 + 1).relu().softmax(1), rtol=1e-4, atol=1e-5)

        # Several threads, each with a stream of its own.
        problems = []
        def work(seed):
            try:
                generator = torch.Generator().manual_seed(seed)
                with torch.npu.stream(torch.npu.Stream()):
                    for _ in range(10):
                        x = torch.randn(2, 3, 9, 9, generator=generator)
                        w = torch.randn(4, 3, 3, 3, generator=generator)
                        y = F.conv2d(x.to("npu"), w.to("npu"), padding=1)
                        torch.testing.assert_close(y.cpu(), F.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)
            except BaseException as error:
                problems.append(error)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not problems, problems

        # A failure after the call that submitted it: told by the next wait, once, with the operator's name.
        table = torch.randn(4, 3)
        found = F.embedding(torch.tensor([1, 9], device="npu"), table.to("npu"))
        try:
            torch.npu.synchronize()
            raise AssertionError
        except Exception as error:
            assert type(error).__name__ == "AcceleratorError", type(error)
            assert "operator gather: index 9 is out of range of 4" in str(error), error
        torch.npu.synchronize()
        torch.testing.assert_close((table.to("npu") + 1).cpu(), table + 1)

        # The gradient of what has failed writes nowhere.
        table = torch.randn(4, 3).to("npu").requires_grad_()
        try:
            F.embedding(torch.tensor([0, 9], device="npu"), table).sum().backward()
            torch.npu.synchronize()
            raise AssertionError
        except Exception as error:
            assert type(error).__name__ == "AcceleratorError", type(error)
        both = torch.tensor([-1.0, float("-inf"), float("nan"), 2.0])
        torch.testing.assert_close(both.to("npu").relu().cpu(), both.relu(), equal_nan=True)
        long = torch.arange(12.0)
        torch.testing.assert_close((long.to("npu").unfold(0, 4, 1) @ torch.ones(4, 2, device="npu")).cpu(),
                                   long.unfold(0, 4, 1) @ torch.ones(4, 2))

        # Strided, transposed, broadcast, in place, `out=`.
        x, y = torch.randn(6, 5), torch.randn(4, 5)
        a, b = x.to("npu"), y.to("npu")
        torch.testing.assert_close((a @ b.t()).cpu(), x @ y.t())
        torch.testing.assert_close((a[::2] @ b[:, :].t()).cpu(), x[::2] @ y.t())
        added = torch.addmm(b[:, 0], a, b.t(), alpha=2).cpu()
        torch.testing.assert_close(added, torch.addmm(y[:, 0], x, y.t(), alpha=2))
        torch.testing.assert_close(torch.baddbmm(a.new_ones(1, 6, 4), a.expand(3, 6, 5), b.t().expand(3, 5, 4)).cpu(),
                                   torch.baddbmm(x.new_ones(1, 6, 4), x.expand(3, 6, 5), y.t().expand(3, 5, 4)))
        torch.testing.assert_close((a[:, 1:3].t() + a[0, 1]).cpu(), x[:, 1:3].t() + x[0, 1])
        out = torch.zeros(4, 6, device="npu").t()
        torch.mm(a, b.t(), out=out)
        torch.testing.assert_close(out.cpu(), x @ y.t())
        a[:, 1].mul_(3)
        x[:, 1].mul_(3)
        torch.testing.assert_close(a.cpu(), x)
        for kind in (torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.uint8):
            torch.testing.assert_close(a.to(kind).cpu(), x.to(kind))
        """,
        TORCHGRAFT_FALLBACK="error",
    )
