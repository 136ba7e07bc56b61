"""What autocast does with an op: for ops of an author's own, and where a device differs from torch's lists.

torch's own lists hold for the device without further ado. An op that is on none of them runs in the dtypes that it is
given.
"""

from __future__ import annotations

from typing import Literal, get_args

from torchgraft._core import _C
from torchgraft.plans.schema import overload_name, resolve

__all__ = ["Policy", "policy"]

Policy = Literal["lower_precision", "float32", "promote", "none"]


def policy(op: str, policy: Policy) -> None:
    """Says what `torch.autocast("<name>")` casts the floating-point tensors among an op's arguments to.

    Args:
        op: an overload, such as "mylib::attention" or "aten::softmax.int".
        policy: "lower_precision", autocast's dtype, for what gains by it; "float32", for what would lose by it;
            "promote", the widest of the arguments' dtypes, for ops that want them equal; "none", left alone.
            float64 tensors and those of other devices are left alone always.

    Raises:
        ValueError: there is no such op or policy.
    """
    if policy not in get_args(Policy):
        raise ValueError(f"an autocast policy is one of {', '.join(map(repr, get_args(Policy)))}, not {policy!r}")
    _C.register_autocast_policy(overload_name(resolve(op)), policy)
