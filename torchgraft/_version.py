"""The version, and those of torch that it works with: the one place where they stand, for both distributions.

Read when they are built, without an import. What pyproject.toml says of torch is compared by a test.
"""

__all__ = ["TORCH_BELOW", "TORCH_FROM", "__version__"]

__version__ = "0.1.0"

#: The first minor version of torch that works, and the first that is too new.
TORCH_FROM = (2, 13)
TORCH_BELOW = (2, 16)
