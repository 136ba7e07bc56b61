"""Which kernels serve the benchmarks' calls and the layers of known networks, on six classes of devices, is as it was:
tests/choices has a line for each. No device is needed. What has changed on purpose is written down by
`python tests/choices.py`.
"""

from __future__ import annotations

import difflib

import pytest
from choices import STORED, WITHOUT_VALUES, choices, families, stored
from workloads import all_cases

from torchgraft.ops.choices import CLASSES

FAMILIES = families()


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_as_stored(family: str) -> None:
    lines = list(choices(FAMILIES[family]))
    before = stored(family).read_text().splitlines()
    changed = list(difflib.unified_diff(before, lines, "stored", "now", lineterm="", n=1))
    assert not changed, "\n".join([*changed, "If that is as it should be: python tests/choices.py"])


def test_nothing_else_is_stored() -> None:
    assert set(STORED.iterdir()) == {stored(family) for family in FAMILIES}


def test_every_case_of_the_benchmarks_is_there() -> None:
    known = {case.name for cases in FAMILIES.values() for case in cases}
    missing = {case.name for case in all_cases()} - known
    assert {name for name in missing if not name.startswith("recurrent/")} == WITHOUT_VALUES


def test_classes_differ() -> None:
    """Each has kernels that no other one has for some call."""
    text = "".join(stored(family).read_text() for family in FAMILIES)
    for name in CLASSES:
        assert any(line.strip().startswith(f"{name}:") for line in text.splitlines()), name
