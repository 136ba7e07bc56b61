"""What is taken of torch's private side to generate code: its names, in the one place where they all stand.

Inductor promises nothing to anybody, so its names change from one minor version of torch to the next. `SEAM` says of
each that `torchgraft.inductor`, or `torchgraft.patches.dynamo` for it, imports, calls, overrides or replaces how it is
used;
`broken` compares that with the torch that is here, in a second and without a device. A torch newer than the tested ones
is asked before its Inductor is used, and a test asks the one that is here; another compares the list with what the
package's sources import.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["SEAM", "Use", "broken", "uses"]

#: Modules, each with its names. A name alone exists: in its module, or as an attribute of its class or of the class's
#: instances. With parentheses it is called: by these parameters of its, in this order, and by those behind the star as
#: keywords. With `def` it is overridden or replaced, by something that has these parameters and no others.
SEAM = """
torch._dispatch.python
    enable_python_dispatcher
torch._dynamo._trace_wrapped_higher_order_op
    TransformGetItemToIndex
torch._dynamo.device_interface
    DeviceInterface
    register_interface_for_device(device, device_interface)
torch._dynamo.trace_rules
    add(import_name)
torch._guards
    detect_fake_mode(inputs)
torch._higher_order_ops.flex_attention
    flex_attention
    flex_attention_backward
torch._inductor.codecache
    PyCodeCache.load(source_code)
torch._inductor.codegen.common
    BackendFeature.FOREACH
    BackendFeature.INPLACE_BUFFERS
    CSE.generate(buffer, expr, *, dtype, shape)
    CSE.invalidate(keep_vars)
    CSE.invalidated_stores
    CSE.namedvar(name, *, dtype, shape)
    CSE.newvar(*, dtype, shape)
    CSE.reduction_cache
    CSE.varname_map
    CSEVariable.bounds
    CSEVariable.dtype
    CSEVariable.name
    DeferredLine(name, line)
    DeviceCodegen
    DeviceOpOverrides.device_guard(device_idx)
    DeviceOpOverrides.set_device(device_idx)
    DeviceOpOverrides.synchronize()
    Kernel.args
    Kernel.compute
    Kernel.cse
    Kernel.current_node
    Kernel.loads
    Kernel.stores
    Kernel.swap_buffers(lb, cb, sb)
    KernelArgs.input(name)
    KernelArgs.output(name)
    KernelArgs.python_argdefs()
    OpOverrides
    def Kernel.device_assert_async(cond, msg)
    device_codegens
    register_backend_for_device(device, device_scheduling, device_wrapper_codegen, *, device_custom_pass)
    register_device_op_overrides(device, device_op_overrides)
torch._inductor.codegen.simd
    IterationRangesEntry.divisor
    IterationRangesEntry.length
    IterationRangesEntry.root
    IterationRangesEntry.symbol()
    IterationRangesRoot.nodes
    IterationRangesRoot.numel
    IterationRangesRoot.prefix
    SIMDKernel.body
    SIMDKernel.features
    SIMDKernel.index_to_str(index)
    SIMDKernel.inside_reduction
    SIMDKernel.is_indirect_indexing(index)
    SIMDKernel.kexpr
    SIMDKernel.overrides
    SIMDKernel.range_tree_nodes
    SIMDKernel.range_trees
    SIMDKernel(tiling, *, features, tiling_scores)
    SIMDScheduling.codegen_comment(node_schedule, kernel_name)
    SIMDScheduling.codegen_node(node)
    SIMDScheduling.codegen_node_schedule_with_kernel(node_schedule, kernel)
    SIMDScheduling.free_buffers_in_scheduler()
    SIMDScheduling.get_tiling_and_scores(node_schedule, numel, reduction_numel, coalesce_analysis)
    SIMDScheduling.kernel_type
    SIMDScheduling.scheduler
    SIMDScheduling(scheduler)
    def SIMDKernel.call_kernel(name, node, deallocate_ws)
    def SIMDKernel.check_bounds(expr, size, lower, upper)
    def SIMDKernel.codegen_body()
    def SIMDKernel.dtype_to_str(dtype)
    def SIMDKernel.finalize_indexing(indices)
    def SIMDKernel.get_index_dtype_as_torch_dtype()
    def SIMDKernel.load(name, index)
    def SIMDKernel.prepare_indexing(index)
    def SIMDKernel.reduction(dtype, src_dtype, reduction_type, value)
    def SIMDKernel.store(name, index, value, mode)
    def SIMDKernel.store_reduction(name, index, value)
    def SIMDScheduling.can_fuse(node1, node2)
    def SIMDScheduling.can_fuse_horizontal(node1, node2)
    def SIMDScheduling.can_fuse_vertical(node1, node2)
    def SIMDScheduling.codegen_combo_kernel(combo_kernel_node)
    def SIMDScheduling.codegen_node_schedule(kernel_features)
    def SIMDScheduling.get_backend_features(device)
