"""What generated programs with kernels of Triton's call. Nothing of Triton is imported for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._inductor.codecache import PyCodeCache

__all__ = ["TritonKernel", "triton_dtype", "triton_kernel", "triton_loops"]

Grid = tuple[int, int, int]


class TritonKernel:
    """A user's kernel in a program: called with its grids, one for each configuration, and its arguments.

    Args:
        function: Triton's, an autotuner if there are several configurations.
        constants: arguments that are constants.
        configs: the configurations' constants.
    """

    def __init__(self, function: Any, constants: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> None:
        self._function, self._constants, self._configs = function, constants, configs

    def __call__(self, *grids: Grid, **arguments: Any) -> None:
        grid: Any = grids[0]
        if len(grids) > 1:
            # Triton asks for the grid of the configuration that it tries.
            def grid(meta: Mapping[str, Any]) -> Grid:
                return next(
                    each
                    for each, config in zip(grids, self._configs, strict=True)
                    if all(meta[name] == value for name, value in config.items())
                )

        self._function[grid](**arguments, **self._constants)


def triton_kernel(
    name: str,
    source: str,
    constants: Mapping[str, Any],
    configs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    restored: Sequence[str],
    zeroed: Sequence[str],
) -> TritonKernel:
    """A user's kernel in a program.

    Args:
        name: of the kernel in the source.
        source: of a module, which is written to Inductor's folder, as Triton reads sources from files.
        constants: arguments that are constants.
        configs: of an autotuner: constants, and other options of Triton's.
        restored: arguments that it restores after a trial.
        zeroed: arguments that it sets to zero before one.
    """
    import triton

    function = getattr(PyCodeCache.load(source), name)
    if configs:
        tried = [triton.Config(dict(values), **options) for values, options in configs]
        # A choice holds for the program: its sizes are what they were, or are as Triton's launcher sees them.
        function = triton.autotune(tried, key=[], restore_value=restored, reset_to_zero=zeroed)(function)
    return TritonKernel(function, constants, [values for values, _ in configs])


def triton_loops(name: str, source: str) -> Callable[..., None]:
    """A kernel that Inductor has generated (`triton_loops.Loops`): of a source, by its name there."""
    made: Callable[..., None] = getattr(PyCodeCache.load(source), name)
    return made


def triton_dtype(name: str) -> Any:
    """Triton's dtype of a name."""
    from triton.language import dtype

    return dtype(name)
