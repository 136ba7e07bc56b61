"""What torchgraft.testing needs beside torch: the extra `testing`."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["MissingExtraError", "need"]


class MissingExtraError(ImportError):
    """Modules of the extra `testing` are not installed; the message says which, and what installs them."""


def need(what: str, *modules: str) -> None:
    """Raises `MissingExtraError` if one of the modules cannot be found.

    Args:
        what: what needs them, for the message.
        modules: top-level names.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        are = "is not installed" if len(missing) == 1 else "are not installed"
        raise MissingExtraError(
            f"{what} needs {' and '.join(missing)}, which {are}: pip install torchgraft[testing]", name=missing[0]
        )
