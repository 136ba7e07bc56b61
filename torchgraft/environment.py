"""The environment variables that torchgraft reads: the one list of them. docs/configuration.md tells more of each."""

from __future__ import annotations

import difflib
import os

__all__ = ["VARIABLES", "in_force", "misspelt"]

VARIABLES = {
    "TORCHGRAFT_BACKEND": "the backend that `import torch` registers, of several installed ones",
    "TORCHGRAFT_DEVICES": "which devices are used, and in which order",
    "TORCHGRAFT_FALLBACK": "warn, silent or error: what an op without a kernel does",
    "TORCHGRAFT_CACHE": "0 keeps no compiled kernels on disk",
    "TORCHGRAFT_CACHE_DIR": "where compiled kernels are kept",
    "TORCHGRAFT_CACHE_SIZE": "how much of them is kept, as 512M",
    "TORCHGRAFT_COMPILE_HELPERS": "how many processes compile kernels ahead for this one",
    "TORCHGRAFT_COMPILE_OPTIONS": "more options for the device's compiler",
    "TORCHGRAFT_DISTRIBUTED_STAGED": "1 copies what collectives send, also where the host could read it in place",
    "TORCHGRAFT_MEMORY_CACHING": "0 asks the driver for each tensor's memory by itself, for tools that watch accesses",
    "TORCHGRAFT_KERNEL_FORM": "cpu or gpu: forces one form of the kernels that have two",
    "TORCHGRAFT_SIMD_WIDTH": "how many float32 a vector register holds, in place of what the driver says",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "torch's own: 0 keeps `import torch` from registering a backend",
    "XDG_CACHE_HOME": "the folder of caches, in which torchgraft's is by default",
}


def in_force() -> dict[str, str | None]:
    """The variables that are set: those above, and others that begin with TORCHGRAFT_, as a backend's may.

    Of the others there is only the name: the value, of which nothing is known here, may be a secret.
    """
    names = [name for name in sorted(os.environ) if name in VARIABLES or _is_ours(name)]
    return {name: os.environ[name] if name in VARIABLES else None for name in names}


def misspelt() -> dict[str, str]:
    """Variables that are set and that nothing in the toolkit reads, though it reads one that is written nearly so."""
    found = {}
    for name in filter(_is_ours, os.environ):
        if name not in VARIABLES and (near := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85)):
            found[name] = near[0]
    return found


def _is_ours(name: str) -> bool:
    return name.startswith("TORCHGRAFT_")
