"""Calls of PyTorch as graphs: resampling, adaptive pooling, pooling in three dimensions, padding, cat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from vlug.dtypes import I64
from vlug.frontends.torch.keys import Arg, Pass
from vlug.frontends.torch.problems.base import Maker, Problem, alike, formatted, infer
from vlug.ops.layout import MOST
from vlug.tensor import contiguous_strides

__all__ = ["PROBLEMS"]


def _check(rank: int, *args: Arg) -> None:
    """Floats of one dtype, N, C and `rank` spatial dimensions, nothing empty; 5-D ones contiguous."""
    alike(*args)
    for a in args:
        if a.rank != rank + 2:
            raise Pass(f"{a.rank} dimensions, not {rank + 2}")
        if not a.dtype.is_float:
            raise Pass(f"dtype {a.dtype.long_name}")
        if rank != 2:
            _plain(a)


def _plain(a: Arg) -> None:
    """Contiguous, and not channels last as well."""
    if a.stride != contiguous_strides(a.dim):
        raise Pass("strides that are not contiguous")
    if a.rank > 3 and (a.dim[1] == 1 or a.stride[1] == 1):
        raise Pass("dims that several memory formats fit")


def _many(values: Sequence[int] | None, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    v = tuple(values or default)
    v = v * rank if len(v) == 1 else v
    if len(v) != rank:
        raise Pass(f"{len(v)} spatial dimensions, not {rank}")
    return v


# --- three dimensions ----------------------------------------------------------------------------
def _window(k: Any, s: Any, pad: Any) -> dict[str, Any]:
    window = _many(k, 3)
    stride, padding = _many(s, 3, window), _many(pad, 3)
    if min(window) < 1 or min(stride) < 1 or min(padding) < 0:
        raise Pass("left to stock to judge: its window is out of range")
    return {"window": window, "stride": stride, "padding": padding}


def _max_pool3d(p: Problem, x: Arg, k: Any, s: Any, pad: Any, dilation: Any, ceil: bool) -> None:
    _check(3, x)
    attributes = {**_window(k, s, pad), "dilation": _many(dilation, 3), "ceil": ceil}
    tx = p.input("x", x)
    dim = infer(p.graph, "max_pool", tx, **attributes)[0].dim
    like = [formatted("y", dim, x.dtype, False), formatted("index", dim, I64, False)]
    for t in p.graph.max_pool(tx, **attributes, names=["y", "index"], like=like):
        p.output(t)


def _max_pool3d_backward(p: Problem, dy: Arg, x: Arg, k: Any, s: Any, pad: Any, *rest: Any) -> None:
    dilation, _, index = rest
    _check(3, dy, x)
    if index is None or index.dtype is not I64 or index.dim != dy.dim:
        raise Pass("indices that do not fit dy")
    attributes = {**_window(k, s, pad), "dilation": _many(dilation, 3)}
    tdy, ti = p.input("dy", dy), p.input("index", index)
    like = [formatted("dx", x.dim, x.dtype, False)]
    p.output(p.graph.max_pool_backward(tdy, ti, size=x.dim[2:], **attributes, names=["dx"], like=like))


def _wide(*args: Arg) -> None:
    if any(a.dtype.itemsize < 4 for a in args):
        raise Pass("left to stock to judge: it has no 16-bit means in three dimensions")


def _averages(k: Any, s: Any, pad: Any, ceil: bool, counted: bool, divisor: Any) -> dict[str, Any]:
    if divisor is not None and divisor <= 0:
        raise Pass("left to stock to judge: a divisor of 0 or less")
    return {**_window(k, s, pad), "ceil": ceil, "count_include_pad": counted, "divisor": divisor or 0}


def _avg_pool3d(p: Problem, x: Arg, *rest: Any) -> None:
    _check(3, x)
    _wide(x)
    attributes = _averages(*rest)
    tx = p.input("x", x)
    dim = infer(p.graph, "avg_pool", tx, **attributes)[0].dim
    like = [formatted("y", dim, x.dtype, False)]
    p.output(p.graph.avg_pool(tx, **attributes, names=["y"], like=like))


def _avg_pool3d_backward(p: Problem, dy: Arg, x: Arg, *rest: Any) -> None:
    _check(3, dy, x)
    _wide(x)
    attributes = _averages(*rest)
    like = [formatted("dx", x.dim, x.dtype, False)]
    tdy = p.input("dy", dy)
    p.output(p.graph.avg_pool_backward(tdy, size=x.dim[2:], **attributes, names=["dx"], like=like))


# --- adaptive ------------------------------------------------------------------------------------
def _size(values: Any, rank: int) -> tuple[int, ...]:
    size = tuple(values)
    if len(size) != rank or min(size) < 1:
        raise Pass("left to stock to judge: a size of other rank or below 1")
    return size


def _adaptive_avg(rank: int, p: Problem, x: Arg, size: Any) -> None:
    _check(rank, x)
    full = _size(size, rank)
    like = [formatted("y", (*x.dim[:2], *full), x.dtype, x.suggests_channels_last)]
    p.output(p.graph.adaptive_avg_pool(p.input("x", x), size=full, names=["y"], like=like))


def _adaptive_avg_backward(rank: int, p: Problem, dy: Arg, x: Arg) -> None:
    _check(rank, dy, x)
    like = [formatted("dx", x.dim, x.dtype, x.suggests_channels_last)]
    tdy = p.input("dy", dy)
    p.output(p.graph.adaptive_avg_pool_backward(tdy, size=x.dim[2:], names=["dx"], like=like))


def _adaptive_max(rank: int, p: Problem, x: Arg, size: Any) -> None:
    _check(rank, x)
    full = _size(size, rank)
    dim, last = (*x.dim[:2], *full), x.suggests_channels_last
    like = [formatted("y", dim, x.dtype, last), formatted("index", dim, I64, last)]
    for t in p.graph.adaptive_max_pool(p.input("x", x), size=full, names=["y", "index"], like=like):
        p.output(t)


def _adaptive_max_backward(rank: int, p: Problem, dy: Arg, x: Arg, index: Arg) -> None:
    _check(rank, dy, x)
    if index.dtype is not I64 or index.dim != dy.dim:
        raise Pass("indices that do not fit dy")
    like = [formatted("dx", x.dim, x.dtype, x.suggests_channels_last)]
    tdy, ti = p.input("dy", dy), p.input("index", index)
    p.output(p.graph.adaptive_max_pool_backward(tdy, ti, size=x.dim[2:], names=["dx"], like=like))


# --- resampling ----------------------------------------------------------------------------------
def _resampled(rank: int, mode: str, rest: Sequence[Any], size: Sequence[int], out: Sequence[int]) -> Any:
    """Attributes from what follows the sizes: align_corners (but for nearest), a scale a dimension."""
    rest = list(rest)
    corners = False if mode.startswith("nearest") else bool(rest.pop(0))
    scales = {}
    for name, n, m, s in zip(("scale_d", "scale_h", "scale_w")[3 - rank :], size, out, rest):
        if s is None or corners:
            continue
        if not 0 < s < float("inf") or int(n * s) != m or (n == m and s != 1):
            raise Pass(f"left to stock to judge: scale {s} from {n} to {m}")
        scales[name] = s
    return {"mode": mode, "align_corners": corners, **scales}


def _upsample(rank: int, mode: str, p: Problem, x: Arg, size: Any, *rest: Any) -> None:
    _check(rank, x)
    full = _size(size, rank)
    attributes = _resampled(rank, mode, rest, x.dim[2:], full)
    like = [formatted("y", (*x.dim[:2], *full), x.dtype, x.suggests_channels_last)]
    p.output(p.graph.resample(p.input("x", x), size=full, **attributes, names=["y"], like=like))


def _upsample_backward(rank: int, mode: str, p: Problem, dy: Arg, out: Any, size: Any, *rest: Any) -> None:
    _check(rank, dy)
    full = tuple(size)
    if len(full) != rank + 2 or min(full) < 1 or full[:2] != dy.dim[:2] or tuple(out) != dy.dim[2:]:
        raise Pass("left to stock to judge: sizes that do not fit dy")
    attributes = _resampled(rank, mode, rest, full[2:], dy.dim[2:])
    like = [formatted("dx", full, dy.dtype, dy.suggests_channels_last)]
    p.output(
        p.graph.resample_backward(p.input("dy", dy), size=full[2:], **attributes, names=["dx"], like=like)
    )


# --- padding, cat --------------------------------------------------------------------------------
def _around(padding: Any, rank: int) -> dict[str, Any]:
    """PyTorch's pairs, the last dimension first."""
    v = tuple(padding)
    if len(v) != 2 * rank:
        raise Pass(f"{len(v)} paddings, not {2 * rank}")
    if min(v) < 0:
        raise Pass("negative padding")
    return {"pre": (0, 0, *v[0::2][::-1]), "post": (0, 0, *v[1::2][::-1])}


