"""From kernels as data to kernels on a device."""

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value, ceil_div, round_up
from torchgraft.codegen.types import ElementType, UnsupportedDtype, element_type, value_ctype

__all__ = [
    "ElementType",
    "Kernel",
    "Parameter",
    "Pointer",
    "UnsupportedDtype",
    "Value",
    "ceil_div",
    "element_type",
    "round_up",
    "value_ctype",
]
