"""Triton's kernels on the device, beside the device's own ops and torch's CPU, in one run.

    python benchmarks/triton_kernels.py [--device ocl] [--only matmul] [--rounds 7] [--seconds S] [--markdown FILE]

The kernels are those of Triton's tutorials (workloads/in_triton.py); all sides take turns. Times are medians of the
rounds, a ratio is the median of the rounds' ratios, Triton's time by the own op's: above 1 Triton's is slower. Besides:
what a launch costs, of a kernel that stores one number, beside one written in the kernel language; and how long the
first call takes that compiles a kernel, with empty caches in a new process, beside the first call of the own op.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Before torch is imported: kernels are compiled when they are needed, not while another side is timed.
os.environ.setdefault("TORCHGRAFT_COMPILE_HELPERS", "0")

import torch
import torch.nn.functional as F
from harness.case import Call, Case, Shape, computing, moving, randn
from harness.clock import seconds
from harness.machine import machine
from harness.tables import Table, machine_table
from harness.torch_process import TorchProcess
from harness.turns import Here, take_turns

Function = Callable[..., torch.Tensor]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:], weight, bias)


#: By name, as the functions of workloads/in_triton.py are called.
OPS: dict[str, Function] = {
    "add": torch.add,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": layer_norm,
    "matmul": torch.matmul,
    "attention": attention,
}


def operands(case: str, device: str) -> list[torch.Tensor]:
    """The tensors of a case, as "matmul/512, bfloat16": its sizes say their shapes."""
    name, _, told = case.partition("/")
    sizes, _, dtype = told.partition(", ")
    shape: Shape = tuple(map(int, sizes.split("x")))
    shapes = {
        "add": [shape, shape],
        "softmax": [shape],
        "layer_norm": [shape, shape[1:], shape[1:]],
        "matmul": [shape * 2, shape * 2],
        "attention": [shape] * 3,
    }[name]
    return [randn(device, *each, dtype=getattr(torch, dtype or "float32")) for each in shapes]


def caller(case: str, function: Function) -> Callable[[str], Call]:
    def make(device: str) -> Call:
        tensors = operands(case, device)
        return lambda: function(*tensors)

    return make


def every_case() -> Iterator[Case]:
    """The device's own ops, and torch's."""

    def made(name: str) -> Callable[[str], Call]:
        return caller(name, OPS[name.partition("/")[0]])

    for n in (4_194_304, 1_048_576, 98_432):
        yield moving(f"add/{n}", made(f"add/{n}"), 12 * n)
    for m, n in ((4096, 1024), (1823, 781), (1024, 4096)):
        yield moving(f"softmax/{m}x{n}", made(f"softmax/{m}x{n}"), 8 * m * n)
    for m, n in ((4096, 1024), (1151, 8192)):
        yield moving(f"layer_norm/{m}x{n}", made(f"layer_norm/{m}x{n}"), 8 * m * n)
    for dtype in (torch.float32, torch.bfloat16):
        suffix, size = f", {str(dtype).removeprefix('torch.')}", dtype.itemsize
        for n in (512, 1024):
            yield computing(f"matmul/{n}{suffix}", made(f"matmul/{n}{suffix}"), 2 * n**3, 3 * size * n * n, dtype)
        name = f"attention/8x512x64{suffix}"
        yield computing(name, made(name), 2 * 8 * 512 * 512 * 64, 4 * size * 8 * 512 * 64, dtype)


class InTriton(Here):
    """Triton's kernels in this process."""

    def prepare(self, case: Case) -> None:
        super().prepare(Case(case.name, caller(case.name, in_triton(case.name)), case.nbytes, case.flops, case.unit))


def in_triton(case: str) -> Function:
    from workloads import in_triton

    function: Function = getattr(in_triton, case.partition("/")[0])
    return function


def check(case: str, device: str) -> None:
    """Nothing that is wrong is timed."""
    tensors = operands(case, device)
    mine, expected = (function(*tensors) for function in (in_triton(case), OPS[case.partition("/")[0]]))
    exact = 2e-2 if mine.dtype == torch.bfloat16 else 1e-3
    torch.testing.assert_close(mine.cpu(), expected.cpu(), rtol=exact, atol=exact)


# ---- launches ----

LAUNCHES = 2000


