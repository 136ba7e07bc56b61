"""The kernel of cross products of vectors whose three numbers lie side by side."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.walk import Walk


def components(compute: str, x: str, y: str) -> list[str]:
    """The three numbers of a product, of those of its factors: ``<x>0``, ``<x>1``, ``<x>2`` and ``<y>0``, ..."""

    def product(a: str, b: str) -> str:
        return f"tg_mul_{compute}({a}, {b})" if BY_NAME[compute].is_complex else f"{a} * {b}"

    return [f"{product(f'{x}{i}', f'{y}{j}')} - {product(f'{x}{j}', f'{y}{i}')}" for i, j in ((1, 2), (2, 0), (0, 1))]


@functools.cache
def cross_kernel(type_: str, form: str) -> Kernel:
    """A walk over vectors. Parameters: `out`, `x`, `y`."""
    walk, compute = Walk(form), BY_NAME[type_].compute
    t = value_ctype(compute)
    loads = " ".join(f"const {t} {v}{k} = load_{type_}({v}, 3 * i + {k});" for v in ("x", "y") for k in range(3))
    stores = " ".join(
        f"store_{type_}(out, 3 * i + {k}, {text});" for k, text in enumerate(components(compute, "x", "y"))
    )
    return walk.kernel(
        f"cross_product_{type_}", parameters(f"{type_}* out; const {type_}* x, y"), walk.each(f"{loads} {stores}")
    )
