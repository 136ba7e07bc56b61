"""Transforms on GPUs: a work-group takes one line, in local memory if it is short."""

from __future__ import annotations

from torchgraft.codegen.tuning import LOCAL_BYTES
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels.fft.lines import Lines, load, place, store
from torchgraft.kernels.fft.stages import gpu_run

#: Of a work-group.
MEMBERS = 64


def local_length(type_: str) -> int:
    """The longest line that a work-group keeps in local memory: two complex numbers for each element."""
    return LOCAL_BYTES // (4 * BY_NAME[type_].size)


_EXCHANGE = "if (backward) { SPACE V* swap = ar; ar = ai; ai = swap; }"


def body(lines: Lines, local: int) -> str:
    return f"""
  {"" if local else "GLOBAL T* const own = scratch + GROUP_ID(0) * 4 * n;"}
  const long line = tg_i;
  {place(lines.rank)}
  SPACE V *ar = own, *ai = own + n, *br = own + 2 * n, *bi = own + 3 * n;
  const long source_from = part * source_first, source_place = source_at + source_from * source_stride;
  const long target_from = part * target_first, target_place = target_at + target_from * target_stride;
  {_EXCHANGE}
  for (int j = LOCAL_ID(0); j < n; j += LOCAL_SIZE(0)) {{
    const long jump = source_step * source_stride;
    {load(lines.source, "j", "source_at", "source_from", "source_place")}
  }}
  {_EXCHANGE}
  {gpu_run()}
  {_EXCHANGE}
  for (int j = LOCAL_ID(0); j < n; j += LOCAL_SIZE(0)) {{
    const long jump = target_step * target_stride;
    {store(lines.target, "j", "target_from", "target_place")}
  }}
  BARRIER;"""
