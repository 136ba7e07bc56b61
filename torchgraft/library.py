"""`torchgraft.load_library`: functions of one's own, in C or C++, that use `torchgraft/functions.h`."""

from __future__ import annotations

import ctypes
import os

from torchgraft._core import _C

__all__ = ["load_library"]


def load_library(path: str | os.PathLike[str]) -> ctypes.CDLL:
    """Loads a shared library that uses torchgraft/functions.h, and gives it what that offers.

    Its functions are then called as those of any `ctypes.CDLL`, without the GIL, with addresses by `Tensor.data_ptr()`;
    ops that it declares by TORCH_LIBRARY are there.

    Raises:
        OSError: it cannot be loaded.
        ValueError: it does not use the header (no file of it defines TORCHGRAFT_FUNCTIONS).
        RuntimeError: it was built for a later torchgraft.
    """
    library = ctypes.CDLL(os.fspath(path))
    try:
        use = library.torchgraft_use
    except AttributeError:
        raise ValueError(
            f"{os.fspath(path)} does not use torchgraft/functions.h: define TORCHGRAFT_FUNCTIONS in one of its files, "
            "before the header"
        ) from None
    use.argtypes, use.restype = [ctypes.c_void_p], ctypes.c_int
    if use(_C.author_functions()):
        raise RuntimeError(f"{os.fspath(path)} was built with the header of a later torchgraft: upgrade that")
    return library
