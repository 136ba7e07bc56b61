"""What a run's records say: figures, a table for a document, and a page to search, sort and filter."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from torchgraft.testing.conformance.cases import DTYPES, dtype_name
from torchgraft.testing.conformance.exceptions import Declared
from torchgraft.testing.conformance.ways import CPU, KERNELS, OPERATORS

__all__ = ["Figures", "figures", "figures_table", "html", "markdown", "regressions", "state", "unexpected"]

Record = Mapping[str, Any]

# The checks that say whether the functional, in-place and out= forms are native; gradients have a figure of their own.
FORWARD = ("values", "in-place", "out=", "out= dtype", "layouts", "compiled")

SIGNS = {
    "native": "●",
    "decomposed": "◉",
    "composite": "◎",
    "operators": "◆",
    "fallback": "○",
    "unsupported": "∅",
    "wrong": "✗",
    "crash": "✗✗",
    "": "·",
}

# What is added to a dtype's name.
COMPILED = ", compiled"

# As pages call `ways.MEANS`.
NAMES = {KERNELS: "kernels or views", OPERATORS: "operators", CPU: "the CPU"}

# Correct without the CPU; "fallback" is correct with it.
OWN = ("native", "decomposed", "composite", "operators")

# States that a page has only where a case has them, as most devices have no operators of their own.
RARE = ("operators",)


@dataclass(frozen=True)
class Samples:
    """Counts of samples that have results, of the checks that are `FORWARD`.

    Attributes:
        run: that the device was asked for, right or wrong.
        by: what has computed those that are right, by `ways.MEANS`.
    """

    run: int
    by: Mapping[str, int]

    @property
    def own(self) -> int:
        """Right, and without one op on the CPU."""
        return self.by[KERNELS] + self.by[OPERATORS]

    def __str__(self) -> str:
        operators = f", of them by operators {self.by[OPERATORS]:,}" if self.by[OPERATORS] else ""
        return f"{self.own:,} of {self.run:,} without fallback ({_percent(self.own, self.run)}){operators}"


@dataclass(frozen=True)
class Figures:
    """Counts of cases, and of their samples.

    Attributes:
        run: that the CPU can do.
        correct: without a failed check, fallback allowed.
        native: correct, and without one op on the CPU outside of gradients: what is left when fallback is an error.
        ways: of the native ones by `ways.WAYS`.
        differentiable: with gradients that the CPU can do.
        backward: of those, correct and without one op on the CPU in them.
        samples: None where the run is of a time when they were not counted.
    """

    run: int
    correct: int
    native: int
    ways: Mapping[str, int]
    differentiable: int
    backward: int
    samples: Samples | None = None

    def __str__(self) -> str:
        ways = ", ".join(f"{name} {self.ways[name]}" for name in OWN if self.ways[name] or name not in RARE)
        samples = f"; samples: {self.samples}" if self.samples else ""
        return (
            f"{self.run} cases: correct {self.correct} ({_percent(self.correct, self.run)}), "
            f"without fallback {self.native} ({_percent(self.native, self.run)}: {ways}); "
            f"gradients without fallback {self.backward} of {self.differentiable} "
            f"({_percent(self.backward, self.differentiable)}){samples}"
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
    """A key of `SIGNS`: how the case is computed, or what is wrong; "" for what is not asked of the device."""
    if not counts(record):
        return ""
    if record["status"] != "ran":
        return "crash"
    checks = record["checks"]
    values = checks.get("values") or checks.get("compiled")
    if values and values["samples"] == values.get("refused", 0):
        return "unsupported"
    if any(check["failed"] for check in checks.values()):
        return "wrong"
    if any(checks[name]["fallbacks"] for name in FORWARD if name in checks):
        return "fallback"
    if (counted := samples_of(record)) and counted.by[OPERATORS]:
        return "operators"
    way = record.get("way")
    return way if way in OWN else "native"


def samples_of(record: Record) -> Samples | None:
    """The samples of a case that have results; None where they were not counted."""
    checks = [check for name, check in record["checks"].items() if name in FORWARD]
    if not all("by" in check and check["fallbacks"] is not None for check in checks):
        return None
    by = Counter({name: sum(check["by"].get(name, 0) for check in checks) for name in (KERNELS, OPERATORS, CPU)})
    return Samples(by.total() + sum(check["failed"] for check in checks), by)


def correct(record: Record) -> bool:
    """Whether all checks passed."""
    return state(record) in (*OWN, "fallback")


def gradients(record: Record) -> str:
    """ "native", "fallback", "wrong", or "" where the CPU has no gradients."""
    check = record["checks"].get("backward") or record["checks"].get("compiled backward")
    if check is None:
        return ""
    return "wrong" if check["failed"] else "fallback" if check["fallbacks"] else "native"


def figures(records: Iterable[Record]) -> Figures:
    """Counts the records."""
    asked = [record for record in records if counts(record)]
    states = Counter(map(state, asked))
    backward = Counter(map(gradients, asked))
    native = sum(states[name] for name in OWN)
    return Figures(
        run=len(asked),
        correct=native + states["fallback"],
        native=native,
        ways={name: states[name] for name in OWN},
        differentiable=backward.total() - backward[""],
        backward=backward["native"],
        samples=_added(map(samples_of, asked)),
    )


def _added(each: Iterable[Samples | None]) -> Samples | None:
    counted = list(each)
    known = [samples for samples in counted if samples]
    if not known or len(known) < len(counted):
        return None
    by = {name: sum(samples.by[name] for samples in known) for name in (KERNELS, OPERATORS, CPU)}
    return Samples(sum(samples.run for samples in known), by)


def _groups(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each dtype."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(split(record["case"])[1], []).append(record)
    return {dtype: groups[dtype] for dtype in sorted(groups, key=_place)}


def by_dtype(records: Iterable[Record]) -> dict[str, Figures]:
    """The figures of each dtype."""
    return {dtype: figures(group) for dtype, group in _groups(records).items()}


def failures(record: Record) -> dict[str, str]:
    """The failed checks with their messages; a crash fails them all."""
    if record["status"] != "ran":
        return {} if record.get("phase") == "cpu" else {record["status"]: record.get("message", "")}
    return {name: check.get("message", "") for name, check in record["checks"].items() if check["failed"]}


def unexpected(records: Iterable[Record], declared: Sequence[Declared]) -> tuple[list[str], list[Declared]]:
    """Failures that nobody declared, one line each, and declared exceptions that did not fail.

    An exception whose cases or check were not run says nothing and is not listed.
    """
    records = list(records)
    run = {name for record in records for name in record["checks"]} | {"crash", "timeout"}
    lines, seen, met = [], set(), set()
    for record in records:
        case = record["case"]
        met |= {d for d in declared if d.check in run and re.fullmatch(d.cases, case)}
        for check, message in failures(record).items():
            covering = [d for d in declared if d.covers(case, check)]
            seen.update(covering)
            if not covering:
                lines.append(f"{case} {check}: {message}")
    return lines, [d for d in declared if d in met and d not in seen]


def regressions(
    records: Iterable[Record], stored: Mapping[str, Record], declared: Sequence[Declared] = ()
) -> list[str]:
    """What a stored run could do and these records cannot, a line each: correct cases that are not, cases, gradients
    and, of as many, samples without fallback that now have one. Cases that only one of the two has say nothing; a check
    that no case of the stored run has is newer than that run, and has to pass or to be declared."""
    known = {name for record in stored.values() for name in record["checks"]}
    lines = []
    for record in records:
        case = record["case"]
        before = stored.get(case)
        if before is None:
            continue
        new = {name: check for name, check in record["checks"].items() if name not in known}
        failed, _ = unexpected([{**record, "status": "ran", "checks": new}], declared)
        lines += [f"{line} (a check that the stored run does not have)" for line in failed]
        record = {**record, "checks": {name: c for name, c in record["checks"].items() if name in known}}
        now, then = state(record), state(before)
        if correct(before) and now and not correct(record):
            message = "; ".join(f"{check}: {text}" for check, text in failures(record).items())
            lines.append(f"{case} was correct ({then}), is {now}: {message}")
        elif then in OWN and now == "fallback":
            lines.append(f"{case} was {then}, falls back: {', '.join(sorted(record['fell_back']))}")
        elif gradients(before) == "native" and gradients(record) == "fallback":
            lines.append(f"{case} had gradients of its own, which fall back: {', '.join(sorted(record['fell_back']))}")
        elif lost := _lost_samples(samples_of(record), samples_of(before)):
            lines.append(f"{case} {lost}")
    return lines


def _lost_samples(now: Samples | None, then: Samples | None) -> str:
    if not now or not then or now.run != then.run or now.own >= then.own:
        return ""
    return f"had {then.own} samples without fallback, has {now.own} of {now.run}"


def table(records: Iterable[Record]) -> tuple[list[str], dict[str, dict[str, Record]]]:
    """The dtypes in the order of the published figures, and the records by op and dtype."""
    ops: dict[str, dict[str, Record]] = {}
    for record in records:
        op, dtype = split(record["case"])
        ops.setdefault(op, {})[dtype] = record
    found = {dtype for row in ops.values() for dtype in row}
    return sorted(found, key=_place), dict(sorted(ops.items()))


def _place(dtype: str) -> tuple[int, str]:
    """Where a dtype stands in tables."""
    names = [dtype_name(each) for each in DTYPES]  # those of compiled cases come last
    plain = dtype.removesuffix(COMPILED)
    return len(names) * (dtype != plain) + (names.index(plain) if plain in names else len(names)), dtype


def compiled(records: Iterable[Record]) -> list[Record]:
    """The records of a run through torch.compile, as those of dtypes of their own: columns of the same tables."""
    return [{**record, "case": record["case"].replace("]", f"{COMPILED}]")} for record in records]


def markdown(records: Iterable[Record], title: str, through_compiler: Iterable[Record] = ()) -> str:
    """The figures, and a row for each op with a sign for each dtype, and for those of a run through torch.compile."""
    records, others = list(records), compiled(through_compiler)
    dtypes, ops = table([*records, *others])
    lines = [f"# {title}", "", f"{figures(records)}.", ""]
    if others:
        lines += [f"Through torch.compile: {figures(others)}.", ""]
    lines += figures_table(records, others)
    legend = ", ".join(f"{sign} {name or 'not asked'}" for name, sign in _signs([*records, *others]).items())
    shares = " 3/8: so many of its samples do without the CPU." if any(map(_share, records)) else ""
    lines += ["", f"{legend}; a small ᵍ marks gradients by fallback.{shares}"]
    lines += ["", f"| op | {' | '.join(dtypes)} | on the CPU |", f"|---|{':-:|' * len(dtypes)}---|"]
    for op, row in ops.items():
        fell_back = sorted({name for record in row.values() for name in record.get("fell_back", {})})
        signs = [_sign(row[dtype]) if dtype in row else "" for dtype in dtypes]
        lines.append(f"| {op} | {' | '.join(signs)} | {', '.join(fell_back)} |")
    return "\n".join(lines) + "\n"


def figures_table(records: Iterable[Record], others: Iterable[Record] = ()) -> list[str]:
    """The figures by dtype, as lines of a Markdown table; the last line counts only the first records."""
    records, others = list(records), list(others)
    own = [name for name in _signs([*records, *others]) if name in OWN]
    lines = [f"| dtype | cases | correct | without fallback | {' | '.join(own)} | gradients without fallback |"]
    lines.append("|---|---:|---:|---:|" + "---:|" * len(own) + "---:|")
    for dtype, f in {**by_dtype([*records, *others]), "all": figures(records)}.items():
        shares = (_percent(f.correct, f.run), _percent(f.native, f.run), *(str(f.ways[name]) for name in own))
        lines.append(f"| {dtype} | {f.run} | {' | '.join(shares)} | {_percent(f.backward, f.differentiable)} |")
    return lines


def _signs(records: Iterable[Record]) -> dict[str, str]:
    """Those of a page: all but rare ones that no case has."""
    found = set(map(state, records))
    return {name: sign for name, sign in SIGNS.items() if name in found or name not in RARE}


def _sign(record: Record) -> str:
    return SIGNS[state(record)] + ("ᵍ" if gradients(record) == "fallback" else "") + _share(record)


def _share(record: Record) -> str:
    """How many of a case's samples do without the CPU, where that is not all or nothing."""
    samples = samples_of(record) if state(record) == "fallback" else None
    return f" {samples.own}/{samples.run}" if samples and samples.own else ""


