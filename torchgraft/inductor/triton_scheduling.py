"""Inductor's generator of Triton's kernels, for the device: its text, with blocks and launches of our own.

torch chooses blocks by measuring, with a launcher and timers that know its own devices. Here each kernel has one size
of blocks (`triton_loops`) and is launched by Triton, so nothing of torch is changed for it.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch._inductor.codegen.triton
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.triton import TritonKernel, TritonKernelOverrides
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torchgraft.inductor import versions
from torchgraft.inductor.splitting import SplitPrograms

__all__ = ["TritonScheduling"]

# Lines of what torch generates, and what stands for them: launches are ours, and Triton's driver is what it is.
_LINES = {
    "from torch._inductor.runtime import triton_helpers, triton_heuristics": (
        "from torch._inductor.runtime import triton_helpers\n"
        "from torchgraft.inductor import triton_loops as triton_heuristics"
    ),
    "triton_helpers.set_driver_to_gpu()": "",
}


class _Overrides(TritonKernelOverrides):
    """Ops in Triton's language."""

    @staticmethod
    def bitwise_left_shift(a: Any, b: Any) -> str:
        """As torch has it for all numbers of places; Triton leaves open what those beyond the type's bits do."""
        return f"tl.where(({b} >= 0) & ({b} < {a.dtype.itemsize * 8}), {a} << {b}, 0)"

    @staticmethod
    def bitwise_right_shift(a: Any, b: Any) -> str:
        most = a.dtype.itemsize * 8 - 1
        shifted = f"{a} >> tl.where(({b} >= 0) & ({b} < {most}), {b}, {most})"
        return shifted if a.dtype.is_signed else f"tl.where(({b} >= 0) & ({b} <= {most}), {shifted}, 0)"

    @classmethod
    def value_expr(cls, expr: Any, dtype: torch.dtype) -> Any:
        """A number that is computed of indices, in as many bits as it has: torch computes it in the indices' 32, and
        makes it wider then. torch 2.13 to 2.15 (codegen/triton.py)."""
        kernel: Any = V.kernel
        kernel.is_wide = dtype != torch.int32
        try:
            return super().value_expr(expr, dtype)  # type: ignore[no-untyped-call]
        finally:
            kernel.is_wide = False


class _Kernel(TritonKernel):
    overrides = _Overrides
    is_wide = False

    def index_to_str(self, index: Any) -> str:
        text = super().index_to_str(index)
        if not self.is_wide:
            return text
        names = set(map(str, self.range_tree_nodes))
        return re.sub(r"\w+", lambda found: f"{found[0]}.to(tl.int64)" if found[0] in names else found[0], text)


class TritonScheduling(SplitPrograms, torch._inductor.codegen.triton.TritonScheduling):
    """Makes Triton's kernels of what Inductor has fused.

    Scans of long rows wait for other programs, which is refused, so scans are left to the device's own kernels; so are
    sorts and products.
    """

    kernel_type = _Kernel

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:  # type: ignore[override]
        versions.check_compiler(device)
        return OrderedSet([BackendFeature.INPLACE_BUFFERS, BackendFeature.TUPLE_REDUCTION])

    def codegen_combo_kernel(self, combo_kernel_node: Any) -> None:
        """One after the other: a kernel of several would be a grid of Inductor's launcher."""
        for node in combo_kernel_node.get_subkernel_nodes():
            self.codegen_node(node)

    def _emit_kernel_to_wrapper(
        self,
        wrapper: Any,
        kernel: Any,
        src_code: str,
        kernel_name: str,
        subs_name: str,
        *others: Any,
    ) -> None:
        for line, ours in _LINES.items():
            if line not in src_code:
                versions.refuse(f"the text of Triton's kernels has no line {line!r}")
            src_code = src_code.replace(line, ours)
        wrapper.define_kernel(kernel_name, f"tg_triton_loops({subs_name!r}, {src_code!r})", gpu=False)