torch._inductor.codegen.simd_kernel_features
    SIMDKernelFeatures.coalesce_analysis
    SIMDKernelFeatures.is_reduction()
    SIMDKernelFeatures.node_schedule
    SIMDKernelFeatures.numel
    SIMDKernelFeatures.op_counts()
    SIMDKernelFeatures.reduction_numel
    SIMDKernelFeatures.scheduler_nodes()
torch._inductor.codegen.triton
    TritonKernel.gen_common_triton_imports
    TritonKernel.overrides
    TritonKernelOverrides
    TritonScheduling._emit_kernel_to_wrapper
    def TritonKernelOverrides.bitwise_left_shift(a, b)
    def TritonKernelOverrides.bitwise_right_shift(a, b)
    def TritonKernelOverrides.value_expr(expr, dtype)
    def TritonScheduling.codegen_combo_kernel(combo_kernel_node)
    def TritonScheduling.get_backend_features(device)
torch._inductor.codegen.wrapper
    PythonWrapperCodegen.codegen_python_shape_tuple(shape)
    PythonWrapperCodegen.codegen_python_sizevar(x)
    PythonWrapperCodegen.define_kernel(kernel_name, kernel_body, *, gpu)
    PythonWrapperCodegen.imports
    PythonWrapperCodegen.next_kernel_suffix()
    PythonWrapperCodegen.prefix
    PythonWrapperCodegen.prepare_triton_kernel_call(call_args)
    PythonWrapperCodegen.src_to_kernel
    PythonWrapperCodegen.wrap_kernel_call(name, call_args)
    PythonWrapperCodegen.writeline(line)
    SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
    SubgraphPythonWrapperCodegen.codegen_input_symbol_assignment(name, value, bound_vars)
    def PythonWrapperCodegen.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
    def PythonWrapperCodegen.generate_after_suffix(result)
    PythonWrapperCodegen.define_user_defined_triton_kernel
    PythonWrapperCodegen.generate_kernel_call(kernel_name, call_args, *, device, triton, raw_keys, raw_args)
    def PythonWrapperCodegen.make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
    def PythonWrapperCodegen.write_async_compile_wait()
    def PythonWrapperCodegen.write_header()
    def PythonWrapperCodegen.write_triton_header_once()
    user_defined_triton_kernel_transitive_closure_source_code(kernel, epilogue_fusion)
torch._inductor.config
    coordinate_descent_tuning
    force_layout_optimization
    max_autotune
    max_autotune_gemm
    triton.cudagraphs
torch._inductor.custom_graph_pass
    CustomGraphModulePass
torch._inductor.decomposition
    select_decomp_table()
torch._inductor.dtype_propagation
    promote_types(args)
torch._inductor.graph
    GraphLowering.constants
    GraphLowering.current_node
    GraphLowering.get_current_device_or_throw()
    GraphLowering.get_dtype(buffer_name)
    GraphLowering.graph_outputs
    GraphLowering.inplaced_to_remove
    GraphLowering.module
    GraphLowering.operations
    GraphLowering.removed_buffers
    GraphLowering.sizevars
    GraphLowering.try_get_buffer(buffer_name)
    GraphLowering.wrapper_code
    def GraphLowering.decide_layout_opt(gm, *, is_inference)
