"""Looks at everything a device depends on, tries the devices, and says what is wrong and how to mend it.

Exit status: 0 if there is a device and all that was tried works, by the devices' own kernels, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import textwrap
import threading
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from torchgraft.diagnosis import Finding, State
from torchgraft.diagnosis.child import add_backend_arguments, start

__all__ = ["HELP", "Report", "add_arguments", "examine", "run"]

HELP = "what is installed, what works, and what to do about the rest"

_MARKS: dict[State, str] = {"ok": "ok", "note": "note", "warning": "WARN", "problem": "FAIL"}


@dataclass
class Report:
    """What was found, by section, in the order in which it was looked at."""

    sections: dict[str, list[Finding]] = field(default_factory=dict)
    #: Those of them that are about a device that was tried.
    tried: set[str] = field(default_factory=set)

    def add(self, section: str, finding: Finding, tried: bool = False) -> None:
        self.sections.setdefault(section, []).append(finding)
        if tried:
            self.tried.add(section)

    @property
    def usable(self) -> bool:
        return not any(finding.state == "problem" for finding in self.findings())

    @property
    def complete(self) -> bool:
        """Whether devices do all that was tried themselves."""
        return self.usable and not any(
            finding.state == "warning" for section in self.tried for finding in self.sections[section]
        )

    def findings(self) -> list[Finding]:
        return [finding for findings in self.sections.values() for finding in findings]

    def as_json(self) -> dict[str, Any]:
        sections = {name: [asdict(finding) for finding in findings] for name, findings in self.sections.items()}
        return {"usable": self.usable, "complete": self.complete, "sections": sections}

    def as_text(self) -> str:
        lines: list[str] = []
        for name, findings in self.sections.items():
            lines += [name, *(_line(finding) for finding in findings), ""]
        lines += ["summary"]
        states: tuple[State, ...] = ("problem", "warning")
        for state in states:
            lines += [
                f"  {_MARKS[state]}  {name}: {finding.subject}"
                for name, findings in self.sections.items()
                for finding in findings
                if finding.state == state
            ]
        counts = f"{_count(self.findings(), 'problem')}, {_count(self.findings(), 'warning')}"
        usable = "not usable" if not self.usable else "usable" if self.complete else "usable, with ops on the CPU"
        lines += [f"  {usable}: {counts}"]
        return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_backend_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print JSON: usable, complete, and the findings of each section"
    )
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="SECONDS", help="for each single thing (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    report = examine(arguments.backend, arguments.modules, arguments.timeout)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else report.as_text())
    return 0 if report.complete else 1


def examine(backend: str | None = None, modules: list[str] | None = None, timeout: float = 120) -> Report:
    """Looks, in a process of its own, so that a driver that crashes or never returns is a finding like others.

    Args:
        backend: its name; by default the one that `import torch` registers, or the only one installed.
        modules: what to import first.
        timeout: seconds for each single thing that is looked at.
    """
    worker = start("torchgraft.diagnosis.worker", backend, modules or ())
    assert worker.stdout is not None
    assert worker.stderr is not None
    lines: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_read, args=(worker.stdout, lines), daemon=True).start()
    said: list[bytes] = []
    listener = threading.Thread(target=lambda stream: said.extend(stream), args=(worker.stderr,), daemon=True)
    listener.start()

    report = Report()
    section, doing = "start", "starting Python"
    while True:
        try:
            line = lines.get(timeout=timeout)
        except queue.Empty:
            worker.kill()
            worker.wait()
            text = f"no answer within {timeout:g} seconds"
            report.add(section, Finding(doing, "problem", text, _advice(doing)))
            return report
        if line is None:
            break
        told = json.loads(line)
        section = told.pop("section")
        if "begin" in told:
            doing = told["begin"]
        else:
            tried = told.pop("tried", False)
            report.add(section, Finding(**told), tried)
    status = worker.wait()
    listener.join(timeout=5)
    if status != 0:
        last = b"".join(said).decode(errors="replace").strip()[-2000:]
        report.add(section, Finding(doing, "problem", f"the process {_ending(status)} {last}".strip(), _advice(doing)))
    return report


def _read(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}." if status < 0 else f"ended with status {status}."


def _advice(doing: str) -> str:
    return f"the driver has not survived: {doing}. TORCHGRAFT_DEVICES leaves a device out"


def _line(finding: Finding) -> str:
    text = finding.text if not finding.advice else f"{finding.text}\n-> {finding.advice}"
    first, *rest = (f"{finding.subject}: {text}" if finding.subject else text).splitlines()
    return "\n".join([f"  {_MARKS[finding.state]:4}  {first}", *(textwrap.indent(line, " " * 8) for line in rest)])


def _count(findings: list[Finding], state: State) -> str:
    number = sum(finding.state == state for finding in findings)
    return f"{number} {state}{'' if number == 1 else 's'}"
