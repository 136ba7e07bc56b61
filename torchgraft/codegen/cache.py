"""Compiled kernels on disk.

One file a module, named by the hash of everything that decides its content. A file is written whole under another name
and then renamed, so that readers never see half of one, and carries a checksum, so that a damaged one is compiled
anew. The directory must belong to the user and be writable by nobody else, since its content is run.

Environment: TORCHGRAFT_CACHE_DIR names the directory, TORCHGRAFT_CACHE=0 switches the cache off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from pathlib import Path

_MAGIC = b"torchgraft kernel 1\n"


def cache_directory() -> Path:
    """Where compiled kernels are kept."""
    named = os.environ.get("TORCHGRAFT_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torchgraft"


class KernelCache:
    """A directory of binaries by key. Every failure means a compile, never an exception: a cache only saves time."""

    def __init__(self, directory: Path | None = None, enabled: bool | None = None) -> None:
        self.directory = directory or cache_directory()
        self.enabled = os.environ.get("TORCHGRAFT_CACHE", "1") != "0" if enabled is None else enabled
        self._trusted: bool | None = None

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
        if not self._usable():
            return None
        try:
            with open(self._path(key), "rb") as file:
                if not _owned_privately(os.fstat(file.fileno())):
                    return None
                content = file.read()
        except OSError:
            return None
        head, payload = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
        if head != _MAGIC + hashlib.sha256(payload).digest():
            self.discard(key)
            return None
        return payload

    def write(self, key: str, binary: bytes) -> None:
        """Keeps a binary; another process writing the same one at the same time does no harm."""
        if not self._usable():
            return
        path = self._path(key)
        temporary = None
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(binary).digest() + binary)
            os.replace(temporary, path)
        except OSError:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def discard(self, key: str) -> None:
        """Forgets a binary, if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(key))

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / key[2:]

    def _usable(self) -> bool:
        if not self.enabled:
            return False
        if self._trusted is None:
            self._trusted = self._check()
        return self._trusted

    def _check(self) -> bool:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.stat(self.directory)
        except OSError as error:
            warnings.warn(f"torchgraft: no kernel cache on disk: {error}", stacklevel=2)
            return False
        if not _owned_privately(status):
            warnings.warn(
                f"torchgraft: the kernel cache {self.directory} belongs to another user or is writable by others, so "
                "it is not used; set TORCHGRAFT_CACHE_DIR to a directory of your own, or mend it with: "
                f"chmod go-w {self.directory}",
                stacklevel=2,
            )
            return False
        return True


def _owned_privately(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
