"""Matrix multiplication: `C[b] = alpha * A[b] @ B[b] + beta * D[b]`.

A module for each way to do it, for every dtype and every layout, and `choose`, the table of them. Sizes and strides are
run-time arguments, in elements; so a new shape needs no new kernel, but for tiny products. What is fixed in the text is
the dtype, which stride of an operand is one, and whether there is a D.
"""

from __future__ import annotations
