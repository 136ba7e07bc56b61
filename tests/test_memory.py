"""The caching allocator and pinned memory."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchgraft import _C, plans
from torchgraft.ops.fft import twiddles

acc = torch.accelerator
MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean(device: str) -> Iterator[None]:
    # Those of long Fourier transforms, which another file may have asked for, have tables on the device.
    plans.clear()
    twiddles._tables.clear()
    gc.collect()
    acc.synchronize()
    acc.empty_cache()
    acc.reset_peak_memory_stats()
    acc.reset_accumulated_memory_stats()
    yield
    _C.set_memory_limit(0, 2**64 - 1)


def new(nbytes: int, device: str) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def allocated() -> int:
    return acc.memory_allocated()


def statistic(key: str) -> int:
    return int(acc.memory_stats()[key])


def limit_to(nbytes: int) -> None:
    """Leaves so much to be taken beyond what is in use."""
    acc.empty_cache()
    _C.set_memory_limit(0, acc.memory_reserved() + nbytes)


def test_what_is_allocated_is_counted_in_blocks_of_512_bytes(device: str) -> None:
    before = allocated()
    x, y = new(1, device), new(513, device)
    assert allocated() - before == 512 + 1024
    del x
    assert allocated() - before == 1024
    del y
    assert allocated() == before
    assert acc.max_memory_allocated() - before == 1536


def test_peaks_begin_again(device: str) -> None:
    x = new(MIB, device)
    del x
    acc.reset_peak_memory_stats()
    assert acc.max_memory_allocated() == allocated()


@pytest.mark.parametrize("nbytes", [1, 4096, MIB - 1, MIB, 3 * MIB, 30 * MIB])
def test_freed_memory_is_reused_at_once(device: str, nbytes: int) -> None:
    x = new(nbytes, device)
    address = x.data_ptr()
    del x
    reserved = acc.memory_reserved()
    x = new(nbytes, device)
    assert x.data_ptr() == address
    assert acc.memory_reserved() == reserved


def test_empty_cache_gives_the_memory_back(device: str) -> None:
    reserved = acc.memory_reserved()
    x = new(30 * MIB, device)
    assert acc.memory_reserved() >= reserved + 30 * MIB
    del x
    acc.empty_cache()
    assert acc.memory_reserved() == reserved
    assert statistic("num_device_free") >= 1


def test_empty_tensors_take_nothing(device: str) -> None:
    before = allocated()
    x = torch.empty(0, 3, device=device)
    assert (x.data_ptr(), allocated()) == (0, before)
    assert x.device.index == 0


@pytest.mark.parametrize("seed", range(3))
def test_blocks_never_overlap_and_all_come_back(device: str, seed: int) -> None:
    chosen = random.Random(seed)
    keys = [f"{name}.all.current" for name in ("allocation", "active", "segment", "inactive_split", "reserved_bytes")]
    before = {key: statistic(key) for key in keys}
    live: list[torch.Tensor] = []
    for _ in range(2000):
        live.append(new(chosen.choice([1, 600, 5000, 70_000, MIB - 1, MIB, 3 * MIB]) + chosen.randrange(1000), device))
        if len(live) > 15:
            live.pop(chosen.randrange(len(live)))
    ranges = sorted((each.data_ptr(), each.data_ptr() + each.numel()) for each in live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    live.clear()
    acc.empty_cache()
    assert {key: statistic(key) for key in keys} == before


@pytest.mark.parametrize(
    ("sizes", "most", "seed"), [("uniform", 8, 0), ("uniform", 8, 1), ("log-uniform", 32, 1), ("log-uniform", 32, 3)]
)
def test_the_cache_stays_below_one_and_a_half_times_the_need(device: str, sizes: str, most: int, seed: int) -> None:
    """Random sizes do not pile up segments that are too small for what comes next."""
    chosen = random.Random(seed)
    reserved = acc.memory_reserved()
    live: list[torch.Tensor] = []
    for step in range(2000):
        if step % 50 == 0:
            wanted = chosen.randrange(1, most + 1)
        nbytes = chosen.uniform(64, 32 * MIB) if sizes == "uniform" else 64 * 2 ** chosen.uniform(0, 19)
        live.append(new(int(nbytes), device))
        while len(live) > wanted:
            live.pop(chosen.randrange(len(live)))
    assert acc.max_memory_reserved() - reserved < 1.5 * acc.max_memory_allocated()


def test_a_loop_keeps_what_it_needs(device: str) -> None:
    """Two streams take turns, so that the cache has twice what is ever in use; giving it back would be in vain."""
    side = torch.Stream(device=device)
    asked: list[int] = []
    for _ in range(10):
        for nbytes in (30 * MIB, 40 * MIB):
            new(nbytes, device)
            with side:
                new(nbytes, device)
        asked.append(statistic("num_device_alloc"))
    assert asked[4] == asked[-1]


def test_statistics_by_pool(device: str) -> None:
    acc.empty_cache()
    before = acc.memory_stats()
    size = int(before["reserved_bytes.all.current"]) + 2 * MIB  # fits into no segment that there is
    small, large = new(1000, device), new(size, device)
    after = acc.memory_stats()

    def grown(key: str) -> int:
        return int(after[key]) - int(before[key])

    assert grown("allocated_bytes.small_pool.current") == 1024
    assert grown("allocated_bytes.large_pool.current") == size
    assert grown("requested_bytes.all.current") == 1000 + size
    assert grown("allocation.all.current") == 2
    assert grown("segment.large_pool.current") == 1
    del small, large


class TestOutOfMemory:
    def test_it_says_what_there_is(self, device: str) -> None:
        limit_to(64 * MIB)
        ooms = statistic("num_ooms")
        kind = torch.device(device).type
        with pytest.raises(torch.OutOfMemoryError) as caught:
            new(100 * MIB, device)
        text = str(caught.value)
        assert text.startswith(f"{kind}:0 out of memory. Tried to allocate 100.00 MiB; total ")
        for part in ("free ", "allocated by tensors ", "reserved but unallocated ", f"try torch.{kind}.empty_cache()"):
            assert part in text
        assert statistic("num_ooms") == ooms + 1

    def test_afterwards_all_works(self, device: str) -> None:
        limit_to(64 * MIB)
        with pytest.raises(torch.OutOfMemoryError):
            new(100 * MIB, device)
        assert new(30 * MIB, device).numel() == 30 * MIB

    def test_the_cache_is_freed_before_giving_up(self, device: str) -> None:
        limit_to(64 * MIB)
        x, behind = new(12 * MIB, device), new(MIB, device)
        del x
        retries = statistic("num_alloc_retries")
        assert new(54 * MIB, device).numel() == 54 * MIB
        assert statistic("num_alloc_retries") == retries + 1
        assert behind.numel() == MIB

    def test_a_segment_is_made_smaller_where_it_must(self, device: str) -> None:
        limit_to(4 * MIB)
        assert new(3 * MIB, device).numel() == 3 * MIB

    def test_an_impossible_size(self, device: str) -> None:
        with pytest.raises(RuntimeError):
            new(2**62, device)

    def test_fraction_of_the_memory(self, device: str) -> None:
        module = getattr(torch, torch.device(device).type)
        total = module.mem_get_info()[1]
        module.set_per_process_memory_fraction(64 * MIB / total)
        with pytest.raises(torch.OutOfMemoryError, match="limit"):
            new(100 * MIB, device)
        module.set_per_process_memory_fraction(1.0)
        new(100 * MIB, device)


def filled(nbytes: int, value: int, device: str) -> torch.Tensor:
    return torch.full((nbytes,), value, dtype=torch.uint8, device=device)


def holds(x: torch.Tensor, value: int) -> bool:
    return bool((x.cpu() == value).all())


def segment_of(x: torch.Tensor) -> dict[str, Any]:
    """The last that begins at or before the tensor."""
    segments: list[dict[str, Any]] = torch.get_device_module(x.device).memory_snapshot()
    return max((each for each in segments if each["address"] <= x.data_ptr()), key=lambda each: each["address"])


class TestRanges:
    """Where the driver can, the large blocks of a stream lie in one range of addresses."""

    @pytest.fixture(autouse=True)
    def joining(self, device: str) -> None:
        x = new(12 * MIB, device)
        if not segment_of(x)["is_expandable"]:
            pytest.skip("this device's memory does not grow in place")
        del x
        acc.empty_cache()

    def test_pieces_join(self, device: str) -> None:
        pieces = [new(nbytes, device) for nbytes in (5 * MIB, MIB + 512, 30 * MIB, 3 * MIB)]
        reserved = acc.memory_reserved()
        whole = sum(each.numel() for each in pieces)
        pieces.clear()
        x = filled(whole, 7, device)
        assert acc.memory_reserved() == reserved
        assert holds(x, 7)

    def test_it_grows_by_what_is_missing(self, device: str) -> None:
        x = new(20 * MIB, device)
        reserved = acc.memory_reserved()
        del x
        new(50 * MIB, device)
        assert acc.memory_reserved() == reserved + 30 * MIB

    def test_holes(self, device: str) -> None:
        """Memory between tensors is given back, and is taken again."""
        first, middle, last = (filled(8 * MIB, value, device) for value in (1, 2, 3))
        address, reserved, segments = middle.data_ptr(), acc.memory_reserved(), statistic("segment.all.current")
        del middle
        acc.empty_cache()
        assert reserved - 8 * MIB <= acc.memory_reserved() <= reserved - 6 * MIB
        assert statistic("segment.all.current") == segments + 1
        assert _C.device_of_address(address + 4 * MIB) == -1
        assert holds(first, 1)
        assert holds(last, 3)
        again = filled(8 * MIB, 4, device)
        assert again.data_ptr() == address
        assert acc.memory_reserved() == reserved
        assert statistic("segment.all.current") == segments
        assert [holds(x, value) for x, value in ((first, 1), (again, 4), (last, 3))] == [True] * 3

    def test_the_snapshot_knows_of_holes(self, device: str) -> None:
        first, middle, last = (new(8 * MIB, device) for _ in range(3))
        del middle
        acc.empty_cache()
        module = torch.get_device_module(device)
        segments = [each for each in module.memory_snapshot() if each["device"] == module.current_device()]
        assert sum(each["total_size"] for each in segments) == acc.memory_reserved()
        before, behind = segment_of(first), segment_of(last)
        assert before["address"] < behind["address"]
        assert [each["is_expandable"] for each in (before, behind)] == [True, True]

    def test_more_than_there_is(self, device: str) -> None:
        """The driver refuses; afterwards all is as it was."""
        x = filled(8 * MIB, 5, device)
        freed = new(8 * MIB, device)
        reserved = acc.memory_reserved()
        del freed
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                new(torch.get_device_module(device).mem_get_info()[1], device)
        assert holds(x, 5)
        y = filled(16 * MIB, 6, device)
        assert acc.memory_reserved() <= reserved + 8 * MIB
        assert holds(x, 5)
        assert holds(y, 6)

    def test_threads_that_grow_and_give_back(self, device: str) -> None:
        """Tensors keep their values while four threads, two of them on one stream, take and return large memory."""
        failures: list[BaseException] = []
        streams = [torch.Stream(device=device) for _ in range(3)]

        def work(seed: int) -> None:
            chosen = random.Random(seed)
            live: list[tuple[torch.Tensor, int]] = []
            try:
                with streams[min(seed, 2)]:
                    for step in range(60):
                        value = chosen.randrange(256)
                        live.append((filled(chosen.randrange(MIB, 9 * MIB), value, device), value))
                        if len(live) > 3:
                            x, value = live.pop(chosen.randrange(len(live)))
                            assert holds(x, value)
                        if step % 10 == seed:
                            acc.empty_cache()
                    assert all(holds(x, value) for x, value in live)
            except BaseException as error:  # shown by the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failures
        assert not any(thread.is_alive() for thread in threads)

    @pytest.mark.thorough
    def test_they_can_be_turned_off(self, device: str, script: Callable[..., str]) -> None:
        script(
            f"""
            import torch
            x, y = (torch.empty(6 << 20, dtype=torch.uint8, device="{device}") for _ in range(2))
            del x, y
            reserved = torch.accelerator.memory_reserved()
            torch.empty(64 << 20, dtype=torch.uint8, device="{device}")
            assert torch.accelerator.memory_reserved() == reserved + (64 << 20)
            """,
            autoload=True,
            PYTORCH_ALLOC_CONF="expandable_segments: False",
        )


class TestStreams:
    def test_each_stream_has_memory_of_its_own(self, device: str) -> None:
        x, beside = new(1000, device), new(1000, device)  # a segment in use, which is not given back
        address = x.data_ptr()
        del x
        with torch.Stream(device=device):
            y = new(1000, device)
        assert y.data_ptr() != address
        assert beside.numel() == 1000

    def test_record_stream_keeps_memory_until_the_work_is_done(self, device: str) -> None:
        stream = torch.Stream(device=device)
        x = new(1000, device)
        active = statistic("active.all.current")
        x.record_stream(stream)
        del x
        # The other stream's event is only asked about when memory is needed.
        assert statistic("active.all.current") == active
        stream.synchronize()
        acc.empty_cache()
        assert statistic("active.all.current") == active - 1

    def test_record_stream_of_the_own_stream_changes_nothing(self, device: str) -> None:
        x = new(1000, device)
        active = statistic("active.all.current")
        x.record_stream(acc.current_stream())
        del x
        assert statistic("active.all.current") == active - 1

    def test_results_are_right_while_streams_share_memory(self, device: str) -> None:
        stream = torch.Stream(device=device)
        for step in range(30):
            x = torch.full((1 << 16,), float(step), device=device)
            stream.wait_stream(acc.current_stream())
            with stream:
                y = x + 1
            x.record_stream(stream)
            del x
            torch.full((1 << 16,), -1.0, device=device)
            stream.synchronize()
            assert y.cpu().unique().tolist() == [step + 1.0]


def test_threads(device: str) -> None:
    failures: list[BaseException] = []
    stream = torch.Stream(device=device)

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            for step in range(150):
                value = float(seed * 1000 + step)
                x = torch.full((chosen.randrange(1, 5000),), value, device=device)
                if step % 3 == 0:
                    x.record_stream(stream)
                if step % 50 == 0:
                    acc.empty_cache()
                assert x.cpu().unique().tolist() == [value]
        except BaseException as error:  # shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


class TestStorage:
    def test_resize_keeps_the_contents(self, device: str) -> None:
        x = torch.arange(12.0).to(device)
        x.untyped_storage().resize_(4096)
        assert x.untyped_storage().nbytes() == 4096
        assert x.cpu().tolist() == list(range(12))
        x.untyped_storage().resize_(24)
        assert x[:6].cpu().tolist() == list(range(6))

    def test_resize_to_nothing_and_back(self, device: str) -> None:
        before = allocated()
        x = torch.ones(1000, device=device)
        x.untyped_storage().resize_(0)
        assert allocated() == before
        x.untyped_storage().resize_(4000)
        x.fill_(2)
        assert x.cpu().unique().tolist() == [2.0]

    def test_untyped_storage(self, device: str) -> None:
        storage = torch.UntypedStorage(100, device=device)
        assert (storage.nbytes(), storage.device.type) == (100, torch.device(device).type)

    def test_copy_on_write_is_refused(self, device: str) -> None:
        """torch wants a pointer's owner to be found by its address, which would make every release slower."""
        x = torch.arange(6.0).to(device)
        with pytest.raises(RuntimeError):
            torch._lazy_clone(x)
        assert x.cpu().tolist() == [0, 1, 2, 3, 4, 5]


