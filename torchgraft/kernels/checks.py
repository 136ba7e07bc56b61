"""A kernel that looks whether values are what an op takes."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import value_ctype
from torchgraft.codegen.walk import Walk


@functools.cache
def check_kernel(storage: str, compute: str, condition: str, form: str) -> Kernel:
    """Reports if there is an element ``x`` of which the condition is false."""
    walk = Walk(form)
    bad = walk.each(f"{value_ctype(compute)} x = load_{storage}(values, i); bad |= !({condition});")
    body = f"  int bad = 0;\n{bad}\n  if (bad) tg_report(errors, code, 0);"
    return walk.kernel("check_values", parameters(f"const {storage}* values; i32* errors; i32 code"), body)
