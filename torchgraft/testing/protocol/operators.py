"""The rules of operators, each a check of its own: those that a device has are compared with torch's CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import pytest
import torch

from torchgraft.driver import Driver, ProgramSource, ProgramTensor
from torchgraft.testing.operator_reference import KINDS
from torchgraft.testing.protocol.bench import Bench, provides
from torchgraft.testing.protocol.graph_programs import ProgramChecks, from_its_binary, refuses_foreign_binaries
from torchgraft.testing.protocol.operator_calls import (
    CALLS,
    DTYPES,
    Call,
    Number,
    calls,
    dtype_name,
    expected,
    long_sums,
)
from torchgraft.testing.protocol.program_runs import LAYOUTS, Block, EndlessWishes, Prepared, prepared, source_of
from torchgraft.testing.protocol.rules import rule

__all__ = ["OperatorProtocol"]

WORDS = "A description is an operator with its attributes (torchgraft's are in docs/operators.md)"


@dataclass
class Outcome:
    """What came of one call.

    Attributes:
        label: which it is.
        call: it, with its layout.
        layout: of inputs and of outputs.
        refused: the driver's reason, where it has it not.
        error: what else was raised.
        wishes: what is wrong with its wishes.
        faults: what is wrong with what it has written, by the check that is there for it.
    """

    label: str
    call: Call
    layout: tuple[str, str]
    refused: str | None = None
    error: BaseException | None = None
    wishes: str = ""
    faults: dict[str, str] | None = None


_outcomes: WeakKeyDictionary[Driver, dict[str, list[Outcome]]] = WeakKeyDictionary()


def outcomes(bench: Bench, operator: str) -> list[Outcome]:
    """All calls of an operator, each made once: the checks look at different sides of them."""
    known = _outcomes.setdefault(bench.driver, {})
    if operator not in known:
        known[operator] = list(_all_calls(bench, operator))
    return known[operator]


def _all_calls(bench: Bench, operator: str) -> Iterator[Outcome]:
    of_layouts: torch.dtype | None = None  # the first that the device has: strides are tried in one
    for dtype in DTYPES[operator]:
        for kind in ("ordinary", "one element", "not finite"):
            had = False
            for call in calls(operator, dtype, kind):
                outcome = _outcome(bench, call, LAYOUTS[0], f"{dtype_name(dtype)}, {kind}")
                had = had or outcome.refused is None
                yield outcome
            if kind == "ordinary" and had and of_layouts is None:
                of_layouts = dtype
    if of_layouts is not None:
        for layout in LAYOUTS[1:]:
            for call in calls(operator, of_layouts):
                if layout[0] != "repeated" or _may_repeat(call):
                    label = f"{dtype_name(of_layouts)}, inputs {layout[0]}, outputs {layout[1]}"
                    yield _outcome(bench, call, layout, label)


def _may_repeat(call: Call) -> bool:
    """Results are not repeated, and of elements that are the same any may be among the largest."""
    return not call.over and call.operator != "topk"


def _outcome(bench: Bench, call: Call, layout: tuple[str, str], label: str) -> Outcome:
    outcome = Outcome(f"{call.operator} {call.name}: {label}", call, layout)
    try:
        with prepared(bench, call, layout) as program:
            block = Block(bench, program)
            after = block.run(block.allocate())
            checks = (block.check_values, block.check_inputs, block.check_beside_results, block.check_beside_scratch)
            outcome.faults = {check.__name__: fault for check in checks if (fault := _fault(check, after))}
    except NotImplementedError as error:
        outcome.refused = str(error)
    except EndlessWishes as error:
        outcome.wishes = str(error)
    except Exception as error:
        outcome.error = error
    return outcome


def _fault(check: Callable[[bytes], None], after: bytes) -> str:
    try:
        check(after)
    except AssertionError as error:
        return str(error)
    return ""


def _tell(found: list[str]) -> None:
    assert not found, f"{len(found)} calls:\n" + "\n".join(found[:10])


class OperatorProtocol(ProgramChecks):
    """Derive from it, and have a fixture `driver` (of the scope "module"): a `torchgraft.Driver` with operators, not
    used before; of a table in C, `torchgraft.testing.table.TableDriver.load(path)`.

    Most checks are about one operator of docs/operators.md, and skipped where the device has not that operator; some
    are about graphs, where the driver has `program_formats`.
    """

    @pytest.fixture(params=CALLS)
    def operator(self, request: pytest.FixtureRequest, bench: Bench) -> str:
        """One that the device has."""
        name: str = request.param
        made = outcomes(bench, name)
        if all(each.refused is not None for each in made):
            pytest.skip(f"the device has no {name}: {made[0].refused}")
        return name

    @pytest.fixture
    def program(self, bench: Bench, operator: str) -> Iterator[Prepared]:
        """A program that works."""
        served = [each for each in outcomes(bench, operator) if each.faults is not None]
        if not served:
            pytest.skip(f"no call of {operator} was served")
        with prepared(bench, served[0].call, served[0].layout) as program:
            yield program

    # Single runs

    @rule(WORDS)
    def test_values(self, bench: Bench, operator: str) -> None:
        """Beside torch's CPU: each dtype, one element, what is not finite, and strides of all kinds."""
        made = outcomes(bench, operator)
        _tell([f"{each.label}: {type(each.error).__name__}: {each.error}" for each in made if each.error])
        self._no_fault(made, "check_values")

    @rule("Inputs are not written.")
    def test_inputs_are_not_written(self, bench: Bench, operator: str) -> None:
        self._no_fault(outcomes(bench, operator), "check_inputs")

    @rule("prepares it, for tensors as they are")
    def test_nothing_beside_results_is_written(self, bench: Bench, operator: str) -> None:
        """Neither around them nor between their elements."""
        self._no_fault(outcomes(bench, operator), "check_beside_results")

    @rule("of device memory that each run is given, 0 for none")
    def test_scratch_is_as_large_as_was_asked_for(self, bench: Bench, operator: str) -> None:
        """It is given exactly so much, and what lies beside it stays."""
        self._no_fault(outcomes(bench, operator), "check_beside_scratch")

    @staticmethod
    def _no_fault(made: list[Outcome], check: str) -> None:
        _tell([f"{each.label}: {each.faults[check]}" for each in made if each.faults and check in each.faults])

    @rule("where the driver sets one, torchgraft copies the tensor accordingly and asks again")
    def test_wishes_end(self, bench: Bench, operator: str) -> None:
        """A driver that has what it wished for takes it."""
        _tell([f"{each.label}: {each.wishes}" for each in outcomes(bench, operator) if each.wishes])

    @rule("TG_ERROR_UNSUPPORTED, with the reason in last_error, sends the op elsewhere.")
    def test_refusals_have_reasons(self, bench: Bench, operator: str) -> None:
        _tell([f"{each.label}: no reason" for each in outcomes(bench, operator) if each.refused == ""])

    @rule(WORDS)
    def test_sums_of_16_bit_floats(self, bench: Bench, operator: str) -> None:
        """They are kept in float32: of many small numbers 16 bits lose all that come late."""
        tried = 0
        for call in (call for dtype in (torch.bfloat16, torch.float16) for call in long_sums(operator, dtype)):
            with contextlib.suppress(NotImplementedError), prepared(bench, call) as program:
                block = Block(bench, program)
                block.check_values(block.run(block.allocate()), relative=True)
                tried += 1
        if not tried:
            pytest.skip(f"the device has no {operator} that sums up 16-bit floats")

    # Refusals

    @rule("TG_ERROR_UNSUPPORTED, with the reason in last_error, sends the op elsewhere.")
    @pytest.mark.parametrize("format", ["operator", "a language that nobody speaks"])
    def test_what_nobody_has(self, bench: Bench, format: str) -> None:
        x = ProgramTensor("float32", (2, 3), (3, 1))
        source = ProgramSource(format, "an operator that nobody has", b"", {}, (x,), (x,))
        with pytest.raises(NotImplementedError) as error:
            bench.driver.program_supports(bench.device, source)
        assert str(error.value), "a refusal says why"

    @rule("TG_ERROR_UNSUPPORTED, with the reason in last_error, sends the op elsewhere.")
    @pytest.mark.parametrize("name", ["pointwise", *KINDS])
    def test_kinds_that_nobody_has(self, bench: Bench, name: str) -> None:
        """Of operators that are many."""
        served = next((each.call for each in outcomes(bench, name) if each.faults is not None), None)
        if served is None:
            pytest.skip(f"the device has no {name}")
        call = replace(served, attributes={**served.attributes, "kind": "a kind that nobody has"})
        with pytest.raises(NotImplementedError) as error:
            bench.driver.program_supports(bench.device, source_of(call, expected(served)))
        assert str(error.value), "a refusal says why"

    # Runs in streams

    @rule("submits it, ordered as a launch")
    def test_runs_and_copies_keep_the_order(self, bench: Bench, program: Prepared) -> None:
        """A run reads what earlier work of its stream has still to write, and later work writes after it."""
        block = Block(bench, program)
        ready, base = block.allocate(), bench.allocate(block.nbytes, b"\x11" * block.nbytes)
        result = bench.allocate(block.nbytes)
        bench.keep_busy(bench.stream, rounds=3)
        bench.submit_copy(base, ready, block.nbytes)
        block.submit(base)
        bench.submit_copy(result, base, block.nbytes)
        bench.fill(base, b"\xee", block.nbytes)
        bench.synchronize()
        block.check(bench.read(result, block.nbytes))

    @rule("One run of a program.")
    def test_other_addresses(self, bench: Bench, program: Prepared) -> None:
        """Each run has its own, and its own scratch, which has other garbage in it."""
        runs = [Block(bench, self._redrawn(program, seed), seed) for seed in range(3)]
        bases = [block.allocate() for block in runs]
        bench.keep_busy(bench.stream, rounds=1)
        for block, base in zip(runs, bases, strict=True):
            block.submit(base)
        for block, base in zip(runs, bases, strict=True):
            block.check(bench.read(base, block.nbytes))

    @rule("The record and what it points to are valid during the call.")
    def test_the_record_is_the_callers(self, bench: Bench, program: Prepared) -> None:
        """It is overwritten when the call returns, and the run may not have begun."""
        block = Block(bench, program)
        base = block.allocate()
        bench.keep_busy(bench.stream, rounds=3)
        block.check(block.run(base))

    @rule("no run is submitted any more; those that were may still be going on")
    def test_a_program_that_is_destroyed_finishes(self, bench: Bench, program: Prepared) -> None:
        block = Block(bench, program)
        base = block.allocate()
        with prepared(bench, program.call) as other:
            block.of = other
            bench.keep_busy(bench.stream, rounds=3)
            block.submit(base)
        block.check(bench.read(base, block.nbytes))

    @rule("It may be called from any thread, at any time, without the Python GIL; the driver does its own locking.")
    def test_threads_that_share_a_program(self, bench: Bench, program: Prepared) -> None:
        """Each has a stream, memory and scratch of its own; no run sees another's."""
        blocks = [Block(bench, self._redrawn(program, seed), seed) for seed in range(4)]

        def work(number: int) -> None:
            block, stream = blocks[number], bench.driver.stream_create(bench.device, 0)
            for _ in range(5):
                base = bench.driver.allocate(bench.device, block.nbytes)
                bench.write(base, block.content, stream)
                block.check(block.run(base, stream))
                bench.driver.deallocate(bench.device, base)
            bench.driver.stream_destroy(bench.device, stream)

        self._in_threads(work, 4)

    @rule("A run's arguments are its addresses, of numbers their values, and behind them its scratch.")
    def test_a_graph_with_a_run(self, bench: Bench, program: Prepared) -> None:
        """It is launched again with other addresses, and earlier launches keep theirs."""
        driver = bench.driver
        if not provides(driver, "graph_launch"):
            pytest.skip("the driver takes no graphs")
        blocks = [Block(bench, self._redrawn(program, seed), seed) for seed in range(3)]
        bases = [block.allocate() for block in blocks]
        first = blocks[0]
        first.set_numbers()
        commands = [("program_run", (program.program, first.addresses(bases[0]), first.scratch(bases[0])))]
        graph = driver.graph_create(bench.device, commands)
        bench.when_closed(lambda: driver.graph_destroy(bench.device, graph))
        commands.clear()
        first.set_numbers(False)
        bench.keep_busy(bench.stream, rounds=1)
        for block, base in zip(blocks, bases, strict=True):
            if block is not first:
                block.set_numbers()
                numbers = dict(enumerate(block.numbers))
                for i, address in enumerate([*block.addresses(base), block.scratch(base)]):
                    number = numbers.get(i)
                    if address:
                        driver.graph_set_argument(bench.device, graph, 0, i, number.content if number else address)
                block.set_numbers(False)
            driver.graph_launch(bench.device, bench.stream, graph)
        for block, base in zip(blocks, bases, strict=True):
            block.check(bench.read(base, block.nbytes))

    @rule("which is read during the call")
    def test_numbers_are_new_in_each_run(self, bench: Bench) -> None:
        """One program serves all of them; the host's memory is used for others when the call has returned."""
        made = [each for each in outcomes(bench, "pointwise") if each.faults is not None and _has_number(each.call)]
        if not made:
            pytest.skip("the device has no pointwise with a number")
        for outcome in made[:12]:
            with prepared(bench, outcome.call, outcome.layout) as program:
                runs = [Block(bench, program.with_values_of(_renumbered(program.call, by))) for by in (0, 1, 2)]
                bases = [block.allocate() for block in runs]
                bench.keep_busy(bench.stream, rounds=1)
                for block, base in zip(runs, bases, strict=True):
                    block.submit(base)
                for block, base in zip(runs, bases, strict=True):
                    block.check(bench.read(base, block.nbytes))

    @rule(
        "The next stream_synchronize, stream_query, device_synchronize or blocking copy of its stream then returns the"
    )
    def test_a_failure_that_comes_later_is_told_once(self, bench: Bench) -> None:
        """Of an index that is out of range, where the device looks at indices."""
        with self._gathering(bench) as program:
            block = Block(bench, _with_an_index_out_of_range(program))
            bench.keep_busy(bench.stream, rounds=1)
            if _raised(lambda: block.submit(block.allocate())) is not None:
                assert _raised(bench.synchronize) is None, "a failure is told once"
                pytest.skip("the device looks at indices within the call")
            later = [_raised(bench.synchronize) for _ in range(2)]
            if later == [None, None]:
                pytest.skip("the device looks at no indices, or reports none")
            assert later[1] is None, "a failure is told once"
            assert "gather" in str(later[0]), "the program's name"
            sound = Block(bench, program)
            sound.check(sound.run(sound.allocate()))

    @rule("A failed call changes nothing.")
    def test_a_run_that_is_refused_changes_nothing(self, bench: Bench) -> None:
        with self._gathering(bench) as program:
            block = Block(bench, _with_an_index_out_of_range(program))
            base = block.allocate()
            if _raised(lambda: block.submit(base)) is None:
                _raised(bench.synchronize)
                pytest.skip("the device looks at no indices within the call")
            block.check_untouched(bench.read(base, block.nbytes))

    @staticmethod
    @contextlib.contextmanager
    def _gathering(bench: Bench) -> Iterator[Prepared]:
        call = next((each.call for each in outcomes(bench, "gather") if each.faults is not None), None)
        if call is None:
            pytest.skip("the device has no gather")
        with prepared(bench, call) as program:
            yield program

    # Programs on disk

    @rule("as program_create, of a binary in place of the source's bytes, which are not given")
    def test_a_program_from_its_binary(self, bench: Bench, program: Prepared) -> None:
        from_its_binary(bench, program)

    @rule("It refuses what is no binary of the device's, and the program is created then.")
    def test_no_binary(self, bench: Bench, program: Prepared) -> None:
        refuses_foreign_binaries(bench, program)

    # Times

    @rule("is timed by `event`, made with timing")
    def test_times_of_a_run(self, bench: Bench, program: Prepared) -> None:
        driver, device = bench.driver, bench.device
        if not provides(driver, "event_times"):
            pytest.skip("the driver does not time single commands")
        block = Block(bench, program)
        base, event = block.allocate(), bench.new_event(timing=True)
        earliest = driver.device_time(device)
        driver.event_time_next(device, event)
        block.submit(base)
        driver.event_synchronize(device, event)
        begin, end = driver.event_times(device, event)
        assert (begin, end) == (0, 0) or earliest <= begin <= end <= driver.device_time(device)
        block.check(bench.read(base, block.nbytes))

    @staticmethod
    def _redrawn(program: Prepared, seed: int) -> Prepared:
        """The program, for its call with other values."""
        assert program.call.redrawn is not None
        return program.with_values_of(program.call.redrawn(seed))


def _raised(step: Callable[[], None]) -> Exception | None:
    try:
        step()
    except Exception as error:
        return error
    return None


def _has_number(call: Call) -> bool:
    return any(isinstance(each, Number) for each in call.inputs)


def _renumbered(call: Call, by: int) -> Call:
    """The call with other numbers."""
    return replace(call, inputs=[Number(e.value + by) if isinstance(e, Number) else e for e in call.inputs])


def _with_an_index_out_of_range(program: Prepared) -> Prepared:
    x, indices = program.call.inputs
    assert isinstance(indices, torch.Tensor)
    indices = indices.clone()
    indices.view(-1)[-1] = 1 << 20
    return replace(program, call=replace(program.call, inputs=[x, indices]))
