"""Shows the compiled kernels that are kept on disk, or removes some or all of them.

Without an action: the directory, how many kernels are in it, their size and its bound. Other processes may use the
directory meanwhile; a kernel that they miss is compiled anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchgraft.codegen.cache import KernelCache, Usage

__all__ = ["HELP", "add_arguments", "run"]

HELP = "the compiled kernels on disk: show, prune, clear"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print JSON: directory, enabled, kernels, size and bound in bytes, distrust"
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="action")
    prune = actions.add_parser("prune", help="remove the kernels that were used longest ago")
    prune.add_argument(
        "--to", metavar="SIZE", help="how much to leave, as 100M (default: the bound, TORCHGRAFT_CACHE_SIZE)"
    )
    actions.add_parser("clear", help="remove all kernels")


def run(arguments: argparse.Namespace) -> int:
    from torchgraft.codegen.cache import KernelCache, parse_size

    cache = KernelCache()
    distrust = cache.distrust()
    if arguments.action is None:
        _show(cache, distrust, arguments.json)
        return 0
    if distrust is not None:
        return _failed(f"{distrust}, so nothing was removed")
    if arguments.action == "clear":
        removed = cache.clear()
    else:
        try:
            to = parse_size(arguments.to) if arguments.to is not None else cache.bound
        except ValueError as error:
            return _failed(f"--to: {error}")
        removed = cache.prune(to)
    print(f"removed {_text(removed)}; {_text(cache.usage())} left in {cache.directory}")
    return 0


def _show(cache: KernelCache, distrust: str | None, as_json: bool) -> None:
    usage = cache.usage()
    if as_json:
        facts = {"directory": str(cache.directory), "enabled": cache.enabled, **usage._asdict(), "bound": cache.bound}
        print(json.dumps({**facts, "distrust": distrust}, indent=2))
        return
    rows = {"directory": str(cache.directory), "kernels": str(usage.kernels), "size": _mib(usage.size)}
    rows["bound"] = _mib(cache.bound)
    if not cache.enabled:
        rows["not used"] = "switched off by TORCHGRAFT_CACHE=0"
    elif distrust is not None:
        rows["not used"] = distrust
    print("\n".join(f"{name:9}  {value}" for name, value in rows.items()))


def _failed(text: str) -> int:
    print(f"torchgraft cache: {text}", file=sys.stderr)
    return 1


def _text(usage: Usage) -> str:
    return f"{usage.kernels} kernel{'' if usage.kernels == 1 else 's'}, {_mib(usage.size)}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
