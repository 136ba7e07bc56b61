"""Compiling ahead: the kernels that most programs need first, before one of them has to wait for them.

`torchgraft warm` runs the workloads, each in a process of its own, or a program of the user's. What they compile is
kept on disk, as always (`codegen.cache`).
"""
