"""Arrays of any origin in functional calls: DLPack, array interface, buffers; in and out, bad ones named."""

from __future__ import annotations

import array
import ctypes
from typing import Any

import numpy as np
import pytest

import vlug
from vlug.errors import BadInput, DTypeError, ShapeError

VALUES = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)


class Lender:
    """An array that is known by DLPack alone; old: as before version 1.0."""

    def __init__(self, a: np.ndarray, old: bool = False) -> None:
        self.a, self.old = a, old

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and "max_version" in options:
            raise TypeError("max_version")
        return self.a.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.a.__dlpack_device__()


class Interface:
    def __init__(self, a: np.ndarray) -> None:
        self.__array_interface__ = a.__array_interface__
        self.a = a


def calls(of: Any) -> list[np.ndarray]:
    """A call of each kind, its arguments made by `of`."""
    x, w, b = VALUES, VALUES.reshape(-1)[:54].reshape(2, 3, 3, 3), VALUES.reshape(-1)[:3]
    y, index = vlug.max_pool2d(of(x), 2, return_index=True)
    m, v = np.zeros(54, np.float32).reshape(w.shape), np.zeros(54, np.float32).reshape(w.shape)
    p = w.copy()
    vlug.adam_step(of(p), of(w), of(m), of(v), step=1)
    return [
        vlug.conv2d(of(x), of(w), padding=1), y, index, *vlug.batch_norm_training(of(x), of(b), of(b)),
        vlug.softmax(of(x)), vlug.linear(of(x), of(x[0, 0])), vlug.add(of(x), of(x[:, :1])), vlug.mean(of(x)),
        vlug.dropout(of(x), 0.5, seed=3), p, m, v,
    ]  # fmt: skip


ORIGINS = {"dlpack": Lender, "old": lambda a: Lender(a, True), "interface": Interface}


@pytest.mark.parametrize("of", ORIGINS.values(), ids=list(ORIGINS))
def test_any_origin_is_as_numpy(of: Any) -> None:
    for got, want in zip(calls(of), calls(lambda a: a), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.framework
def test_torch_is_as_numpy_and_takes_results() -> None:
    torch = pytest.importorskip("torch")
    for got, want in zip(calls(torch.from_numpy), calls(lambda a: a), strict=True):
        np.testing.assert_array_equal(got, want)
    x = torch.from_numpy(VALUES.copy())
    out = torch.full((4, 4, 3, 2), float("nan")).permute(3, 2, 0, 1)  # strides of its own
    back = vlug.relu(x, out=out)
    assert torch.equal(out, x.relu())
    assert back.ctypes.data == out.data_ptr()
    low = x.bfloat16()
    vlug.relu(low, out=low)
    assert torch.equal(low, x.bfloat16().relu())


def test_buffers() -> None:
    want = [1.0, 0.0, 3.0]
    for given in (
        array.array("f", [1, -2, 3]), array.array("d", [1, -2, 3]), (ctypes.c_float * 3)(1, -2, 3),
        memoryview(array.array("d", [1, -2, 3])), bytearray(np.array([1, -2, 3], np.float32).tobytes()),
    ):  # fmt: skip
        if isinstance(given, bytearray):
            with pytest.raises(DTypeError, match="x is u8"):
                vlug.relu(given)
            given = np.frombuffer(given, np.float32)
        assert vlug.relu(given).tolist() == want
    held = array.array("f", [1, -2, 3])
    vlug.relu(np.array([1, -2, 3], np.float32), out=held)
    assert held.tolist() == want


def test_out_must_be_what_it_should() -> None:
    x = VALUES
    frozen = x.copy()
    frozen.flags.writeable = False
    repeated = np.lib.stride_tricks.as_strided(np.empty(16, np.float32), x.shape, (0, 0, 16, 4))
    for out, error, words in (
        (frozen, BadInput, "out: the array is read-only"),
        (b"\0" * x.nbytes, BadInput, "out: the array is read-only"),
        (Lender(frozen), BadInput, "out: .*(read-only|readonly|does not lend)"),
        (np.empty_like(x)[::-1], BadInput, "out: negative strides"),
        (np.empty((2, 3, 4, 5), np.float32), ShapeError, "out: dims are"),
        (np.empty(x.shape), DTypeError, "out: dtype is f64"),
        (x.copy().astype(np.complex64), DTypeError, "out: complex64"),
        (repeated, ShapeError, "out: strides"),
        ([0.0], BadInput, "out: list is no array"),
    ):
        with pytest.raises(error, match=words):
            vlug.relu(x, out=out)
    whole = np.zeros(x.size + 5, np.float32)
    with pytest.raises(BadInput, match="overlaps"):
        vlug.relu(whole[:-5].reshape(x.shape), out=whole[5:].reshape(x.shape))


def test_negative_strides_and_repeats_are_read() -> None:
    x = VALUES[:, ::-1, :, ::-1]
    np.testing.assert_array_equal(vlug.relu(x), np.maximum(x, 0))
    wide = np.broadcast_to(VALUES[:1], VALUES.shape)
    np.testing.assert_array_equal(vlug.add(wide, x), wide + x)
    odd = np.zeros(VALUES.nbytes + 3, np.uint8)[3:].view(np.float32)
    odd[:] = VALUES.reshape(-1)
    np.testing.assert_array_equal(vlug.relu(odd), np.maximum(odd, 0))
