"""The environment variables that torchgraft reads: the one list of them. docs/configuration.md tells more of each.

A name that nothing reads, and a value that means nothing, are warned of when the devices are opened: a setting that has
no effect is worse than none.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points

from torchgraft.registration.installed import DIAGNOSES

__all__ = ["VARIABLES", "in_force", "meaningless", "misspelt", "warn_of_mistakes"]

_PREFIX = "TORCHGRAFT_"

VARIABLES = {
    "TORCHGRAFT_BACKEND": "the backend that `import torch` registers, of several installed ones",
    "TORCHGRAFT_DEVICES": "which devices are used, and in which order",
    "TORCHGRAFT_FALLBACK": "warn, silent or error: what an op without a kernel does",
    "TORCHGRAFT_CACHE": "0 keeps no compiled kernels on disk",
    "TORCHGRAFT_CACHE_DIR": "where compiled kernels are kept",
    "TORCHGRAFT_CACHE_SIZE": "how much of them is kept, as 512M",
    "TORCHGRAFT_COMPILE_HELPERS": "how many processes compile kernels ahead for this one",
    "TORCHGRAFT_PROGRESS": "0 shows no line while many kernels are compiled",
    "TORCHGRAFT_COMPILE_OPTIONS": "more options for the device's compiler",
    "TORCHGRAFT_DISTRIBUTED_STAGED": "1 copies what collectives send, also where the host could read it in place",
    "TORCHGRAFT_MEMORY_CACHING": "0 asks the driver for each tensor's memory by itself, for tools that watch accesses",
    "TORCHGRAFT_KERNEL_FORM": "cpu or gpu: forces one form of the kernels that have two",
    "TORCHGRAFT_SIMD_WIDTH": "how many float32 a vector register holds, in place of what the driver says",
    "TORCHGRAFT_WITHOUT_WAYS": "ways to compute something that are not to be taken, to measure what they are worth",
    "TORCHGRAFT_PREFER": "programs or kernels: what serves an op of a device that has both",
    "TORCHGRAFT_TUNED": "0 leaves aside what `torchgraft tune` found",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "torch's own: 0 keeps `import torch` from registering a backend",
    "XDG_CACHE_HOME": "the folder of caches, in which torchgraft's is by default",
}

# The values that mean something, in words and as a pattern, of variables whose readers take all others for the default
# and say nothing. Empty is as not set.
_SWITCH = ("0 or 1", "[01]")
_VALUES = {
    "TORCHGRAFT_CACHE": _SWITCH,
    "TORCHGRAFT_PROGRESS": _SWITCH,
    "TORCHGRAFT_MEMORY_CACHING": _SWITCH,
    "TORCHGRAFT_TUNED": _SWITCH,
    "TORCHGRAFT_FALLBACK": ("warn, silent or error", r"(?i)\s*(warn|silent|error)\s*"),
}


def in_force() -> dict[str, str | None]:
    """The variables that are set: those above, and others that begin with TORCHGRAFT_, as a backend's may.

    Of the others there is only the name: the value, of which nothing is known here, may be a secret.
    """
    names = [name for name in sorted(os.environ) if name in VARIABLES or _is_ours(name)]
    return {name: os.environ[name] if name in VARIABLES else None for name in names}


def misspelt() -> dict[str, str]:
    """Variables that are set and that nothing reads, though the toolkit or an installed backend reads one that is
    written nearly so."""
    strange = [name for name in os.environ if _is_ours(name) and name not in VARIABLES]
    if not strange:
        return {}
    # Without what all begin with, which would make any two of them alike.
    known = {name.removeprefix(_PREFIX) for name in (*VARIABLES, *_of_backends()) if _is_ours(name)}
    found = {}
    for name in strange:
        own = name.removeprefix(_PREFIX)
        if own not in known and (near := difflib.get_close_matches(own, known, n=1, cutoff=0.8)):
            found[name] = _PREFIX + near[0]
    return found


def meaningless() -> dict[str, str]:
    """Variables that are set to what means nothing, each with what it may be."""
    given = {name: os.environ.get(name, "") for name in _VALUES}
    return {
        name: _VALUES[name][0] for name, value in given.items() if value and not re.fullmatch(_VALUES[name][1], value)
    }


def warn_of_mistakes(warn: Callable[[str], None]) -> None:
    """Tells of both."""
    for name, near in misspelt().items():
        warn(f"the environment has {name}, which nothing reads: is {near} meant?")
    for name, values in meaningless().items():
        warn(f"{name} is {os.environ[name]!r}, which means nothing: it may be {values}")


def _of_backends() -> Iterator[str]:
    """The variables that backends read: `VARIABLES` beside the diagnosis of each whose package has been imported."""
    for entry in entry_points(group=DIAGNOSES):
        if entry.module.partition(".")[0] in sys.modules:
            with contextlib.suppress(ImportError):  # `torchgraft doctor` tells of that
                yield from getattr(importlib.import_module(entry.module), "VARIABLES", ())


def _is_ours(name: str) -> bool:
    return name.startswith(_PREFIX)
