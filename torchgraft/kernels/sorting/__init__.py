"""Sorting rows, the largest few of a row, and the element of a row that has a place in order.

Elements are mapped to unsigned keys of the same order (`keys`): NaN is the largest, the two zeros are equal. Whatever
sorts leaves equal elements in order. Which kernel a call gets is decided in `ops.sorting.choose`.
"""

from __future__ import annotations