torch._inductor.inductor_prims
    _low_memory_max_pool_offsets_to_indices
    _low_memory_max_pool_with_offsets
torch._inductor.ir
    ComputedBuffer
    ConcatKernel
    ExternKernelAlloc
    ExternKernelOut
    FallbackKernel
    IRNode.get_device()
    IRNode.get_dtype()
    IRNode.get_size()
    IRNode.make_loader()
    IRNode.maybe_get_dtype()
    IRNode.maybe_get_stride()
    IndexPutFallback
    InplaceBernoulliFallback
    InplaceCopyFallback
    MultiOutput
    NopKernel
    Operation.get_read_writes()
    Pointwise.create(*, device, dtype, inner_fn, ranges)
    RandomSeeds
    Reduction.create(device, dst_dtype, src_dtype, inner_fn, ranges, reduction_ranges, reduction_type)
    ScatterFallback
    TMADescriptor
    TensorBox
    UserDefinedTritonKernel
    def is_cpu(x)
    get_device_type(x)
    get_fill_order(seq)
torch._inductor.lowering
    _validate_reduction_axis(x, axis)
    broadcast_tensors(inputs)
    def is_gpu(device)
    def needs_fallback_due_to_atomic_add_limitations(dtype)
    fallback_handler(kernel)
    fallbacks
    lowerings
    make_fallback(op, *, layout_constraint, warn)
    tag_to_layout_constraint(tag)
    to_dtype(x, dtype)
    use_scatter_fallback(op_overload, reduction_type, self_dtype, src_dtype, src_device_type, src_is_tensor)
    use_two_step_variance(x, axis, keepdim, input_dtype)
torch._inductor.ops_handler
    OpsHandler.constant(value, dtype)
    OpsHandler.index_expr(expr, dtype)
    OpsHandler.inline_asm_elementwise(inputs, *, asm, dtype)
    OpsHandler.to_dtype(x, dtype)
torch._inductor.runtime.hints
    ReductionHint
torch._inductor.runtime.triton_heuristics
    GridExpr.eval_slow(meta)
    GridExpr.from_meta(inductor_meta, cfg)
torch._inductor.scheduler
    BaseSchedulerNode.get_device()
    BaseSchedulerNode.get_first_name()
    BaseSchedulerNode.get_nodes()
    BaseSchedulerNode.is_foreach()
    BaseSchedulerNode.mark_run()
    BaseSchedulerNode.read_writes
    ForeachKernelSchedulerNode.get_subkernel_nodes()
    ForeachKernelSchedulerNode.snodes
    Scheduler.backends
    Scheduler.mutation_real_name
    Scheduler.name_to_fused_node
    Scheduler.nodes
    def Scheduler.should_partition(node)
torch._inductor.sizevars
    SizeVarAllocator.optimization_hint(expr, fallback)
    SizeVarAllocator.optimization_hints(exprs, fallback)
    SizeVarAllocator.simplify(expr)
    SizeVarAllocator.simplify_with_ranges
    SizeVarAllocator.statically_known_equals(left, right)
    SizeVarAllocator.statically_known_multiple_of(numerator, denominator)
torch._inductor.utils
    DeferredLineBase
    IndentedBuffer._lines
    IndentedBuffer.clear()
    IndentedBuffer.getvalue()
    IndentedBuffer.splice(other_code)
    IndentedBuffer.writeline(line)
    IndentedBuffer.writelines(lines)
    LineContext
    aggregate_origins(node_schedule)
    get_bounds_index_expr(index)
    get_fused_kernel_name(node_schedule, descriptive_names)
    prefix_is_reduction(prefix)
    sympy_index_symbol(name)
    sympy_subs(expr, replacements)
    upcast_compute_type(dtype)
torch._inductor.virtualized
    OpsValue.value
    V.graph
    V.kernel
    V.set_kernel_handler
    ops
torch._library.utils
    get_layout_constraint_tag(fn, *, with_default)
torch._subclasses
    FakeTensor
torch.fx.experimental.proxy_tensor
    make_fx(f, decomposition_table, tracing_mode)
