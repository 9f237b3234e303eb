"""PyTorch's own operators for the problems of a bench: what is timed as stock, and hooked as ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from vlug.bench.problems import Problem
from vlug.tensor import Tensor

__all__ = ["DTYPES", "Peer", "peer"]

aten = torch.ops.aten
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
           "i64": torch.int64}  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A call of PyTorch, its tensors by their names in the graph, and what happens before each timed call."""

    call: Callable[[], Any]
    tensors: dict[str, torch.Tensor]
    before: Callable[[], Any]
    results: tuple[str, ...]  # names of the call's results in the graph, "" for one that it does not have


def make(t: Tensor, seed: int) -> torch.Tensor:
    """Random values with the tensor's dims, strides and dtype."""
    out = torch.empty_strided(t.dim, t.stride, dtype=DTYPES[t.dtype.name])
    if t.dtype.is_float:
        out.copy_(torch.randn(t.dim, generator=torch.Generator().manual_seed(seed)))
    else:
        out.zero_()
    return out


def peer(problem: Problem) -> Peer:
    """The peer of a problem, its tensors filled."""
    g = problem.graph
    t = {x.name: make(x, i) for i, x in enumerate(g.inputs)}
    p = problem.params
    kind = problem.torch
    before: Callable[[], Any] = lambda: None  # noqa: E731
    results: tuple[str, ...]
    if kind.startswith("conv"):
        first = next(iter(t.values()))
        dims = first.dim() - 2
        attributes = (p["stride"], p["padding"], p["dilation"], False, [0] * dims, p["groups"])
        if kind == "conv":
            x, w = t["x"], t["w"]
            call = lambda: aten.convolution(x, w, None, *attributes)  # noqa: E731
            results = ("y",)
        elif kind == "conv_dgrad":
            dy, w = t["dy"], t["w"]
            x = torch.empty_strided(g.outputs[0].dim, g.outputs[0].stride, dtype=dy.dtype)
            call = lambda: aten.convolution_backward(  # noqa: E731
                dy, x, w, None, *attributes, [True, False, False]
            )
            results = ("dx", "", "")
        else:
            dy, x = t["dy"], t["x"]
            w = torch.empty_strided(g.outputs[0].dim, g.outputs[0].stride, dtype=dy.dtype)
            call = lambda: aten.convolution_backward(  # noqa: E731
                dy, x, w, None, *attributes, [False, True, False]
            )
            results = ("", "dw", "")
        if kind != "conv_wgrad":
            before = lambda: w.add_(1e-6)  # noqa: E731  (a training step changes weights)
    elif kind == "batch_norm":
        t["running_var"].abs_().add_(0.5)
        args = [t[n] for n in ("x", "scale", "bias", "running_mean", "running_var")]
        call = lambda: aten.native_batch_norm(*args, True, 0.1, 1e-5)  # noqa: E731
        results = ("y", "mean", "inv_std")
    elif kind == "batch_norm_backward":
        t["inv_std"].abs_().add_(0.5)
        c = t["scale"].shape[0]
        rm, rv = torch.zeros(c), torch.ones(c)
        dy, x, scale, mean, inv_std = (t[n] for n in ("dy", "x", "scale", "mean", "inv_std"))
        call = lambda: aten.native_batch_norm_backward(  # noqa: E731
            dy, x, scale, rm, rv, mean, inv_std, True, 1e-5, [True, True, True]
        )
        results = ("dx", "dscale", "dbias")
    elif kind == "relu":
        x = t["x"]
        call, results = lambda: torch.relu(x), ("y",)
    elif kind == "relu_backward":
        dy, x = t["dy"], t["x"]
        call, results = lambda: aten.threshold_backward(dy, x, 0), ("dx",)
    elif kind == "max_pool":
        x = t["x"]
        args = [p["kernel_size"], p["stride"], p["padding"]]
        call, results = lambda: aten.max_pool2d_with_indices(x, *args), ("y", "index")
    elif kind == "max_pool_backward":
        dy = t["dy"]
        args = [p["kernel_size"], p["stride"], p["padding"]]
        x = torch.randn(p["x"])
        if problem.layout == "nhwc":
            x = x.contiguous(memory_format=torch.channels_last)
        index = aten.max_pool2d_with_indices(x, *args)[1]
        t["index"].copy_(index)
        index = t["index"]
        call = lambda: aten.max_pool2d_with_indices_backward(  # noqa: E731
            dy, x, *args, [1, 1], False, index
        )
        results = ("dx",)
    elif kind == "avg_pool":
        x = t["x"]
        call = lambda: F.avg_pool2d(x, p["kernel_size"], p["stride"], p["padding"])  # noqa: E731
        results = ("y",)
    elif kind == "avg_pool_backward":
        dy = t["dy"]
        x = torch.empty_strided(g.outputs[0].dim, g.outputs[0].stride, dtype=dy.dtype)
        call = lambda: aten.avg_pool2d_backward(  # noqa: E731
            dy, x, p["kernel_size"], p["stride"], p["padding"], False, True, None
        )
        results = ("dx",)
    elif kind == "softmax":
        x = t["x"]
        call, results = lambda: torch.softmax(x, 1), ("y",)
    elif kind == "softmax_backward":
        dy, y = t["dy"], torch.softmax(t["y"], 1)
        t["y"].copy_(y)
        y = t["y"]
        call, results = lambda: aten._softmax_backward_data(dy, y, 1, dy.dtype), ("dx",)
    else:
        raise ValueError(f"no peer for {kind}")
    return Peer(call, t, before, results)
