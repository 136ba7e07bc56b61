"""Which kernels serve the benchmarks' calls, and the layers of networks that everybody knows, on each class of devices:
what tests/test_choices.py compares with the files in tests/choices.

    python tests/choices.py     writes those files anew: a choice that has changed is then a line of the commit
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

STORED = Path(__file__).parent / "choices"
sys.path.append(str(STORED.parents[1] / "benchmarks"))

from harness.case import Case  # noqa: E402
from workloads import all_cases, networks  # noqa: E402

from torchgraft.ops.choices import CLASSES, calls_of, described, kernels_of  # noqa: E402
from torchgraft.plans import Unsupported  # noqa: E402

#: Their results' sizes depend on values.
WITHOUT_VALUES = {"indexing/by mask 1000003", "indexing/nonzero 1000x1001", "indexing/bincount 300000"}

#: A fake module cannot be moved to a device; the same ops are among the layers.
MODULES = "recurrent/"


def choices(cases: Iterable[Case]) -> Iterator[str]:
    """A line for each call of each case, without a repetition, and one for each choice of kernels, with the classes of
    devices that it is for."""
    torch.empty(0, device="ocl")  # opened, torch leaves whole what it composes of others where the device has it
    seen: set[str] = set()
    for case in cases:
        with FakeTensorMode(allow_non_fake_inputs=True):
            calls = calls_of(case.make("ocl"))
        for func, args, kwargs in calls:
            line = described(func, args, kwargs)
            if line in seen:
                continue
            seen.add(line)
            by_class: dict[str, list[str]] = defaultdict(list)
            for name, traits in CLASSES.items():
                try:
                    kernels = _names(kernel.name for kernel in kernels_of(func, args, kwargs, traits))
                except Unsupported as reason:
                    kernels = f"no kernel: {reason}"
                by_class[kernels].append(name)
            if any(by_class):
                yield f"{case.name.partition('/')[2]}: {line}"
                for kernels, names in by_class.items():
                    yield f"    {_classes(names)}: {kernels or 'none'}"


def _classes(names: list[str]) -> str:
    """Classes of devices, those of one kind together where all are there."""
    for kind in ("cpu", "gpu"):
        of_kind = [name for name in CLASSES if name.startswith(kind)]
        if set(of_kind) <= set(names):
            names = [f"{kind}s", *(name for name in names if name not in of_kind)]
    return "all" if set(names) == {"cpus", "gpus"} else ", ".join(sorted(names))


def _names(names: Iterable[str]) -> str:
    counted = ((name, len(list(alike))) for name, alike in groupby(names))
    return " ".join(name if count == 1 else f"{count}*{name}" for name, count in counted)


def families() -> dict[str, list[Case]]:
    """The benchmarks' classes and the networks, each with its calls."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in all_cases():
        if case.name not in WITHOUT_VALUES and not case.name.startswith(MODULES):
            found[case.family].append(case)
    for case in networks.layers():
        found[case.family].append(case)
    return dict(found)


def stored(family: str) -> Path:
    return STORED / f"{family.lower()}.txt"


if __name__ == "__main__":
    STORED.mkdir(exist_ok=True)
    for family, cases in families().items():
        stored(family).write_text("".join(f"{line}\n" for line in choices(cases)))
