"""Philox 4x32-10 in torch's ops, for what a kernel has drawn and the CPU is to draw again (`functions.philox`)."""

from __future__ import annotations

import torch

__all__ = ["philox_words"]

_WORD = 0xFFFFFFFF


def philox_words(seed: int, counters: torch.Tensor) -> torch.Tensor:
    """The words of counters: int64 [n] of the CPU, to int64 [n, 4] of 32 bits each.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    c0, c1 = counters & _WORD, counters >> 32 & _WORD
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(10):
        # Products wrap round to the right 64 bits; shifted, the sign comes along and is cut off.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & _WORD) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32 & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return torch.stack((c0, c1, c2, c3), -1)
