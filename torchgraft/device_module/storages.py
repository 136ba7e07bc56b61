"""`torch.<name>.FloatStorage` and its like: the typed storages of old, which torch still looks up by name.

`TypedStorage.type("torch.<name>.HalfStorage")` and pickles of long ago ask for them; nobody makes one directly.
"""

from __future__ import annotations

import torch
from torch.storage import _LegacyStorage

_DTYPES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}


def make_storages(module: str) -> dict[str, type[_LegacyStorage]]:
    """The classes by their names; torch reads the device from the name of their module."""
    return {
        name: type(name, (_LegacyStorage,), {"dtype": dtype, "_dtype": dtype, "__module__": module})
        for name, dtype in _DTYPES.items()
    }
