"""What a run's records say: figures, a table for a document, and a page to search, sort and filter."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from torchgraft.testing.conformance.exceptions import Declared

__all__ = ["Figures", "figures", "html", "markdown", "state", "unexpected"]

Record = Mapping[str, Any]

# The checks that say whether the functional, in-place and out= forms are native; gradients have a figure of their own.
FORWARD = ("values", "in-place", "out=", "layouts")

SIGNS = {"native": "●", "fallback": "○", "wrong": "✗", "crash": "✗✗", "": "·"}


@dataclass(frozen=True)
class Figures:
    """Counts of cases.

    Attributes:
        run: that the CPU can do.
        correct: without a failed check, fallback allowed.
        native: correct, and without one op on the CPU outside of gradients.
        differentiable: with gradients that the CPU can do.
        backward: of those, correct and without one op on the CPU in them.
    """

    run: int
    correct: int
    native: int
    differentiable: int
    backward: int

    def __str__(self) -> str:
        return (
            f"{self.run} cases: correct {self.correct} ({_percent(self.correct, self.run)}), "
            f"native {self.native} ({_percent(self.native, self.run)}); "
            f"gradients native {self.backward} of {self.differentiable} "
            f"({_percent(self.backward, self.differentiable)})"
        )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"


def split(case: str) -> tuple[str, str]:
    """The op's and the dtype's name."""
    op, _, dtype = case.rpartition("[")
    return op, dtype.rstrip("]")


def counts(record: Record) -> bool:
    """Whether the CPU could do the case: it did not crash, and had a sample."""
    return record.get("phase") != "cpu" and (record["status"] != "ran" or bool(record["checks"]))


def state(record: Record) -> str:
    """ "native", "fallback", "wrong", "crash", or "" for what is not asked of the device."""
    if not counts(record):
        return ""
    if record["status"] != "ran":
        return "crash"
    checks = record["checks"]
    if any(check["failed"] for check in checks.values()):
        return "wrong"
    return "fallback" if any(checks[name]["fallbacks"] for name in FORWARD if name in checks) else "native"


def figures(records: Iterable[Record]) -> Figures:
    """Counts the records."""
    asked = [record for record in records if counts(record)]
    states = Counter(map(state, asked))
    gradients = [record["checks"]["backward"] for record in asked if "backward" in record["checks"]]
    return Figures(
        run=len(asked),
        correct=states["native"] + states["fallback"],
        native=states["native"],
        differentiable=len(gradients),
        backward=sum(not check["failed"] and not check["fallbacks"] for check in gradients),
    )


def by_dtype(records: Iterable[Record]) -> dict[str, Figures]:
    """The figures of each dtype."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(split(record["case"])[1], []).append(record)
    return {dtype: figures(group) for dtype, group in groups.items()}


def failures(record: Record) -> dict[str, str]:
    """The failed checks with their messages; a crash fails them all."""
    if record["status"] != "ran":
        return {} if record.get("phase") == "cpu" else {record["status"]: record["message"]}
    return {name: check["message"] for name, check in record["checks"].items() if check["failed"]}


def unexpected(records: Iterable[Record], declared: Sequence[Declared]) -> tuple[list[str], list[Declared]]:
    """Failures that nobody declared, one line each, and declared exceptions that did not fail.

    An exception whose cases were not run says nothing and is not listed.
    """
    lines, seen, met = [], set(), set()
    for record in records:
        case = record["case"]
        met |= {d for d in declared if re.fullmatch(d.cases, case)}
        for check, message in failures(record).items():
            covering = [d for d in declared if d.covers(case, check)]
            seen.update(covering)
            if not covering:
                lines.append(f"{case} {check}: {message}")
    return lines, [d for d in declared if d in met and d not in seen]


def table(records: Iterable[Record]) -> tuple[list[str], dict[str, dict[str, Record]]]:
    """The dtypes in order of appearance, and the records by op and dtype."""
    dtypes: dict[str, None] = {}
    ops: dict[str, dict[str, Record]] = {}
    for record in records:
        op, dtype = split(record["case"])
        dtypes.setdefault(dtype)
        ops.setdefault(op, {})[dtype] = record
    return list(dtypes), dict(sorted(ops.items()))


def markdown(records: Iterable[Record], title: str) -> str:
    """The figures, and a row for each op with a sign for each dtype."""
    records = list(records)
    dtypes, ops = table(records)
    lines = [f"# {title}", "", f"{figures(records)}.", ""]
    lines += ["| dtype | cases | correct | native | gradients native |", "|---|---:|---:|---:|---:|"]
    for dtype, f in by_dtype(records).items():
        shares = (_percent(f.correct, f.run), _percent(f.native, f.run), _percent(f.backward, f.differentiable))
        lines.append(f"| {dtype} | {f.run} | {' | '.join(shares)} |")
    lines += [
        "",
        "● native, ○ by fallback, ✗ wrong, ✗✗ crash or hang, · not asked; a small ᵍ marks gradients by fallback.",
    ]
    lines += ["", f"| op | {' | '.join(dtypes)} | on the CPU |", f"|---|{':-:|' * len(dtypes)}---|"]
    for op, row in ops.items():
        fell_back = sorted({name for record in row.values() for name in record.get("fell_back", {})})
        signs = [_sign(row[dtype]) if dtype in row else "" for dtype in dtypes]
        lines.append(f"| {op} | {' | '.join(signs)} | {', '.join(fell_back)} |")
    return "\n".join(lines) + "\n"


def _sign(record: Record) -> str:
    gradients = record["checks"].get("backward")
    return SIGNS[state(record)] + ("ᵍ" if gradients and gradients["fallbacks"] else "")


def html(records: Iterable[Record], title: str) -> str:
    """A page that holds everything and loads nothing."""
    records = list(records)
    rows = [
        {
            "op": split(record["case"])[0],
            "dtype": split(record["case"])[1],
            "state": state(record) or "not asked",
            "gradients": _gradients(record),
            "samples": sum(check["samples"] for check in record["checks"].values()),
            "seconds": record["seconds"],
            "fell_back": ", ".join(sorted(record.get("fell_back", {}))),
            "message": "; ".join(f"{check}: {message}" for check, message in failures(record).items()),
        }
        for record in records
    ]
    page = resources.files(__package__).joinpath("page.html").read_text()
    # "</" would end the script that the data stands in.
    data = json.dumps(rows).replace("</", "<\\/")
    return page.replace("{{title}}", title).replace("{{summary}}", str(figures(records))).replace("{{data}}", data)


def _gradients(record: Record) -> str:
    check = record["checks"].get("backward")
    if check is None:
        return ""
    return "wrong" if check["failed"] else "fallback" if check["fallbacks"] else "native"
