"""A valid call of every eager function, and ways to spoil one argument of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["CALLS", "spoilt"]

R = np.random.default_rng(0)
#: More than a tensor may have, where NumPy has so many.
MOST_DIMS = 40 if int(np.__version__.partition(".")[0]) > 1 else 32


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


def _pools() -> Iterator[tuple[str, dict[str, Any]]]:
    """Pools of one to three dimensions."""
    for rank in (1, 2, 3):
        x, small = (2, 3, 4, 6, 4)[: rank + 2], (2, 3, 2, 3, 2)[: rank + 2]
        window = {"window": 2, "stride": 2, "padding": 0}
        size = x[2:]
        index = {"index": classes(4, *small)}
        yield f"max_pool{rank}d", {"x": f(*x), **window, "dilation": 1, "ceil": False, "return_index": True}
        back = {"dy": f(*small), **index, "size": size, **window, "dilation": 1}
        yield f"max_pool{rank}d_backward", back
        rest = {"ceil": False, "count_include_pad": True, "divisor": 0}
        yield f"avg_pool{rank}d", {"x": f(*x), **window, **rest}
        yield f"avg_pool{rank}d_backward", {"dy": f(*small), "size": size, **window, **rest}
        yield f"adaptive_max_pool{rank}d", {"x": f(*x), "size": small[2:], "return_index": True}
        yield f"adaptive_max_pool{rank}d_backward", {"dy": f(*small), **index, "size": size}
        yield f"adaptive_avg_pool{rank}d", {"x": f(*x), "size": small[2:]}
        yield f"adaptive_avg_pool{rank}d_backward", {"dy": f(*small), "size": size}


def _convs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Convolutions of one and three dimensions, transposed ones of one to three."""
    at = {"stride": 1, "padding": 1, "dilation": 1, "groups": 2}
    for rank in (1, 2, 3):
        size, window = (5, 4, 3)[:rank], (3,) * rank
        x, y = f(2, 6, *size), f(2, 8, *size)
        if rank != 2:
            w = f(8, 3, *window)
            yield f"conv{rank}d", {"x": x, "w": w, "bias": f(8), **at}
            yield f"conv{rank}d_backward", {"dy": y, "x": x, "w": w, **at}
        w = f(6, 4, *window)
        yield f"conv_transpose{rank}d", {"x": x, "w": w, "bias": f(8), "output_padding": 0, **at}
        yield f"conv_transpose{rank}d_backward", {"dy": y, "x": x, "w": w, **at}


def _norms() -> Iterator[tuple[str, dict[str, Any]]]:
    """Norms of rows and groups."""
    row = {"normalized_shape": (5, 4)}
    for name, scale, kept, by in (
        ("layer_norm", f(5, 4), {"mean": f(2, 6, 1, 1), "inv_std": f(2, 6, 1, 1)}, row),
        ("rms_norm", f(5, 4), {"inv_std": f(2, 6, 1, 1)}, row),
        ("group_norm", f(6), {"mean": f(2, 3), "inv_std": f(2, 3)}, {"num_groups": 3}),
        ("instance_norm", f(6), {"mean": f(2, 6, 1, 1), "inv_std": f(2, 6, 1, 1)}, {}),
    ):  # fmt: skip
        tail = {"scale": scale, "bias": scale, "eps": 1e-5, "statistics": True}
        yield name, {"x": f(*X), **by, **tail}
        yield f"{name}_backward", {"dy": f(*X), "x": f(*X), **by, **kept, "scale": scale}


_CTC = {
    "log_probs": f(6, 2, 5),
    "targets": classes(4, 2, 3) + 1,
    "input_lengths": np.array([6, 5]),
    "target_lengths": np.array([3, 2]),
    "blank": 0,
    "reduction": "mean",
    "zero_infinity": False,
}
_GRID = {"grid": f(2, 3, 3, 2), "mode": "bilinear", "padding_mode": "zeros", "align_corners": False}
_ONE = (
    *("absolute", "ceil", "cos", "erf", "exp", "floor", "hardsigmoid", "hardswish", "ln", "mish", "negative"),
    *("reciprocal", "relu6", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "tan", "tanh"),
)
_TWO = ("add_square", "div", "equal", "fmod", "greater", "greater_equal", "less", "less_equal", "maximum",
        "minimum", "not_equal", "pow", "sub")  # fmt: skip
