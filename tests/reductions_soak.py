"""Reductions with cold caches for a while, compared with float64 on the CPU.

    python tests/reductions_soak.py [--device ocl] [--seconds 3600] [--processes 2] [--seed 0]

Round after round, processes that share new, empty caches of kernels (torchgraft's and PoCL's) make the same random
calls of reductions of random tensors at the same time, in turn with the CPUs' and the GPUs' form of the kernels: each
call some times, the first of which compiles and the next of which are run in other ways, by workers, by the calling
thread and by several threads. Exit status 0 if every result was right.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback

import torch

OPS = ("std", "std", "var", "mean", "sum", "var_mean", "amax", "norm")
SHAPES = (
    *((70000, 3), (3, 70000), (210000,), (40, 5000), (5000, 40), (1000, 1000)),
    *((64, 33, 129), (7, 1, 30011), (17, 9)),
)
DTYPES = (torch.float32,) * 4 + (torch.float64, torch.bfloat16)
# Of what a result may be off, relative to the largest of results and inputs: of float32 sums some of its last bits.
TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-3}
CALLS = 12


def make_view(generator: random.Random, shape: tuple[int, ...], seed: int) -> tuple[str, torch.Tensor]:
    """A tensor of this shape, on the CPU, laid out in a random way."""
    numbers = torch.Generator().manual_seed(seed)

    def some(*sizes: int) -> torch.Tensor:
        return torch.rand(sizes, generator=numbers, dtype=torch.float64) + 0.1

    layout = generator.choice(("contiguous", "expanded", "expanded", "transposed", "strided", "offset"))
    if layout == "expanded":
        dim = generator.randrange(len(shape) + 1)  # beyond the last: none
        return layout, some(*(1 if d == dim else n for d, n in enumerate(shape))).expand(shape)
    if layout == "transposed":
        return layout, some(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "strided":
        return layout, some(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "offset":
        return layout, some(shape[0] + 1, *shape[1:])[1:]
    return layout, some(*shape)


def on_device(x: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The same elements with the same strides."""
    whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return whole.to(dtype).to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def call(op: str, x: torch.Tensor, dims: list[int] | None) -> tuple[torch.Tensor, ...]:
    if op == "norm":
        return (torch.linalg.vector_norm(x, dim=dims),)
    if op == "amax":
        return (x.amax(dim=dims or ()),)
    found = getattr(torch, op)(x, dim=dims)
    return found if isinstance(found, tuple) else (found,)


def one_case(seed: int, device: str) -> str:
    """What went wrong, or nothing."""
    generator = random.Random(seed)
    op, shape, dtype = generator.choice(OPS), generator.choice(SHAPES), generator.choice(DTYPES)
    layout, exact = make_view(generator, shape, seed)
    dims = generator.choice((None, sorted(generator.sample(range(len(shape)), generator.randint(1, len(shape))))))
    exact = exact.to(dtype).double() if layout != "expanded" else exact.as_strided_(exact.shape, exact.stride())
    if layout == "expanded":  # rounded, and still expanded
        base = exact.as_strided((exact.untyped_storage().nbytes() // 8,), (1,), 0)
        base.copy_(base.to(dtype).double())
    expected = call(op, exact, dims)
    x = on_device(exact, dtype, device)
    wrong = []
    for number in range(CALLS):
        for found, right in zip(call(op, x, dims), expected, strict=True):
            back = found.cpu().double()
            off = (back - right).masked_fill(back.isnan() & right.isnan(), 0)  # std of one element
            error = (off.abs().max() / torch.maximum(right.nan_to_num().abs().max(), exact.abs().max())).item()
            if not error <= TOLERANCES[dtype]:
                wrong.append(f"call {number} off by {error:.3g}: {back.flatten()[:4]} for {right.flatten()[:4]}")
        if number % 4 == 3:
            x = on_device(exact, dtype, device)  # elsewhere in memory
    if wrong:
        wrong.append("the input is what it was" if torch.equal(x.cpu().double(), exact) else "the input has CHANGED")
        return f"seed {seed}: {op} of {layout} {dtype} {shape} strides {x.stride()} over {dims}: " + "\n  ".join(wrong)
    return ""


def work(seed: int, cases: int, device: str) -> int:
    """One process of a round."""
    torch.set_num_threads(1)
    failures = 0
    for number in range(cases):
        if said := one_case(seed + number, device):
            failures += 1
            print(f"WRONG ({os.environ['TORCHGRAFT_KERNEL_FORM']} form) {said}", flush=True)
    return failures


def fork(seed: int, cases: int, device: str) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 1 if work(seed, cases, device) else 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    return child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cases", type=int, default=8, help="of a process in a round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    begin, rounds, failed = time.monotonic(), 0, 0
    print(f"seed {options.seed}", flush=True)
    while time.monotonic() - begin < options.seconds:
        os.environ["TORCHGRAFT_KERNEL_FORM"] = "gpu" if rounds % 3 == 2 else "cpu"
        seed = options.seed + rounds * options.cases
        with tempfile.TemporaryDirectory(prefix="reductions-soak-") as folder:
            os.environ["TORCHGRAFT_CACHE_DIR"] = os.path.join(folder, "torchgraft")
            os.environ["POCL_CACHE_DIR"] = os.path.join(folder, "pocl")
            children = [fork(seed, options.cases, options.device) for _ in range(options.processes)]
            failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
        rounds += 1
        if rounds % 100 == 0:
            print(f"{rounds} rounds, {time.monotonic() - begin:.0f} s, {failed} failed", flush=True)
    calls = rounds * options.processes * options.cases * CALLS
    print(f"{calls} calls in {rounds} rounds of {options.processes} processes, {failed} of which failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
