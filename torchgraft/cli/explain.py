"""Which kernels serve a call, and of each family of kernels that has several why it is this one: of the device that is
here, or of a class of devices of which none need be here.

    torchgraft explain mm 64x300x64 --dtype bfloat16 --target cpu64-tiles
    torchgraft explain conv2d 4x64x56x56 64x64x3x3 padding=1

A shape is a tensor, anything else is read as Python; of `mm` the three sizes may be written together. Exit status: 0,
or 1 if the call cannot be made or planned.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchgraft.plans.device import DeviceTraits

__all__ = ["HELP", "add_arguments", "run"]

HELP = "tell which kernels serve a call, and why"
# Those of ops.choices, which imports torch.
TARGETS = ("here", "cpu32", "cpu64", "cpu64-pairs", "cpu64-tiles", "gpu", "gpu-matrix")
_SHAPE = re.compile(r"\d+(x\d+)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("op", help="a function or an op of PyTorch: mm, fft.rfft, sum.dim_IntList, mylib::axpy")
    parser.add_argument("arguments", nargs="*", help="4x64 is a tensor, others are read as Python; stride=2 has a name")
    parser.add_argument("--dtype", default="float32", help="of all tensors (default: float32)")
    parser.add_argument(
        "--target", choices=TARGETS, default="here", help="the device: the one that is here, or one of a class"
    )
    parser.add_argument(
        "--without", metavar="WAY", action="append", default=[], help="a way that is not to be taken; see its table"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.without:
        os.environ["TORCHGRAFT_WITHOUT_WAYS"] = ",".join(arguments.without)

    from torchgraft.kernels.choice import choices
    from torchgraft.ops.choices import calls_of, described, fake_device, kernels_of
    from torchgraft.plans import Unsupported

    try:
        op, target = _op(arguments.op), _target(arguments.target)
        with fake_device():
            given, named = _given(arguments.op, arguments.arguments, arguments.dtype)
            calls = calls_of(lambda: op(*given, **named))
    except (AttributeError, RuntimeError, TypeError, ValueError, SyntaxError) as error:
        print(f"torchgraft explain: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return 1
    failed, unknown = False, set(arguments.without)
    for func, args, kwargs in calls:
        with choices() as made:
            try:
                kernels = ", ".join(kernel.name for kernel in kernels_of(func, args, kwargs, *target))
            except (Unsupported, ValueError, RuntimeError) as error:
                kernels, failed = f"none: {error}", True
        if kernels or made:
            print(described(func, args, kwargs))
        for choice in made:
            print(f"  {choice.family}: {choice.problem}")
            for name, why in choice.ways:
                print(f"    {name:<16} {why or '<- taken'}")
                unknown -= {name, f"{choice.family}.{name}"}
        if kernels:
            print(f"  kernels: {kernels}")
    if unknown and not failed:
        print(f"torchgraft explain: no table of this call has a way {', '.join(sorted(unknown))}", file=sys.stderr)
        return 1
    return int(failed)


def _op(name: str) -> Any:
    """A function of PyTorch's, or an overload, or what finds one by the arguments.

    Raises:
        AttributeError: there is none.
    """
    import torch

    for module in (torch.nn.functional, torch):
        with suppress(AttributeError):
            if callable(function := attrgetter(name)(module)):
                return function
    namespace, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace or "aten"), packet)
    return getattr(found, overload) if overload else found


def _given(op: str, texts: list[str], dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments, and those with a name ("stride=2").

    Raises:
        AttributeError, SyntaxError, ValueError: there is no such dtype, or something is no Python.
    """
    import torch

    if op == "mm" and len(texts) == 1 and texts[0].count("x") == 2:
        m, k, n = texts[0].split("x")
        texts = [f"{m}x{k}", f"{k}x{n}"]
    element = getattr(torch, dtype)

    def value(text: str) -> Any:
        if "x" in text and _SHAPE.fullmatch(text):
            return torch.empty([int(size) for size in text.split("x")], dtype=element)
        return ast.literal_eval(text)

    named = dict(text.split("=", 1) for text in texts if "=" in text)
    return [value(text) for text in texts if "=" not in text], {name: value(text) for name, text in named.items()}


def _target(target: str) -> tuple[DeviceTraits, str]:
    """A device's traits, and the form of its kernels."""
    import torch

    from torchgraft.ops.choices import CLASSES
    from torchgraft.plans.device import device_traits, kernel_form

    if target != "here":
        return CLASSES[target], CLASSES[target].kind
    torch.empty(0, device=torch._C._get_privateuse1_backend_name())  # opens the devices
    return device_traits(0), kernel_form(0)
