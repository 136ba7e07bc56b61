"""What Triton imports with itself, by its entry point: outside the package, which imports torch, so that nothing amiss
there keeps Triton from being imported. What can fail is imported where it is needed."""

import triton  # noqa: F401  # first, since it imports the modules here, and wants whole ones
