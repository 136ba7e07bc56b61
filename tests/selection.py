"""Which tests `make test` leaves to `make test-all`.

* What is marked `thorough`: the whole of a product of which a part is tried always, or what takes long.
* Of a parameter that is a dtype all but `QUICK_DTYPES`, where the test has any of those: kernels are written once for
  all dtypes, and the conformance run compares every op in every one.
* Of the parameters that the mark `quick` names all but the values it gives, by their ids: `quick(form="cpu")`.

A test that is named on the command line (`test_x.py::test_y[z]`) always runs.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
import torch

#: The usual one, one of 16 bits, and one for each kind of numbers.
QUICK_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64})


def thorough(*values: Any) -> Any:
    """A parameter's values that are left to `make test-all`, in a list of values for `parametrize`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def is_everything_asked(config: pytest.Config) -> bool:
    """Whether nothing is left out. Processes that tests start are told by the environment."""
    if config.getoption("--all"):
        os.environ["TORCHGRAFT_TEST_ALL"] = "1"
    return "TORCHGRAFT_TEST_ALL" in os.environ or any("::" in each for each in config.args)


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
        chosen = _chosen(family)
        left.update(item for item in family if not _is_chosen(item, chosen))
    return left


def _parameters(item: pytest.Item) -> dict[str, Any]:
    parameters: dict[str, Any] = item.callspec.params  # type: ignore[attr-defined]
    return parameters


def _chosen(family: list[pytest.Item]) -> dict[str, set[Any]]:
    """For each parameter of which only some values are tried, which."""
    chosen: dict[str, set[Any]] = defaultdict(set)
    for item in family:
        for name, value in _parameters(item).items():
            if isinstance(value, torch.dtype) and value in QUICK_DTYPES:
                chosen[name].add(value)
    for mark in family[0].iter_markers("quick"):
        for name, values in mark.kwargs.items():
            chosen[name] = set(values if isinstance(values, (tuple, list)) else [values])
    return chosen


def _is_chosen(item: pytest.Item, chosen: dict[str, set[Any]]) -> bool:
    return all(value in chosen[name] for name, value in _parameters(item).items() if name in chosen)
