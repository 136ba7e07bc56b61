"""What is not compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchgraft.triton.ir import Op

__all__ = ["Refused"]


class Refused(NotImplementedError):
    """A kernel has what cannot be compiled; the message has the op and its line.

    Attributes:
        reason: why, in a few words.
    """

    def __init__(self, reason: str, op: Op | None = None) -> None:
        self.reason = reason
        named = "" if op is None else f"{op.name}: "
        place = f" ({op.where})" if op is not None and op.where else ""
        super().__init__(f"torchgraft does not compile {named}{reason}{place}")
