"""The process behind `torchgraft devices`: prints, as JSON, the backend, the devices that it offers, and its errors."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

__all__ = ["described", "main"]


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what drivers print is not to be mixed with the report
    try:
        backend = registered_backend(sys.argv[1:])
        from torchgraft._core import _C

        devices = [described(place, device, backend) for place, device in enumerate(_C.found_devices())]
        listing: dict[str, Any] = {"backend": backend, "devices": devices, "errors": _C.device_errors()}
    except Exception as error:
        listing = {"backend": None, "devices": [], "errors": f"{type(error).__name__}: {error}"}
    json.dump(listing, report)
    report.close()


def registered_backend(modules: list[str]) -> str:
    """Registers a backend if `import torch` does not, and returns its name."""
    from torchgraft import autoload

    for module in modules:
        importlib.import_module(module)
    name = autoload.present() or autoload.preferred()
    if name is None:
        raise LookupError("no backend is installed")
    autoload.choose(name)
    autoload.outcome(name)
    return name


def described(place: int, device: dict[str, Any], backend: str) -> dict[str, Any]:
    """One of `_C.found_devices()` for readers: `number` is what TORCHGRAFT_DEVICES takes."""
    from torchgraft.driver import Capability

    duplicate = device["duplicate_of"]
    return {
        "number": place,
        "device": f"{backend}:{device['index']}" if device["index"] >= 0 else None,
        "duplicate_of": duplicate if duplicate >= 0 else None,
        "name": device["name"],
        "vendor": device["vendor"],
        "driver": device["driver"],
        "driver_version": device["driver_version"],
        "platform": device["platform"],
        "kind": device["kind"],
        "total_memory": device["total_memory"],
        "capabilities": [flag.name for flag in Capability if flag and flag in Capability(device["capabilities"])],
        "uuid": device["uuid"],
    }


if __name__ == "__main__":
    main()