def _pad(rank: int, mode: str, p: Problem, x: Arg, padding: Any) -> None:
    _check(rank, x)
    _plain(x)
    attributes = {**_around(padding, rank), "mode": mode}
    tx = p.input("x", x)
    dim = infer(p.graph, "pad", tx, **attributes)[0].dim
    like = [formatted("y", dim, x.dtype, False)]
    p.output(p.graph.pad(tx, **attributes, names=["y"], like=like))


def _pad_backward(rank: int, mode: str, p: Problem, dy: Arg, x: Arg, padding: Any) -> None:
    _check(rank, dy, x)
    _plain(x)
    like = [formatted("dx", x.dim, x.dtype, False)]
    at = _around(padding, rank)
    p.output(p.graph.pad_backward(p.input("dy", dy), **at, mode=mode, names=["dx"], like=like))


def _cat(p: Problem, tensors: Sequence[Arg | None], axis: int) -> None:
    given = [t for t in tensors if t is not None]
    if not given or len(given) != len(tensors) or len(given) > MOST:
        raise Pass(f"{len(tensors)} tensors, 1 to {MOST} are taken")
    first = given[0]
    for t in given:
        if t.rank == 0 or 0 in t.dim or t.rank != first.rank or t.number != first.number:
            raise Pass("tensors that differ in rank or dtype, or are empty")
        _plain(t)
    named = [p.input(f"x{i}", t) for i, t in enumerate(given)]
    dim = infer(p.graph, "concatenate", *named, axis=axis)[0].dim
    like = [formatted("y", dim, first.dtype, False)]
    p.output(p.graph.concatenate(*named, axis=axis, names=["y"], like=like))


