"""Arrays of others: pointer, shape, strides and type as they are, errors that name the argument."""

from __future__ import annotations

import array as python_array
import gc

import ml_dtypes
import numpy as np
import pytest

from vlug.dtypes import BF16, F32, F64, I32, I64, U8
from vlug.errors import BadInput, DTypeError
from vlug.runtime import handle
from vlug.runtime.timing import Stats, interleaved, median

NUMPY_TYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, np.bool_]


@pytest.mark.parametrize("t", NUMPY_TYPES, ids=lambda t: np.dtype(t).name)
def test_numpy(t):
    x = np.zeros((3, 4, 5), t)[::2, ::-1].transpose(2, 0, 1)
    a = handle.array(x)
    assert a.pointer == x.ctypes.data
    assert a.shape == (5, 2, 4)
    assert a.strides == (1, 40, -5)
    assert a.dtype.long_name == np.dtype(t).name
    assert not a.readonly
    assert a.numpy() is x
    assert handle.array(a) is a


def test_buffers_and_interfaces():
    a = handle.array(bytearray(b"abc"))
    assert (a.shape, a.dtype) == ((3,), U8)
    a = handle.array(python_array.array("d", [1, 2]))
    assert a.dtype is F64
    assert a.numpy().tolist() == [1, 2]
    assert handle.array(b"abc").readonly

    class Interface:
        data = np.arange(6, dtype=np.int32).reshape(2, 3)
        __array_interface__ = data.__array_interface__

    a = handle.array(Interface())
    assert (a.pointer, a.shape, a.dtype) == (Interface.data.ctypes.data, (2, 3), I32)


class Lender:
    """Lends a NumPy array through old DLPack only."""

    def __init__(self, x): self.x = x
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self): return self.x.__dlpack__()


def test_dlpack():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    a = handle.array(Lender(x))
    assert (a.pointer, a.shape, a.strides, a.dtype) == (x.ctypes.data, (3, 2), (4, 2), F32)
    np.testing.assert_array_equal(a.numpy(), x)
    a.numpy()[0, 0] = 7
    assert x[0, 0] == 7

    class Elsewhere(Lender):
        def __dlpack_device__(self): return (2, 1)

    with pytest.raises(BadInput, match=r"dy: lies on DLPack device \(2, 1\)"):
        handle.array(Elsewhere(x), "dy")


@pytest.mark.framework
def test_torch():
    torch = pytest.importorskip("torch")
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
             torch.bool: "bool", torch.uint8: "u8"}
    for t, name in names.items():
        x = torch.ones(2, 3, 4, 5).to(t).to(memory_format=torch.channels_last)[:, :, 1:]
        a = handle.array(x)
        assert (a.pointer, a.shape, a.strides) == (x.data_ptr(), tuple(x.shape), x.stride())
        assert a.dtype.name == name
        assert a.numpy().astype(np.float64).sum() == x.numel()
    y = torch.arange(3.0)
    a = handle.array(y)
    view = a.numpy()
    del a
    gc.collect()
    y += 1
    assert view.tolist() == [1, 2, 3]
    del y
    gc.collect()
    assert view.tolist() == [1, 2, 3]  # the memory lives as long as the view
    with pytest.raises(BadInput, match="w: Parameter does not lend its memory"):
        handle.array(torch.nn.Parameter(torch.ones(2)), "w")
    with pytest.raises(DTypeError, match="x: DLPack type code 5"):
        handle.array(torch.ones(2, dtype=torch.complex64))


def test_zero_sizes_and_scalars():
    a = handle.array(np.zeros((2, 0, 3), np.float32))
    assert (a.size, a.shape) == (0, (2, 0, 3))
    a = handle.array(np.float32(3) * np.ones((), np.float32))
    assert (a.size, a.shape, a.strides) == (1, (), ())


def test_bad_arrays_are_named():
    with pytest.raises(DTypeError, match="w: complex64"):
        handle.array(np.zeros(2, np.complex64), "w")
    with pytest.raises(DTypeError, match="w: byte order"):
        handle.array(np.zeros(2, ">f4"), "w")
    with pytest.raises(BadInput, match="x: list is no array"):
        handle.array([1, 2])
    with pytest.raises(BadInput, match="byte strides"):
        handle.array(np.zeros(5, "f4,u1")["f0"])
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    assert handle.array(x).readonly
    with pytest.raises(BadInput, match="y: the array is read-only"):
        handle.array(x, "y", writable=True)


@pytest.mark.parametrize("t", [F32, BF16, I64])
def test_empty(t):
    for _ in range(5):
        y = handle.empty((3, 4, 5), t)
        assert y.ctypes.data % 64 == 0
        assert y.flags.c_contiguous
        assert y.flags.writeable
        assert handle.array(y).dtype is t
    y = handle.empty((2, 3, 4), t, strides=(12, 1, 3))
    assert handle.array(y).strides == (12, 1, 3)
    y[...] = 1
    assert handle.empty((2, 0), t).shape == (2, 0)
    with pytest.raises(BadInput, match="negative"):
        handle.empty((2,), t, strides=(-1,))


def test_interleaved_medians():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    stats = interleaved(functions, budget=0, rounds=(8, 8), cold=lambda: calls.append("-"))
    assert calls[:2] == ["a", "b"]
    assert calls[2::2] == ["-"] * 16
    assert {tuple(calls[3 + 4 * i : 7 + 4 * i : 2]) for i in range(8)} == {("a", "b"), ("b", "a")}
    assert all(isinstance(s, Stats) and s.calls == 8 and 0 < s.best <= s.median for s in stats.values())
    assert median(lambda: sum(range(10000)), budget=0.01) > 1e-6


class Stranger:
    """What has DLPack, as a class of someone's writes it."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **options):
        return self.capsule() if callable(self.capsule) else self.capsule

    def __dlpack_device__(self):
        return self.device


def test_strange_lenders_are_named():
    def raises():
        raise KeyError("no")

    used = np.ones(3, np.float32).__dlpack__()
    np.from_dlpack(Stranger(used))  # takes it
    for lender, words in (
        (Stranger(3), "w: what Stranger lends is no DLPack capsule"),
        (Stranger(used), "used before"),
        (Stranger(raises), "w: Stranger does not lend its memory"),
        (Stranger(raises, device=1), "w: Stranger does not say where it lies"),
        (Stranger(raises, device=(2, 3)), r"w: lies on DLPack device \(2, 3\); allowed is the CPU"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), "w: a masked array"),
        ("abc", "w: str is no array"),
        (None, "w: NoneType is no array"),
        (type("Odd", (), {"__array_interface__": {"shape": 3}})(), "w: Odd's array interface is not valid"),
    ):
        with pytest.raises(BadInput, match=words):
            handle.array(lender, "w")
    assert handle.array(Stranger(np.ones(3, np.float32).__dlpack__)).shape == (3,)


@pytest.mark.framework
def test_torch_tensors_that_are_no_plain_memory():
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 4)
    for t, words in (
        (torch.empty(3, device="meta"), "does not say where it lies"),
        (x.to_sparse(), "does not lend its memory"),
        (x._neg_view(), "negates"),
        (torch.view_as_complex(torch.randn(3, 2)).conj().imag, "negates"),
    ):
        with pytest.raises(BadInput, match=f"x: .*{words}"):
            handle.array(t)
    flipped = handle.array(x.numpy()[::-1])
    assert flipped.strides == (-4, 1)
    assert flipped.numpy().tolist() == x.flip(0).tolist()
