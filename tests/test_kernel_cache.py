"""Compiled kernels on disk: a cache that may be damaged, shared or forbidden, and never gives a wrong kernel."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import Script

from torchgraft.codegen import Kernel, Pointer, Value, compiler
from torchgraft.codegen import cache as cache_module
from torchgraft.codegen.cache import KernelCache, cache_directory
from torchgraft.codegen.compiler import KernelCompileError, compiled, counts

KEY = KernelCache.key("a", "b")
BINARY = bytes(range(256)) * 20


def file_of(cache: KernelCache) -> Path:
    (path,) = [path for path in cache.directory.rglob("*") if path.is_file()]
    return path


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

    def test_a_file_that_others_may_write_is_not_read(self, cache: KernelCache) -> None:
        file_of(cache).chmod(0o666)
        assert cache.read(KEY) is None

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    def test_a_directory_that_others_may_write_is_not_used(self, cache: KernelCache, mode: int) -> None:
        cache.directory.chmod(mode)
        fresh = KernelCache(cache.directory, enabled=True)
        with pytest.warns(UserWarning, match="belongs to another user or is writable by others"):
            assert fresh.read(KEY) is None
        before = sorted(cache.directory.rglob("*"))
        fresh.write(KernelCache.key("new"), BINARY)  # and it warns once only
        assert sorted(cache.directory.rglob("*")) == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_what_belongs_to_another_user_is_not_used(self, cache: KernelCache) -> None:
        os.chown(file_of(cache), 12345, 12345)
        assert cache.read(KEY) is None
        os.chown(cache.directory, 12345, 12345)
        with pytest.warns(UserWarning, match="belongs to another user"):
            assert KernelCache(cache.directory, enabled=True).read(KEY) is None

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
        writer = f"""
import importlib.util, pathlib

spec = importlib.util.spec_from_file_location("cache", {cache_module.__file__!r})  # without torch: quicker
cache_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache_module)
cache = cache_module.KernelCache(pathlib.Path({str(tmp_path / "kernels")!r}), enabled=True)
for i in range(2000):
    key, content = cache.key(str(i % 7)), (str(i % 7) * 50_000).encode()
    if i % 50 == 49:
        cache.discard(key)
    cache.write(key, content)
    assert cache.read(key) in (None, content)
"""
        writers = [subprocess.Popen([sys.executable, "-c", writer]) for _ in range(2)]
        assert [process.wait(timeout=120) for process in writers] == [0, 0]
        cache = KernelCache(tmp_path / "kernels", enabled=True)
        assert all(cache.read(KernelCache.key(str(i))) in (None, (str(i) * 50_000).encode()) for i in range(7))
        assert not list(cache.directory.rglob(".new-*"))


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
        good, bad = path.read_bytes(), b"no binary" * 100
        path.write_bytes(good[:20] + hashlib.sha256(bad).digest() + bad)
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


def test_processes_share_kernels(device: str, script: Script, tmp_path: Path) -> None:
    """Two begin at once with nothing; a third finds everything."""
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
        first = [pool.submit(script, text, timeout=300, **environment) for _ in range(2)]
        outputs = [[int(n) for n in future.result().split()[-2:]] for future in first]
    assert all(sum(output) > 0 for output in outputs)
    assert script(text, **environment).split()[-2:] == ["0", str(sum(outputs[0]))]
