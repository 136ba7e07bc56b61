"""What is said where the C++ core does not load."""

from __future__ import annotations

import importlib
from typing import NoReturn

__all__ = ["explain_missing_core"]


def explain_missing_core(error: ImportError) -> NoReturn:
    """Raises ImportError: what does not load, into what, and what to do."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as missing:
        raise ImportError(f"torchgraft needs torch, which does not import: {missing}") from missing
    raise ImportError(
        f"torchgraft's C++ core does not load into torch {torch.__version__} ({error}). It is compiled for one minor "
        "version of torch; compile it for this one: pip install --force-reinstall --no-deps --no-build-isolation "
        "torchgraft. `torchgraft doctor` tells more."
    ) from error
