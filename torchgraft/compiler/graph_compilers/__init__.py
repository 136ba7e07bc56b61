"""Devices whose maker gives a compiler of whole graphs: `torch.compile(model, backend="<the device's name>")`.

Dynamo and AOTAutograd give graphs of aten ops, forward and backward. The nodes that the language of graphs can say and
the device's driver takes are put together to parts (`support`, `partition`); each part becomes a program of the
device's for each set of sizes (`program`), of what an importer writes (`languages`, `onnx`). The other nodes are ops as
always, by operators, kernels or the CPU, and the whole is recorded and replayed as other compiled programs are.

Nothing else of it is imported before something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchgraft.compiler.graph_compilers.importer import Importer
from torchgraft.compiler.graph_compilers.languages import register_importer

if TYPE_CHECKING:
    import torch

__all__ = ["Importer", "graph_compiler", "register_importer"]


def graph_compiler(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any
) -> Callable[..., Any]:
    """The Dynamo backend: compiles a graph of torch's functions, forward and backward.

    Args:
        options: `format`, a language of graphs, by default the driver's first; `constants`, whether a program without
            gradients has its parameters as constants, by default as the driver says; `least`, how many ops a part has
            at least; `sizes`, for how many sets of sizes a part becomes a program before it runs op by op.

    Raises:
        ValueError: there are other options, or a mode.
        NotImplementedError: the device's driver compiles no graphs, or of no language that there is an importer for.
    """
    from torchgraft.compiler.graph_compilers import build

    return build.compile_program(gm, example_inputs, options or {}, others)
