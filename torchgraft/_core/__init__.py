"""The C++ core, compiled once for each minor version of torch; `torchgraft._C` is the one for the torch that is here.

The cores lie in folders beside this file, as `torch2_13/_C.<tag of Python>.so`, so that one tree or one wheel serves
several versions of torch. A folder is chosen before torch is imported, since the end of `import torch` may already want
the core: see `torchgraft.autoload`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from torchgraft._version import TORCH_BELOW, TORCH_FROM, __version__

if TYPE_CHECKING:
    from torchgraft import _C as _C

__all__ = ["UnfitTorchError", "choose", "explain_missing", "find", "minor", "requirement", "supported", "torch_version"]

_FOLDER = Path(__file__).parent


class UnfitTorchError(ImportError):
    """The torch that is here is none of those that this version of torchgraft works with."""


def torch_version() -> str | None:
    """The version of the torch that is imported, or would be; None where there is none to be found."""
    if (loaded := getattr(sys.modules.get("torch"), "__version__", None)) is not None:
        return str(loaded)
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder, "version.py")
        if file.exists() and (found := re.search(r"^__version__ = ['\"](.+)['\"]$", file.read_text(), re.MULTILINE)):
            return found[1]
    return None


def minor(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"."""
    first, second = re.findall(r"\d+", version)[:2]
    return int(first), int(second)


def supported() -> str:
    """The versions of torch that work, in words."""
    return f"torch {_dotted(TORCH_FROM)} to {TORCH_BELOW[0]}.{TORCH_BELOW[1] - 1}"


def requirement() -> str:
    """The same as pip has it."""
    return f"torch>={_dotted(TORCH_FROM)},<{_dotted(TORCH_BELOW)}"


def find() -> Path:
    """The file of the core for the torch and the Python that are here.

    Raises:
        UnfitTorchError: this torch is too old, or newer than those that are tested and without a core.
        ImportError: there is no torch, or no core for it.
    """
    version = torch_version()
    if version is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    found = {minor(file.parent.name): file for suffix in EXTENSION_SUFFIXES for file in _FOLDER.glob(f"*/_C{suffix}")}
    if minor(version) in found and minor(version) >= TORCH_FROM:
        return found[minor(version)]
    if not TORCH_FROM <= minor(version) < TORCH_BELOW:
        newer = minor(version) >= TORCH_BELOW
        own = ", or compile its core for this one, from a source distribution or a checkout" if newer else ""
        raise UnfitTorchError(
            f"torchgraft {__version__} works with {supported()}, and this is torch {version}. Install one of them "
            f"(pip install '{requirement()}'), or a version of torchgraft that is made for this one{own}."
        )
    others = ", ".join(map(_dotted, sorted(found)))
    raise ImportError(f"there is none for it, only for torch {others}" if others else "it has not been compiled")


def choose(path: list[str]) -> None:
    """Puts the folder of the core that `find` finds before the others of torchgraft's `__path__`."""
    path.insert(0, str(find().parent))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def explain_missing(error: ImportError) -> NoReturn:
    """Raises ImportError: what does not load, into what, and what to do."""
    if isinstance(error, UnfitTorchError):
        raise error
    try:
        torch = importlib.import_module("torch")
    except ImportError as missing:
        raise ImportError(f"torchgraft needs torch, which does not import: {missing}") from missing
    raise ImportError(
        f"torchgraft's C++ core does not load into torch {torch.__version__} ({error}). It is compiled for each minor "
        "version of torch; compile it for this one: pip install --force-reinstall --no-deps --no-build-isolation "
        "torchgraft. `torchgraft doctor` tells more."
    ) from error


def __getattr__(name: str) -> ModuleType:
    """The core itself, for those who import it from here rather than from the package's face, which imports them."""
    if name == "_C":
        return importlib.import_module("torchgraft._C")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