torch.fx.experimental.sym_node
    METHOD_TO_OPERATOR
torch.fx.experimental.symbolic_shapes
    free_symbols(val)
    guard_or_false(a)
    statically_known_true(x)
torch.nn.attention.flex_attention
    _vmap_for_bhqkv(fn, prefix)
torch.utils._ordered_set
    OrderedSet
torch.utils._sympy.functions
    FloorDiv
    ModularIndexing
torch.utils._sympy.printers
    ExprPrinter.doprint(expr)
"""


@dataclass(frozen=True)
class Use:
    """A line of `SEAM`.

    Attributes:
        module: where the name is.
        path: the name, with those of classes before it.
        parameters: by position, or None where it is not called.
        keywords: parameters by name.
        replaced: whether it is overridden or replaced here.
    """

    module: str
    path: str
    parameters: tuple[str, ...] | None = None
    keywords: tuple[str, ...] = ()
    replaced: bool = False

    def __str__(self) -> str:
        return f"{self.module}.{self.path}"


_LINE = re.compile(r"(?P<replaced>def )?(?P<path>[\w.]+)(?:\((?P<parameters>.*)\))?")


def uses(seam: str = SEAM) -> Iterator[Use]:
    """The lines of a list such as `SEAM`."""
    module = ""
    for line in filter(None, seam.splitlines()):
        if not line.startswith(" "):
            module = line
            continue
        found = _LINE.fullmatch(line.strip())
        assert found is not None, line
        parameters = found["parameters"]
        if parameters is None:
            yield Use(module, found["path"])
            continue
        positional, _, keywords = parameters.partition("*")
        yield Use(module, found["path"], _names(positional), _names(keywords), found["replaced"] is not None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def broken(seam: str = SEAM) -> list[str]:
    """What of a list does not hold for the torch that is here: a line each, which says why."""
    found = ((use, _why_broken(use)) for use in uses(seam))
    return [f"{use}: {why}" for use, why in found if why]


def _why_broken(use: Use) -> str:
    try:
        scope: Any = importlib.import_module(use.module)
    except ImportError as error:
        return str(error)
    *outer, name = use.path.split(".")
    for each in outer:
        if not hasattr(scope, each):
            return f"there is no {each}"
        scope = getattr(scope, each)
    if use.parameters is None:
        return "" if hasattr(scope, name) or _is_of_instances(scope, name) else "there is none"
    called = inspect.getattr_static(scope, name, None)
    if called is None:
        return "there is none"
    return _why_not_called(use, getattr(scope, name), is_method=bool(outer) and not isinstance(called, staticmethod))


def _is_of_instances(scope: Any, name: str) -> bool:
    """Whether a class, or one that it comes from, declares an attribute of its instances or sets it in a method."""
    return inspect.isclass(scope) and any(name in _attributes(each) for each in scope.__mro__)


@functools.cache
def _attributes(scope: type) -> frozenset[str]:
    methods = (each for each in vars(scope).values() if inspect.isfunction(each))
    lines = (line for method in methods for line in dis.get_instructions(method))
    stored = (line.argval for line in lines if line.opname == "STORE_ATTR")
    return frozenset((*stored, *vars(scope).get("__annotations__", ())))


def _why_not_called(use: Use, called: Callable[..., Any], *, is_method: bool) -> str:
    called = inspect.unwrap(called)  # torch's own, where it is replaced already
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return "it cannot be called"
    if is_method and parameters and parameters[0].name == "self":
        del parameters[0]
    names = [each.name for each in parameters]
    assert use.parameters is not None
    expected = [*use.parameters, *use.keywords]
    is_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    if use.replaced:
        holds = names == expected
    else:
        needed = [each.name for each in parameters if each.default is each.empty and each.kind.value not in (2, 4)]
        holds = (is_any or set(use.keywords) <= set(names)) and set(needed) <= set(expected)
        holds = holds and (names[: len(use.parameters)] == list(use.parameters))
    return "" if holds else f"its parameters are ({', '.join(names)}), and it is used with ({', '.join(expected)})"
