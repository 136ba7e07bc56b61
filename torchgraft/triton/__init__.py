"""Triton's kernels on the device: `kernel[grid](...)` of `@triton.jit` functions, unchanged.

Triton finds the package by its entry point and imports `compiler` and `driver` of it; torchgraft imports neither. A
kernel is taken from Triton's intermediate representation above layouts (`ir`) and becomes a text of the kernel language
(`translate`), which every device with a kernel compiler compiles.
"""
