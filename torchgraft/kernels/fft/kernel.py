"""The kernels of Fourier transforms: of lines, and of planes along two axes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from torchgraft.codegen.kernel import Kernel, Value, parameters
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.walk import Walk
from torchgraft.kernels.fft import across, along, gpu
from torchgraft.kernels.fft.lines import Lines, definitions
from torchgraft.kernels.fft.stages import stages


def _call(lines: Lines, type_: str, which: str, suffix: str = "") -> str:
    """Of the function for lines on CPUs; `which` are its last arguments."""
    own = ", ".join(param.name + suffix for param in lines.parameters(type_))
    return f"{lines.name}({own}, {which});"


def _cpu_functions(type_: str, passes: Sequence[Lines]) -> str:
    those_along = "".join(along.functions(lines, type_) for lines in dict.fromkeys(passes) if lines.along)
    return those_along + across.functions([lines for lines in dict.fromkeys(passes) if not lines.along], type_)


@functools.cache
def plane_kernel(type_: str, first: Lines, second: Lines) -> Kernel:
    """Transforms planes along one axis and then along the other, while they lie in a CPU's cache. The walk is over
    shares of `share` lines of the first pass and `share_2` of the second, which are those of the same planes.

    Parameters: those of `line_kernel`, and the second pass's, whose names end in _2, but for `scratch`, of which each
    group has `room` elements.
    """
    params = (*parameters(f"{type_}* scratch; i64 room"),)
    body = f"GLOBAL {BY_NAME[type_].storage}* const own = scratch + GROUP_ID(0) * room;\n"
    for lines, suffix in ((first, ""), (second, "_2")):
        own = (replace(param, name=param.name + suffix) for param in lines.parameters(type_))
        params += (*own, Value(f"share{suffix}", "i64"))
        body += f"""{{
    const long end = min(lines{suffix}, (tg_i + 1) * share{suffix});
    for (long start = tg_i * share{suffix}; start < end; start += {"end - start" if lines.along else "WIDTH"})
      {_call(lines, type_, "own, start, end", suffix)}
  }}
  """
    walk = Walk("cpu", prefix="tg_")
    return walk.kernel("fft_planes", params, walk.each(body, vectorize=False), _cpu_functions(type_, [first, second]))


@functools.cache
def line_kernel(type_: str, lines: Lines, form: str, local: int = 0) -> Kernel:
    """Transforms lines. The walk is over lines, or over as many at once as `lanes` where vectors go across them.

    Parameters: those of `Lines`, and `scratch`.

    Args:
        type_: of real parts, "f32" or "f64".
        form: "cpu" or "gpu". Each group has 4 * lanes numbers of scratch for each element that is transformed, read or
            written: on CPUs `room` of them.
        local: the longest line for which a GPU's group has local memory in place of scratch; 0: it has none.
    """
    scratch, head = f"{type_}* scratch", ""
    if form == "gpu":
        head = f"LOCAL {BY_NAME[type_].storage} own[{4 * local}];\n" if local else ""
        helpers = definitions(type_, form, "LOCAL" if local else "GLOBAL") + stages(form)
        body = gpu.body(lines, local)
    else:
        scratch, helpers = f"{scratch}; i64 room", _cpu_functions(type_, [lines])
        those = "tg_i * WIDTH, min(lines, tg_end * WIDTH)"
        if lines.along:
            those = f"tg_i * {lines.along.lines}, min(lines, tg_i * {lines.along.lines} + {lines.along.lines})"
        body = _call(lines, type_, f"scratch + GROUP_ID(0) * room, {those}")
    params = (*lines.parameters(type_, form), *parameters(scratch))
    walk = Walk("cpu", prefix="tg_")
    kernel = walk.kernel(f"fft_{lines.source}_{lines.target}", params, head + walk.each(body, vectorize=False), helpers)
    # The members of a GPU's group go through its lines together.
    return replace(kernel, local=(gpu.MEMBERS if form == "gpu" else 1,))
