"""How many elements fall into each bin.

On a CPU a group counts its part of the elements in a row of its own, and these are summed up. On a GPU all add to one
row: the order of sums of integers does not matter.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.places import add_into_place
from torchgraft.codegen.types import value_ctype
from torchgraft.codegen.walk import Walk


@functools.cache
def count_kernel(type_: str, even: bool, form: str) -> Kernel:
    """Counts contiguous elements in ``counts``, of which each of a CPU's groups has `bins`; those of a GPU are zero
    before.

    Args:
        type_: element type.
        even: the bins divide the range from `low` to `high` evenly. Without, an element is a bin's number. What lies
            outside counts nowhere.
        form: "cpu" or "gpu".
    """
    walk, t = Walk(form), value_ctype(type_)
    if form == "cpu":
        head = "const long row = (long)GROUP_ID(0) * bins;\n  for (long k = 0; k < bins; ++k) counts[row + k] = 0;"
        add, helpers = "++counts[row + k];", ""
    else:
        head, add, helpers = "", "tg_add_into_place_i32(counts + k, 1);", add_into_place("i32")
    if even:
        find = f"""\
    const {t} v = load_{type_}(x, i);
    if (!(v >= low && v <= high)) continue;
    const long at = (long)((v - low) * ({t})bins / (high - low)), k = at < bins ? at : bins - 1;
    """
    else:
        find = f"""\
    const long k = load_{type_}(x, i);
    if (k < 0 || k >= bins) continue;
    """
    body = f"  {head}\n{walk.each(find + add, vectorize=False)}"
    edges = f"; {type_} low, high" if even else ""
    params = parameters(f"i32* counts; const {type_}* x; i64 bins{edges}")
    return walk.kernel("histogram", params, body, helpers)
