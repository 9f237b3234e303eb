"""Arrays against forbidden pages, filled with NaN: a stray access or an unwritten element fails."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Memory between two forbidden pages; `at` says which one it borders on, "start" or "end"."""

    def __init__(self, nbytes: int, at: str = "end"):
        self.room = -(-max(nbytes, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.room + 2 * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        for edge in (base, base + PAGE + self.room):
            if _libc.mprotect(ctypes.c_void_p(edge), PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.offset = PAGE + (self.room - nbytes if at == "end" else 0)


def empty(shape, dtype, at: str = "end") -> np.ndarray:
    """An array at the edge of its pages, full of NaN (or of 0x5a bytes for integers)."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    g = Guarded(count * dtype.itemsize, at)
    a = np.frombuffer(g.map, dtype, count, g.offset).reshape(shape)
    a.view(np.uint8).reshape(-1)[:] = 0x5A
    if dtype.kind in "fV" and count:
        a[...] = np.nan
    return a


def copy(x, at: str = "end") -> np.ndarray:
    """The same array at the edge of its pages."""
    y = empty(x.shape, x.dtype, at)
    y[...] = x
    return y
