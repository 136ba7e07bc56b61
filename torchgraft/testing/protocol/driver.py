"""The rules of `torchgraft.Driver`, each a check of its own."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
import time
from dataclasses import replace
from typing import Any

import pytest

from torchgraft.codegen import Kernel, Pointer, Value
from torchgraft.codegen.dialects import dialect
from torchgraft.driver import Capability, CompileError, CopyKind, DeviceKind, Driver, InvalidArgument
from torchgraft.testing.protocol.bench import MIB, Bench, assert_same, floats, noise, packed, provides
from torchgraft.testing.protocol.checks import Checks
from torchgraft.testing.protocol.rules import rule

PART = 2 * MIB  #: TG_MEMORY_PART
PATTERNS = [b"a", b"ab", b"abcd", b"abcdefgh", b"abcdefghijklmnop"]


class DriverProtocol(Checks):
    """Derive from it, and have a fixture `driver` (of the scope "module"): a `torchgraft.Driver`, not used before."""

    #: Seconds that a check of times sleeps: more than one, since seconds may be counted apart from what is left.
    long_while = 1.05

    # Devices

    @rule("Each device has a name, a kind and memory; address_align is a power of two, and the counts are at least 1.")
    def test_properties(self, bench: Bench) -> None:
        p = bench.properties
        assert p.name
        assert p.kind in list(DeviceKind)
        assert p.total_memory > 0
        assert 0 <= p.max_allocation <= p.total_memory
        assert p.address_align > 0
        assert p.address_align & (p.address_align - 1) == 0, "the alignment of addresses is a power of two"
        assert min(p.compute_units, p.max_work_group_size, p.simd_width) >= 1
        assert p.local_memory >= 0
        assert p.clock_mhz >= 0

    @rule("It never changes: it is part of the key under which kernels are kept.")
    def test_properties_are_constant(self, bench: Bench) -> None:
        """They are part of the key under which compiled kernels are kept."""
        assert bench.driver.device_properties(bench.device) == bench.properties

    @rule('the kernel language, e.g. "opencl-c"; empty without a compiler')
    def test_claims(self, bench: Bench) -> None:
        known = Capability(0)
        for each in Capability:
            known |= each
        assert not int(bench.properties.capabilities) & ~int(known), "a capability that the contract does not have"
        if bench.has(Capability.COMPILER):
            assert bench.driver.has_compiler
            assert bench.properties.dialect, "a device with a compiler names the language"
        else:
            assert not bench.properties.dialect, "a dialect without Capability.COMPILER"
        if bench.has(Capability.PROGRAMS):
            assert bench.driver.has_programs

    @rule("an argument is out of range: becomes RuntimeError")
    def test_no_such_device(self, driver: Driver, count: int) -> None:
        for index in (count, -1):
            with pytest.raises(InvalidArgument) as error:
                driver.device_properties(index)
            assert str(error.value), "an error says what was wrong"

    @rule("The free part is at most the total, and that at most the device's total_memory.")
    def test_memory_info(self, bench: Bench) -> None:
        free, total = bench.driver.memory_info(bench.device)
        assert 0 <= free <= total
        assert 0 < total <= bench.properties.total_memory

    # Memory

    @pytest.mark.parametrize("nbytes", [1, 3, 64, 100, 4096, MIB + 1])
    @rule("every allocation starts at a multiple")
    def test_alignment(self, bench: Bench, nbytes: int) -> None:
        for _ in range(4):
            address = bench.allocate(nbytes)
            assert address > 0
            assert address % bench.properties.address_align == 0

    @rule("An allocation overlaps no other and keeps its content until deallocate, which gives its memory back")
    def test_allocations_do_not_overlap(self, bench: Bench) -> None:
        sizes = [1, 5000, 64, 128, 1, MIB, 17] * 4
        spans = sorted((bench.allocate(nbytes), nbytes) for nbytes in sizes)
        assert all(address + nbytes <= following for (address, nbytes), (following, _) in itertools.pairwise(spans))

    @rule("An allocation overlaps no other and keeps its content until deallocate, which gives its memory back")
    def test_memory_keeps_its_content(self, bench: Bench) -> None:
        contents = [noise(nbytes, seed) for seed, nbytes in enumerate([1, 77, 4096, 100_003])]
        addresses = [bench.allocate(len(content), content) for content in contents]
        for address, content in zip(addresses, contents, strict=True):
            assert_same(bench.read(address, len(content)), content)

    @rule("An allocation overlaps no other and keeps its content until deallocate, which gives its memory back")
    def test_freed_memory_comes_back(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        lost = 0
        for _ in range(3):  # others may take memory of the same device meanwhile, but hardly each time
            before = driver.memory_info(device)[0]
            for _ in range(16):
                driver.deallocate(device, driver.allocate(device, MIB))
            lost = before - driver.memory_info(device)[0]
            if lost < 8 * MIB:
                return
        pytest.fail(f"16 allocations of 1 MiB were freed, and {lost} bytes are missing")

    @rule("torchgraft frees its cache, tries again, then raises torch.OutOfMemoryError")
    def test_out_of_memory(self, bench: Bench) -> None:
        """`MemoryError`, so that torchgraft frees its cache and tries again."""
        limits = {1 << 60, (bench.properties.max_allocation or bench.properties.total_memory) + 1}
        for nbytes in sorted(limits):
            with pytest.raises(MemoryError) as error:
                bench.allocate(nbytes)
            assert str(error.value), "an error says what was wrong"

    @rule("A failed call changes nothing.")
    def test_a_failed_call_changes_nothing(self, bench: Bench) -> None:
        content = noise(1000)
        address = bench.allocate(1000, content)
        with pytest.raises(MemoryError):
            bench.allocate(1 << 60)
        assert_same(bench.read(address, 1000), content)
        other = bench.allocate(1000, content[::-1])
        assert_same(bench.read(other, 1000), content[::-1])
        assert_same(bench.read(address, 1000), content)

    @rule("parts that adjoin are one allocation to copies, fills and launches")
    def test_memory_that_grows(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        address = self._reserve(bench, 5)
        for part in (1, 3, 2):
            driver.commit(device, address + part * PART, PART)
        content = noise(100_003)
        across = address + 2 * PART - 50_001
        bench.write(across, content)
        assert_same(bench.read(across, len(content)), content)
        bench.fill(address + PART, b"x", 3 * PART)
        assert_same(bench.read(address + PART, 3 * PART), b"x" * (3 * PART))

    @rule("all of a part loses its memory")
    def test_memory_that_shrinks(self, bench: Bench) -> None:
        """What lies beside it stays, and it may get memory again."""
        driver, device = bench.driver, bench.device
        address = self._reserve(bench, 3)
        driver.commit(device, address, 3 * PART)
        content = noise(PART)
        for part in range(3):
            bench.write(address + part * PART, content)
        driver.decommit(device, address + PART, PART)
        assert_same(bench.read(address, PART), content)
        assert_same(bench.read(address + 2 * PART, PART), content)
        driver.commit(device, address + PART, PART)
        bench.write(address + PART, content[::-1])
        assert_same(bench.read(address, 3 * PART), content + content[::-1] + content)

    @rule("deallocate gives them back, with what memory they have")
    def test_reserved_addresses_come_back(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        self._reserve(bench, 1)
        lost = 0
        for _ in range(3):  # others may take memory of the same device meanwhile, but hardly each time
            before = driver.memory_info(device)[0]
            for _ in range(4):
                address = driver.reserve(device, 4 * PART)
                driver.commit(device, address + PART, 2 * PART)
                driver.deallocate(device, address)
            lost = before - driver.memory_info(device)[0]
            if lost < 8 * MIB:
                return
        pytest.fail(f"4 ranges with 4 MiB each were freed, and {lost} bytes are missing")

    def _reserve(self, bench: Bench, parts: int) -> int:
        """Addresses for so many parts; a device whose memory does not grow skips the check."""
        driver, device = bench.driver, bench.device
        if not provides(driver, "reserve"):
            pytest.skip("the driver reserves no addresses")
        try:
            address = driver.reserve(device, parts * PART)
        except NotImplementedError:
            pytest.skip("the device's memory does not grow in place")
        bench.when_closed(lambda: driver.deallocate(device, address))
        assert address % PART == 0, "the range begins at a multiple of 2 MiB"
        return address

    @rule("pinned host memory")
    def test_pinned_memory(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        if not provides(driver, "host_allocate"):
            pytest.skip("the driver has no pinned memory of its own")
        content = noise(5000)
        address, pinned = bench.allocate(5000), driver.host_allocate(device, 5000)
        ctypes.memmove(pinned, content, 5000)
        driver.copy(device, bench.stream, address, pinned, 5000, 1, False)
        bench.synchronize()
        assert_same(bench.read(address, 5000), content)
        ctypes.memset(pinned, 0, 5000)
        driver.copy(device, bench.stream, pinned, address, 5000, 2, False)
        bench.synchronize()
        assert_same(ctypes.string_at(pinned, 5000), content)
        driver.host_deallocate(device, pinned)

    @rule("The host may read and write device addresses whenever no submitted work uses them.")
    def test_unified_memory(self, bench: Bench) -> None:
        bench.need(Capability.UNIFIED_MEMORY)
        content = noise(3000)
        address = bench.allocate(3000, content)
        assert_same(ctypes.string_at(address, 3000), content)
        ctypes.memmove(address + 1000, b"from the host", 13)
        assert_same(bench.read(address + 1000, 13), b"from the host")

    # Copies and fills

    @pytest.mark.parametrize("nbytes", [1, 3, 64, 4095, MIB + 7])
    @rule("any address inside an allocation is accepted by copies, fills and launches")
    def test_copies_inside_allocations(self, bench: Bench, nbytes: int) -> None:
        """Addresses inside an allocation are as good as its start, and nothing beside the bytes is touched."""
        content = noise(nbytes)
        a, b = bench.allocate(nbytes + 100, b"." * (nbytes + 100)), bench.allocate(nbytes + 50, b"." * (nbytes + 50))
        bench.write(a + 37, content)
        assert_same(bench.read(a, nbytes + 100), b"." * 37 + content + b"." * 63)
        bench.submit_copy(b + 11, a + 37, nbytes, blocking=True)
        assert_same(bench.read(b, nbytes + 50), b"." * 11 + content + b"." * 39)
        assert_same(bench.read(b + 11, nbytes), content)

    @rule("any address inside an allocation is accepted by copies, fills and launches")
    def test_copies_inside_one_allocation(self, bench: Bench) -> None:
        address = bench.allocate(3000, noise(3000))
        bench.submit_copy(address + 2001, address + 5, 900, blocking=True)
        assert_same(bench.read(address + 2001, 900), noise(3000)[5:905])

    @rule("With `blocking` the call returns when the copy is done")
    def test_a_blocking_write_has_read_its_source(self, bench: Bench) -> None:
        content = noise(self.busy_bytes)
        address, source = bench.allocate(len(content)), bench.host(content)
        bench.submit_write(address, source, blocking=True)
        source.content = bytes(len(content))
        bench.synchronize()
        assert_same(bench.read(address, len(content)), content)

    @rule("With `blocking` the call returns when the copy is done")
    def test_a_blocking_read_has_arrived(self, bench: Bench) -> None:
        address, content = bench.keep_busy(bench.stream)
        into = bench.host(len(content))
        bench.submit_read(into, address, len(content), blocking=True)
        assert_same(into.content, content)

    @rule("a host side must stay valid (and, unless pinned, is read or written) until the stream has run the copy")
    def test_copies_have_arrived_when_the_stream_is_synchronized(self, bench: Bench) -> None:
        content = noise(self.busy_bytes)
        source, into = bench.host(content), bench.host(len(content))
        address = bench.allocate(len(content))
        bench.submit_write(address, source)
        bench.submit_read(into, address, len(content))
        bench.synchronize()
        assert_same(into.content, content)

    @pytest.mark.parametrize("repeats", [1, 3, 1000, 40_000])
    @pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: f"{len(pattern)}_bytes")
    @rule("Repeats a pattern of 1, 2, 4, 8 or 16 bytes; `bytes` is a multiple of it.")
    def test_fill(self, bench: Bench, pattern: bytes, repeats: int) -> None:
        nbytes = len(pattern) * repeats
        address = bench.allocate(nbytes + 32, b"." * (nbytes + 32))
        bench.fill(address + 16, pattern, nbytes)
        assert_same(bench.read(address, nbytes + 32), b"." * 16 + pattern * repeats + b"." * 16)

    @rule("Repeats a pattern of 1, 2, 4, 8 or 16 bytes; `bytes` is a multiple of it.")
    def test_fill_with_zero_bytes_in_the_pattern(self, bench: Bench) -> None:
        address = bench.allocate(64, b"." * 64)
        bench.fill(address, b"\0\0\x80?", 64)
        assert floats(bench.read(address, 64)) == [1.0] * 16

    @rule("Between two devices of this driver, ordered on `stream` of the destination's device")
    def test_copy_peer(self, bench: Bench, count: int) -> None:
        driver = bench.driver
        if not provides(driver, "copy_peer"):
            pytest.skip("the driver has no copies between devices: they go by way of the host")
        if count < 2:
            pytest.skip("one device only")
        there, content = Bench(driver, 1 - self.device, self.busy_bytes), noise(MIB + 3)
        source = bench.allocate(len(content) + 10, b".." + content + b"........")
        destination = there.allocate(len(content) + 10, b"." * (len(content) + 10))
        driver.copy_peer(there.device, destination + 5, bench.device, source + 2, len(content), there.stream)
        there.synchronize()
        assert_same(there.read(destination, len(content) + 10), b"....." + content + b".....")
        there.close()

    # Streams

    @rule("Work submitted to one stream runs in the order of submission.")
    def test_a_stream_keeps_the_order(self, bench: Bench) -> None:
        nbytes = MIB
        content, chain = noise(nbytes), [bench.allocate(nbytes, bytes(nbytes)) for _ in range(8)]
        source, into = bench.host(content), bench.host(nbytes)
        for _ in range(4):
            bench.submit_write(chain[0], source)
            for one, following in itertools.pairwise(chain):
                bench.submit_copy(following, one, nbytes)
                bench.fill(one, b"\xee", nbytes)
        bench.submit_read(into, chain[-1], nbytes)
        bench.fill(chain[-1], b"\xdd", nbytes)
        bench.synchronize()
        assert_same(into.content, content)
        assert [set(bench.read(each, nbytes)) for each in chain] == [{0xEE}] * 7 + [{0xDD}]

    @rule("Destroying one leaves the others as they are.")
    def test_streams_are_objects_of_their_own(self, bench: Bench) -> None:
        content = noise(1000)
        address = bench.allocate(1000, content)
        streams = [bench.driver.stream_create(bench.device, 0) for _ in range(20)]
        for each in streams[1:]:
            bench.driver.stream_destroy(bench.device, each)
        assert_same(bench.read(address, 1000, streams[0]), content)
        bench.driver.stream_destroy(bench.device, streams[0])

    @pytest.mark.parametrize("priority", [-2, -1, 0, 1])
    @rule("Priorities: lower is more urgent, 0 the default; a hint.")
    def test_priorities_are_hints(self, bench: Bench, priority: int) -> None:
        stream = bench.new_stream(priority)
        address = bench.allocate(16)
        bench.write(address, b"any priority it is"[:16], stream)
        assert_same(bench.read(address, 16, stream), b"any priority it is"[:16])

    @rule("TG_OK: idle; TG_NOT_READY: busy")
    def test_a_stream_that_says_idle_has_done_its_work(self, bench: Bench) -> None:
        address, content = bench.keep_busy(bench.stream)
        into = bench.host(len(content))
        bench.submit_read(into, address, len(content))
        self._await(lambda: bench.driver.stream_query(bench.device, bench.stream), "the stream never became idle")
        assert_same(into.content, content)

    @rule("TG_OK: idle; TG_NOT_READY: busy")
    def test_a_synchronized_stream_is_idle(self, bench: Bench) -> None:
        assert bench.driver.stream_query(bench.device, bench.new_stream()) is True
        bench.keep_busy(bench.stream, rounds=1)
        bench.synchronize()
        assert bench.driver.stream_query(bench.device, bench.stream) is True

    @rule("waits for all streams")
    def test_device_synchronize_waits_for_all_streams(self, bench: Bench) -> None:
        streams = [bench.stream, bench.new_stream(), bench.new_stream(-1)]
        busy = [bench.keep_busy(stream) for stream in streams]
        into = [bench.host(len(content)) for _, content in busy]
        for stream, buffer, (address, content) in zip(streams, into, busy, strict=True):
            bench.submit_read(buffer, address, len(content), stream)
        bench.driver.device_synchronize(bench.device)
        for buffer, (_, content) in zip(into, busy, strict=True):
            assert_same(buffer.content, content)
        assert all(bench.driver.stream_query(bench.device, stream) for stream in streams)

    # Events

    @rule("An event has passed when the work submitted before its last recording is done, or it was never recorded.")
    def test_an_event_that_has_passed(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        event = bench.new_event()
        for _ in range(3):  # an event may be recorded again, and the last time counts
            address, content = bench.keep_busy(bench.stream)
            into = bench.host(len(content))
            bench.submit_read(into, address, len(content))
            driver.event_record(device, event, bench.stream)
            driver.event_synchronize(device, event)
            assert_same(into.content, content)
            assert driver.event_query(device, event) is True

    @rule("An event has passed when the work submitted before its last recording is done, or it was never recorded.")
    def test_an_event_that_says_passed_has_passed(self, bench: Bench) -> None:
        event = bench.new_event()
        address, content = bench.keep_busy(bench.stream)
        into = bench.host(len(content))
        bench.submit_read(into, address, len(content))
        bench.driver.event_record(bench.device, event, bench.stream)
        self._await(lambda: bench.driver.event_query(bench.device, event), "the event never passed")
        assert_same(into.content, content)

    @rule("event_synchronize for at most so long: TG_OK if the event has passed, TG_NOT_READY if not")
    def test_a_wait_with_a_limit(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        if not provides(driver, "event_synchronize_for"):
            pytest.skip("the driver's waits have no limit")
        event = bench.new_event()
        assert driver.event_synchronize_for(device, event, 0.0) is True, "an event that was never recorded has passed"
        for limit in (0.0, 1e-6, 1.0):
            address, content = bench.keep_busy(bench.stream)
            into = bench.host(len(content))
            bench.submit_read(into, address, len(content))
            driver.event_record(device, event, bench.stream)
            began = time.perf_counter()
            passed = driver.event_synchronize_for(device, event, limit)
            assert passed or time.perf_counter() - began >= limit, "it gave up before its time"
            self._await(lambda: driver.event_synchronize_for(device, event, 0.01), "the event never passed")
            assert_same(into.content, content)
            assert driver.event_query(device, event) is True

    @pytest.mark.parametrize("timing", [False, True])
    @rule("the stream waits, not the host")
    def test_a_stream_waits_for_an_event(self, bench: Bench, timing: bool) -> None:
        driver, device = bench.driver, bench.device
        other, event = bench.new_stream(), bench.new_event(timing)
        for _ in range(2):
            address, content = bench.keep_busy(bench.stream)
            into = bench.host(len(content))
            driver.event_record(device, event, bench.stream)
            driver.event_wait(device, event, other)
            bench.submit_read(into, address, len(content), other)
            bench.synchronize(other)
            assert_same(into.content, content)

    @rule("Milliseconds from one recorded timing event to another.")
    def test_elapsed_time(self, bench: Bench) -> None:
        bench.need(Capability.EVENT_TIMING)
        driver, device = bench.driver, bench.device
        events = [bench.new_event(timing=True) for _ in range(3)]
        walls = []
        for event in events:
            began = time.perf_counter()
            driver.event_record(device, event, bench.stream)
            driver.event_synchronize(device, event)
            walls.append((began, time.perf_counter()))
            time.sleep(0.02)
        for (i, (_, earliest)), (j, (_, latest)) in itertools.pairwise(enumerate(walls)):
            milliseconds = driver.event_elapsed(device, events[i], events[j])
            assert milliseconds > 0, "a later event has a later time"
            # Neither more than the host saw pass, nor less than it slept; clocks are compared to a millisecond.
            assert 18 <= milliseconds <= (latest - walls[i][0]) * 1e3 + 1, f"{milliseconds} ms; {earliest, latest}"
        whole = driver.event_elapsed(device, events[0], events[2])
        parts = [driver.event_elapsed(device, *pair) for pair in itertools.pairwise(events)]
        assert whole == pytest.approx(sum(parts), abs=0.1)
        assert driver.event_elapsed(device, events[2], events[0]) == pytest.approx(-whole, abs=0.1)

    @rule("Milliseconds from one recorded timing event to another.")
    def test_elapsed_time_beyond_a_second(self, bench: Bench) -> None:
        """Seconds are counted too, and not only what is left beside them."""
        bench.need(Capability.EVENT_TIMING)
        driver, device = bench.driver, bench.device
        events = [bench.new_event(timing=True) for _ in range(2)]
        began = time.perf_counter()
        for event in events:
            driver.event_record(device, event, bench.stream)
            driver.event_synchronize(device, event)
            time.sleep(self.long_while * (event is events[0]))
        passed = (time.perf_counter() - began) * 1e3
        milliseconds = driver.event_elapsed(device, *events)
        assert (self.long_while - 0.002) * 1e3 <= milliseconds <= passed + 1

    # Times of single commands

    @rule(
        "When the device began and ended the command that a reached event timed, in nanoseconds of the device's clock."
    )
    def test_times_of_a_command(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        if not provides(driver, "event_times"):
            pytest.skip("the driver does not time single commands")
        destination, source = self._ends(bench)
        times = []
        for _ in range(2):
            earliest = driver.device_time(device)
            begin, end = self._timed_copy(bench, destination, source)
            if (begin, end) != (0, 0):  # otherwise the host did it
                assert earliest <= begin <= end <= driver.device_time(device)
                times.append((begin, end))
            time.sleep(0.02)
        if len(times) == 2:
            assert times[1][0] - times[0][1] >= 18_000_000, "nanoseconds, and the second copy came 20 ms later"

    @rule("in nanoseconds of the device's clock")
    def test_times_beyond_a_second(self, bench: Bench) -> None:
        """A clock that counts seconds in another unit than the rest of it looks right for a while."""
        driver, device = bench.driver, bench.device
        if not provides(driver, "event_times"):
            pytest.skip("the driver does not time single commands")
        destination, source = self._ends(bench)
        began, clock = time.perf_counter_ns(), driver.device_time(device)
        first = self._timed_copy(bench, destination, source)
        time.sleep(self.long_while)
        second = self._timed_copy(bench, destination, source)
        ticked, passed = driver.device_time(device) - clock, time.perf_counter_ns() - began
        slept = (self.long_while - 0.002) * 1e9
        assert slept <= ticked <= passed + 1e6, "what the device's clock counted is not what the host's did"
        if (0, 0) not in (first, second):  # otherwise the host did it
            assert slept <= second[0] - first[1] <= passed + 1e6, "the second copy came later than that"

    @rule("It holds for one call, whatever comes of it.")
    def test_an_event_times_one_command(self, bench: Bench) -> None:
        driver, device = bench.driver, bench.device
        if not provides(driver, "event_times"):
            pytest.skip("the driver does not time single commands")
        event, nbytes = bench.new_event(timing=True), bench.busy_bytes
        destination, source = self._ends(bench)
        driver.event_time_next(device, event)
        bench.submit_copy(destination, source, nbytes)
        bench.synchronize()
        after = driver.event_times(device, event)
        bench.submit_copy(destination, source, nbytes)
        bench.synchronize()
        assert driver.event_times(device, event) == after

    # Threads

    @rule("It may be called from any thread, at any time, without the Python GIL; the driver does its own locking.")
    def test_threads(self, bench: Bench) -> None:
        """Each thread has a stream and memory of its own; nobody sees another's."""

        def work(number: int) -> None:
            stream = bench.driver.stream_create(bench.device, 0)
            for step in range(20):
                nbytes = 1000 * number + 37 * step + 1
                content = noise(nbytes, number)
                address = bench.driver.allocate(bench.device, nbytes)
                bench.write(address, content, stream)
                bench.fill(address, b"!", min(nbytes, 8), stream)
                assert_same(bench.read(address, nbytes, stream), b"!" * min(nbytes, 8) + content[8:])
                bench.driver.deallocate(bench.device, address)
            bench.driver.stream_destroy(bench.device, stream)

        self._in_threads(work, 6)

    @rule("It may be called from any thread, at any time, without the Python GIL; the driver does its own locking.")
    def test_threads_that_share_a_stream(self, bench: Bench) -> None:
        block = bench.allocate(6 * 4096)

        def work(number: int) -> None:
            mine = block + 4096 * number
            for step in range(20):
                content = noise(4096, 100 * number + step)
                bench.write(mine, content)
                assert_same(bench.read(mine, 4096), content)
                bench.synchronize()

        self._in_threads(work, 6)

    # Kernels

    @rule("any address inside an allocation is accepted by copies, fills and launches")
    def test_a_kernel(self, bench: Bench) -> None:
        """Pointers into allocations, scalars, more work-items than work."""
        saxpy = fitting(bench, SAXPY)
        kernel = self._compiled(bench, saxpy)
        block = bench.allocate(4000, packed(*range(1000)))
        bench.driver.launch(
            bench.device, bench.stream, kernel, (48 // saxpy.local[0],), saxpy.local,
            [block + 4 * 10, block + 4 * 500, struct.pack("f", 0.5), struct.pack("i", 40)],
        )  # fmt: skip
        sums = (500 + i + 0.5 * (10 + i) for i in range(40))
        assert_same(bench.read(block, 4000), packed(*range(500), *sums, *range(540, 1000)))

    @rule("a device address, or `size` bytes of plain data (at most 16)")
    def test_scalars_of_every_size(self, bench: Bench) -> None:
        kernel = self._compiled(bench, SCALARS)
        address = bench.allocate(48)
        values = [-3, -(1 << 40), (1 << 32) - 1, (1 << 63) - 1, 200]
        formats = ["i", "q", "I", "Q", "B"]
        args: list[int | bytes] = [address, *(struct.pack(f, v) for f, v in zip(formats, values, strict=True))]
        bench.driver.launch(bench.device, bench.stream, kernel, (1,), (1,), [*args, struct.pack("f", 2.5)])
        assert struct.unpack("6q", bench.read(address, 48)) == (*values, 25)

    @pytest.mark.parametrize("groups", [(5,), (3, 2), (2, 3, 4), (10_007,)], ids=str)
    @rule("number of work-groups in each dimension, never 0")
    def test_launches_of_one_two_and_three_dimensions(self, bench: Bench, groups: tuple[int, ...]) -> None:
        """Each work-item of each group runs, and once."""
        count = fitting(bench, COUNT[len(groups)])
        kernel = self._compiled(bench, count)
        items = math.prod(groups) * math.prod(count.local)
        address = bench.allocate(4 * items, bytes(4 * items))
        bench.driver.launch(bench.device, bench.stream, kernel, groups, count.local, [address])
        assert_same(bench.read(address, 4 * items), struct.pack(f"{items}i", *range(1, items + 1)))

    @rule("NULL is allowed: the kernel will not use it")
    def test_a_pointer_may_be_null(self, bench: Bench) -> None:
        kernel = self._compiled(bench, MAYBE)
        address = bench.allocate(4, packed(0))
        bench.driver.launch(bench.device, bench.stream, kernel, (1,), (1,), [address, 0, struct.pack("i", 0)])
        assert floats(bench.read(address, 4)) == [3]

    @rule("Work submitted to one stream runs in the order of submission.")
    def test_launches_and_copies_keep_the_order(self, bench: Bench) -> None:
        saxpy = fitting(bench, SAXPY)
        kernel = self._compiled(bench, saxpy)
        x, y = bench.allocate(64, packed(*[1] * 16)), bench.allocate(64, packed(*[0] * 16))
        into = [bench.host(64) for _ in range(20)]
        for buffer in into:
            args: list[int | bytes] = [x, y, struct.pack("f", 1), struct.pack("i", 16)]
            bench.driver.launch(bench.device, bench.stream, kernel, (16 // saxpy.local[0],), saxpy.local, args)
            bench.submit_read(buffer, y, 64)
        bench.synchronize()
        assert [floats(buffer.content)[0] for buffer in into] == [step + 1 for step in range(20)]

    @rule("the kernel's source was refused; `log` says why")
    def test_a_refused_source(self, bench: Bench) -> None:
        """`CompileError` with the compiler's words, and the next source is none the worse for it."""
        bench.need(Capability.COMPILER)
        broken = Kernel("broken", SAXPY.params, "this is not_a_language at all $;")
        with pytest.raises(CompileError) as error:
            self._compiled(bench, broken)
        assert str(error.value).strip(), "the compiler's log"
        self.test_a_kernel(bench)

    @rule("after a failure `last_error` gives the calling thread's message")
    def test_no_such_kernel(self, bench: Bench) -> None:
        module = self._module(bench, fitting(bench, SAXPY))
        with pytest.raises((InvalidArgument, RuntimeError, LookupError)) as error:
            bench.driver.kernel_create(module, "nonesuch")
        assert "nonesuch" in str(error.value)
        bench.driver.module_destroy(module)

    @rule("A kernel outlives the module that it was made of.")
    def test_a_kernel_outlives_its_module(self, bench: Bench) -> None:
        module = self._module(bench, MAYBE)
        kernel = bench.driver.kernel_create(module, MAYBE.name)
        bench.driver.module_destroy(module)
        address = bench.allocate(4)
        bench.driver.launch(bench.device, bench.stream, kernel, (1,), (1,), [address, 0, struct.pack("i", 0)])
        assert floats(bench.read(address, 4)) == [3]
        bench.driver.kernel_destroy(kernel)

    @rule("The device's binary: first call with buffer NULL sets *bytes.")
    def test_a_module_as_binary(self, bench: Bench) -> None:
        module = self._module(bench, MAYBE)
        try:
            binary = bench.driver.module_binary(module)
        except NotImplementedError:
            pytest.skip("the driver has no binaries")
        assert len(binary) > 0
        loaded = bench.driver.module_load(bench.device, binary)
        kernel = bench.driver.kernel_create(loaded, MAYBE.name)
        address = bench.allocate(4)
        bench.driver.launch(bench.device, bench.stream, kernel, (1,), (1,), [address, 0, struct.pack("i", 0)])
        assert floats(bench.read(address, 4)) == [3]

    @rule("module_load refuses what is no binary of the device.")
    def test_a_damaged_binary(self, bench: Bench) -> None:
        """It is refused, by whatever error: torchgraft compiles the source then."""
        module = self._module(bench, MAYBE)
        try:
            bench.driver.module_binary(module)
        except NotImplementedError:
            pytest.skip("the driver has no binaries")
        with pytest.raises((RuntimeError, ValueError)):
            bench.driver.module_load(bench.device, b"not a binary" * 20)

    @rule("It may be called from any thread, at any time, without the Python GIL; the driver does its own locking.")
    def test_threads_that_share_a_kernel(self, bench: Bench) -> None:
        """A launch never sees the arguments of another thread's."""
        saxpy = fitting(bench, SAXPY)
        kernel = self._compiled(bench, saxpy)

        def work(number: int) -> None:
            stream = bench.driver.stream_create(bench.device, 0)
            x, y = (bench.driver.allocate(bench.device, 64) for _ in range(2))
            bench.write(x, packed(*[float(number)] * 16), stream)
            bench.write(y, packed(*[0.0] * 16), stream)
            for count in range(1, 101):
                args: list[int | bytes] = [x, y, struct.pack("f", number), struct.pack("i", 16)]
                bench.driver.launch(bench.device, stream, kernel, (16 // saxpy.local[0],), saxpy.local, args)
                # Now and then: at the end each thread's work may be done, if each did what was another's.
                if count % 10 == 0:
                    assert floats(bench.read(y, 64, stream)) == [float(count * number * number)] * 16
            for address in (x, y):
                bench.driver.deallocate(bench.device, address)
            bench.driver.stream_destroy(bench.device, stream)

        self._in_threads(work, 4)

    # Graphs

    @rule("As if the commands were given to the stream in their order.")
    def test_a_graph(self, bench: Bench) -> None:
        """Copies, fills and a launch, again and again, behind other work and before other work."""
        if not provides(bench.driver, "graph_launch"):
            pytest.skip("the driver takes no graphs")
        x, y, out = bench.allocate(64, packed(*[1] * 16)), bench.allocate(64, packed(*[0] * 16)), bench.allocate(64)
        commands: list[tuple[str, tuple[Any, ...]]] = [
            ("copy", (out, y, 64, CopyKind.DEVICE_TO_DEVICE, False)),
            ("fill", (out, packed(-1), 8)),
            ("copy", (y, x, 32, CopyKind.DEVICE_TO_DEVICE, False)),
        ]
        added = 0.0
        if bench.has(Capability.COMPILER):
            saxpy = fitting(bench, SAXPY)
            kernel, added = self._compiled(bench, saxpy), 2.0
            args: list[int | bytes] = [x, y, struct.pack("f", added), struct.pack("i", 16)]
            commands.append(("launch", (kernel, (16 // saxpy.local[0],), saxpy.local, args)))
        graph = bench.driver.graph_create(bench.device, commands)
        commands.clear()
        last, content = bench.keep_busy(bench.stream)
        for _ in range(3):
            bench.driver.graph_launch(bench.device, bench.stream, graph)
        into = bench.host(64)
        bench.submit_read(into, out, 64)
        bench.synchronize()
        # What y was after the second time: its halves are x and a launch more, and two launches.
        expected = [-1.0, -1.0, *[1.0 + added] * 6, *[2.0 * added] * 8]
        assert floats(into.content) == expected
        assert_same(bench.read(last, len(content)), content)
        bench.driver.graph_destroy(bench.device, graph)

    @rule("Gives a launch another value for an argument, from the next graph_launch on; earlier ones keep theirs,")
    def test_a_graph_with_another_argument(self, bench: Bench) -> None:
        """Each launch has the values that were set before it, also where the earlier ones have still to run."""
        if not provides(bench.driver, "graph_launch"):
            pytest.skip("the driver takes no graphs")
        bench.need(Capability.COMPILER)
        saxpy = fitting(bench, SAXPY)
        kernel = self._compiled(bench, saxpy)
        x, y = bench.allocate(64, packed(*[1] * 16)), bench.allocate(64, packed(*[0] * 16))
        args: list[int | bytes] = [x, y, struct.pack("f", 1), struct.pack("i", 16)]
        launch = ("launch", (kernel, (16 // saxpy.local[0],), saxpy.local, args))
        graph = bench.driver.graph_create(bench.device, [launch, launch, launch])
        bench.keep_busy(bench.stream)
        for step in range(20):
            bench.driver.graph_set_argument(bench.device, graph, 1, 2, struct.pack("f", 100 * step))
            bench.driver.graph_launch(bench.device, bench.stream, graph)
        assert floats(bench.read(y, 64)) == [2 * 20 + 100 * sum(range(20))] * 16
        bench.driver.graph_destroy(bench.device, graph)

    @rule("An address stays an address, a number keeps its size.")
    def test_a_graph_with_another_address(self, bench: Bench) -> None:
        """What is read and written changes from one launch of the graph to the next."""
        if not provides(bench.driver, "graph_launch"):
            pytest.skip("the driver takes no graphs")
        bench.need(Capability.COMPILER)
        saxpy = fitting(bench, SAXPY)
        kernel = self._compiled(bench, saxpy)
        xs = [bench.allocate(64, packed(*[10**step] * 16)) for step in range(3)]
        y, other = bench.allocate(64, packed(*[0] * 16)), bench.allocate(64, packed(*[0] * 16))
        args: list[int | bytes] = [xs[0], y, struct.pack("f", 1), struct.pack("i", 16)]
        launch = ("launch", (kernel, (16 // saxpy.local[0],), saxpy.local, args))
        graph = bench.driver.graph_create(bench.device, [launch, launch])
        bench.keep_busy(bench.stream)
        for step in range(30):
            bench.driver.graph_set_argument(bench.device, graph, 0, 0, xs[step % 3])
            bench.driver.graph_set_argument(bench.device, graph, 1, 1, other if step == 29 else y)
            bench.driver.graph_launch(bench.device, bench.stream, graph)
        assert floats(bench.read(y, 64)) == [10 * 111 + 29] * 16
        assert floats(bench.read(other, 64)) == [1] * 16
        bench.driver.graph_destroy(bench.device, graph)

    # Helpers

    @staticmethod
    def _ends(bench: Bench) -> tuple[int, int]:
        """The destination and the source of a copy that takes a while."""
        nbytes = bench.busy_bytes
        return bench.allocate(nbytes, bytes(nbytes)), bench.allocate(nbytes, noise(nbytes))

    @staticmethod
    def _timed_copy(bench: Bench, destination: int, source: int) -> tuple[int, int]:
        """When the device began and ended a copy."""
        event = bench.new_event(timing=True)
        bench.driver.event_time_next(bench.device, event)
        bench.submit_copy(destination, source, bench.busy_bytes)
        bench.driver.event_synchronize(bench.device, event)
        assert bench.driver.event_query(bench.device, event), "the event is reached when the command is done"
        return bench.driver.event_times(bench.device, event)

    def _module(self, bench: Bench, kernel: Kernel) -> Any:
        bench.need(Capability.COMPILER)
        language = dialect(bench.properties.dialect)
        source = language.render(kernel, bench.has(Capability.BASE_OFFSET_POINTERS))
        return bench.driver.module_compile(bench.device, source, language.options)

    def _compiled(self, bench: Bench, kernel: Kernel) -> Any:
        module = self._module(bench, kernel)
        bench.when_closed(lambda: bench.driver.module_destroy(module))
        made = bench.driver.kernel_create(module, kernel.name)
        bench.when_closed(lambda: bench.driver.kernel_destroy(made))
        return made


# What the checks of compilers compile, in the text that torchgraft's own kernels are written in.

SAXPY = Kernel(
    "saxpy",
    (Pointer("x", "f32", const=True), Pointer("y", "f32"), Value("a", "f32"), Value("n", "i32")),
    "  int i = (int)GLOBAL_ID(0);\n  if (i < n) y[i] += a * x[i];",
    local=(16,),
)
SCALARS = Kernel(
    "scalars",
    (Pointer("out", "i64"), *(Value(f"v{n}", t) for n, t in enumerate(["i32", "i64", "u32", "u64", "u8", "f32"]))),
    "\n".join(f"  out[{n}] = (long)v{n};" for n in range(5)) + "\n  out[5] = (long)(v5 * 10.0f);",
)
MAYBE = Kernel(
    "maybe",
    (Pointer("out", "f32"), Pointer("x", "f32", const=True), Value("use", "i32")),
    "  if (GLOBAL_ID(0) == 0) out[0] = use ? x[0] : 3.0f;",
)


def _count(dims: int) -> Kernel:
    """Each work-item adds its number in the whole launch, from 1, to its element."""
    number = "0"
    for d in reversed(range(dims)):
        number = f"({number}) * (NUM_GROUPS({d}) * LOCAL_SIZE({d})) + GROUP_ID({d}) * LOCAL_SIZE({d}) + LOCAL_ID({d})"
    body = f"  int n = (int)({number});\n  out[n] += n + 1;"
    return Kernel("count", (Pointer("out", "i32"),), body, local=(4, 2, 1)[:dims])


COUNT = {dims: _count(dims) for dims in (1, 2, 3)}


def fitting(bench: Bench, kernel: Kernel) -> Kernel:
    """The kernel with work-groups that the device has: a language for host threads has groups of one."""
    if math.prod(kernel.local) <= bench.properties.max_work_group_size:
        return kernel
    return replace(kernel, local=(1,) * kernel.dims)
