"""Kernels that do the same to several tensors in one launch: what ops on lists, as in optimisers, come to.

Inductor keeps what has been done to the tensors of a list together (`ForeachKernelSchedulerNode`), each of them a
kernel by itself. Those whose text is the same but for the memory and the sizes share launches here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch._inductor.scheduler import ForeachKernelSchedulerNode

from torchgraft.codegen.batch import list_kernel, most_tensors
from torchgraft.codegen.kernel import Kernel, Parameter, Value, ceil_div
from torchgraft.inductor.kernels import GeneratedKernel, Text

__all__ = ["Member", "launches", "mixes_members", "of_list"]


@dataclass(frozen=True)
class Member:
    """What is done to one tensor of a list.

    Attributes:
        kernel: inductor's.
        text: of the kernel.
        schedule: the nodes in it.
        called: its arguments, as the program names them.
        written: those of them that it writes.
    """

    kernel: GeneratedKernel
    text: Text
    schedule: Sequence[Any]
    called: tuple[str, ...]
    written: frozenset[str]


def mixes_members(scheduler: Any, node1: Any, node2: Any) -> bool:
    """Whether, with two nodes made one member of a list, something is written that another member uses.

    Inductor looks at the two alone, and not at the lists that they belong to. Of two lists it asks for each pair.
    """
    if node1.is_foreach() or node2.is_foreach():
        return False
    lists = {
        id(each): each for node in (node1, node2) for each in [scheduler.name_to_fused_node[node.get_first_name()]]
    }
    others = [
        member
        for each in lists.values()
        if isinstance(each, ForeachKernelSchedulerNode)
        for member in each.snodes
        if member is not node1 and member is not node2
    ]
    if not others:
        return False
    used, written = _memory(scheduler, [node1, node2])
    used_by_others, written_by_others = _memory(scheduler, others)
    return not (written.isdisjoint(used_by_others) and used.isdisjoint(written_by_others))


def _memory(scheduler: Any, nodes: Sequence[Any]) -> tuple[set[str], set[str]]:
    """The buffers that nodes use, and those of them that they write."""
    real = scheduler.mutation_real_name
    accesses = [node.read_writes for node in nodes]
    used = {real.get(dep.name, dep.name) for each in accesses for dep in each.reads_and_writes()}
    written = {real.get(dep.name, dep.name) for each in accesses for dep in each.writes}
    return used, written


def launches(members: Sequence[Member]) -> list[list[Member]]:
    """The members that share a launch, for each launch, in the order of their first ones.

    Each has a launch of its own if one writes what another one reads or writes: of work-groups of a launch it is not
    known which come first.
    """
    users = [(k, name) for k, member in enumerate(members) for name in set(member.called)]
    written = {name: k for k, member in enumerate(members) for name in member.written}
    if any(written.get(name, k) != k for k, name in users):
        return [[member] for member in members]
    alike: dict[Any, list[Member]] = {}
    for k, member in enumerate(members):
        kernel = member.kernel
        alike.setdefault((member.text, kernel.cost) if _may_share(kernel) else k, []).append(member)
    return [part for group in alike.values() for part in _parts(group)]


def _may_share(kernel: GeneratedKernel) -> bool:
    """Not what walks over rows, has one work-item or may leave an element out with an error."""
    return not (kernel.has_reduction or kernel.serial or kernel.messages)


def _parts(members: list[Member]) -> list[list[Member]]:
    """As few as the arguments of a launch allow, about as many in each, so that one kernel does for all."""
    count = ceil_div(len(members), most_tensors(_varying(members[0].text), []))
    size = ceil_div(len(members), count)
    return [members[k : k + size] for k in range(0, len(members), size)]


def of_list(text: Text, name: str, count: int) -> Kernel:
    """The kernel that does what the text says to each of `count` tensors."""
    statements = f"    const long tg_begin = tg_low, tg_end = tg_high;\n{text.statements}"
    return list_kernel(text.walk, name, _varying(text), [], count, statements, text.helpers)


def _varying(text: Text) -> list[Parameter]:
    return [*text.parameters, *(Value(f"tg_n{d}", "i64") for d in range(text.walk.rank))]
