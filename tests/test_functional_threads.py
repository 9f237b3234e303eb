"""Eager calls from several Python threads at once, and in forked children: the same bits as alone."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import vlug
from vlug import config

pytestmark = [pytest.mark.isa, pytest.mark.timeout(60)]

_RNG = np.random.default_rng(0)
ROWS = _RNG.standard_normal((64, 300)).astype(np.float32)
IMAGES = _RNG.standard_normal((2, 16, 20, 20)).astype(np.float32)
FILTERS = _RNG.standard_normal((16, 16, 3, 3)).astype(np.float32)
PICKED = _RNG.integers(0, 64, 200)
CALLS = (
    lambda: vlug.softmax(ROWS, 1),
    lambda: vlug.layer_norm(ROWS, (300,)),
    lambda: vlug.gelu(ROWS),
    lambda: vlug.conv2d(IMAGES, FILTERS, padding=1),
    lambda: vlug.matmul(ROWS, ROWS.T),
    lambda: vlug.embedding(PICKED, ROWS),
    lambda: vlug.dropout(ROWS, 0.3, seed=5),
    lambda: vlug.interpolate(IMAGES, scale_factor=2),
)


def bits(i: int) -> bytes:
    y = CALLS[i % len(CALLS)]()
    return b"".join(np.asarray(a).tobytes() for a in (y if isinstance(y, tuple) else (y,)))


def wrong(want: list[bytes], first: int, count: int = 200) -> list[int]:
    with config.THREADS.using(7):  # holds in the thread that says so
        return [i for i in range(first, first + count) if bits(i) != want[i % len(CALLS)]]


def at_once(want: list[bytes]) -> list[int]:
    found: list[int] = []
    threads = [threading.Thread(target=lambda f=f: found.extend(wrong(want, f))) for f in (0, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


def test_two_python_threads_and_a_forked_child() -> None:
    with config.THREADS.using(1):
        want = [bits(i) for i in range(len(CALLS))]
    assert at_once(want) == []
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 2 if wrong(want, 0, 50) or at_once(want) else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