class TestSnapshot:
    def test_it_adds_up(self, device: str) -> None:
        module = torch.get_device_module(device)
        x, y = new(3 * MIB, device), new(700, device)
        segments = [each for each in module.memory_snapshot() if each["device"] == module.current_device()]
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:  # without gaps
                assert block["address"] == address
                address += block["size"]
            assert address - segment["address"] == segment["total_size"]
        assert sum(each["total_size"] for each in segments) == module.memory_reserved()
        assert sum(each["allocated_size"] for each in segments) == module.memory_allocated()
        assert sum(each["active_size"] for each in segments) == statistic("active_bytes.all.current")
        blocks = {block["address"]: block for each in segments for block in each["blocks"]}
        assert blocks[x.data_ptr()]["state"] == "active_allocated"
        assert (blocks[y.data_ptr()]["requested_size"], blocks[y.data_ptr()]["size"]) == (700, 1024)

    def test_states_and_streams(self, device: str) -> None:
        module = torch.get_device_module(device)

        def block_at(address: int) -> tuple[dict[str, Any], dict[str, Any]]:
            return next(
                (segment, block)
                for segment in module.memory_snapshot()
                for block in segment["blocks"]
                if 0 <= address - block["address"] < block["size"]
            )

        side = torch.Stream(device=device)
        with side:
            x, kept = new(2 * MIB, device), new(2 * MIB, device)  # the segment stays
        address = x.data_ptr()
        segment, block = block_at(address)
        assert (segment["stream"], segment["segment_type"]) == (side.stream_id, "large")
        assert block["state"] == "active_allocated"
        x.record_stream(acc.current_stream())
        del x
        assert block_at(address)[1]["state"] == "active_awaiting_free"
        acc.synchronize()
        new(40 * MIB, device)  # asks for the events that have passed
        _, block = block_at(address)
        assert (block["state"], block["requested_size"]) == ("inactive", 0)
        del kept

    def test_the_tools_of_torch_read_it(self, device: str) -> None:
        from torch.cuda._memory_viz import segsum

        kept = new(5 * MIB, device)
        segments = torch.get_device_module(device).memory_snapshot()
        summary = segsum({"segments": segments, "device_traces": [[]]})
        assert "segments: " in summary
        assert kept.nbytes == 5 * MIB