def launches(device: str, rounds: int) -> Table:
    """Microseconds of a launch, as long as the host takes for it, of many without a wait."""
    from workloads.in_triton import nothing

    import torchgraft
    from torchgraft.plans import Kernel, Pointer, Value

    x = torch.zeros(1, device=device)
    raw = torchgraft.kernel(Kernel("nothing", (Pointer("x", "f32"), Value("n", "f32")), "store_f32(x, 0, n);"))
    sides: dict[str, Call] = {
        "Triton": lambda: nothing[(1,)](x, 3.0),
        "raw kernel": lambda: raw[1, 1](x, 3.0),
        "own op": lambda: x.fill_(3.0),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):  # the first is for compiling
        for name, call in sides.items():
            times[name].append(seconds(lambda call=call: [call() for _ in range(LAUNCHES)], device, 0) / LAUNCHES)  # type: ignore[misc]
    return Table(["launch", "µs"], [[name, f"{statistics.median(each[1:]) * 1e6:.2f}"] for name, each in times.items()])


# ---- compiling ----


def first_calls(device: str, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds of the first call of each, after what is done once for a process."""
    from workloads.in_triton import nothing

    nothing[(1,)](torch.zeros(1, device=device), 3.0)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        tensors = operands(name, device)
        for side, function in (("Triton", in_triton(name)), ("own op", OPS[name.partition("/")[0]])):
            torch.accelerator.synchronize()
            start = time.perf_counter()
            function(*tensors)
            torch.accelerator.synchronize()
            found.setdefault(name, {})[side] = time.perf_counter() - start
    return found


def compiling(device: str, names: Sequence[str]) -> Table:
    """In a process of its own, whose caches are empty."""
    with tempfile.TemporaryDirectory() as folder:
        caches = ("TRITON_CACHE_DIR", "TORCHGRAFT_CACHE_DIR", "POCL_CACHE_DIR")
        environment = {**os.environ, **{each: os.path.join(folder, each.lower()) for each in caches}}
        command = [sys.executable, __file__, "--device", device, "--first-calls", json.dumps(names)]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    told: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    rows = [
        [name, f"{each['own op']:.2f}", f"{each['Triton']:.2f}", f"{each['Triton'] / each['own op']:.2f}"]
        for name, each in told.items()
    ]
    return Table(["op", "own op, s", "Triton, s", "Triton / own"], rows)


# ---- all together ----


def speeds(cases: Sequence[Case], device: str, rounds: int, at_least: float) -> Table:
    head = ["op", "torch's CPU, ms", "own op, ms", "Triton, ms", "Triton / own", "Triton / CPU"]
    rows = []
    with contextlib.closing(TorchProcess(every_case)) as cpu:
        sides = {"Triton": InTriton(device), "own": Here(device), "cpu": cpu}
        for case in cases:
            check(case.name, device)
            times, _ = take_turns(case, sides, rounds, at_least)
            ratios = [
                statistics.median(a / b for a, b in zip(times["Triton"], times[other], strict=True))
                for other in ("own", "cpu")
            ]
            shown = [f"{statistics.median(times[side]) * 1e3:.3f}" for side in ("cpu", "own", "Triton")]
            rows.append([case.name, *shown, *(f"{ratio:.2f}" for ratio in ratios)])
            print("  ".join(rows[-1]), flush=True)
    return Table(head, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--only", default="", help="workloads whose name contains this text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each round and side")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="all tables as a page")
    parser.add_argument("--first-calls", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.manual_seed(0)
    if options.first_calls:
        print(json.dumps(first_calls(options.device, options.first_calls)))
        return
    cases = [case for case in every_case() if options.only in case.name]
    found: dict[str, Any] = machine(options.device)
    tables = {"Speed": speeds(cases, options.device, options.rounds, options.seconds)}
    tables["Launches"] = launches(options.device, options.rounds)
    kinds = {f"{case.family} {case.dtype}": case.name for case in cases}
    tables["First calls"] = compiling(options.device, list(kinds.values()))
    found["load_at_the_end"] = round(os.getloadavg()[0], 2)
    for title, table in {"Machine": machine_table(found), **tables}.items():
        print(f"\n{title}\n{table.text()}")
    if options.markdown:
        sections = {"Machine": machine_table(found), **tables}
        text = "".join(f"\n## {title}\n\n{table.markdown()}\n" for title, table in sections.items())
        options.markdown.write_text(f"# Triton's kernels beside the device's own\n{text}")


if __name__ == "__main__":
    main()
