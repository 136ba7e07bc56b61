"""Compiled kernels on disk: a cache that may be damaged, shared or forbidden, and never gives a wrong kernel."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Script

from torchgraft import _C
from torchgraft.codegen import Kernel, Pointer, Value, compiler
from torchgraft.codegen import cache as cache_module
from torchgraft.codegen.cache import KernelCache, Usage, cache_directory, parse_size
from torchgraft.codegen.compiler import KernelCompileError, compiled, counts

KEY = KernelCache.key("a", "b")
BINARY = bytes(range(256)) * 20


def file_of(cache: KernelCache) -> Path:
    (path,) = cache.directory.glob("??/*")
    return path


def path_of(cache: KernelCache, key: str) -> Path:
    return cache.directory / key[:2] / key[2:]


def bind(path: Path) -> None:
    """Makes a socket; their names must be short."""
    here = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name[:8]}")
    os.close(here)
    (path.parent / path.name[:8]).rename(path)


def without_torch(folder: Path, text: str) -> subprocess.Popen[bytes]:
    """A process that runs these lines with a `cache` in the folder; it is quicker without torch."""
    head = f"""
import importlib.util, pathlib, time

spec = importlib.util.spec_from_file_location("cache", {cache_module.__file__!r})
cache_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache_module)
cache = cache_module.KernelCache(pathlib.Path({str(folder / "kernels")!r}), enabled=True)
"""
    return subprocess.Popen([sys.executable, "-c", head + textwrap.dedent(text)], stdout=subprocess.PIPE)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    """A cache that holds BINARY under KEY."""
    cache = KernelCache(tmp_path / "kernels", enabled=True)
    cache.write(KEY, BINARY)
    return cache


class TestFiles:
    def test_what_was_written_is_read(self, cache: KernelCache) -> None:
        assert cache.read(KEY) == BINARY
        assert KernelCache(cache.directory, enabled=True).read(KEY) == BINARY
        assert cache.read(KernelCache.key("other")) is None

    def test_nobody_else_may_write(self, cache: KernelCache) -> None:
        for path in [cache.directory, *cache.directory.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path

    def test_keys_depend_on_all_parts_and_their_borders(self) -> None:
        keys = [KernelCache.key(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("c", "ab")]]
        assert len(set(keys)) == len(keys)

    @pytest.mark.parametrize("size", [0, 10, 51, 52, 53, -1])
    def test_a_truncated_file_is_forgotten(self, cache: KernelCache, size: int) -> None:
        path = file_of(cache)
        path.write_bytes(path.read_bytes()[:size])
        assert cache.read(KEY) is None
        assert not path.exists()
        cache.write(KEY, BINARY)
        assert cache.read(KEY) == BINARY

    @pytest.mark.parametrize("position", [0, 19, 20, 51, 52, 1000, -1])
    def test_a_flipped_bit_is_noticed(self, cache: KernelCache, position: int) -> None:
        path = file_of(cache)
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)
        assert cache.read(KEY) is None

    def test_a_file_under_another_name_is_not_read(self, cache: KernelCache) -> None:
        other = KernelCache.key("other")
        path = cache.directory / other[:2] / other[2:]
        path.parent.mkdir(exist_ok=True)
        shutil.copy(file_of(cache), path)
        assert cache.read(other) is None
        assert not path.exists()
        assert cache.read(KEY) == BINARY

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path), bind])
    def test_what_is_no_plain_file_is_refused(self, cache: KernelCache, make: Callable[[Path], Any]) -> None:
        """Nor is it waited for: opening a pipe would."""
        path = file_of(cache)
        path.unlink()
        make(path)
        assert cache.read(KEY) is None
        with cache.claim(KEY):
            cache.write(KEY, BINARY)
        assert cache.read(KEY) == (None if path.is_dir() else BINARY)

    def test_a_link_to_a_kernel_is_refused(self, cache: KernelCache) -> None:
        path = file_of(cache)
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
        assert cache.read(KEY) is None

    def test_a_file_that_others_may_write_is_not_read(self, cache: KernelCache) -> None:
        file_of(cache).chmod(0o666)
        assert cache.read(KEY) is None

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    def test_a_directory_that_others_may_write_is_not_used(self, cache: KernelCache, mode: int) -> None:
        cache.directory.chmod(mode)
        fresh = KernelCache(cache.directory, enabled=True)
        with pytest.warns(UserWarning, match="is writable by others.*TORCHGRAFT_CACHE_DIR.*chmod go-w"):
            assert fresh.read(KEY) is None
        before = sorted(cache.directory.rglob("*"))
        fresh.write(KernelCache.key("new"), BINARY)  # and it warns once only
        assert sorted(cache.directory.rglob("*")) == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_what_belongs_to_another_user_is_not_used(self, cache: KernelCache) -> None:
        os.chown(file_of(cache), 12345, 12345)
        assert cache.read(KEY) is None
        os.chown(cache.directory, 12345, 12345)
        with pytest.warns(UserWarning, match="belongs to another user.*TORCHGRAFT_CACHE_DIR") as warned:
            assert KernelCache(cache.directory, enabled=True).read(KEY) is None
        assert "chmod" not in str(warned[0].message), "that is not the user's to do"

    def test_a_directory_for_all_is_left_as_it_is(self, cache: KernelCache) -> None:
        cache.directory.chmod(0o1777)
        with pytest.warns(UserWarning, match="is writable by others.*TORCHGRAFT_CACHE_DIR") as warned:
            assert KernelCache(cache.directory, enabled=True).read(KEY) is None
        assert "chmod" not in str(warned[0].message)

    def test_where_no_directory_can_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        cache = KernelCache(tmp_path / "file" / "kernels", enabled=True)
        with pytest.warns(UserWarning, match="no kernel cache on disk"):
            cache.write(KEY, BINARY)
        assert cache.read(KEY) is None

    def test_a_full_disk_is_no_error(self, cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", refuse)
        cache.write(KernelCache.key("new"), BINARY)
        assert file_of(cache)  # nothing half-written stays

    def test_switched_off(self, cache: KernelCache, tmp_path: Path) -> None:
        assert KernelCache(cache.directory, enabled=False).read(KEY) is None
        off = KernelCache(tmp_path / "off", enabled=False)
        off.write(KEY, BINARY)
        assert not off.directory.exists()

    def test_environment(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("TORCHGRAFT_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_directory() == tmp_path / "torchgraft"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_directory() == Path.home() / ".cache/torchgraft"
        monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", "/some/where")
        assert KernelCache().directory == Path("/some/where")
        assert KernelCache().enabled
        monkeypatch.setenv("TORCHGRAFT_CACHE", "0")
        assert not KernelCache().enabled

    def test_many_processes_write_the_same(self, tmp_path: Path) -> None:
        """Whoever reads meanwhile gets the whole file or none."""
        writer = """
            for i in range(2000):
                key, content = cache.key(str(i % 7)), (str(i % 7) * 50_000).encode()
                if i % 50 == 49:
                    cache.discard(key)
                if i % 500 == 499:
                    cache.prune(100_000)
                cache.write(key, content)
                assert cache.read(key) in (None, content)
        """
        writers = [without_torch(tmp_path, writer) for _ in range(2)]
        assert [process.wait(timeout=120) for process in writers] == [0, 0]
        cache = KernelCache(tmp_path / "kernels", enabled=True)
        assert all(cache.read(KernelCache.key(str(i))) in (None, (str(i) * 50_000).encode()) for i in range(7))
        assert not list(cache.directory.rglob(".new-*"))


class TestBound:
    @staticmethod
    def filled(directory: Path, bound: int = 1 << 30) -> tuple[KernelCache, list[str]]:
        """Ten binaries of 1000 bytes, the first of which was used longest ago."""
        cache = KernelCache(directory / "kernels", enabled=True, bound=bound)
        keys = [KernelCache.key(str(i)) for i in range(10)]
        now = time.time()
        for i, key in enumerate(keys):
            cache.write(key, bytes([i]) * 948)
            os.utime(path_of(cache, key), (now, now - (100 - i) * 3600))
        return cache, keys

    def test_what_was_used_longest_ago_goes_first(self, tmp_path: Path) -> None:
        cache, keys = self.filled(tmp_path)
        assert cache.read(keys[0]) is not None  # which is a use
        assert cache.usage() == Usage(10, 10_000)
        assert cache.prune(5_500) == Usage(5, 5_000)
        assert [key for key in keys if cache.read(key) is not None] == [keys[0], *keys[6:]]
        assert cache.prune() == Usage(0, 0)

    def test_a_use_is_marked_once_an_hour(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, keys = self.filled(tmp_path)
        marked: list[object] = []
        utime = os.utime
        monkeypatch.setattr(os, "utime", lambda *arguments: (marked.append(arguments), utime(*arguments)))
        assert all(cache.read(keys[0]) is not None for _ in range(3))
        assert len(marked) == 1

    def test_writing_keeps_within_the_bound(self, tmp_path: Path) -> None:
        cache = KernelCache(tmp_path / "kernels", enabled=True, bound=20_000)
        for i in range(100):
            cache.write(KernelCache.key(str(i)), bytes(948))
            assert cache.usage().size <= 20_000
        assert cache.usage().size > 15_000
        assert cache.read(KernelCache.key("99")) is not None
        cache.write(KEY, bytes(20_001))
        assert cache.read(KEY) is None

    def test_a_new_process_finds_what_is_too_much(self, tmp_path: Path) -> None:
        cache, keys = self.filled(tmp_path)
        KernelCache(cache.directory, enabled=True, bound=5_000).write(KEY, bytes(948))
        assert cache.usage() == Usage(4, 4_000)
        assert cache.read(KEY) is not None
        assert cache.read(keys[6]) is None

    def test_the_directory_is_not_looked_through_for_each_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = KernelCache(tmp_path / "kernels", enabled=True, bound=1 << 20)
        looked: list[object] = []
        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", lambda path: (looked.append(path), scandir(path))[1])
        for i in range(50):
            cache.write(KernelCache.key(str(i)), bytes(948))
        assert looked.count(cache.directory) == 1

    def test_leftovers_of_killed_processes_go_in_time(self, cache: KernelCache) -> None:
        folder = file_of(cache).parent
        leftovers = [folder / name for name in (".new-abc", f".lock-{KEY[2:]}")]
        kept = [folder / name for name in (".new-def", "notes", "f" * 61)]
        for path in [*leftovers, *kept]:
            path.write_bytes(bytes(10))
        for path in [*leftovers, *kept[1:]]:
            os.utime(path, (0, 0))
        KernelCache(cache.directory, enabled=True).write(KernelCache.key("new"), BINARY)
        assert not any(path.exists() for path in leftovers)
        assert all(path.exists() for path in kept)
        assert cache.usage().kernels == 2

    def test_clearing_removes_what_is_ours(self, cache: KernelCache) -> None:
        note = cache.directory / "ab" / "notes"
        note.parent.mkdir(exist_ok=True)
        note.write_text("")
        path_of(cache, KEY).with_name(".new-abc").write_bytes(b"")
        assert cache.clear() == Usage(1, 52 + len(BINARY))
        assert [path for path in cache.directory.rglob("*") if path.is_file()] == [note]
        assert cache.clear() == Usage(0, 0)
        cache.write(KEY, BINARY)
        assert cache.read(KEY) == BINARY

    @pytest.mark.parametrize(
        "text, size",
        [("0", 0), ("100", 100), ("64k", 64 << 10), ("512M", 512 << 20), ("1.5 GiB", 3 << 29), ("2TB", 2 << 40)],
    )
    def test_sizes(self, text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        assert parse_size(text) == size
        monkeypatch.setenv("TORCHGRAFT_CACHE_SIZE", text)
        assert KernelCache().bound == size

    @pytest.mark.parametrize("text", ["-1", "M", "12 parsecs", "1e9", "nan"])
    def test_what_is_no_size(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ValueError, match="is not a size"):
            parse_size(text)
        monkeypatch.setenv("TORCHGRAFT_CACHE_SIZE", text)
        with pytest.warns(UserWarning, match="TORCHGRAFT_CACHE_SIZE: .* is not a size, .*; 512M is used"):
            assert KernelCache().bound == 512 << 20
        monkeypatch.delenv("TORCHGRAFT_CACHE_SIZE")
        assert KernelCache().bound == 512 << 20


class TestClaims:
    def test_one_of_many_processes_compiles(self, tmp_path: Path) -> None:
        """And leaves no lock behind."""
        text = f"""
            for i in range(20):
                key = cache.key(str(i))
                if cache.read(key) is None:
                    with cache.claim(key):
                        if cache.read(key) is None:
                            with open({str(tmp_path / "log")!r}, "a") as log:
                                print(key, file=log)
                            time.sleep(0.01)
                            cache.write(key, key.encode())
                assert cache.read(key) == key.encode()
        """
        processes = [without_torch(tmp_path, text) for _ in range(4)]
        assert [process.wait(timeout=120) for process in processes] == [0] * 4
        compiled = (tmp_path / "log").read_text().split()
        assert len(compiled) == len(set(compiled)) == 20
        assert not list((tmp_path / "kernels").rglob(".*"))

    def test_a_killed_process_holds_nothing(self, cache: KernelCache, tmp_path: Path) -> None:
        key = KernelCache.key("new")
        holder = without_torch(tmp_path, f"with cache.claim({key!r}): print(flush=True); time.sleep(600)")
        assert holder.stdout is not None
        holder.stdout.readline()
        threading.Timer(0.2, holder.kill).start()
        begin = time.monotonic()
        with cache.claim(key, patience=60):
            assert holder.wait(timeout=60) == -signal.SIGKILL
        assert time.monotonic() - begin < 30

    def test_patience_ends(self, cache: KernelCache) -> None:
        with cache.claim(KEY), cache.claim(KEY, patience=0.05):
            pass  # both hold it: the second one compiles by itself
        assert not list(cache.directory.rglob(".lock*"))

    def test_other_keys_are_not_waited_for(self, cache: KernelCache) -> None:
        begin = time.monotonic()
        with cache.claim(KEY), cache.claim(KEY[:-1] + "x"):
            assert time.monotonic() - begin < 10

    def test_a_child_that_was_forked_meanwhile_holds_nothing(self, cache: KernelCache) -> None:
        reading, writing = os.pipe()
        with cache.claim(KEY):
            child = os.fork()
            if child == 0:
                os.read(reading, 1)
                os._exit(0)
        begin = time.monotonic()
        with cache.claim(KEY):
            assert time.monotonic() - begin < 10
        os.write(writing, b"x")
        os.waitpid(child, 0)

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, bind])
    def test_where_no_lock_can_be(self, cache: KernelCache, make: Callable[[Path], Any]) -> None:
        make(file_of(cache).with_name(f".lock-{KEY[2:]}"))
        with cache.claim(KEY):
            assert cache.read(KEY) == BINARY

    def test_nobody_waits_where_nothing_can_be_written(
        self, cache: KernelCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", refuse)
        cache.write(KernelCache.key("new"), BINARY)
        with cache.claim(KEY):
            assert not list(cache.directory.rglob(".lock*"))


def kernel(body: str, name: str = "test_kernel_cache") -> Kernel:
    return Kernel(name, (Pointer("out", "f32"), Value("value", "f32")), body)


@pytest.fixture
def disk(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelCache:
    """The cache that the compiler uses in a test."""
    if device == "npy":
        pytest.skip("the device has no compiler")
    cache = KernelCache(tmp_path / "kernels", enabled=True)
    monkeypatch.setattr(compiler, "_disk", lambda: cache)
    return cache


def forget(kernel: Kernel) -> None:
    """As in a new process."""
    del compiler._kernels[torch.accelerator.current_device_index(), kernel]


def made(kernel: Kernel) -> tuple[int, int]:
    """Makes a kernel; how many were (compiled, loaded) for that."""
    before = counts.compiled, counts.loaded
    compiled(kernel, torch.accelerator.current_device_index())
    return counts.compiled - before[0], counts.loaded - before[1]


class TestCompiler:
    def test_a_kernel_is_compiled_once(self, disk: KernelCache) -> None:
        one = kernel("  out[0] = value + 1;")
        assert made(one) == (1, 0)
        assert made(one) == (0, 0)
        assert made(kernel("  out[0] = value + 1;")) == (0, 0)
        forget(one)
        assert made(one) == (0, 1)

    def test_a_binary_that_the_driver_refuses_is_replaced(self, disk: KernelCache) -> None:
        one = kernel("  out[0] = value + 2;")
        made(one)
        path = file_of(disk)
        disk.write(path.parent.name + path.name, b"no binary" * 100)
        forget(one)
        assert made(one) == (1, 0)
        forget(one)
        assert made(one) == (0, 1)

    def test_a_damaged_file_is_replaced(self, disk: KernelCache) -> None:
        one = kernel("  out[0] = value + 3;")
        made(one)
        path = file_of(disk)
        path.write_bytes(path.read_bytes()[:-100])
        forget(one)
        assert made(one) == (1, 0)
        forget(one)
        assert made(one) == (0, 1)

    def test_a_binary_that_lacks_its_kernel_is_replaced(self, disk: KernelCache) -> None:
        """Whether it is the driver that does not find it, or the file of another kernel that lies there."""
        one, other = kernel("  out[0] = value + 4;"), kernel("  out[0] = value + 4;", "another_name")
        made(other)
        wrong = file_of(disk)
        binary = disk.read(wrong.parent.name + wrong.name)
        assert binary is not None
        wrong.rename(disk.directory / "wrong")
        made(one)
        right = file_of(disk)
        disk.write(right.parent.name + right.name, binary)
        forget(one)
        assert made(one) == (1, 0)
        forget(one)
        assert made(one) == (0, 1)
        shutil.copy(disk.directory / "wrong", right)
        forget(one)
        assert made(one) == (1, 0)

    def test_a_shared_module_that_lacks_a_kernel_is_replaced(self, disk: KernelCache) -> None:
        index = torch.accelerator.current_device_index()
        source = "".join(f"__kernel void {name}(__global float* out) {{ out[0] = 5; }}\n" for name in ("one", "two"))
        compiler.compiled_source(source, "one", index, "-cl-std=CL1.2")
        path = file_of(disk)
        compiler._modules.clear()
        compiler.compiled_source(source[: source.index("\n") + 1], "one", index, "-cl-std=CL1.2")
        (half,) = [each for each in disk.directory.glob("*/*") if each != path]
        binary = disk.read(half.parent.name + half.name)
        assert binary is not None
        disk.write(path.parent.name + path.name, binary)
        before = counts.compiled
        assert compiler.compiled_source(source, "one", index, "-cl-std=CL1.2").name == "one"  # half of it is there
        assert counts.compiled == before
        assert compiler.compiled_source(source, "two", index, "-cl-std=CL1.2").name == "two"
        assert counts.compiled == before + 1
        with pytest.raises(RuntimeError, match="three"):
            compiler.compiled_source(source, "three", index, "-cl-std=CL1.2")
        assert counts.compiled == before + 1

    def test_who_loads_does_not_wait_for_who_compiles(self, disk: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
        ready, slow = kernel("  out[0] = value + 6;"), kernel("  out[0] = value + 7;")
        made(ready)
        forget(ready)
        compiling, go_on = threading.Event(), threading.Event()
        compile_module = _C.compile_module

        def compile_slowly(*arguments: Any) -> Any:
            compiling.set()
            assert go_on.wait(60)
            return compile_module(*arguments)

        monkeypatch.setattr(_C, "compile_module", compile_slowly)
        index = torch.accelerator.current_device_index()
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(compiled, slow, index) for _ in range(2)]
            assert compiling.wait(60)
            before = counts.compiled
            assert made(ready) == (0, 1)
            go_on.set()
            first, second = [each.result(60) for each in waiting]
        assert first is second
        assert counts.compiled == before + 1

    def test_a_binary_that_cannot_be_had_is_no_error(self, disk: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
        class Module:
            def __init__(self, module: _C.Module) -> None:
                self.module = module

            def binary(self) -> bytes:
                raise RuntimeError("the disk is full")

        compile_module, make_kernel = _C.compile_module, _C.make_kernel

        def without_binary(*arguments: Any) -> Any:
            module, log = compile_module(*arguments)
            return Module(module), log

        monkeypatch.setattr(_C, "compile_module", without_binary)
        monkeypatch.setattr(_C, "make_kernel", lambda module, *rest: make_kernel(module.module, *rest))
        one = kernel("  out[0] = value + 8;")
        assert made(one) == (1, 0)
        forget(one)
        assert made(one) == (1, 0)

    def test_options_are_part_of_the_key(self, disk: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
        one = kernel("#ifdef EXTRA\n  out[0] = EXTRA;\n#endif")
        made(one)
        forget(one)
        monkeypatch.setenv("TORCHGRAFT_COMPILE_OPTIONS", "-DEXTRA=value")
        assert made(one) == (1, 0)

    def test_a_kernel_that_does_not_compile(self, device: str, disk: KernelCache) -> None:
        broken = kernel("  out[0] = nonsense(value);", "broken_kernel")
        for _ in range(2):  # nothing is kept of a failure
            with pytest.raises(KernelCompileError, match="kernel broken_kernel does not compile on") as error:
                made(broken)
            assert error.value.kernel == "broken_kernel"
            assert "nonsense" in error.value.log
            assert "void broken_kernel(" in error.value.source
            number = error.value.source.splitlines().index("  out[0] = nonsense(value);") + 1
            assert f"{number:5d}    out[0] = nonsense(value);" in str(error.value)
        assert not list(disk.directory.rglob("*/*"))
        assert (torch.ones(3, device=device) + 1).tolist() == [2, 2, 2]


@pytest.mark.thorough
def test_processes_share_kernels(device: str, script: Script, tmp_path: Path) -> None:
    """Two begin at once with nothing, and each kernel is compiled by one of them; a third finds everything."""
    if device == "npy":
        pytest.skip("the device has no compiler")
    text = """
        import torch, torchgraft_opencl
        from torchgraft import plans

        x = torch.arange(6.0, device="ocl").view(2, 3)
        assert (x + 1).tolist() == [[1, 2, 3], [4, 5, 6]]
        assert x.t().contiguous().tolist() == [[0, 3], [1, 4], [2, 5]]
        print(plans.stats().kernels_compiled, plans.stats().kernels_loaded)
    """
    environment = {"TORCHGRAFT_CACHE_DIR": str(tmp_path / "kernels"), "TORCHGRAFT_CACHE": "1"}
    with ThreadPoolExecutor() as pool:
        first = [pool.submit(script, text, fresh=True, timeout=300, **environment) for _ in range(2)]
        outputs = [[int(n) for n in future.result().split()[-2:]] for future in first]
    total = sum(outputs[0])
    assert total > 0
    assert [sum(output) for output in outputs] == [total, total]
    assert sum(compiled for compiled, _ in outputs) == total
    assert script(text, **environment).split()[-2:] == ["0", str(total)]
