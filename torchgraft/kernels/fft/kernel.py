"""The kernels of Fourier transforms, of lines."""

from __future__ import annotations

import functools
from dataclasses import replace

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.walk import Walk
from torchgraft.kernels.fft import across, along, gpu
from torchgraft.kernels.fft.lines import Lines, definitions
from torchgraft.kernels.fft.stages import stages


def _call(lines: Lines, type_: str, which: str) -> str:
    """Of the function for lines on CPUs; `which` are its last arguments."""
    own = ", ".join(param.name for param in lines.parameters(type_))
    return f"{lines.name}({own}, {which});"


def _cpu_functions(type_: str, lines: Lines) -> str:
    return along.functions(lines, type_) if lines.along else across.functions(lines, type_)


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
        scratch, helpers = f"{scratch}; i64 room", _cpu_functions(type_, lines)
        those = "tg_i * WIDTH, min(lines, tg_end * WIDTH)"
        if lines.along:
            those = f"tg_i * {lines.along.lines}, min(lines, tg_i * {lines.along.lines} + {lines.along.lines})"
        body = _call(lines, type_, f"scratch + GROUP_ID(0) * room, {those}")
    params = (*lines.parameters(type_, form), *parameters(scratch))
    walk = Walk("cpu", prefix="tg_")
    kernel = walk.kernel(f"fft_{lines.source}_{lines.target}", params, head + walk.each(body, vectorize=False), helpers)
    # The members of a GPU's group go through its lines together.
    return replace(kernel, local=(gpu.MEMBERS if form == "gpu" else 1,))
