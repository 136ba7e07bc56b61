"""What can be said without a device: versions, packages, environment, the kernel cache, the core, the registration."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from torchgraft import _core, autoload
from torchgraft.diagnosis import DIAGNOSES, Finding
from torchgraft.registration import environment
from torchgraft.registration.installed import DRIVERS, backend_names, driver_entries

__all__ = ["core", "environment_variables", "kernel_cache", "packages", "registration", "versions"]

_MIB = 1 << 20


def versions() -> Iterator[Finding]:
    """Python, torch, torchgraft and its core."""
    yield Finding("python", "ok", f"{platform.python_version()}, {platform.platform()}, {sys.executable}")
    try:
        import torch
    except Exception as error:
        advice = "install torch: pip install torch" if isinstance(error, ModuleNotFoundError) else "install torch anew"
        yield Finding("torch", "problem", f"does not import: {type(error).__name__}: {error}", advice)
    else:
        yield Finding("torch", "ok", f"{torch.__version__}, {Path(torch.__file__).parent}")
    import torchgraft

    yield Finding("torchgraft", "ok", f"{torchgraft.__version__}, {Path(torchgraft.__file__).parent}")


def core() -> Iterator[Finding]:
    """Whether the C++ core is there, for which torch it was compiled, and whether it loads."""
    try:
        file = _core.find()
    except _core.UnfitTorchError as error:
        yield Finding("C++ core", "problem", str(error))
        return
    except ImportError as error:
        yield Finding("C++ core", "problem", str(error), "compile it: pip install --no-build-isolation .")
        return
    compiled_for = compiled_for_torch(file) or "an unknown torch"
    try:
        importlib.import_module("torch")  # whose libraries it needs
        importlib.import_module("torchgraft._C")
    except ImportError as error:
        yield Finding(
            "C++ core",
            "problem",
            f"compiled for torch {compiled_for}; it does not load: {error}",
            "compile it for the installed torch: "
            "pip install --force-reinstall --no-deps --no-build-isolation torchgraft",
        )
    else:
        yield Finding("C++ core", "ok", f"compiled for torch {compiled_for}; loads")


def compiled_for_torch(core: Path) -> str | None:
    """The version of torch that a core was compiled for, read out of its file without loading it."""
    found = re.search(rb"torchgraft core for torch ([0-9.]+);", core.read_bytes())
    return found.group(1).decode() if found else None


def packages() -> Iterator[Finding]:
    """The installed distributions that have to do with torchgraft, by their entry points."""
    for group, what in (
        ("torch.backends", "imported with torch"),
        (DRIVERS, "driver"),
        (DIAGNOSES, "diagnosis"),
    ):
        for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
            of = f" ({entry.dist.name} {entry.dist.version})" if entry.dist is not None else ""
            yield Finding(f"{what}: {entry.name}", "ok", f"{entry.value}{of}")
    if not backend_names():
        yield Finding(
            "backends",
            "note",
            f'no installed package has an entry point in the group "{DRIVERS}"',
            "install a backend's package, or pass drivers to torchgraft.register",
        )


def environment_variables() -> Iterator[Finding]:
    """The variables that are set, and those that are probably misspelt; values only of those that are known."""
    misspelt, meaningless = environment.misspelt(), environment.meaningless()
    for name, value in environment.in_force().items():
        if name in misspelt:
            yield Finding(name, "warning", "is set, and nothing reads it", f"meant is {misspelt[name]}?")
        elif name in meaningless:
            yield Finding(name, "warning", f"{value!r} means nothing", f"it may be {meaningless[name]}")
        elif value is None:
            yield Finding(name, "note", "is set: a variable of a backend, or of nothing that is known here")
        else:
            yield Finding(name, "note", f"{value!r}: {environment.VARIABLES[name]}")
    if not environment.in_force():
        yield Finding("environment", "ok", "no variable of torchgraft is set")


def kernel_cache() -> Iterator[Finding]:
    """Where compiled kernels are kept, how many, and whether they will be."""
    from torchgraft.codegen.cache import KernelCache

    cache = KernelCache()
    folder = cache.directory
    if not cache.enabled:
        yield Finding("kernel cache", "note", f"{folder}: switched off by TORCHGRAFT_CACHE=0")
        return
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    cost = "without a cache every process compiles its kernels anew"
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        yield Finding("kernel cache", "warning", f"{folder} cannot be written: {error}", f"{cache.remedy()}; {cost}")
        return
    if (distrust := cache.distrust()) is not None:
        yield Finding("kernel cache", "warning", f"{distrust}: not used", f"{cache.remedy()}; {cost}")
    elif existing != folder:
        yield Finding("kernel cache", "ok", f"{folder} will be made when it is first needed")
    else:
        kernels, size = cache.usage()
        text = f"{folder}: {kernels} kernels, {size / _MIB:.1f} MiB of at most {cache.bound / _MIB:.1f}, yours alone"
        yield Finding("kernel cache", "ok", text)


def registration(modules: Sequence[str]) -> Iterator[Finding]:
    """Which backend is registered, after importing what is to register one, and registering one if none is."""
    for module in modules:
        importlib.import_module(module)
    from torchgraft.registration.register import registered_name

    name = autoload.present() or autoload.preferred()
    if name is None:
        yield Finding("backend", "problem", "there is none", "install a backend's package")
        return
    by_itself = registered_name() is not None
    try:
        autoload.choose(name)
        autoload.outcome(name)
    except Exception as error:
        yield Finding("backend", "problem", f"'{name}' cannot be registered: {type(error).__name__}: {error}")
        return
    how = f"importing {', '.join(modules)}" if modules else "`import torch`" if by_itself else "this command"
    drivers = ", ".join(entry.value for entry in driver_entries(name)) or "given by the program"
    yield Finding("backend", "ok", f"'{name}', registered by {how}; drivers: {drivers}")
    if not by_itself:
        yield Finding("autoload", "note", *_why_not_by_itself(name))
    if others := [other for other in backend_names() if other != name]:
        text = f"{', '.join(others)}: installed too; a process has one"
        yield Finding("other backends", "note", text, f"TORCHGRAFT_BACKEND={others[0]} chooses another")


def _why_not_by_itself(name: str) -> tuple[str, str]:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "`import torch` registers no backend, since TORCH_DEVICE_BACKEND_AUTOLOAD=0", "unset it"
    if not any(entry.name == name for entry in metadata.entry_points(group="torch.backends")):
        return '`import torch` does not register it: its package has no entry point in "torch.backends"', ""
    return (
        "`import torch` does not register it: torch has another accelerator here",
        f"import the backend's package, or set TORCHGRAFT_BACKEND={name}",
    )
