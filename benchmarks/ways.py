"""What each way to compute something is worth: calls that take it, in turns with a process that leaves it out.

python benchmarks/ways.py [--only matmul] [--most N] [--device ocl] [--rounds N] [--seconds S] [--json FILE]
                          [--markdown FILE]

The workloads are those of ops.py and layers of known networks (workloads/networks.py). Which of them take a way is
found by planning them, without a call; the others need not be measured. A ratio is how many times as long a call takes
without the way, the median of the rounds. A way is worth its code if a class of the benchmark takes a tenth longer
without it on average, the calls that do not take it included, or one layer of a network half as long again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Before torch is imported: kernels are compiled when they are needed, not while the other side is timed.
os.environ.setdefault("TORCHGRAFT_COMPILE_HELPERS", "0")

import torch
from harness.case import Case
from harness.machine import machine
from harness.tables import Table, machine_table
from harness.torch_process import TorchProcess
from harness.turns import take_turns
from torch._subclasses.fake_tensor import FakeTensorMode
from workloads import all_cases, networks

#: What a way must win of a class's mean, or of the time of a layer.
OF_A_CLASS, OF_A_LAYER = 1.1, 1.5

HEAD = ("way", "calls", "ratio", "best", "", "class", "its mean", "layer", "verdict")


def every_case() -> Iterator[Case]:
    """Those of ops.py, and layers of networks."""
    yield from all_cases()
    yield from networks.layers()


LAYERS = {case.family for case in networks.layers()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="ways whose name, as matmul.tiny, contains this text")
    parser.add_argument("--most", type=int, default=12, help="calls of a way that are measured, drawn by chance")
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each round and side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the table")
    return parser.parse_args()


# ---- which calls take a way ----


def taken(case: Case, device: str) -> set[str]:
    """Ways that its calls take where another would do, as ``family.way``."""
    from torchgraft.kernels.choice import choices
    from torchgraft.ops.choices import calls_of, kernels_of
    from torchgraft.plans import Unsupported
    from torchgraft.plans.device import device_traits

    with FakeTensorMode(allow_non_fake_inputs=True):
        calls = calls_of(case.make(device))
    found = set()
    for func, args, kwargs in calls:
        with choices() as made, contextlib.suppress(Unsupported):
            kernels_of(func, args, kwargs, device_traits(0))
        for choice in made:
            (way,) = (name for name, why_not in choice.ways if not why_not)
            if any(why_not.startswith("would do") for _, why_not in choice.ways):
                found.add(f"{choice.family}.{way}")
    return found


def takers(device: str) -> tuple[dict[str, list[Case]], Counter[str], list[str]]:
    """The workloads that take each way, the sizes of classes, and what cannot be planned without values."""
    torch.empty(0, device=device)  # opened, torch leaves whole what it composes of others where the device has it
    found, sizes, unplanned = defaultdict(list), Counter[str](), []
    for case in every_case():
        try:
            ways = taken(case, device)
        except Exception as error:  # a fake module is not moved to a device, and some sizes depend on values
            unplanned.append(f"{case.name}: {str(error).partition(chr(10))[0][:100]}")
            continue
        sizes[case.family] += 1
        for way in ways:
            found[way].append(case)
    return dict(found), sizes, unplanned


# ---- what it is worth ----


@dataclass(frozen=True)
class Worth:
    """Of a way: how many times as long each measured call takes without it; how many calls take it, by class."""

    way: str
    ratios: dict[str, float]
    counts: dict[str, int]

    def mean(self, family: str = "") -> float:
        """Of the measured calls that take it."""
        some = [ratio for name, ratio in self.ratios.items() if name.startswith(family and f"{family}/")]
        return statistics.geometric_mean(some) if some else 1.0

    def of_class(self, sizes: Counter[str]) -> tuple[str, float]:
        """The class that loses most without it, and its mean; calls that do not take it lose nothing."""
        means = {
            family: math.exp(math.log(self.mean(family)) * count / sizes[family])
            for family, count in self.counts.items()
            if family not in LAYERS
        }
        return max(means.items(), key=lambda item: item[1], default=("", 1.0))

    def of_layers(self) -> float:
        return max((ratio for name, ratio in self.ratios.items() if name.partition("/")[0] in LAYERS), default=1.0)

    def row(self, sizes: Counter[str]) -> list[str]:
        family, mean = self.of_class(sizes)
        best = max(self.ratios, key=self.ratios.__getitem__)
        stays = mean >= OF_A_CLASS or self.of_layers() >= OF_A_LAYER
        figures = [f"{self.mean():.2f}", f"{self.ratios[best]:.2f}", best, family, f"{mean:.3f}"]
        calls = str(sum(self.counts.values()))
        return [self.way, calls, *figures, f"{self.of_layers():.2f}", "stays" if stays else "goes"]


def drawn(way: str, cases: list[Case], options: argparse.Namespace) -> list[Case]:
    """About `most` of them, of each class its share and at least one."""
    chance, some = random.Random(f"{options.seed} {way}"), []
    for family in dict.fromkeys(case.family for case in cases):
        of_family = [case for case in cases if case.family == family]
        share = math.ceil(options.most * len(of_family) / len(cases))
        some += chance.sample(of_family, min(share, len(of_family)))
    return some


def measured(way: str, cases: list[Case], options: argparse.Namespace) -> Worth:
    """In two processes of its own: one that fails takes no other way's figures along."""
    ratios = {}
    process = partial(TorchProcess, every_case, device=options.device)
    with (
        contextlib.closing(process(environment={})) as with_it,
        contextlib.closing(process(environment={"TORCHGRAFT_WITHOUT_WAYS": way})) as without,
    ):
        for case in drawn(way, cases, options):
            times, _ = take_turns(case, {"with": with_it, "without": without}, options.rounds, options.seconds)
            pairs = zip(times["without"], times["with"], strict=True)
            ratios[case.name] = statistics.median(without / with_ for without, with_ in pairs)
    return Worth(way, ratios, dict(Counter(case.family for case in cases)))


def main() -> None:
    options = arguments()
    by_way, sizes, unplanned = takers(options.device)
    chosen = {way: cases for way, cases in sorted(by_way.items()) if options.only in way}
    if not chosen:
        raise SystemExit(f"no way that calls take has {options.only!r} in its name: {', '.join(sorted(by_way))}")
    print(f"{len(by_way)} ways; not planned, so in no figure: {'; '.join(unplanned) or 'none'}", flush=True)
    worths, failed = [], []
    for way, cases in chosen.items():
        try:
            worths.append(measured(way, cases, options))
        except RuntimeError as error:  # of one of its processes; the others go on
            failed.append(f"{way}: {str(error).strip().splitlines()[-1]}")
            print(failed[-1], flush=True)
            continue
        print("  ".join(worths[-1].row(sizes)), flush=True)
    table = Table(HEAD, [worth.row(sizes) for worth in sorted(worths, key=lambda worth: worth.of_class(sizes)[1])])
    print(f"\n{table.text()}")
    found = machine(options.device)
    if options.json:
        record = {"machine": found, "ways": [dataclasses.asdict(worth) for worth in worths]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        text = f"# What each way is worth\n\n{machine_table(found).markdown()}\n\n{table.markdown()}\n"
        options.markdown.write_text(text)
    if failed:
        raise SystemExit(f"{len(failed)} ways could not be measured")


if __name__ == "__main__":
    main()
