"""Which tests `make test` leaves to `make test-all`.

* What is marked `thorough`: the whole of a product of which a part is tried always, or what takes long.
* Of a parameter that is a dtype all but `QUICK_DTYPES`, where the test has any of those: kernels are written once for
  all dtypes, and the conformance run compares every op in every one.
* Of those, all but float32 in the form that GPUs get, where the test has marks for neither.
* Where a test has marks `quick`, what none of them fits: `quick(form="cpu")`, `quick(form="gpu", dtype=torch.float32)`.
  A list stands for each of its values.

`--all` runs everything, `--rest` what is left, and a test that is named (`test_x.py::test_y[z]`) always runs. With
`--slice I/N` as well it is about an N-th of these: CI runs another slice with each commit.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
import torch

#: The usual one, one of 16 bits, and one for each kind of numbers.
QUICK_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64})

GPU_DTYPES = frozenset({torch.float32})


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes away from the items what is not asked for: by `make test` what is left out, by `--rest` everything else."""
    named = any("::" in each for each in config.args)
    served = config.getoption("torchgraft_serve", "")  # the process beside pytest's, which is told what to run
    if named or served:
        return
    asked = items if config.getoption("--all") else _part(items, rest=config.getoption("--rest"))
    if (chosen := config.getoption("--slice")) is not None:
        asked = slice_of(asked, *chosen)
    kept = set(asked)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = asked


def slice_of(items: list[pytest.Item], number: int, count: int) -> list[pytest.Item]:
    """The slice of this number, modulo `count`. Tests that share what is made once for a file or a class are in one, or
    it would be made for each slice."""
    groups = list(dict.fromkeys(map(_group, items)))
    chosen = set(groups[number % count :: count])
    return [item for item in items if _group(item) in chosen]


def _group(item: pytest.Item) -> object:
    fixtures = itertools.chain.from_iterable(item._fixtureinfo.name2fixturedefs.values())  # type: ignore[attr-defined]
    return item.path if any(fixture.scope in ("module", "class") for fixture in fixtures) else item.nodeid


def _part(items: list[pytest.Item], rest: bool) -> list[pytest.Item]:
    left = left_out(items)
    return [item for item in items if (item in left) == rest]


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests that `make test` does not run."""
    families: dict[Any, list[pytest.Item]] = defaultdict(list)
    left = set()
    for item in items:
        if item.get_closest_marker("thorough"):
            left.add(item)
        elif hasattr(item, "callspec"):
            families[item.path, item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        left.update(item for item in family if not _is_quick(item, _dtypes(family)))
    return left


def _parameters(item: pytest.Item) -> dict[str, Any]:
    parameters: dict[str, Any] = item.callspec.params  # type: ignore[attr-defined]
    return parameters


def _dtypes(family: list[pytest.Item]) -> set[str]:
    """The parameters of a test of which some values are quick dtypes."""
    parameters = itertools.chain.from_iterable(_parameters(item).items() for item in family)
    return {name for name, value in parameters if isinstance(value, torch.dtype) and value in QUICK_DTYPES}


def _is_quick(item: pytest.Item, dtypes: set[str]) -> bool:
    parameters = _parameters(item)
    marks = [mark.kwargs for mark in item.iter_markers("quick")]
    named = set().union(*marks)
    of_dtypes = dtypes & parameters.keys() - named
    allowed = GPU_DTYPES if parameters.get("form") == "gpu" and "form" not in named else QUICK_DTYPES
    if any(parameters[name] not in allowed for name in of_dtypes):
        return False
    return not marks or any(
        all(parameters[name] in (value if isinstance(value, list) else [value]) for name, value in mark.items())
        for mark in marks
    )
