"""The library of device functions: texts that kernels call.

`HELPERS` has every function that kernels may call, by name; a dialect includes those that a kernel names. The library
lies below `torchgraft.codegen` and knows nothing of it.
"""

from torchgraft.functions import (
    activations,
    arithmetic,
    chances,
    complex_math,
    errors,
    gamma_gradients,
    math,
    math_double,
    philox,
    special,
)

NEAR = {**math.NEAR, **math_double.NEAR}
"""Functions -> what is as good for arguments up to `NEAREST` of their type, and quicker."""
NEAREST = {"f32": math.NEAREST, "f64": math_double.NEAREST}

HELPERS: dict[str, str] = {
    **math.HELPERS,
    **math_double.HELPERS,
    **complex_math.HELPERS,
    **activations.HELPERS,
    **special.HELPERS,
    **arithmetic.HELPERS,
    **philox.HELPERS,
    **chances.HELPERS,
    **gamma_gradients.HELPERS,
    **errors.HELPERS,
}

__all__ = ["HELPERS", "NEAR", "NEAREST"]
