"""The driver in C that `torchgraft new` writes, with a mistake of an author's in it, and the check that finds it.

As a file of tests it runs those checks on each of them; test_c_device.py looks at what failed. TORCHGRAFT_TEST_FAULT
chooses one: some end the process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import c_driver
import pytest

from torchgraft.driver_table import Table, driver_table
from torchgraft.testing.protocol import TableProtocol


@dataclass(frozen=True)
class Fault:
    """A mistake.

    Attributes:
        file: where it is made.
        right, wrong: what stands there once, and what the author wrote.
        found_by: the checks that are there for it, without "test_"; one is enough.
        fatal: whether it ends the process.
    """

    file: str
    right: str
    wrong: str
    found_by: tuple[str, ...]
    fatal: bool = False


FAULTS = {
    "CopiesOfWholeWords": Fault(
        "driver.c",
        "memmove(destination, source, bytes);",
        "memmove(destination, source, bytes & ~7ull);",
        ("copies_inside_allocations",),
    ),
    "NothingIsRead": Fault(
        "driver.c",
        "  memmove(destination, source, bytes);",
        "  if (kind != TG_COPY_DEVICE_TO_HOST) memmove(destination, source, bytes);",
        ("memory_keeps_its_content",),
    ),
    "PatternsOfEightBytes": Fault(
        "driver.c",
        "uint64_t done = pattern_bytes, piece;",
        "uint64_t done = pattern_bytes < 8 ? pattern_bytes : 8, piece;",
        ("fill",),
    ),
    "FreedMemoryIsUsed": Fault(
        "driver.c",
        "  atomic_fetch_sub(&used[device], allocation_of(address)->bytes);\n",
        "",
        ("freed_memory_comes_back",),
    ),
    "TheEndComesFirst": Fault(
        "driver.c",
        "static tg_status event_elapsed(void* context, int32_t device, tg_event start, tg_event end,",
        "static tg_status event_elapsed(void* context, int32_t device, tg_event end, tg_event start,",
        ("elapsed_time",),
    ),
    "OneMessageForAll": Fault(
        "driver.c",
        "static _Thread_local char message",
        "static char message",
        ("messages_belong_to_threads",),
    ),
    "TheLastGroupIsLost": Fault(
        "workers.c",
        ".total = total,",
        ".total = total - 1,",
        ("launches_of_one_two_and_three_dimensions", "a_kernel"),
    ),
    "RangesThatOverlap": Fault(
        "workers.c",
        "atomic_fetch_add(&job->next, job->step)",
        "atomic_fetch_add(&job->next, job->step > 1 ? job->step - 1 : 1)",
        ("launches_of_one_two_and_three_dimensions",),
    ),
    "AddressesOfAllocations": Fault(
        "kernels.c",
        "arguments[i] = (void*)&launch->args[i].value;",
        "{ arguments[i] = (void*)&launch->args[i].value;"
        " if (launch->args[i].is_pointer) *(uintptr_t*)arguments[i] &= ~(uintptr_t)63; }",
        ("a_kernel",),
    ),
    "ScalarsOfFourBytes": Fault(
        "kernels.c",
        "arguments[i] = (void*)&launch->args[i].value;",
        "{ arguments[i] = (void*)&launch->args[i].value;"
        " if (!launch->args[i].is_pointer) *(uint64_t*)arguments[i] &= UINT32_MAX; }",
        ("scalars_of_every_size",),
    ),
    "AnotherModulesKernel": Fault(
        "loader.c",
        "  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);",
        "  static void* first;\n  if (!first) first = dlopen(path, RTLD_NOW | RTLD_LOCAL);\n  *library = first;",
        ("scalars_of_every_size", "a_module_as_binary"),
    ),
    "ARefusalIsAnyError": Fault(
        "compiler.c",
        'fail(TG_ERROR_COMPILE, "the compiler refused the source")',
        'fail(TG_ERROR, "the compiler refused the source")',
        ("a_refused_source",),
    ),
    "TheKernelDiesWithItsModule": Fault(
        "kernels.c",
        "  atomic_fetch_add(&module->users, 1);\n",
        "",
        ("a_kernel_outlives_its_module",),
        fatal=True,
    ),
}


def checks_for(fault: Fault) -> type[TableProtocol]:
    """The checks that are there for a fault, and no others."""
    checks = (name for name in dir(TableProtocol) if name.startswith("test_"))
    unwanted = {name: None for name in checks if name.removeprefix("test_") not in fault.found_by}
    return type("Checks", (TableProtocol,), {"fault": fault, **unwanted})


@pytest.fixture(scope="class")
def table(request: pytest.FixtureRequest) -> Table:
    fault: Fault = request.cls.fault
    return driver_table(c_driver.changed(fault.file, fault.right, fault.wrong))


chosen = os.environ.get("TORCHGRAFT_TEST_FAULT")
for name, each in FAULTS.items():
    if name == chosen or (chosen is None and not each.fatal):
        globals()[f"Test{name}"] = checks_for(each)
