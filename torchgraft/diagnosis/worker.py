"""The process in which `torchgraft doctor` looks: `python -m torchgraft.diagnosis.worker [modules to import]`.

It prints a line of JSON before each thing it looks at and one for each finding, so that its parent knows what it was
doing if a driver makes it crash or wait for ever.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, TextIO

from torchgraft import autoload
from torchgraft.diagnosis import Finding, backend_diagnoses, host

__all__ = ["main"]


def main() -> None:
    # What drivers print is not to be mixed with what this prints.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    look = _Look(report)

    look("versions", host.versions)
    look("versions", host.core)
    look("packages", host.packages)
    look("environment", host.environment_variables)
    look("kernel cache", host.kernel_cache)
    look("registration", lambda: host.registration(sys.argv[1:]))
    present = autoload.present()
    for name, load in backend_diagnoses().items():
        if present in (None, name.partition(".")[0]):
            look(f"backend {name}", lambda load=load: load()())  # type: ignore[misc]
    look("devices", _devices)
    if "torchgraft._C" in sys.modules:
        _probe_devices(look)


class _Look:
    """Prints what a section's functions find; what they raise is a finding too."""

    def __init__(self, report: TextIO) -> None:
        self.report = report

    def __call__(self, section: str, find: Callable[[], Iterable[Finding]]) -> None:
        self.tell(section=section, begin=section)
        try:
            for finding in find():
                self.tell(section=section, **asdict(finding))
        except Exception as error:
            self.tell(section=section, **asdict(Finding(section, "problem", f"{type(error).__name__}: {error}")))

    def tell(self, **what: Any) -> None:
        print(json.dumps(what), file=self.report, flush=True)


def _devices() -> Iterator[Finding]:
    from torchgraft._core import _C
    from torchgraft.registration.register import registered_name

    if registered_name() is None:
        yield Finding("devices", "problem", "none, since no backend is registered")
        return
    for place, device in enumerate(_C.found_devices()):
        yield Finding(f"number {place}", "ok" if device["index"] >= 0 else "note", describe(device, registered_name()))
    if errors := _C.device_errors():
        yield Finding("errors", "warning" if _C.device_count() else "problem", errors)
    elif not _C.device_count():
        yield Finding("devices", "problem", "no driver has one")


def describe(device: dict[str, Any], backend: str | None) -> str:
    """A line about one of `_C.found_devices()`."""
    if device["index"] >= 0:
        use = f"{backend}:{device['index']}"
    elif device["duplicate_of"] >= 0:
        use = f"not used, the same device as {device['duplicate_of']}"
    else:
        use = "not used (TORCHGRAFT_DEVICES)"
    return f"{use}: {device['name']}, {device['kind']}, driver {device['driver']}, {device['driver_version']}"


def _probe_devices(look: _Look) -> None:
    import torch

    from torchgraft._core import _C
    from torchgraft.diagnosis.probes import PROBES, claims
    from torchgraft.driver import Capability
    from torchgraft.registration.register import registered_name

    for index in range(_C.device_count() if registered_name() else 0):
        device = torch.device(f"{registered_name()}:{index}")
        with torch.accelerator.device_index(index):
            for subject in PROBES:
                look.tell(section=str(device), begin=f"{subject} of {device}")
                look.tell(section=str(device), tried=True, **asdict(_tried(subject, device)))
            if claims(_C.device_properties(index), Capability.PROGRAMS):
                _try_operators(look, device)


def _try_operators(look: _Look, device: Any) -> None:
    from torchgraft.diagnosis.operators import SAMPLES, findings, not_asked, try_operator

    section, answers = f"operators of {device}", {}
    found = not_asked(device)
    if found is None:
        for name in SAMPLES:
            look.tell(section=section, begin=f"{name} of {device}")
            answers[name] = try_operator(name, device)
    for finding in findings(device, answers) if found is None else [found]:
        look.tell(section=section, tried=True, **asdict(finding))


def _tried(subject: str, device: Any) -> Finding:
    from torchgraft._core import _C
    from torchgraft.codegen.compiler import KernelCompileError, refusals
    from torchgraft.diagnosis.probes import PROBES, NotThere, claims
    from torchgraft.driver import Capability
    from torchgraft.fallback import fallback, fallback_report, reset_fallback_report

    properties = _C.device_properties(device.index)
    reset_fallback_report()
    with fallback("silent"), refusals() as refused:
        try:
            finding = Finding(subject, "ok", PROBES[subject](device, properties))
        except NotThere as absent:
            return Finding(subject, "note", str(absent))
        except Exception as error:
            advice = "see whether the device's driver is up to date; if it is, tell the backend's authors"
            words = "" if isinstance(error, KernelCompileError) else f": {_beginning(str(error))}"  # they follow
            finding = Finding(subject, "problem", f"fails: {type(error).__name__}{words}", advice)
    on_cpu = sorted(row.op for row in fallback_report())
    if not (on_cpu or refused) or not claims(properties, Capability.COMPILER | Capability.PROGRAMS):
        return finding
    lines = [finding.text]
    if on_cpu:
        lines.append(f"on the CPU, and slow there: {', '.join(on_cpu)}")
    if not properties["has_compiler"]:  # which can say no more than what its library has
        return replace(finding, state="note" if finding.state == "ok" else finding.state, text="\n".join(lines))
    lines += [f"kernel {each.kernel} does not compile: {_beginning(each.log)}" for each in refused]
    advice = finding.advice or (
        "see whether the device's driver is up to date; if it is, tell the backend's authors. "
        "TORCHGRAFT_FALLBACK=error forbids that ops run on the CPU"
    )
    return Finding(subject, "warning" if finding.state == "ok" else finding.state, "\n".join(lines), advice)


def _beginning(text: str, most: int = 12) -> str:
    """The first lines of what a compiler says."""
    lines = text.strip().splitlines()
    return "\n".join(lines if len(lines) <= most else [*lines[:most], f"... and {len(lines) - most} lines more"])


if __name__ == "__main__":
    main()