def html(records: Iterable[Record], title: str, through_compiler: Iterable[Record] = ()) -> str:
    """A page that holds everything and loads nothing; what it says of all cases is of both runs."""
    records = [*records, *compiled(through_compiler)]
    dtypes, ops = table(records)
    data = {
        "states": {name or "not asked": sign for name, sign in _signs(records).items()},
        "totals": [_total(dtype, group) for dtype, group in {**_groups(records), "all": records}.items()],
        "ops": [{"name": op, "cases": [_case(row[each]) for each in dtypes if each in row]} for op, row in ops.items()],
    }
    page = resources.files(__package__).joinpath("page.html").read_text()
    # "</" would end the script that the data stands in.
    return page.replace("{{title}}", title).replace("{{data}}", json.dumps(data).replace("</", "<\\/"))


def _total(dtype: str, records: Sequence[Record]) -> dict[str, Any]:
    """What the page says of a dtype."""
    f = figures(records)
    return {
        "dtype": dtype,
        "cases": f.run,
        "samples": str(f.samples or ""),
        "states": Counter(state(record) or "not asked" for record in records),
        "correct": _percent(f.correct, f.run),
        "native": _percent(f.native, f.run),
        "gradients": _percent(f.backward, f.differentiable),
    }


def _case(record: Record) -> dict[str, Any]:
    """What the page says of a case."""
    counted = samples_of(record)
    return {
        "dtype": split(record["case"])[1],
        "state": state(record) or "not asked",
        "gradients": gradients(record),
        "samples": sum(check["samples"] for check in record["checks"].values()),
        "by": ", ".join(f"{n} by {NAMES[means]}" for means, n in counted.by.items() if n) if counted else "",
        "seconds": record.get("seconds", 0),
        "fell_back": ", ".join(sorted(record.get("fell_back", {}))),
        "message": "; ".join(f"{check}: {text}" if text else check for check, text in failures(record).items()),
    }
