"""A driver's C table, for the tests of its package."""

from __future__ import annotations

from torchgraft.driver_table import (
    EXCEPTIONS,
    HEADER,
    MIN_SIZE,
    OPTIONAL,
    Argument,
    Command,
    Launch,
    Properties,
    Status,
    Table,
    TableDriver,
    driver_table,
)

__all__ = [
    "EXCEPTIONS",
    "HEADER",
    "MIN_SIZE",
    "OPTIONAL",
    "Argument",
    "Command",
    "Launch",
    "Properties",
    "Status",
    "Table",
    "TableDriver",
    "driver_table",
]
