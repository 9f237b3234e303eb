"""PyTorch's own operators: resampling, adaptive pooling, pooling in 3-D, padding, concatenation, grids."""

from __future__ import annotations

from typing import Any

from vlug.bench.peers.base import Made, Maker, aten, make
from vlug.errors import NotSupported
from vlug.graph import Graph

__all__ = ["MAKERS"]


def _rank(g: Graph) -> int:
    return g.inputs[0].rank - 2


def _resample(g: Graph, op: Any, ins: list[Any]) -> Made:
    r = _rank(g)
    smooth = ("linear1d", "bilinear2d", "trilinear3d")[r - 1]
    name = {
        "nearest": f"upsample_nearest{r}d",
        "nearest_exact": f"_upsample_nearest_exact{r}d",
        "linear": f"upsample_{smooth}",
        "cubic": f"upsample_bicubic{r}d",
    }[op.mode]
    corners = [] if op.mode.startswith("nearest") else [op.align_corners]
    scales = [s or None for s in (op.scale_d, op.scale_h, op.scale_w)[3 - r :]]
    (t,) = ins
    f = getattr(aten, name if op.name == "resample" else f"{name}_backward", None)
    if f is None:
        raise NotSupported(f"PyTorch has no {name}")
    if op.name == "resample":
        return lambda: f(t, list(op.size), *corners, *scales), (0,), None
    full = [*t.shape[:2], *op.size]
    return lambda: f(t, list(t.shape[2:]), full, *corners, *scales), (0,), None


def _adaptive(g: Graph, op: Any, ins: list[Any]) -> Made:
    r = _rank(g)
    if r == 1:
        raise NotSupported("PyTorch's 1-D adaptive pooling is its 2-D one")
    if op.name == "adaptive_avg_pool":
        f = getattr(aten, f"_adaptive_avg_pool{r}d")
        return lambda: f(ins[0], list(op.size)), (0,), None
    if op.name == "adaptive_max_pool":
        f = getattr(aten, f"adaptive_max_pool{r}d")
        return lambda: f(ins[0], list(op.size)), (0, 1), None
    x = make(g.outputs[0], 7)
    if op.name == "adaptive_avg_pool_backward":
        f = getattr(aten, f"_adaptive_avg_pool{r}d_backward")
        return lambda: f(ins[0], x), (0,), None
    dy, index = ins
    index.copy_(getattr(aten, f"adaptive_max_pool{r}d")(x, list(dy.shape[2:]))[1])
    f = getattr(aten, f"adaptive_max_pool{r}d_backward")
    return lambda: f(dy, x, index), (0,), None


def _pad(g: Graph, op: Any, ins: list[Any]) -> Made:
    r = _rank(g)
    kind = {"reflect": "reflection", "replicate": "replication"}.get(op.mode)
    if kind is None or any((*op.pre[:2], *op.post[:2])):
        raise NotSupported("PyTorch's own operators reflect or replicate spatial dimensions")
    around = [v for pair in zip(op.pre[:1:-1], op.post[:1:-1]) for v in pair]
    if op.name == "pad":
        f = getattr(aten, f"{kind}_pad{r}d")
        return lambda: f(ins[0], around), (0,), None
    x = make(g.outputs[0], 7)
    f = getattr(aten, f"{kind}_pad{r}d_backward")
    return lambda: f(ins[0], x, around), (0,), None


def _concatenate(g: Graph, op: Any, ins: list[Any]) -> Made:
    given = [t for t in ins if t is not None]
    return lambda: aten.cat(given, op.axis), (0,), None


def _grid(g: Graph, op: Any, ins: list[Any]) -> Made:
    x, grid = ins
    a = (
        {"linear": 0, "nearest": 1}[op.mode],
        {"zeros": 0, "border": 1, "reflection": 2}[op.padding],
        op.align_corners,
    )
    return lambda: aten.grid_sampler_2d(x, grid, *a), (0,), None


MAKERS: dict[str, Maker] = {
    "resample": _resample,
    "resample_backward": _resample,
    "adaptive_avg_pool": _adaptive,
    "adaptive_avg_pool_backward": _adaptive,
    "adaptive_max_pool": _adaptive,
    "adaptive_max_pool_backward": _adaptive,
    "pad": _pad,
    "pad_backward": _pad,
    "concatenate": _concatenate,
    "grid_sample": _grid,
}
