"""Which names a backend can have. Without torch, so that a name can be judged where torch does not load."""

from __future__ import annotations

import re

__all__ = ["RESERVED_NAMES", "check_name"]

# Names that torch's device parser or its compiler give a meaning of their own.
RESERVED_NAMES = set(
    "any cpu cuda fpga hip hpu ideep ipu lazy maia meta mkldnn mps mtia opencl opengl ort privateuse1 privateuseone "
    "tpu ve vulkan xla xpu".split()
)


def check_name(name: str) -> None:
    """Raises ValueError for a name that torch cannot parse (in `torch.device("foo:1")`) or that it uses itself."""
    if not re.fullmatch("[a-z_]+", name):
        raise ValueError(
            f"{name!r} cannot name a device: torch parses device names of lower-case letters and underscores only, "
            "so choose one like 'foo' or 'my_npu'"
        )
    if name in RESERVED_NAMES:
        raise ValueError(f"{name!r} cannot name a device: torch itself uses this name; choose another")
