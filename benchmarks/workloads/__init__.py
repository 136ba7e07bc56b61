"""The workloads of benchmarks/ops.py, a module for each class: `tuned` are those on which kernels were tuned, `others`
those that show what tuning did for any other shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from harness.case import Case

from workloads import (
    attention,
    convolution,
    copies,
    elementwise,
    images,
    indexing,
    matmul,
    random,
    recurrent,
    reduction,
    small,
    transform,
)

MODULES = (
    elementwise,
    copies,
    reduction,
    matmul,
    convolution,
    attention,
    transform,
    recurrent,
    indexing,
    images,
    random,
    small,
)


def all_cases() -> Iterator[Case]:
    for module in MODULES:
        yield from (dataclasses.replace(case, tuned=True) for case in module.tuned())
        yield from module.others()
