"""Measures, on the user's own device, which sizes its kernels are fastest with, and keeps them for all later processes.

Results are the same but for rounding. Run it where nothing else uses the device; it stops when its time is over, with
what it has found until then. Exit status: 0, or 1 if the device could not be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from torchgraft.diagnosis.child import add_backend_arguments

if TYPE_CHECKING:
    from torchgraft.codegen.cache import KernelCache
    from torchgraft.codegen.tuning import Tuning
    from torchgraft.tuning.search import Child, Found

__all__ = ["HELP", "add_arguments", "run"]

HELP = "measure which sizes kernels are fastest with on a device, and keep them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_backend_arguments(parser)
    parser.add_argument("--device", type=int, default=0, metavar="INDEX", help="which of its devices (default: 0)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="how long to look (default: 600; a last comparison comes after)",
    )
    parser.add_argument("--only", action="append", metavar="PART", help="of the sizes, as `--show` names them")
    parser.add_argument("--json", action="store_true", help="print JSON: tuning, found, file")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--show", action="store_true", help="measure nothing, print the sizes that are used")
    action.add_argument("--forget", action="store_true", help="measure nothing, remove what was kept for the device")


def run(arguments: argparse.Namespace) -> int:
    from torchgraft.codegen import tuned
    from torchgraft.codegen.cache import KernelCache
    from torchgraft.tuning.search import Child, ChildError

    cache = KernelCache()
    try:
        with Child(arguments.device, arguments.backend, arguments.modules) as child:
            if arguments.forget:
                removed = tuned.forget(child.properties, cache)
                print("removed" if removed else "there was nothing to remove")
                return 0
            if arguments.show:
                _show(child, cache, arguments.json)
                return 0
            if not cache.usable():
                return _failed(f"no files are kept in {cache.directory}, so that what is found would be lost")
            return _tune(child, cache, arguments)
    except (ChildError, OSError) as error:
        return _failed(str(error))


def _tune(child: Child, cache: KernelCache, arguments: argparse.Namespace) -> int:
    from torchgraft.codegen import tuned
    from torchgraft.codegen.tuning import as_json, changed
    from torchgraft.tuning.search import search

    parts = child.families
    unknown = set(arguments.only or ()) - parts.keys()
    if unknown:
        return _failed(
            f"the {child.form} form of kernels has no {', '.join(sorted(unknown))}; it has {', '.join(parts)}"
        )
    wanted = {family: names for family, names in parts.items() if not arguments.only or family in arguments.only}
    tuning = child.tuning
    all_found: list[Found] = []
    if not arguments.json:
        print(f"{child.properties['name']}, {child.form} form of kernels, {arguments.seconds:g} s at most", flush=True)
    for found in search(child, wanted, tuning, child.room, time.monotonic() + arguments.seconds):
        all_found.append(found)
        tuning = changed(tuning, found.family, **found.sizes)
        if not arguments.json:
            print(_report(found, child.tuning), flush=True)
    file = None
    if tuning != child.tuning:
        file = tuned.write(child.properties, tuning, {found.family: _as_json(found) for found in all_found}, cache)
    if arguments.json:
        facts = {"tuning": as_json(tuning), "found": [_as_json(found) for found in all_found], "file": str(file or "")}
        print(json.dumps(facts, indent=2))
    elif file is None:
        print("the sizes stay as they are")
    else:
        print(f"kept in {file}, for all processes that begin from now on; `torchgraft tune --forget` removes it")
    return 0


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "family": found.family,
        "sizes": dict(found.sizes),
        "gain": round(found.gain, 3),
        "seconds before": dict(found.before),
        "seconds after": dict(found.after),
        "tried": found.tried,
        "failures": list(found.failures),
        "complete": found.complete,
    }


def _report(found: Found, start: Tuning) -> str:
    old = vars(getattr(start, found.family))
    sizes = ", ".join(f"{name} {old[name]} -> {size}" for name, size in found.sizes.items()) or "as they were"
    ended = "" if found.complete else ", the time was over"
    lines = [f"{found.family}: {sizes} ({found.tried} tried{ended})"]
    if found.sizes:
        lines[0] += f", {found.gain:.2f} times as fast"
        for name, before in found.before.items():
            after = found.after[name]
            lines.append(f"  {name:28} {before * 1e6:10.1f} us -> {after * 1e6:10.1f} us  {before / after:5.2f}")
    lines += [f"  left out: {failure}" for failure in found.failures]
    return "\n".join(lines)


def _show(child: Child, cache: KernelCache, as_json_: bool) -> None:
    from torchgraft.codegen import tuned
    from torchgraft.codegen.tuning import as_json

    file = tuned.path(child.properties, cache)
    kept = tuned.read(child.properties, cache) is not None
    used, usual = as_json(child.tuning), as_json(child.usual)
    if as_json_:
        print(json.dumps({"tuning": used, "found": [], "file": str(file) if kept else ""}, indent=2))
        return
    print(f"{child.properties['name']}: {file if kept else 'nothing was kept for it'}")
    print(f"its class is {child.device_class}")
    for family, sizes in used.items():
        for name, size in sizes.items():
            other = "" if size == usual[family][name] else f"  (else {usual[family][name]})"
            print(f"  {family + '.' + name:24} {size}{other}")


def _failed(text: str) -> int:
    print(f"torchgraft tune: {text}", file=sys.stderr)
    return 1
