"""Fields of one's own on a tensor, which `torch.save` writes beside its data: c10::BackendMeta, from Python.

    set_backend_meta(weight, {"layout": "nz", "version": 3})
    torch.save(weight, "weight.pt")
    backend_meta(torch.load("weight.pt"))          # {"layout": "nz", "version": 3}

**What carries them.** Whatever has the same elements on this backend: `detach()`, `.data`, `Parameter(tensor)`,
`clone()`, `to()` another device of the backend, `copy.deepcopy`, pickling, `torch.save` and `torch.load` (also with
`weights_only=True`), and queues and processes of `torch.multiprocessing`. What computes does not, nor do views, a
conversion of the dtype, or a copy to the CPU: what the fields say of the elements need not be true there.

**In the file** PyTorch's metadata of a tensor is a dict of string to bool (`torch._utils.get_tensor_metadata`), and
nothing but that is written. One key stands for all fields: `torchgraft.backend_meta:` followed by them as JSON. Entries
that somebody else put into the dict by `torch._utils.set_tensor_metadata` are read as bool fields.

**Without the backend** such a file is a file like any other: `torch.load(path, map_location="cpu")` works with an
unmodified PyTorch, which passes over the metadata of tensors that it puts on the CPU. The fields are lost there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import _utils as torch_metadata

from torchgraft import backend

__all__ = ["backend_meta", "set_backend_meta"]

KEY = "torchgraft.backend_meta:"
# What PyTorch keeps in the same dict.
LAZY_BITS = {"conj", "neg"}


def set_backend_meta(tensor: torch.Tensor, fields: Mapping[str, Any] | None) -> None:
    """Gives a tensor fields of one's own, in place of those it had.

    Args:
        tensor: any shape and dtype, on the backend.
        fields: names and values that JSON can hold and give back unchanged: None, bool, int, str, finite float, and
            lists and dicts of these. None or an empty mapping removes the fields.

    Raises:
        ValueError: the tensor is on another device, or a value cannot be written.
        TypeError: `fields` is no mapping.
    """
    _check_device(tensor)
    if fields is not None and not isinstance(fields, Mapping):
        raise TypeError(f"the fields of a tensor are a mapping of names to values, not {type(fields).__name__}")
    entries = dict.fromkeys(LAZY_BITS & torch_metadata.get_tensor_metadata(tensor).keys(), True)
    if fields:
        entries[KEY + _encode(dict(fields))] = True
    torch_metadata.set_tensor_metadata(tensor, entries)


def backend_meta(tensor: torch.Tensor) -> dict[str, Any]:
    """The fields of a tensor: a new dict, empty where it has none.

    Raises:
        ValueError: the tensor is on another device, or its file was not written by this module.
    """
    _check_device(tensor)
    fields: dict[str, Any] = {}
    for key, value in torch_metadata.get_tensor_metadata(tensor).items():
        if key.startswith(KEY):
            fields |= _decode(key.removeprefix(KEY))
        elif key not in LAZY_BITS:
            fields[key] = value
    return fields


def _check_device(tensor: torch.Tensor) -> None:
    if tensor.device.type != backend.name():
        raise ValueError(
            f"only tensors on the device '{backend.name()}' have fields, and this one is on '{tensor.device}'"
        )


def _encode(fields: dict[str, Any]) -> str:
    try:
        text = json.dumps(fields, allow_nan=False, sort_keys=True, separators=(",", ":"))
        same = json.loads(text) == fields
    except (TypeError, ValueError) as error:
        raise ValueError(f"the fields {fields!r} cannot be written as JSON: {error}") from error
    if not same:
        raise ValueError(
            f"the fields {fields!r} would be read back as {text}: use lists for tuples, and strings as keys of dicts"
        )
    return text


def _decode(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the tensor's fields are damaged: {text!r} is no JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ValueError(f"the tensor's fields are damaged: {text!r} is no JSON object")
    return fields
