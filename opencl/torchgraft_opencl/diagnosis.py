"""For `torchgraft doctor`: the platforms, the files that name them, and what became of each device."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from torchgraft.diagnosis import Finding, State
from torchgraft_opencl.driver import driver_library
from torchgraft_opencl.implementations import offer_to, packaged_implementations

__all__ = ["VARIABLES", "diagnose", "small_launches"]

#: What the driver reads, and what the loaders and implementations below it read.
VARIABLES = {
    "TORCHGRAFT_OPENCL_LIBRARY": "the OpenCL libraries to load",
    "TORCHGRAFT_OPENCL_MEMORY": "the memory model to use: host, svm, coarse or buffer",
    "TORCHGRAFT_OPENCL_CLBLAST": "which products of matrices are CLBlast's: off, tuned or always",
    "TORCHGRAFT_OPENCL_BUILTINS": "header: for comparing compile times",
    "TORCHGRAFT_OPENCL_HOST": "how much a CPU device does without OpenCL's workers: off, caller, team or code (all)",
    "TORCHGRAFT_OPENCL_FAIL": "for tests: calls that are to fail",
    "OCL_ICD_VENDORS": "the loader's: where the .icd files are",
    "OCL_ICD_FILENAMES": "the loader's: the implementations themselves",
    "RUSTICL_ENABLE": "rusticl's, Mesa's OpenCL: the drivers whose devices it shows",
    "RUSTICL_FEATURES": "rusticl's: what its devices can do beyond what it is sure of, as fp64",
    "POCL_DEVICES": "PoCL's: its devices",
    "POCL_CACHE_DIR": "PoCL's: its cache of compiled kernels; where it cannot be used, a temporary folder is",
}
_VENDORS = "/etc/OpenCL/vendors"
_RUSTICL = "rusticl"  # a platform's name, and that of the file that names it to loaders
# Kernel drivers of GPUs, and what RUSTICL_ENABLE calls those of Mesa for them.
_GALLIUM = {
    "amdgpu": "radeonsi",
    "radeon": "radeonsi",
    "i915": "iris",
    "xe": "iris",
    "asahi": "asahi",
    "panfrost": "panfrost",
    "msm": "freedreno",
    "v3d": "v3d",
    "nouveau": "nouveau",
}
_INSTALL = (
    "a GPU's OpenCL comes with its driver; for the CPU: apt-get install pocl-opencl-icd, or without root "
    "pip install intel-opencl-rt intel-cmplr-lib-rt"
)


def diagnose() -> Iterator[Finding]:
    """What is found on the way from the environment to a device."""
    yield Finding(
        "name",
        "note",
        "the device is 'ocl', as in torch.ones(2, device=\"ocl\"); 'opencl' is a type of torch's own, unused",
    )
    for name, meaning in VARIABLES.items():
        if name in os.environ:
            yield Finding(name, "note", f"{os.environ[name]!r}: {meaning}")
    yield from _vendor_files(Path(os.environ.get("OCL_ICD_VENDORS") or _VENDORS))
    for implementation in packaged_implementations():
        yield Finding("implementation as a package", "ok", f"{implementation}, used where the system has no device")
    library = driver_library()
    if not library.exists():
        yield Finding("driver", "problem", f"{library} is missing", "pip install --no-build-isolation ./opencl")
        return
    offer_to(library)
    driver = ctypes.CDLL(str(library))
    yield from _journal(driver)
    yield from small_launches(driver)


def _vendor_files(folder: Path) -> Iterator[Finding]:
    """The files that tell the system's loader of implementations."""
    files = sorted(folder.glob("*.icd")) if folder.is_dir() else [folder] if folder.suffix == ".icd" else []
    if not files:
        yield Finding(
            "ICD files", "note", f"{folder} has none: the system's loader knows of no implementation", _INSTALL
        )
    for file in files:
        try:
            named = file.read_text().strip()
            ctypes.CDLL(named)
        except OSError as error:
            advice = "install that implementation again, or remove the file"
            yield Finding(f"ICD file {file}", "warning", f"what it names does not load: {error}", advice)
        else:
            yield Finding(f"ICD file {file}", "ok", named)


