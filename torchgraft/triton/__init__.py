"""Triton's kernels on the device: `kernel[grid](...)` of `@triton.jit` functions, unchanged.

Triton finds `torchgraft_triton` by its entry point, which asks for this; nothing here imports Triton. A kernel is taken
from Triton's intermediate representation above layouts (`ir`) and becomes a text of the kernel language (`ops`,
`translate`), which every device with a kernel compiler compiles.
"""