#: Activations with arguments of their own.
_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "elu": {"alpha": 1.0},
    "gelu": {"approximate": "tanh"},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0},
    "leaky_relu": {"negative_slope": 0.1},
    "softplus": {"beta": 1.0, "threshold": 20.0},
    "swish": {"beta": 1.0},
    **{n: {} for n in ("hardsigmoid", "hardswish", "mish", "relu6", "silu")},
}
CALLS |= {n: {"x": f(*X)} for n in _ONE}
CALLS |= {n: {"a": f(*X), "b": f(*X)} for n in _TWO}
CALLS |= {n: {"a": f(*X) > 0, "b": f(*X) > 0} for n in ("logical_and", "logical_or")}
CALLS |= {n: {"x": f(*X), **at} for n, at in _ACTIVATIONS.items()}
CALLS |= {f"{n}_backward": {"dy": f(*X), "x": f(*X), **at} for n, at in _ACTIVATIONS.items()}
CALLS |= {n: {"dy": f(*X), "y": f(*X)} for n in ("sigmoid_backward", "tanh_backward")}
CALLS |= dict(_pools()) | dict(_convs()) | dict(_norms())
CALLS |= {
    "astype": {"x": f(*X), "dtype": "bf16"},
    "broadcast_to": {"x": f(5, 4), "size": X},
    "concatenate": {"arrays": [f(*X), f(*X)], "axis": 1},
    "ctc_loss": _CTC,
    "ctc_loss_backward": {"dloss": f(), **_CTC},
    "gen_index": {"x": f(*X), "axis": 1, "dtype": "i32"},
    "grid_sample": {"x": f(*X), **_GRID},
    "grid_sample_backward": {"dy": f(2, 6, 3, 3), "x": f(*X), **_GRID},
    "interpolate": {"x": f(*X), "size": (7, 3), "mode": "bilinear", "align_corners": False},
    "interpolate_backward": {"dy": f(2, 6, 7, 3), "size": (5, 4), "mode": "bilinear", "align_corners": False},
    "logical_not": {"x": f(*X) > 0},
    "pad": {"x": f(*X), "padding": ((0, 0), (0, 0), (1, 1), (2, 0)), "mode": "constant", "value": 1.0},
    "pad_backward": {"dy": f(2, 6, 7, 6), "padding": ((0, 0), (0, 0), (1, 1), (2, 0)), "mode": "constant"},
    "permute": {"x": f(*X), "permutation": (0, 2, 3, 1)},
    "prelu": {"x": f(*X), "weight": f(6), "axis": 1},
    "prelu_backward": {"dy": f(*X), "x": f(*X), "weight": f(6), "axis": 1},
    "reshape": {"x": f(*X), "size": (2, 6, 20)},
    "scale": {"x": f(*X), "b": f(6), "axis": 1},
    "slice": {"x": f(*X), "start": (0, 1, 0, 0), "stop": (2, 5, 5, 4), "step": (1, 2, 1, 1)},
    "slice_backward": {
        "dy": f(2, 2, 5, 4),
        "size": X,
        "start": (0, 1, 0, 0),
        "stop": (2, 5, 5, 4),
        "step": (1, 2, 1, 1),
    },
    "split": {"x": f(*X), "sizes": (2, 4), "axis": 1},
    "where": {"condition": f(*X) > 0, "a": f(*X), "b": f(*X)},
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
    yield "many dimensions", a.reshape((1,) * (MOST_DIMS - a.ndim) + a.shape)
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
            if (name, argument, what) == ("rng", "size", str(2**31)):
                continue  # not wrong: 8 GiB of numbers
            fresh = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in valid.items()}
            yield argument, what, {**fresh, argument: bad}
