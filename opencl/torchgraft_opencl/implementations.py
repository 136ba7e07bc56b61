"""OpenCL implementations that came as Python packages.

The system's loader does not know of them (their `.icd` files hold placeholder paths), but the driver can load one
directly, and does where the system has no OpenCL device. That is how a machine gets one without root:
`pip install intel-opencl-rt intel-cmplr-lib-rt`.
"""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path

# distribution: the library's file in it
PACKAGES = {"intel-opencl-rt": "libintelocl.so"}


def packaged_implementations() -> list[Path]:
    """The libraries of the packages that are installed."""
    found = []
    for package, library in PACKAGES.items():
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        paths = [Path(str(file.locate())).resolve() for file in files if file.name == library]
        found += [path for path in paths if path.exists()]
    return found


def offer_to(driver_library: Path) -> None:
    """Names them to the driver, for its first use."""
    if found := packaged_implementations():
        driver = ctypes.CDLL(str(driver_library))
        driver.torchgraft_opencl_fallback_libraries(":".join(map(str, found)).encode())
