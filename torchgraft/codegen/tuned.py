"""What `torchgraft tune` found, on disk: a file for each device, in the folder of the compiled kernels.

It is only read where compiled kernels would be. One of another version of torchgraft, whose kernels may be others, is
as if it were not there.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from torchgraft._version import __version__
from torchgraft.codegen.cache import KernelCache
from torchgraft.codegen.tuning import Room, Tuning, as_json, from_json

_FOLDER = "tuned"
_MOST_BYTES = 1 << 16
# What tells one device from another, of its properties.
_DEVICE = ("name", "vendor", "driver_version", "kind", "dialect", "simd_width", "compute_units")


def path(properties: Mapping[str, object], cache: KernelCache) -> Path:
    """Where the sizes for such a device are kept."""
    device = json.dumps([str(properties[name]) for name in _DEVICE])
    return cache.directory / _FOLDER / f"{cache.key(__version__, device)[:24]}.json"


def read(properties: Mapping[str, object], cache: KernelCache | None = None) -> Tuning | None:
    """The sizes for such a device; None if there are none, or if TORCHGRAFT_TUNED is 0. What cannot be used is warned
    of."""
    cache = cache or KernelCache()
    if os.environ.get("TORCHGRAFT_TUNED") == "0" or not cache.enabled:
        return None
    file = path(properties, cache)
    try:
        if not file.exists() or cache.distrust() is not None:
            return None
        text = file.read_bytes()[:_MOST_BYTES].decode()
        return from_json(json.loads(text)["tuning"], Room.of(properties))
    except (OSError, ValueError, TypeError, KeyError) as error:
        warnings.warn(
            f"torchgraft: {file} is not used ({error}); `torchgraft tune` makes another, `torchgraft tune --forget` "
            "removes it",
            stacklevel=2,
        )
        return None


def write(properties: Mapping[str, object], tuning: Tuning, found: Mapping[str, object], cache: KernelCache) -> Path:
    """Keeps the sizes for such a device, with what was measured, for readers.

    Raises:
        OSError: it could not be written.
    """
    if not cache.usable():
        raise OSError(f"no files are kept in {cache.directory}")
    file = path(properties, cache)
    device = {name: properties[name] for name in _DEVICE}
    content = {"device": device, "version": __version__, "tuning": as_json(tuning), "found": found}
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
        try:
            json.dump(content, new, indent=2)
            new.flush()
            os.replace(new.name, file)
        except BaseException:
            os.unlink(new.name)
            raise
    return file


def forget(properties: Mapping[str, object], cache: KernelCache) -> bool:
    """Removes the sizes for such a device; whether there were any."""
    try:
        path(properties, cache).unlink()
    except FileNotFoundError:
        return False
    return True
