"""Kernels that do the same to several tensors in one launch: what ops on lists, as in optimisers, come to.

Inductor keeps what has been done to the tensors of a list together (`ForeachKernelSchedulerNode`), each of them a
kernel by itself. Those whose text is the same but for the memory and the sizes share launches here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchgraft.codegen.batch import list_kernel, most_tensors
from torchgraft.codegen.kernel import Kernel, Parameter, Value, ceil_div
from torchgraft.inductor.kernels import GeneratedKernel, Text

__all__ = ["Lists", "Member", "launches", "of_list"]


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


@dataclass(frozen=True)
class _Uses:
    """Buffers by name, and how many nodes use and write them."""

    used: Counter[str]
    written: Counter[str]

    @staticmethod
    def of(scheduler: Any, nodes: Iterable[Any]) -> _Uses:
        real, used, written = scheduler.mutation_real_name, Counter[str](), Counter[str]()
        for node in nodes:
            accesses = node.read_writes
            used.update({real.get(dep.name, dep.name) for dep in accesses.reads_and_writes()})
            written.update({real.get(dep.name, dep.name) for dep in accesses.writes})
        return _Uses(used, written)


class Lists:
    """What a scheduler's lists are asked before two nodes are fused."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._uses: dict[Any, _Uses] = {}  # of a list's members: of hundreds of tensors there are as many pairs

    def mixes_members(self, node1: Any, node2: Any) -> bool:
        """Whether, with two nodes made one member of a list, something is written that another member uses.

        Inductor looks at the two alone, and not at the lists that they belong to. Of two lists it asks for each pair.
        """
        if node1.is_foreach() or node2.is_foreach():
            return False
        homes = [self._scheduler.name_to_fused_node[node.get_first_name()] for node in (node1, node2)]
        members = [node for node, home in zip((node1, node2), homes, strict=True) if home.is_foreach()]
        if not members:
            return False
        lists = [self._of(each) for each in {id(home): home for home in homes}.values() if each.is_foreach()]
        own, pair = (_Uses.of(self._scheduler, nodes) for nodes in (members, (node1, node2)))
        return any(sum(each.used[name] for each in lists) > own.used[name] for name in pair.written) or any(
            sum(each.written[name] for each in lists) > own.written[name] for name in pair.used
        )

    def _of(self, node: Any) -> _Uses:
        if node not in self._uses:
            self._uses[node] = _Uses.of(self._scheduler, node.snodes)
        return self._uses[node]


def launches(members: Sequence[Member]) -> Iterator[tuple[int, list[Member]]]:
    """The members that share a launch, for each launch, and for how many tensors its kernel is.

    Each has a launch of its own if one writes what another one reads or writes: of work-groups of a launch it is not
    known which come first.
    """
    users = [(k, name) for k, member in enumerate(members) for name in set(member.called)]
    written = {name: k for k, member in enumerate(members) for name in member.written}
    if any(written.get(name, k) != k for k, name in users):
        yield from ((1, [member]) for member in members)
        return
    alike: dict[Any, list[Member]] = {}
    for k, member in enumerate(members):
        kernel = member.kernel
        alike.setdefault((member.text, kernel.cost) if _may_share(kernel) else k, []).append(member)
    for group in alike.values():
        parts = _parts(group)
        yield from ((len(parts[0]), part) for part in parts)


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
