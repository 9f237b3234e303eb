"""Tensors: strides, layouts, specs, what is refused."""

from __future__ import annotations

import pytest

from vlug.dtypes import BF16, F32, dtype
from vlug.errors import DTypeError, ParseError, ShapeError
from vlug.tensor import Tensor, channels_last_strides, contiguous_strides


def test_strides() -> None:
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, 0, 4)) == (4, 4, 1)
    assert contiguous_strides(()) == ()
    assert channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert channels_last_strides((2, 3)) == (3, 1)


@pytest.mark.parametrize(
    "spec",
    ["8x64x56x56:f32", "8x64x56x56:bf16:nhwc", "8x64:f16:s128x2", "scalar:f32", "0x3:i64", "3x4:f32:s0x1"],
)
def test_specs_round_trip(spec: str) -> None:
    t = Tensor.parse(spec)
    assert t.spec == spec
    assert Tensor.parse(t.spec) == t


def test_defaults_of_a_spec() -> None:
    assert Tensor.parse("2x3") == Tensor((2, 3), (3, 1), F32)
    assert Tensor.parse("2x3:bfloat16").dtype == BF16


def test_layout_ignores_strides_of_size_one() -> None:
    odd = Tensor((2, 1, 4, 5), (20, 999, 5, 1))
    assert odd.is_contiguous
    assert odd.is_channels_last  # C = 1: both
    assert odd.layout == "nchw"
    assert odd.normalised.stride == (20, 20, 5, 1)
    assert Tensor((2, 3, 1, 1), (3, 1, 77, 88)).layout == "nchw"
    assert Tensor.of((2, 3, 4, 5), layout="nhwc").layout == "nhwc"
    assert Tensor((2, 3), (8, 1)).layout == ""


def test_span_and_overlap() -> None:
    assert Tensor((2, 3), (8, 1)).span == 11
    assert Tensor((2, 0), (8, 1)).span == 0
    assert not Tensor((2, 3), (8, 1)).overlaps
    assert Tensor((2, 3), (0, 1)).overlaps
    assert Tensor((2, 3), (2, 1)).overlaps
    assert not Tensor((1, 3), (0, 1)).overlaps
    assert Tensor.of((2, 3), BF16).nbytes == 12


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Tensor((2, 3), (1,)), ShapeError, "2 dimensions but 1 strides"),
        (lambda: Tensor((2, -3), (3, 1), name="x"), ShapeError, "tensor x: dimensions .* must be 0 or more"),
        (lambda: Tensor((2, 3), (-3, 1)), ShapeError, "strides .* must be 0 or more"),
        (lambda: Tensor((2, 3), (1 << 62, 1)), ShapeError, "past 2\\^62"),
        (lambda: Tensor.of((1 << 40, 1 << 40)), ShapeError, "past 2\\^62"),
        (lambda: Tensor.of((2, 3), layout="nwhc"), ShapeError, "'nwhc' is not nchw"),
        (lambda: Tensor.parse("2xx3", "x"), ParseError, "x: '2xx3' is not integers"),
        (lambda: Tensor.parse("2x3:f8", "x"), DTypeError, "x: f8 is not one of"),
        (lambda: dtype(complex, "y"), DTypeError, "y: complex128 is not one of"),
        (lambda: dtype(object(), "y"), DTypeError, "y: .* is not one of"),
    ],
)  # fmt: skip
def test_refusals(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
