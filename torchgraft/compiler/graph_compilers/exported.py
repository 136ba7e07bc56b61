"""PyTorch's own exported programs, as `torch.export.load` reads them: for compilers that begin there."""

from __future__ import annotations

import io

import torch

from torchgraft.compiler.graph_compilers.importer import Importer

__all__ = ["importer"]


def importer() -> Importer:
    """The importer: it writes every op of ATen's."""
    return Importer(_why_not, _write, lambda: str(torch.__version__))


def _why_not(op: torch._ops.OpOverload) -> str:
    return "" if op.namespace in ("aten", "prims") else "it is no op of ATen's"


def _write(gm: torch.fx.GraphModule) -> bytes:
    inputs = tuple(node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    file = io.BytesIO()
    exported = torch.export.export(gm, inputs)
    exported.example_inputs = None  # they have no memory
    torch.export.save(exported, file)
    return file.getvalue()