# --- grids ---------------------------------------------------------------------------------------
def _grid(x: Arg, grid: Arg, mode: int, padding: int, corners: bool) -> dict[str, Any]:
    """Bilinear only: at ties the float32 places of stock and our float64 ones choose other neighbours."""
    _check(2, x)
    alike(x, grid)
    if mode != 0 or padding not in (0, 1, 2):
        raise Pass(f"interpolation {mode}: only bilinear ones are taken")
    if x.dtype.itemsize < 4:
        raise Pass("16-bit grids")
    if grid.rank != 4 or grid.dim[0] != x.dim[0] or grid.dim[3] != 2:
        raise Pass("left to stock to judge: a grid that does not fit")
    return {
        "mode": "linear",
        "padding": ("zeros", "border", "reflection")[padding],
        "align_corners": corners,
    }


def _grid_sampler(p: Problem, x: Arg, grid: Arg, *rest: Any) -> None:
    attributes = _grid(x, grid, *rest)
    like = [formatted("y", (*x.dim[:2], *grid.dim[1:3]), x.dtype, False)]
    tx, tg = p.input("x", x), p.input("grid", grid)
    p.output(p.graph.grid_sample(tx, tg, **attributes, names=["y"], like=like))


PROBLEMS: dict[str, Maker] = {
    "max_pool3d_with_indices": _max_pool3d,
    "max_pool3d_with_indices_backward": _max_pool3d_backward,
    "avg_pool3d": _avg_pool3d,
    "avg_pool3d_backward": _avg_pool3d_backward,
    "cat": _cat,
    "grid_sampler_2d": _grid_sampler,
}
for _rank in (2, 3):
    PROBLEMS |= {
        f"_adaptive_avg_pool{_rank}d": partial(_adaptive_avg, _rank),
        f"_adaptive_avg_pool{_rank}d_backward": partial(_adaptive_avg_backward, _rank),
        f"adaptive_max_pool{_rank}d": partial(_adaptive_max, _rank),
        f"adaptive_max_pool{_rank}d_backward": partial(_adaptive_max_backward, _rank),
    }
for _rank in (1, 2, 3):
    for _name, _mode in (
        (f"upsample_nearest{_rank}d", "nearest"),
        (f"_upsample_nearest_exact{_rank}d", "nearest_exact"),
        (f"upsample_{('linear', 'bilinear', 'trilinear')[_rank - 1]}{_rank}d", "linear"),
        *([("upsample_bicubic2d", "cubic")] if _rank == 2 else []),
    ):
        PROBLEMS[_name] = partial(_upsample, _rank, _mode)
        PROBLEMS[f"{_name}_backward"] = partial(_upsample_backward, _rank, _mode)
    for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        PROBLEMS[f"{_name}_pad{_rank}d"] = partial(_pad, _rank, _mode)
        PROBLEMS[f"{_name}_pad{_rank}d_backward"] = partial(_pad_backward, _rank, _mode)
