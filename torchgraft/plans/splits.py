"""Programs of torch.compile that are made of parts, with what cannot be recorded between them."""

from __future__ import annotations

from collections import Counter

__all__ = ["splits"]

#: Why programs were split, and how many.
splits: Counter[str] = Counter()
