"""What inductor is told of the device."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch._inductor.codegen.common import (
    DeviceCodegen,
    DeviceOpOverrides,
    device_codegens,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
from torch._library.utils import get_layout_constraint_tag
from torch.fx.experimental.sym_node import METHOD_TO_OPERATOR
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._config_module import ConfigModule
from torch.utils._pytree import tree_leaves

from torchgraft import backend
from torchgraft._version import __version__
from torchgraft.codegen.types import BY_DTYPE
from torchgraft.inductor import (
    flex_op,  # noqa: F401  # which programs from the disk call
    op_by_op,
    options,
    patches,
    pooling,
    rows,
)
from torchgraft.inductor.interface import described_devices
from torchgraft.inductor.operations import has_bits
from torchgraft.inductor.scheduling import Scheduling, Wrapper
from torchgraft.inductor.triton_scheduling import TritonScheduling

__all__ = ["register"]


class _Texts(DeviceOpOverrides):
    """Lines of generated programs that have to do with the device."""

    def device_guard(self, device_idx: int) -> str:
        return f"torch.{backend.name()}.device({device_idx})"

    def set_device(self, device_idx: int) -> str:
        return f"torch.{backend.name()}.set_device({device_idx})"

    def synchronize(self) -> str:
        return f"torch.{backend.name()}.synchronize()"


class _Pass(CustomGraphModulePass):
    """Leaves to the ops themselves what no kernel can hold, says in ops what has kernels of torch's own devices alone,
    and makes what the generators depend on part of the key of generated programs."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        op_by_op.noted(gm)
        _expand_attention(gm)
        pooling.keep_offsets(gm)
        _fold_numbers(gm)
        targets = {node.target for node in gm.graph.nodes}
        rows.add_lowerings(targets)
        _keep_own_ops(targets)
        for node in gm.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                used = [node.meta.get("val"), *(each.meta.get("val") for each in node.all_input_nodes)]
                is_whole = all(map(_has_element_type, tree_leaves(used))) and _has_bits(node) and _has_elements(node)
                if not (is_whole and _has_dtype(node)) or _is_for_any_size(node):
                    node.meta["should_fallback"] = True

    def uuid(self) -> Any:
        form = os.environ.get("TORCHGRAFT_KERNEL_FORM", "")
        return (__version__, _sources(), rows.digest(), form, described_devices())


def _keep_own_ops(targets: Iterable[Any]) -> None:
    """Has the ops that passes put into graphs be called, also by who wants no op called that Inductor does not know."""
    for op in targets:
        if isinstance(op, torch._ops.OpOverload) and op.namespace == "torchgraft" and op not in lowerings:
            constraint = tag_to_layout_constraint(get_layout_constraint_tag(op, with_default=True))
            make_fallback(op, layout_constraint=constraint, warn=False)


def _expand_attention(gm: torch.fx.GraphModule) -> None:
    if any(str(node.target).startswith("flex_attention") for node in gm.graph.nodes):
        from torchgraft.inductor.attention import expand_attention  # what it imports is slow to

        expand_attention(gm)


def _fold_numbers(gm: torch.fx.GraphModule) -> None:
    """Puts numbers in the place of what a graph computes of sizes that have become numbers since it was traced, as in a
    backward that could not be compiled for symbols. Inductor computes such again, and takes each division for one of
    integers: 1.0 / 8.0 has no value then. torch 2.13 to 2.15 (lowering.py, the lowerings of `magic_methods`).
    """
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if node.op == "call_function" and type(value) in (bool, int, float) and node.target in _OF_SIZES:
            node.replace_all_uses_with(value)
            gm.graph.erase_node(node)


_OF_SIZES = frozenset(METHOD_TO_OPERATOR.values())


def _is_for_any_size(node: torch.fx.Node) -> bool:
    """Whether it is a convolution's backward, whose lowering makes it, and all that is around it, for the sizes of the
    first call: it chooses an order of strides for kernels of torch's own devices. torch 2.13 to 2.15
    (torch/_inductor/kernel/conv.py, `convolution_backward_lowering`)."""
    if node.target is not torch.ops.aten.convolution_backward.default:
        return False
    return any(each.meta["val"].device.type == backend.name() for each in node.all_input_nodes[:2])


def _has_element_type(value: Any) -> bool:
    """Whether kernels can hold a tensor's elements. Inductor itself sees to complex numbers."""
    return not isinstance(value, torch.Tensor) or value.dtype in BY_DTYPE


def _has_bits(node: torch.fx.Node) -> bool:
    """Whether kernels can take the elements' bits for those of another type, where that is what the node does. Inductor
    itself sees to types of another size."""
    if node.target is not torch.ops.aten.view.dtype:
        return True
    source, target = node.all_input_nodes[0].meta["val"].dtype, node.meta["val"].dtype
    return source == target or source.itemsize != target.itemsize or has_bits(source, target)


def _has_elements(node: torch.fx.Node) -> bool:
    """Whether there is something to have a mean: that of nothing is 0 to Inductor where it comes with the variance."""
    if node.target is not torch.ops.aten.var_mean.correction:
        return True
    return not statically_known_true(node.all_input_nodes[0].meta["val"].numel() == 0)


def _has_dtype(node: torch.fx.Node) -> bool:
    """Whether Inductor gives the result its dtype: `any` of bytes is a byte, and a truth to Inductor."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet is not torch.ops.aten.any or node.meta["val"].dtype == torch.bool


@functools.cache
def _sources() -> str:
    """What the generators' own text is."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Generators(DeviceCodegen):
    """The device's generators, of which an option chooses one for each compilation. Inductor asks the class itself
    whether it is Triton's."""

    @property  # type: ignore[override]
    def scheduling(self) -> type[Scheduling | TritonScheduling]:
        return TritonScheduling if options.by_triton() else Scheduling

    @scheduling.setter
    def scheduling(self, value: Any) -> None:
        """What it is made with."""


@functools.cache
def register() -> type[Scheduling]:
    """Registers the device's generators with inductor, and gives the first of them."""
    name, as_config = backend.name(), cast(ConfigModule, options)
    patches.apply()
    register_device_op_overrides(name, _Texts())
    register_backend_for_device(name, Scheduling, Wrapper, device_custom_pass=_Pass(), device_custom_config=as_config)
    device_codegens[name] = _Generators(Scheduling, Wrapper)
    return Scheduling
