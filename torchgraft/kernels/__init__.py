"""Kernel texts.

`HELPERS` has every function that kernels may call, by name; a dialect includes those that a kernel names.
"""

from torchgraft.kernels import arithmetic, chances, gamma_gradients, math, philox, special

HELPERS: dict[str, str] = {
    **math.HELPERS,
    **special.HELPERS,
    **arithmetic.HELPERS,
    **philox.HELPERS,
    **chances.HELPERS,
    **gamma_gradients.HELPERS,
}

__all__ = ["HELPERS"]
