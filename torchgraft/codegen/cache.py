"""Compiled kernels on disk.

One file a module, named by the hash of everything that decides its content. A file is written whole under another name
and then renamed, so that readers never see half of one, and carries a checksum of its key and its content, so that a
damaged one, and one that lies under another's name, is compiled anew. The directory must belong to the user and be
writable by nobody else, since its content is run.

The kernels together stay within a bound: those that were used longest ago go first. The time of a file's last
modification is that of its last use, to the hour.

Environment: TORCHGRAFT_CACHE_DIR names the directory, TORCHGRAFT_CACHE_SIZE the bound, TORCHGRAFT_CACHE=0 switches the
cache off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"torchgraft kernel 2\n"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size
_DEFAULT_BOUND = 512 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# What is in the directory: `<2 digits>/<62 digits>` is a kernel, and beside them are locks and files being written.
# Nothing else in it is ours: nothing else is counted or removed.
_FOLDER = re.compile(r"[0-9a-f]{2}")
_KERNEL = re.compile(r"[0-9a-f]{62}")
_NEW = ".new-"
_LOCK = ".lock-"

_HOUR = 3600.0
# How long one process waits for the kernel that another one compiles.
_PATIENCE = 20.0
_LONGEST_PAUSE = 0.05


class Usage(NamedTuple):
    """How many kernels, and their bytes."""

    kernels: int
    size: int


class _File(NamedTuple):
    used: float
    size: int
    name: str
    path: str


def cache_directory() -> Path:
    """Where compiled kernels are kept."""
    named = os.environ.get("TORCHGRAFT_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torchgraft"


def parse_size(text: str) -> int:
    """Bytes: "100", "64K", "512M", "1.5 GiB"; the units are powers of 1024.

    Raises:
        ValueError: it is not a size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a size, such as 512M or 2G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def cache_bound() -> int:
    """How many bytes of kernels are kept."""
    text = os.environ.get("TORCHGRAFT_CACHE_SIZE")
    if not text:
        return _DEFAULT_BOUND
    try:
        return parse_size(text)
    except ValueError as error:
        warnings.warn(f"torchgraft: TORCHGRAFT_CACHE_SIZE: {error}; {_DEFAULT_BOUND >> 20}M is used", stacklevel=2)
        return _DEFAULT_BOUND


