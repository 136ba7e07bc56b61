"""Scalars of a call as planners see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Scalar:
    """A number among an op's arguments (`alpha`, `eps`, a learning rate).

    Passed on to a launch it stays dynamic: the plan serves every value. A planner that reads the value - by `float`,
        `int`, `bool`,
    `complex` or a comparison - makes it part of the op's key from then on. Its `type` may be read freely.

    Attributes:
        index: its number among the call's scalars.
        type: "int", "float", "bool" or "complex".
    """

    __slots__ = ("_on_read", "_value", "index", "type")

    def __init__(self, value: complex, index: int, on_read: Callable[[int], None]) -> None:
        self._value = value
        self._on_read = on_read
        self.index = index
        self.type = type(value).__name__

    @property
    def value(self) -> complex:
        """The number; reading it specialises the plan."""
        self._on_read(self.index)
        return self._value

    @property
    def python_type(self) -> type:
        """`int`, `float`, `bool` or `complex`."""
        return type(self._value)

    def peek(self) -> complex:
        """The number, for uses on which the plan does not depend (torch's meta kernels, error messages)."""
        return self._value

    def __float__(self) -> float:
        value: Any = self.value
        return float(value)

    def __int__(self) -> int:
        value: Any = self.value
        return int(value)

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __lt__(self, other: float) -> bool:
        return float(self) < other

    def __le__(self, other: float) -> bool:
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        return float(self) > other

    def __ge__(self, other: float) -> bool:
        return float(self) >= other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Scalar({self._value!r})"