def _journal(driver: ctypes.CDLL) -> Iterator[Finding]:
    """What the driver met while it looked for devices (Journal in csrc/device.h)."""
    driver.torchgraft_opencl_journal.restype = ctypes.c_char_p
    found = has_pocl = False
    has_rusticl = (Path(os.environ.get("OCL_ICD_VENDORS") or _VENDORS) / f"{_RUSTICL}.icd").exists()
    for line in driver.torchgraft_opencl_journal().decode(errors="replace").splitlines():
        kind, *fields = line.split("\t")
        if kind == "library":
            path, problem = fields
            yield Finding(f"library {path}", "warning" if problem else "ok", problem or "loads")
        elif kind == "platform":
            name, vendor, version, devices = fields
            state: State = "note" if devices == "0" else "ok"
            has_rusticl |= name == _RUSTICL
            advice = rusticl_advice() if name == _RUSTICL and devices == "0" else ""
            yield Finding(f"platform {name}", state, f"{vendor}, {version}; devices: {devices}", advice)
        elif kind == "cache":
            has_pocl = True
            yield _pocl_cache(*fields)
        elif kind == "device":
            found = True
            name, platform, version, memory, features = fields
            yield Finding(f"device {name}", "ok", f"{platform}, {version}; memory model: {memory}; {features}")
            if platform == _RUSTICL and "float64" not in features.split(", "):
                advice = "RUSTICL_FEATURES=fp64 in the environment, which rusticl leaves out unless it is asked for"
                yield Finding(f"float64 of {name}", "note", "it is not there", advice)
        else:
            name, platform, why = fields
            yield Finding(f"device {name}", "warning", f"{platform}: refused, {why}")
    if not found:
        advice = "PoCL is installed: see what is said of it above, and whether POCL_DEVICES is right"
        if not has_pocl:
            advice = f"{rusticl_advice()}; or: {_INSTALL}" if has_rusticl else _INSTALL
        yield Finding("OpenCL devices", "problem", "none was found", advice)


#: What runs them, by the driver's word for it (torchgraft_opencl_small_launches in csrc/driver.cpp).
_WAYS = {
    "direct": "PoCL's machine code is called in the calling thread and its helpers, as quick as can be",
    "device": "PoCL's device for that runs them in the calling thread, microseconds slower than by calling code",
    "queues": "the calling thread runs them, by queues that the implementation has for that",
    "workers": "the implementation's workers run them, as large ones",
}


def small_launches(driver: ctypes.CDLL) -> Iterator[Finding]:
    """The way that they take on each device. Where that is PoCL's machine code, it is tried."""
    driver.torchgraft_opencl_small_launches.restype = ctypes.c_char_p
    for line in driver.torchgraft_opencl_small_launches().decode(errors="replace").splitlines():
        name, way, why = line.split("\t")
        text = _WAYS[way] + (f": {why}" if why else "")
        if not why:
            yield Finding(f"small launches of {name}", "ok" if way != "workers" else "note", text)
        elif why.startswith("TORCHGRAFT_"):
            yield Finding(f"small launches of {name}", "note", text)
        else:
            advice = (
                "results are right; a newer torchgraft may know this PoCL, and if it does not, please report this line"
            )
            yield Finding(f"small launches of {name}", "warning", text, advice)


def _pocl_cache(own: str, problem: str, used: str) -> Finding:
    """About the folder in which PoCL compiles, without which it has no devices (csrc/pocl_cache.h)."""
    advice = "set POCL_CACHE_DIR to a folder that you can write, on a disk that is not full"
    if not problem:
        return Finding("PoCL's cache", "ok", f"{own} can be written")
    if not used:
        return Finding("PoCL's cache", "warning", f"{problem}; nor can a temporary folder be made", advice)
    state: State = "warning" if os.environ.get("POCL_CACHE_DIR") else "note"
    return Finding("PoCL's cache", state, f"{problem}; a temporary folder serves for each process", advice)


def rusticl_advice(cards: Path = Path("/sys/class/drm")) -> str:
    """What makes rusticl show devices: it shows none but those of the drivers that it is told to use."""
    kernel_drivers = {link.resolve().name for link in sorted(cards.glob("card*/device/driver"))}
    fitting = sorted({_GALLIUM[name] for name in kernel_drivers if name in _GALLIUM})
    if fitting:
        return f"RUSTICL_ENABLE={','.join(fitting)} in the environment, for rusticl to use this machine's GPU"
    return (
        "RUSTICL_ENABLE=<driver> in the environment, for rusticl to use it: radeonsi (AMD), iris (Intel), asahi, "
        "freedreno, panfrost, or llvmpipe, which is the CPU"
    )
