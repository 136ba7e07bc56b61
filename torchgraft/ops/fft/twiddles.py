"""Twiddle factors and the other tables of transforms. They are made in float64 on the host and stay on the device with
the plans that use them.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch

from torchgraft.plans import PlanBuilder


def _roots(numerators: torch.Tensor, n: int) -> torch.Tensor:
    """exp(-2 pi i k / n) for integers k: [..., 2] of float64, right to the last place.

    Integers bring the angle into [0, pi / 4], where a rounded argument is harmless, before there are any fractions.
    """
    k = numerators.remainder(n) * 8
    octant = k.div(n, rounding_mode="floor")
    odd = octant.remainder(2) == 1
    rest = k - octant * n
    angle = torch.where(odd, n - rest, rest).double() * (math.pi / 4 / n)
    cos, sin = angle.cos(), angle.sin()
    sin = torch.where(odd, -sin, sin)
    quarter = (octant + odd).div(2, rounding_mode="floor").remainder(4)
    real = torch.where(quarter == 0, cos, torch.where(quarter == 1, -sin, torch.where(quarter == 2, -cos, sin)))
    imag = torch.where(quarter == 0, sin, torch.where(quarter == 1, cos, torch.where(quarter == 2, -sin, -cos)))
    return torch.stack([real, -imag], -1)


def _conjugate(table: torch.Tensor, wanted: bool) -> torch.Tensor:
    return table * torch.tensor([1.0, -1.0], dtype=table.dtype, device="cpu") if wanted else table


def _count(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int64, device="cpu")


# ---- The tables. ----


def of_a_line(n: int) -> torch.Tensor:
    return _roots(_count(n), n)


def between_steps(rows: int, columns: int, backward: bool) -> torch.Tensor:
    """[rows, columns]"""
    return _conjugate(_roots(_count(rows).unsqueeze(1) * _count(columns), rows * columns), backward)


def chirp(n: int, backward: bool) -> torch.Tensor:
    """exp(-pi i k^2 / n)."""
    return _conjugate(_roots((_count(n) * _count(n)).remainder(2 * n), 2 * n), backward)


def chirp_spectrum(n: int, length: int, backward: bool) -> torch.Tensor:
    """The transform of what Bluestein's algorithm convolves with, divided by its length."""
    wave = _conjugate(chirp(n, backward), True)
    row = torch.zeros(length, 2, dtype=torch.float64, device="cpu")
    row[:n] = wave
    row[length - n + 1 :] = wave[1:].flip(0)
    return torch.view_as_real(torch.fft.fft(torch.view_as_complex(row))) / length


def of_rows(n: int, lines: int, pairs: int, *radices: int) -> torch.Tensor:
    """[elements]: as `kernels.fft.along` reads them, stage by stage, and then what it needs for pairs."""
    parts, done = [], radices[0]
    for radix in radices[1:]:
        powers = _count(radix)[1:].unsqueeze(1) * _count(done) * (n // (done * radix))
        parts.append(_roots(powers, n).transpose(1, 2).flatten())
        done *= radix
    if pairs:
        roots = _roots(_count(n + 1), 2 * n)
        parts += [roots[:, 1], -roots[:, 0]]
    empty = torch.empty(0, dtype=torch.float64, device="cpu")
    return torch.cat([empty, *parts]).repeat_interleave(lines)


_Table = tuple[torch.dtype, int, Callable[..., torch.Tensor], tuple[int, ...]]
"""Its type, its device, its maker and the arguments of that."""

# ---- Where they are kept. ----

# Plans of one length share tables. The last few are kept beside the plans that use them.
_tables: OrderedDict[_Table, torch.Tensor] = OrderedDict()
_tables_lock = threading.Lock()
_KEPT_BYTES = 32 << 20


def table(p: PlanBuilder, dtype: torch.dtype, maker: Callable[..., torch.Tensor], *args: int) -> torch.Tensor:
    """What one of these functions makes, for a plan."""
    key: _Table = (dtype, p.device.index, maker, args)
    with _tables_lock:
        made = _tables.get(key)
        if made is not None:
            _tables.move_to_end(key)
            return p.table(made)
    made = maker(*args).to(dtype).to(torch.device(torch._C._get_privateuse1_backend_name(), p.device.index))
    with _tables_lock:
        _tables[key] = made
        while sum(kept.nbytes for kept in _tables.values()) > _KEPT_BYTES:
            _tables.popitem(last=False)
    return p.table(made)
