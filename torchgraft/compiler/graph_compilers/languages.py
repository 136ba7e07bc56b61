"""Languages of graphs, and what writes them.

An importer is chosen by the name that a driver has in `program_formats`. "onnx" and "pt2", PyTorch's own exported
programs, are here; others are added by `register_importer`, by whoever has a writer of StableHLO, Torch-MLIR or a
language of a maker's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchgraft.compiler.graph_compilers.importer import Importer

__all__ = ["importer", "register_importer"]


_importers: dict[str, Callable[[], Importer]] = {}


def register_importer(language: str, make: Callable[[], Importer]) -> None:
    """Offers an importer for a language, which drivers name in `program_formats`.

    Args:
        make: makes it, when it is first needed; an ImportError says what to install.

    Raises:
        ValueError: there is one.
    """
    if language in _importers or language in _OWN:
        raise ValueError(f"there is an importer for {language!r}")
    _importers[language] = make


def _onnx() -> Importer:
    from torchgraft.compiler.graph_compilers import onnx

    return onnx.importer()


def _pt2() -> Importer:
    from torchgraft.compiler.graph_compilers import exported

    return exported.importer()


_OWN: dict[str, Callable[[], Importer]] = {"onnx": _onnx, "pt2": _pt2}
_made: dict[str, Importer] = {}


def importer(languages: Sequence[str], wanted: str | None = None) -> tuple[str, Importer]:
    """The first of a driver's languages that there is an importer for, and that.

    Raises:
        NotImplementedError: there is none, with what is missing.
        ValueError: the one that is wanted is not a language of the driver's.
    """
    if wanted is not None and wanted not in languages:
        raise ValueError(f"the driver compiles {', '.join(languages) or 'no graphs'}, not {wanted!r}")
    missing = []
    for language in languages if wanted is None else [wanted]:
        make = _importers.get(language) or _OWN.get(language)
        if make is None:
            missing.append(f"{language}: torchgraft has no importer; add one by register_importer")
            continue
        try:
            if language not in _made:
                _made[language] = make()
        except ImportError as error:
            missing.append(f"{language}: {error}")
        else:
            return language, _made[language]
    raise NotImplementedError("; ".join(missing) or "the driver compiles no graphs")