class TestPinned:
    def test_pinned_memory_is_known(self, device: str) -> None:
        x = torch.arange(10.0).pin_memory()
        assert x.is_pinned()
        assert x[3:].is_pinned()
        assert x.tolist() == list(range(10))
        assert not torch.arange(10.0).is_pinned()
        assert torch.empty(3, pin_memory=True).is_pinned()

    def test_copies_without_waiting(self, device: str) -> None:
        source = torch.arange(100_000.0).pin_memory()
        there = source.to(device, non_blocking=True)
        back = torch.empty(100_000, pin_memory=True)
        back.copy_(there, non_blocking=True)
        acc.synchronize()
        assert torch.equal(back, source)

    def test_memory_is_not_reused_while_a_copy_reads_it(self, device: str) -> None:
        results = []
        for step in range(20):
            source = torch.full((200_000,), float(step), pin_memory=True)
            results.append(source.to(device, non_blocking=True))
            del source
        assert [each.cpu().unique().tolist() for each in results] == [[float(step)] for step in range(20)]

    def test_empty_host_cache(self, device: str) -> None:
        x = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
        address = x.data_ptr()
        del x
        x = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
        assert x.data_ptr() == address
        del x
        acc.empty_host_cache()
        assert torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True).is_pinned()

    def test_data_loader_with_a_device(self, device: str) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch finds the device by itself by now
            loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, pin_memory_device=device)
            assert [batch.is_pinned() for (batch,) in loader] == [True, True]

    def test_data_loader(self, device: str) -> None:
        data = torch.utils.data.TensorDataset(torch.arange(32.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True)
        total = 0.0
        for (batch,) in loader:
            assert batch.is_pinned()
            total += batch.to(device, non_blocking=True).sum().item()
        assert total == sum(range(32))


def test_the_profiler_sees_memory(device: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        x = new(4 * MIB, device)
        del x
    sizes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert 4 * MIB in sizes
    assert -4 * MIB in sizes


def test_memory_info(device: str) -> None:
    free, total = acc.get_memory_info()
    assert 0 < free <= total