class KernelCache:
    """A directory of binaries by key. Every failure means a compile, never an exception: a cache only saves time."""

    def __init__(self, directory: Path | None = None, enabled: bool | None = None, bound: int | None = None) -> None:
        self.directory = directory or cache_directory()
        self.enabled = os.environ.get("TORCHGRAFT_CACHE", "1") != "0" if enabled is None else enabled
        self.bound = cache_bound() if bound is None else bound
        self._trusted: bool | None = None
        self._can_write = True
        self._until_prune = 0  # bytes that may be written before the directory is looked through again

    @staticmethod
    def key(*parts: str) -> str:
        """The name of what these texts decide."""
        digest = hashlib.sha256()
        for part in parts:
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest.hexdigest()

    def read(self, key: str) -> bytes | None:
        """The binary, or None if there is none that can be trusted."""
        if not self.usable():
            return None
        try:
            content = self._content(self._path(key))
        except OSError:
            return None
        if content is None:
            return None
        payload = content[_HEAD:]
        if content[:_HEAD] != _head(key, payload):
            self.discard(key)
            return None
        return payload

    def has(self, key: str) -> bool:
        """Whether there is one, good or not."""
        return self.usable() and self._path(key).exists()

    def write(self, key: str, binary: bytes) -> None:
        """Keeps a binary; another process writing the same one at the same time does no harm."""
        if not self.usable() or len(binary) > self.bound:
            return
        path = self._path(key)
        temporary = None
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_head(key, binary) + binary)
            os.replace(temporary, path)
        except OSError:
            self._can_write = False
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            return
        self._until_prune -= _HEAD + len(binary)
        if self._until_prune < 0:
            self.prune()

    def discard(self, key: str) -> None:
        """Forgets a binary, if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(key))

    @contextlib.contextmanager
    def claim(self, key: str, patience: float = _PATIENCE) -> Iterator[None]:
        """Of several processes that lack a binary, lets one at a time go on: it compiles, the next one then reads.

        Nobody waits longer than `patience` seconds, nor for a process that has ended, nor where nothing can be
        written.
        """
        lock = self._path(key).with_name(_LOCK + key[2:])
        descriptor = self._locked(lock, time.monotonic() + patience)
        try:
            yield
        finally:
            if descriptor is not None:
                _unlinked(lock)
                # A forked process may have the descriptor too: closing it here would leave the lock with that one.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def usage(self) -> Usage:
        """What is kept."""
        return _sum(_kernels(self._files()))

    def prune(self, to: int | None = None) -> Usage:
        """Removes the kernels that were used longest ago, and what killed processes have left.

        Several processes may do so at once.

        Args:
            to: how many bytes to leave; by default, somewhat less than the bound if it is exceeded.

        Returns:
            What was removed.
        """
        files = self._files()
        kernels = _kernels(files)
        size = _sum(kernels).size
        if to is None:
            to = self.bound * 7 // 8 if size > self.bound else size
        removed = []
        for file in sorted(kernels):
            if size <= to:
                break
            size -= file.size
            if _unlinked(file.path):
                removed.append(file)
        long_ago = time.time() - _HOUR
        for file in files:
            if file.name.startswith((_NEW, _LOCK)) and file.used < long_ago:
                _unlinked(file.path)
        # Other processes write too, so that what this one has seen and written is not all there is.
        self._until_prune = min(self.bound - size, self.bound // 16)
        return _sum(removed)

    def clear(self) -> Usage:
        """Removes all that was kept, and the directory's subdirectories. Returns how much that was."""
        files = self._files()
        removed = [file for file in _kernels(files) if _unlinked(file.path)]
        for file in files:
            if file.name.startswith((_NEW, _LOCK)):
                _unlinked(file.path)
        for folder in self._folders():
            with contextlib.suppress(OSError):  # something else may be in it
                os.rmdir(folder)
        return _sum(removed)

    def distrust(self) -> str | None:
        """Why what is in the directory is not to be run, or None. That it does not exist is no reason."""
        try:
            status = os.stat(self.directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            return str(error)
        if not stat.S_ISDIR(status.st_mode):
            return f"{self.directory} is no directory"
        if status.st_uid != os.geteuid():
            return f"{self.directory} belongs to another user"
        if not _owned_privately(status):
            return f"{self.directory} is writable by others"
        return None

    def remedy(self) -> str:
        """What to do about a directory that is not trusted."""
        elsewhere = "set TORCHGRAFT_CACHE_DIR to a directory of your own"
        with contextlib.suppress(OSError):
            status = os.stat(self.directory)
            # Nobody can mend what is another's; and what has the sticky bit, as /tmp, is meant to be for all.
            is_for_all = bool(status.st_mode & stat.S_ISVTX)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not is_for_all:
                return f"{elsewhere}, or mend it with: chmod go-w {shlex.quote(str(self.directory))}"
        return elsewhere

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / key[2:]

    def _content(self, path: Path) -> bytes | None:
        """A file, if it is a plain one of the user's; marks it as used."""
        descriptor = _open_plain(path, os.O_RDONLY)
        if descriptor is None:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not _owned_privately(status) or status.st_size > _HEAD + self.bound:
                return None
            now = time.time()
            if status.st_mtime < now - _HOUR:
                with contextlib.suppress(OSError):
                    os.utime(descriptor, (now, now))
            return file.read()

    def _locked(self, lock: Path, deadline: float) -> int | None:
        """Makes and locks a file; None if that cannot be done, or not until then."""
        if not self._can_write or not self.usable():
            return None
        with contextlib.suppress(OSError):
            lock.parent.mkdir(mode=0o700, exist_ok=True)
            while (descriptor := _open_plain(lock, os.O_RDWR | os.O_CREAT)) is not None:
                got_it = _lock(descriptor, deadline)
                if got_it and _is_at(descriptor, lock):
                    return descriptor
                os.close(descriptor)
                if not got_it:
                    return None
        return None

    def _folders(self) -> list[str]:
        try:
            with os.scandir(self.directory) as entries:
                return [e.path for e in entries if _FOLDER.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _files(self) -> list[_File]:
        """The plain files, ours or not."""
        now = time.time()
        found = []
        for folder in self._folders():
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # another process removed it
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.append(_File(min(status.st_mtime, now), status.st_size, entry.name, entry.path))
        return found

    def usable(self) -> bool:
        """Whether kernels are kept: not switched off, and the directory is the user's own."""
        if not self.enabled:
            return False
        if self._trusted is None:
            self._trusted = self._check()
        return self._trusted

    def _check(self) -> bool:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            warnings.warn(f"torchgraft: no kernel cache on disk: {error}", stacklevel=2)
            return False
        if (reason := self.distrust()) is not None:
            warnings.warn(
                f"torchgraft: no kernel cache on disk: {reason}, so it is not used; {self.remedy()}", stacklevel=2
            )
            return False
        return True


def _head(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(payload)
    return _MAGIC + digest.digest()


def _owned_privately(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _open_plain(path: Path, flags: int) -> int | None:
    """Opens a plain file, or none: opening a pipe waits for its other end, and opening a device may do anything.

    Raises:
        OSError: it cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
    # It may have become something else since.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _lock(descriptor: int, deadline: float) -> bool:
    """Waits for a lock, but only until then; where files cannot be locked, not at all."""
    pause = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:
            return False
        else:
            return True
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name: who held its lock removed it, and others may lock another one."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _unlinked(path: str | Path) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _kernels(files: list[_File]) -> list[_File]:
    return [file for file in files if _KERNEL.fullmatch(file.name)]


def _sum(files: list[_File]) -> Usage:
    return Usage(len(files), sum(file.size for file in files))
