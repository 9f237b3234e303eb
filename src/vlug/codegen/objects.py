"""Compiled objects on disk: one file each, written whole or not at all, and trusted only when surely our own.

What lies there is machine code, so a file is used only if it and its directory belong to this user and nobody
else can write to them (checked on the open descriptors, links are not followed), its digest is right and the
key written in it is the one asked for. Anything else is ignored with one line in the log, and made anew. A
directory that cannot be read or written costs the cache, never the call.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlug import config, log

__all__ = ["LIMIT", "clear", "evict", "load", "path_of", "save", "usage"]

#: Bytes that the directory may hold; the objects longest unused go first.
LIMIT = 256 << 20
_LARGEST = 64 << 20  # of one object
_HEAD = b"vlug-object 1 "
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_DAY = 86400.0


def directory() -> Path:
    return config.cache_dir() / "objects"


def path_of(key: str) -> Path:
    """The file of a key."""
    return directory() / _name(key)


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40] + ".o"


def _refuse(what: str, why: str) -> None:
    log.once("warn", f"compiled kernels in {what} are not used: {why}")


def _safe_parents(path: Path) -> bool:
    """Whether nobody else can put another directory in the place of this one."""
    for parent in path.parents:
        st = parent.stat()
        if st.st_uid not in (0, os.geteuid()):
            _refuse(str(path), f"{parent} belongs to user {st.st_uid}")
            return False
        if st.st_mode & stat.S_IWOTH and not st.st_mode & stat.S_ISVTX:
            _refuse(str(path), f"{parent} can be written by everybody")
            return False
    return True


@contextmanager
def _open_directory(create: bool) -> Iterator[int | None]:
    """A descriptor of the directory, None where there is none to be trusted."""
    fd = None
    try:
        if config.STORE.get():
            fd = _directory_fd(create)
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _directory_fd(create: bool) -> int | None:
    path = directory()
    try:
        if create:
            for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
                missing.mkdir(mode=0o700, exist_ok=True)
        real = Path(os.path.realpath(path))
        if not _safe_parents(real):
            return None
        fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as e:
        _refuse(str(path), e.strerror or str(e))
        return None
    st = os.fstat(fd)
    if st.st_uid != os.geteuid():
        _refuse(str(path), f"it belongs to user {st.st_uid}")
    elif st.st_mode & _OTHERS:
        _refuse(str(path), f"others may write to it (mode {stat.S_IMODE(st.st_mode):o})")
    else:
        return fd
    os.close(fd)
    return None


def load(key: str) -> tuple[dict[str, Any], bytes] | None:
    """What `save` kept under a key (description and object), None if there is nothing to be trusted."""
    name = _name(key)
    with _open_directory(create=False) as where:
        if where is None:
            return None
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
        except FileNotFoundError:
            return None
        except OSError as e:
            why = "it is a link" if e.errno == errno.ELOOP else e.strerror or str(e)
            log.once("warn", f"compiled kernel {path_of(key)} is made anew: {why}")
            return None
        try:
            st = os.fstat(fd)
            why = _distrust(st)
            data = b"" if why else _read(fd, st.st_size)
            if not why and time.time() - st.st_mtime > _DAY:
                with contextlib.suppress(OSError):
                    os.utime(fd)  # used lately, for `evict`
        except OSError as e:
            why, data = e.strerror or str(e), b""
        finally:
            os.close(fd)
    if not why:
        found = _parse(data, key)
        if isinstance(found, tuple):
            return found
        why = found
    log.once("warn", f"compiled kernel {path_of(key)} is made anew: {why}")
    return None


def _distrust(st: os.stat_result) -> str:
    if not stat.S_ISREG(st.st_mode):
        return "it is no regular file"
    if st.st_uid != os.geteuid():
        return f"it belongs to user {st.st_uid}"
    if st.st_mode & _OTHERS:
        return f"others may write to it (mode {stat.S_IMODE(st.st_mode):o})"
    if st.st_size > _LARGEST:
        return "it is too large"
    return ""


def _read(fd: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(fd, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _parse(data: bytes, key: str) -> tuple[dict[str, Any], bytes] | str:
    head, newline, rest = data.partition(b"\n")
    if not head.startswith(_HEAD) or not newline:
        return "it is no object file of this version"
    if hashlib.sha256(rest).hexdigest().encode() != head[len(_HEAD) :]:
        return "its digest is wrong (truncated or changed)"
    text, _, obj = rest.partition(b"\n")
    meta = json.loads(text)
    if meta.pop("key") != key:
        return "it was made for something else"
    return meta, obj


def save(key: str, meta: dict[str, Any], obj: bytes) -> bool:
    """Keep an object; False where that was not possible (told once)."""
    rest = json.dumps({**meta, "key": key}).encode() + b"\n" + obj
    data = _HEAD + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest
    name = _name(key)
    temporary = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    with _open_directory(create=True) as where:
        if where is None:
            return False
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=where)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=where, dst_dir_fd=where)
        except OSError as e:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=where)
            log.once("warn", f"compiled kernels are not kept in {directory()}: {e.strerror or e}")
            return False
    if name[0] == "0":  # one save in sixteen looks after the size
        evict()
    return True


def _entries(where: int) -> list[tuple[float, int, str]]:
    """(last use, bytes, name) of every file."""
    found = []
    for name in os.listdir(where):
        with contextlib.suppress(OSError):
            st = os.stat(name, dir_fd=where, follow_symlinks=False)
            found.append((st.st_mtime, st.st_size, name))
    return found


def usage() -> tuple[int, int]:
    """(number of objects, bytes)."""
    with _open_directory(create=False) as where:
        entries = [] if where is None else _entries(where)
    return sum(n.endswith(".o") for _, _, n in entries), sum(s for _, s, _ in entries)


def evict(limit: int = LIMIT) -> int:
    """Remove the objects longest unused until at most `limit` bytes remain; the number removed."""
    removed = 0
    with _open_directory(create=False) as where:
        if where is None:
            return 0
        entries = sorted(_entries(where))
        total = sum(size for _, size, _ in entries)
        for used, size, name in entries:
            left_over = not name.endswith(".o") and time.time() - used > 3600  # of a process that was killed
            if left_over or (total > limit and name.endswith(".o")):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=where)
                    total -= size
                    removed += 1
    return removed


def clear() -> int:
    """Remove every object; the number removed."""
    return evict(limit=-1)
