"""Choosing the sizes of kernels by measuring: `torchgraft tune`.

The sizes and what may be tried for each are in `codegen.tuning`; what is found is kept by `codegen.tuned`. A process of
its own runs the workloads (`child`), so that a compiler or a driver that does not survive a size costs that size alone;
`search` says what it is to measure, and decides.
"""
