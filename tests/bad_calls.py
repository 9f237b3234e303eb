"""A valid call of every eager function, and ways to spoil one argument of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["CALLS", "spoilt"]

R = np.random.default_rng(0)


def f(*dim: int) -> np.ndarray:
    return R.standard_normal(dim).astype(np.float32)


def classes(n: int, *dim: int) -> np.ndarray:
    return R.integers(0, n, dim)


X = (2, 6, 5, 4)
#: Function → its arguments by name; arrays are made anew for each call from these.
CALLS: dict[str, dict[str, Any]] = {
    "add": {"a": f(*X), "b": f(*X)},
    "mul": {"a": f(*X), "b": f(*X)},
    "relu": {"x": f(*X), "negative_slope": 0.1, "lower_clip": 0.0, "upper_clip": 6.0},
    "relu_backward": {"dy": f(*X), "x": f(*X), "negative_slope": 0.1},
    "matmul": {"a": f(3, 4, 5), "b": f(5, 7), "transpose_a": False, "transpose_b": False},
    "linear": {"x": f(3, 5), "w": f(7, 5), "bias": f(7)},
    "linear_backward": {"dy": f(3, 7), "x": f(3, 5), "w": f(7, 5)},
    "conv2d": {
        "x": f(*X),
        "w": f(8, 3, 3, 3),
        "bias": f(8),
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "groups": 2,
    },
    "conv2d_backward": {
        "dy": f(2, 8, 5, 4),
        "x": f(*X),
        "w": f(8, 3, 3, 3),
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "groups": 2,
    },
    "max_pool2d": {
        "x": f(*X),
        "window": 2,
        "stride": 2,
        "padding": 0,
        "dilation": 1,
        "ceil": False,
        "return_index": True,
    },
    "max_pool2d_backward": {
        "dy": f(2, 6, 2, 2),
        "index": classes(20, 2, 6, 2, 2),
        "size": (5, 4),
        "window": 2,
        "stride": 2,
        "padding": 0,
        "dilation": 1,
    },
    "avg_pool2d": {"x": f(*X), "window": 2, "stride": 2, "padding": 0, "ceil": False, "divisor": 0},
    "avg_pool2d_backward": {"dy": f(2, 6, 2, 2), "size": (5, 4), "window": 2, "stride": 2, "padding": 0},
    "batch_norm": {"x": f(*X), "mean": f(6), "var": f(6) ** 2, "scale": f(6), "bias": f(6), "eps": 1e-5},
    "batch_norm_training": {
        "x": f(*X),
        "scale": f(6),
        "bias": f(6),
        "running_mean": f(6),
        "running_var": f(6) ** 2,
        "eps": 1e-5,
        "momentum": 0.1,
    },
    "batch_norm_backward": {
        "dy": f(*X),
        "x": f(*X),
        "scale": f(6),
        "mean": f(6),
        "inv_std": f(6),
        "training": True,
    },
    "softmax": {"x": f(*X), "axis": 1},
    "softmax_backward": {"dy": f(*X), "y": f(*X), "axis": 1},
    "log_softmax": {"x": f(*X), "axis": 1},
    "log_softmax_backward": {"dy": f(*X), "y": f(*X), "axis": 1},
    "cross_entropy": {
        "x": f(4, 5),
        "target": classes(5, 4),
        "weight": f(5),
        "reduction": "mean",
        "ignore_index": 1,
        "label_smoothing": 0.1,
    },
    "cross_entropy_backward": {
        "dloss": f(),
        "x": f(4, 5),
        "target": classes(5, 4),
        "weight": f(5),
        "reduction": "mean",
        "ignore_index": 1,
        "label_smoothing": 0.1,
    },
    "nll_loss": {
        "x": f(4, 5),
        "target": classes(5, 4),
        "weight": f(5),
        "ignore_index": 1,
        "reduction": "sum",
    },
    "nll_loss_backward": {
        "dloss": f(),
        "x": f(4, 5),
        "target": classes(5, 4),
        "weight": f(5),
        "ignore_index": 1,
        "reduction": "sum",
    },
    "embedding": {"indices": classes(7, 3, 4), "weight": f(7, 5), "padding_idx": 1},
    "embedding_backward": {"dy": f(3, 4, 5), "indices": classes(7, 3, 4), "num_weights": 7, "padding_idx": 1},
    **{
        f"{n}_loss{tail}": {
            **({"dloss": f()} if tail else {}),
            "x": f(4, 5),
            "target": f(4, 5),
            "reduction": "mean",
        }
        for n, tail in itertools.product(("mse", "l1", "huber", "smooth_l1"), ("", "_backward"))
    },
    "kl_div": {"x": f(4, 5), "target": f(4, 5) ** 2, "reduction": "batchmean", "log_target": False},
    "kl_div_backward": {
        "dloss": f(),
        "x": f(4, 5),
        "target": f(4, 5) ** 2,
        "reduction": "mean",
        "log_target": True,
    },
    "binary_cross_entropy_with_logits": {
        "x": f(4, 5),
        "target": f(4, 5),
        "weight": f(5),
        "reduction": "mean",
        "pos_weight": f(5),
    },
    "binary_cross_entropy_with_logits_backward": {
        "dloss": f(),
        "x": f(4, 5),
        "target": f(4, 5),
        "weight": f(5),
        "reduction": "mean",
        "pos_weight": f(5),
    },
    "dropout": {"x": f(*X), "p": 0.5, "seed": 3, "offset": 0},
    "dropout_backward": {"dy": f(*X), "p": 0.5, "seed": 3, "offset": 0},
    "rng": {
        "size": (3, 4),
        "seed": 3,
        "offset": 0,
        "distribution": "uniform",
        "low": 0.0,
        "high": 1.0,
        "probability": 0.5,
        "dtype": "f32",
    },
    **{n: {"x": f(*X), "axes": (1, 2), "keepdims": False} for n in ("sum", "mean", "prod", "amax", "amin")},
    **{
        f"{n}_backward": {"dy": f(2, 4), "size": X, "axes": (1, 2), "keepdims": False}
        for n in ("sum", "mean")
    },
    "prod_backward": {"dy": f(2, 4), "x": f(*X), "axes": (1, 2), "keepdims": False},
    **{
        f"{n}_backward": {"dy": f(2, 4), "x": f(*X), "y": f(2, 4), "axes": (1, 2), "keepdims": False}
        for n in ("amax", "amin")
    },
    "reduce": {"x": f(*X), "mode": "norm1", "axes": (1, 2), "keepdims": False},
    "reduce_backward": {"dy": f(2, 4), "x": f(*X), "y": f(2, 4), "mode": "norm2", "axes": (1, 2)},
    "vector_norm": {"x": f(*X), "ord": 2, "axes": (1, 2), "keepdims": False},
    "vector_norm_backward": {"dy": f(2, 4), "x": f(*X), "y": f(2, 4), "ord": 2, "axes": (1, 2)},
    "sgd_step": {
        "p": f(4, 5),
        "g": f(4, 5),
        "buf": f(4, 5),
        "lr": 0.1,
        "momentum": 0.9,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    },
    **{
        n: {
            "p": f(4, 5),
            "g": f(4, 5),
            "m": f(4, 5),
            "v": f(4, 5) ** 2,
            "vmax": f(4, 5) ** 2,
            "step": 1,
            "lr": 0.1,
            "betas": (0.9, 0.99),
            "eps": 1e-8,
            "weight_decay": 0.0,
        }
        for n in ("adam_step", "adamw_step")
    },
}


class Odd:
    """Lends nothing."""

    def __repr__(self) -> str:
        return "<an odd object>"


def _arrays(a: np.ndarray) -> Iterator[tuple[str, Any]]:
    yield "None", None
    yield "text", "abc"
    yield "object", Odd()
    yield "complex", a.astype(np.complex64)
    yield "objects", a.astype(object)
    yield "int8", a.astype(np.int8)
    yield "wide", a.astype(np.longdouble)
    yield "f64", a.astype(np.float64)
    yield "one dimension more", a[None]
    yield "forty dimensions", a.reshape((1,) * (40 - a.ndim) + a.shape) if a.ndim + 24 < 32 else a[None]
    yield "empty", a[..., :0] if a.ndim else a
    if a.ndim:
        yield "one dimension less", a[0]
        yield "scalar", np.zeros((), a.dtype)
    for axis in range(a.ndim):
        yield f"longer in {axis}", np.concatenate([a, a.take([0], axis)], axis)
    if a.dtype.kind == "i":
        for value in (-1, -(10**9), 10**9, 2**62, -(2**63)):
            b = a.copy()
            b.reshape(-1)[-1] = value
            yield f"holds {value}", b
    else:
        yield "nan", np.full_like(a, np.nan)
        yield "read backwards", a[::-1] if a.ndim else a
        locked = a.copy()
        locked.flags.writeable = False
        yield "read-only", locked
        moved = np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:]
        yield "misaligned", np.ndarray(a.shape, a.dtype, moved.tobytes() + b"\0\0\0\0", 0)


def _values(v: Any) -> Iterator[tuple[str, Any]]:
    odd = (
        None,
        "abc",
        Odd(),
        -1,
        0,
        1.5,
        2**31,
        2**70,
        -(2**70),
        float("nan"),
        float("inf"),
        (),
        (1,),
        (1, 2, 3),
        (-1, -1),
        (0, 0),
        [[1]],
        True,
        b"x",
        1 + 2j,
    )
    for value in odd:
        yield repr(value), value


def spoilt(name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(argument, what is wrong, all arguments) for a function: one of them is not as it should be."""
    valid = CALLS[name]
    for argument, value in valid.items():
        for what, bad in (_arrays if isinstance(value, np.ndarray) else _values)(value):
            fresh = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in valid.items()}
            yield argument, what, {**fresh, argument: bad}
