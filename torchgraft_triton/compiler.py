"""What Triton compiles kernels by."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget

__all__ = ["Backend"]


@dataclass(frozen=True)
class _Options:
    """What Triton's front end asks for by these names. A program is 32 work-items for each warp on GPUs, and one
    elsewhere; stages decide nothing."""

    backend_name: str = "torchgraft"
    num_warps: int = 1
    num_stages: int = 1
    num_ctas: int = 1
    debug: bool = False
    sanitize_overflow: bool = False
    arch: str = ""
    enable_fp_fusion: bool = True
    supported_fp8_dtypes: tuple[str, ...] = ()
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")  # ieee serves all
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[Any, ...] = ()
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False  # given at each launch from 3.9 on
    launch_cooperative_grid: bool = False

    def __getattr__(self, name: str) -> Any:
        """Options of later versions are as if not given."""
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def hash(self) -> str:
        told = [(each.name, getattr(self, each.name)) for each in fields(self)]
        return hashlib.sha256(repr(told).encode()).hexdigest()


# What Triton gives a program that asks for nothing.
_WARPS, _WARP = 4, 32
_KNOWN = {each.name for each in fields(_Options)}
_IGNORED = {"num_stages", "num_ctas"}


@functools.cache
def _without_meaning() -> frozenset[str]:
    """Options of Triton's own back ends, some of which it gives to each; they mean nothing here."""
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    return frozenset(each.name for kind in (CUDAOptions, HIPOptions) for each in fields(kind)) - _KNOWN


class Backend(BaseBackend):  # type: ignore[misc]  # Triton has no annotations
    """Triton's back end of devices whose kernels torchgraft compiles."""

    binary_ext = "tgk"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        import torch

        return bool(target.backend == torch._C._get_privateuse1_backend_name())

    @functools.cache  # noqa: B019  # one for a process
    def hash(self) -> str:
        import torchgraft.triton

        digest = hashlib.sha256(torchgraft.__version__.encode())
        for path in sorted([Path(__file__), *Path(torchgraft.triton.__file__).parent.glob("*.py")]):
            digest.update(path.read_bytes())
        return f"torchgraft-{digest.hexdigest()[:16]}-{self.target.arch}"

    def parse_options(self, opts: dict[str, Any]) -> _Options:
        given = {name: value for name, value in opts.items() if name in _KNOWN - _IGNORED and value is not None}
        given["num_warps"] = given.get("num_warps", _WARPS) if self._is_gpu() else 1
        given.setdefault("sanitize_overflow", given.get("debug", False))  # by assertions, which debugging alone has
        options = _Options(**given)
        # Triton refuses a word of a launch that is no entry here.
        options.__dict__.update({name: value for name, value in opts.items() if name in _without_meaning()})
        return options

    def _is_gpu(self) -> bool:
        return ":" in self.target.arch

    def load_dialects(self, ctx: Any) -> None:
        pass

    def get_module_map(self) -> dict[str, ModuleType]:
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def get_codegen_implementation(self, options: Any) -> dict[str, Any]:
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}

    def pack_metadata(self, metadata: Any) -> tuple[()]:
        return ()

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any = None) -> None:
        stages["ttir"] = _simplified
        stages["tgk"] = functools.partial(_translated, arch=self.target.arch, warps=options.num_warps)


def _simplified(module: Any, metadata: dict[str, Any]) -> Any:
    _inline_all(module)
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):  # of block pointers, which Triton 3.8 has no more
        passes.ttir.add_rewrite_tensor_pointer(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_combine(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.common.add_licm(manager)
    passes.common.add_symbol_dce(manager)
    passes.ttir.add_loop_unroll(manager)  # of the loops that ask for it
    manager.run(module, "make_ttir")
    return module


def _inline_all(module: Any) -> None:
    """Functions that are to be called are put into their callers, too."""
    no = ir.builder(module.context).get_bool_attr(False)

    def visit(op: Any) -> None:
        if op.get_name() == "tt.func" and op.get_bool_attr("noinline"):
            module.get_function(op.get_str_attr("sym_name")).set_attr("noinline", no)

    module.walk(visit)


def _translated(module: Any, metadata: dict[str, Any], arch: str, warps: int) -> bytes:
    from torchgraft.triton.kernel import translate
    from torchgraft.triton.ops import Group

    language, *room = arch.split(":")
    if room:
        items, local_bytes = map(int, room)
        made = translate(str(module), Group(min(items, _WARP * warps), local_bytes))
    else:
        made = translate(str(module), lanes=int(language.rpartition("/")[2]))
    metadata.update(name=made.name, shared=0, warp_size=1)
    return made.written()
