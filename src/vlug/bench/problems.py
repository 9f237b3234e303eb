"""Layer sets: which problems a set holds, as problem lines and as calls of PyTorch's own operators."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from vlug.bench.lines import SETS
from vlug.errors import BadInput
from vlug.graph import Graph
from vlug.tensor import Tensor

__all__ = ["LAYOUTS", "PASSES", "Problem", "problems", "set_names", "shapes"]

LAYOUTS = ("nchw", "nhwc")
PASSES = ("fwd", "dgrad", "wgrad", "bwd")
#: A set of problems so small that what a call costs decides; it keeps its own batch sizes.
TINY = "tiny"
#: Steps of optimisers on parameters of ResNet-50's sizes.
OPTIM = "optim"
#: Layer norms of transformers and group norms of diffusion and detection networks, at their own batch sizes.
NORMS = "norms"
#: Activations, forward and backward, on 1, 8 and 32 MB.
ACTIVATIONS = "activations"
#: Resampling, adaptive and 3-D pooling of detection, segmentation and video networks, at their batch sizes.
RESAMPLE = "resample"
#: Padding and concatenation.
LAYOUT = "layout"
#: Parts of a network that follow its convolutions, derived from them: NET:bn and so on.
PARTS = ("bn", "relu", "pool", "softmax", "v15", "linear", "mean")


@dataclass(frozen=True)
class Problem:
    """A layer in one pass and layout.

    name, count: of the layer, and how often its network has it.   line: the problem line.
    """

    name: str
    count: int
    which: str  # fwd, dgrad, wgrad, bwd
    layout: str
    line: str

    @property
    def graph(self) -> Graph:
        return Graph.parse(self.line)


@cache
def shapes() -> dict[str, Any]:
    """The layer shapes that the package carries, with their source and licence."""
    text = resources.files("vlug.bench").joinpath("data/shapes.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def set_names() -> list[str]:
    """Every set: networks' convolutions by name, their other layers NET:bn, and pool/bnorm/softmax sets."""
    data = shapes()
    names = [*data["conv"], TINY, OPTIM]
    for kind in ("pool", "bnorm", "softmax"):
        names += [f"{kind}/{n}" for n in data[kind]]
    return [*names, NORMS, ACTIVATIONS, RESAMPLE, LAYOUT, *SETS, *(f"resnet_50:{part}" for part in PARTS)]


def problems(
    name: str,
    *,
    batch: int | None = 8,
    layouts: Sequence[str] = LAYOUTS,
    passes: Sequence[str] = PASSES,
    dtype: str = "f32",
) -> list[Problem]:
    """The problems of a set; batch None keeps each layer's own. Raises BadInput for an unknown set."""
    if name == OPTIM:
        return [p for p in _optim(layouts, dtype) if p.which in passes]
    if name in SETS:
        found = [(n, which, Graph.parse(line).line) for n, which, line in SETS[name](dtype)]
        return [Problem(n, 1, which, "nchw", line) for n, which, line in found if which in passes]
    if name == TINY:
        return [p for p in _tiny(layouts, dtype) if p.which in passes]
    if name == ACTIVATIONS:
        return [p for p in _activations(dtype) if p.which in passes]
    if name == NORMS:
        return [p for p in _norms(layouts, dtype) if p.which in passes]
    if name in (RESAMPLE, LAYOUT):
        made = _resample(layouts, dtype) if name == RESAMPLE else _layout(layouts, dtype)
        return [p for p in made if p.which in passes]
    data = shapes()
    net, _, part = name.partition(":")
    kind, _, rest = name.partition("/")
    if part in PARTS and net in data["conv"]:
        layers = list(_following(data["conv"][net], part))
        maker = {
            "bn": _norm,
            "relu": _relu,
            "pool": _pool,
            "softmax": _softmax,
            "v15": _conv,
            "linear": _linear,
            "mean": _mean,
        }[part]
    elif name in data["conv"]:
        layers, maker = data["conv"][name], _conv
    elif rest and kind in ("pool", "bnorm", "softmax") and rest in data[kind]:
        layers = [dict(row) if isinstance(row, dict) else {"dims": row} for row in data[kind][rest]]
        maker = {"pool": _pool, "bnorm": _norm, "softmax": _softmax}[kind]
    else:
        raise BadInput(f"set: {name!r} is unknown; there are {', '.join(set_names())}")
    out = []
    for i, layer in enumerate(layers):
        row = dict(layer, n=batch or layer.get("n", 1), name=layer.get("name") or f"{name}:{i + 1}")
        for layout in layouts:
            out += [p for p in maker(row, layout, dtype) if p.which in passes]
    return out


def _following(convs: Sequence[dict[str, Any]], part: str) -> Iterator[dict[str, Any]]:
    """The layers that follow convolutions, equal ones counted together."""
    if part == "pool":
        three = {"kernel": [3, 3], "stride": [2, 2], "pad_l": [1, 1]}
        whole = {"kernel": [7, 7], "stride": [7, 7], "pad_l": [0, 0]}
        yield {"name": "pool1", "c": 64, "in": [112, 112], "mode": "max", **three}
        yield {"name": "pool5", "c": 2048, "in": [7, 7], "mode": "avg", **whole}
        return
    if part == "v15":  # ResNet-50 v1.5 has its strides in the 3×3 convolutions
        for c, size in ((128, 56), (256, 28), (512, 14)):
            common = {"count": 1, "groups": 1, "kernel": [3, 3], "stride": [2, 2], "dilation": [1, 1]}
            shape = {"c": c, "k": c, "in": [size] * 2, "out": [size // 2] * 2, "pad_l": [1, 1]}
            yield {"name": f"v15:{c}x{size}x{size}", **common, **shape}
        return
    if part == "linear":
        for k, n in ((2048, 1000), (512, 10), (4096, 4096)):
            yield {"name": f"linear:{k}to{n}", "in_features": k, "out_features": n}
        return
    if part == "mean":
        for c, size in ((128, 8), (2048, 7), (512, 28)):
            yield {"name": f"mean:{c}x{size}x{size}", "c": c, "spatial": [size, size]}
        return
    if part == "softmax":
        yield {"name": "softmax", "dims": [256, 1000]}
        return
    counts: dict[tuple[int, tuple[int, ...]], int] = {}
    for layer in convs:
        at = (layer["k"], tuple(layer["out"]))
        counts[at] = counts.get(at, 0) + layer["count"]
    for (c, spatial), count in counts.items():
        label = f"{c}x{'x'.join(map(str, spatial))}"
        yield {"name": f"{part}:{label}", "count": count, "c": c, "spatial": list(spatial)}


def _spec(dim: Sequence[int], dtype: str, layout: str) -> str:
    return Tensor.of(dim, dtype, layout).spec


def _x(values: Sequence[int]) -> str:
    return "x".join(map(str, values))


def _conv(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    n, c, k, groups = layer["n"], layer["c"], layer["k"], layer["groups"]
    size, kernel, stride, pad = layer["in"], layer["kernel"], layer["stride"], layer["pad_l"]
    dilation, out = layer["dilation"], layer["out"]
    reach = [d * (r - 1) + 1 for d, r in zip(dilation, kernel)]
    if [(h + 2 * p - r) // s + 1 for h, p, r, s in zip(size, pad, reach, stride)] != list(out):
        return  # its padding differs before and after, which PyTorch's operator cannot say
    x, w = _spec((n, c, *size), dtype, layout), _spec((k, c // groups, *kernel), dtype, layout)
    y = _spec((n, k, *out), dtype, layout)
    tail = f" pad={_x(pad)} stride={_x(stride)}" + (f" dilation={_x(dilation)}" if max(dilation) > 1 else "")
    tail += f" groups={groups}" if groups > 1 else ""
    lines = {
        "fwd": f"conv_fprop x={x} w={w}{tail}",
        "dgrad": f"conv_dgrad dy={y} w={w}{tail} size={_x(size)}",
        "wgrad": f"conv_wgrad dy={y} x={x}{tail} size={_x(kernel)}",
    }
    for which, line in lines.items():
        yield Problem(layer["name"], layer["count"], which, layout, Graph.parse(line).line)


def _norm(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    c = layer["c"]
    x = _spec((layer["n"], c, *layer["spatial"]), dtype, layout)
    per = f"{c}:f32"
    fwd = (
        f"batchnorm x={x} scale={per} bias={per} running_mean={per} running_var={per}"
        " -> y, mean, inv_std, next_running_mean, next_running_var"
    )
    bwd = f"batchnorm_backward dy={x} x={x} scale={per} mean={per} inv_std={per} -> dx, dscale, dbias"
    for which, line in (("fwd", fwd), ("bwd", bwd)):
        yield Problem(layer["name"], layer.get("count", 1), which, layout, Graph.parse(line).line)


def _relu(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    x = _spec((layer["n"], layer["c"], *layer["spatial"]), dtype, layout)
    for which, line in (("fwd", f"relu x={x}"), ("bwd", f"relu_backward dy={x} x={x}")):
        yield Problem(layer["name"], layer["count"], which, layout, Graph.parse(line).line)


def _pool(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    size, kernel, stride, pad = layer["in"], layer["kernel"], layer["stride"], layer["pad_l"]
    if any(d > 1 for d in layer.get("dilation", ())) or any(2 * p > k for p, k in zip(pad, kernel)):
        return
    out = [(h + 2 * p - k) // s + 1 for h, p, k, s in zip(size, pad, kernel, stride)]
    if "out" in layer and out != layer["out"]:
        return  # padding that PyTorch cannot say
    dims = (layer["n"], layer["c"])
    x, y = _spec((*dims, *size), dtype, layout), _spec((*dims, *out), dtype, layout)
    index = _spec((*dims, *out), "i64", layout)
    tail = f" window={_x(kernel)} pad={_x(pad)} stride={_x(stride)}"
    mode = layer.get("mode") or ("avg" if "avg" in layer["name"] else "max")
    if mode == "max":
        lines = {"fwd": f"max_pool x={x}{tail} -> y, index",
                 "bwd": f"max_pool_backward dy={y} index={index}{tail} size={_x(size)}"}  # fmt: skip
    else:
        lines = {"fwd": f"avg_pool x={x}{tail}", "bwd": f"avg_pool_backward dy={y}{tail} size={_x(size)}"}
    for which, line in lines.items():
        yield Problem(layer["name"], layer.get("count", 1), which, layout, Graph.parse(line).line)


def _softmax(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    if layout != "nchw":
        return
    x, op = _spec(layer["dims"], dtype, "nchw"), layer.get("mode", "softmax")
    for which, line in (("fwd", f"{op} x={x} axis=1"), ("bwd", f"{op}_backward dy={x} y={x} axis=1")):
        yield Problem(layer["name"], 1, which, layout, Graph.parse(line).line)


def _linear(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    if layout != "nchw":
        return
    n, k, out = layer["n"], layer["in_features"], layer["out_features"]
    x, w, dy = (_spec(dims, dtype, "nchw") for dims in ((n, k), (out, k), (n, out)))
    lines = {
        "fwd": f"matmul a={x} b={w} transpose_b=1",
        "dgrad": f"matmul a={dy} b={w}",
        "wgrad": f"matmul a={dy} b={x} transpose_a=1",
    }
    for which, line in lines.items():
        yield Problem(layer["name"], 1, which, layout, Graph.parse(line).line)


def _mean(layer: dict[str, Any], layout: str, dtype: str) -> Iterator[Problem]:
    x = _spec((layer["n"], layer["c"], *layer["spatial"]), dtype, layout)
    line = Graph.parse(f"reduction x={x} mode=mean axes=2x3").line
    yield Problem(layer["name"], 1, "fwd", layout, line)


# --- activations ---
_ACTIVATIONS = (
    "gelu", "gelu_approx_tanh", "swish", "sigmoid", "tanh", "elu", "softplus", "hardswish", "hardsigmoid",
    "mish",
)  # fmt: skip


def _activations(dtype: str) -> Iterator[Problem]:
    size = {"f32": 4, "f64": 8}.get(dtype, 2)
    for megabytes in (1, 8, 32):
        x = f"{(megabytes << 20) // size}:{dtype}"
        for name in _ACTIVATIONS:
            second = "y" if name in ("sigmoid", "tanh") else "x"
            lines = (("fwd", f"{name} x={x}"), ("bwd", f"{name}_backward dy={x} {second}={x}"))
            for which, line in lines:
                yield Problem(f"{name}:{megabytes}MB", 1, which, "nchw", Graph.parse(line).line)


# --- steps of optimisers ---
_PARAMETERS = ((64,), (2048,), (64, 3, 7, 7), (64, 64, 1, 1), (256, 64, 1, 1), (128, 128, 3, 3), (1000, 2048),
               (512, 512, 3, 3), (4096, 4096))  # fmt: skip


def _optim(layouts: Sequence[str], dtype: str) -> Iterator[Problem]:
    for layout in layouts:
        for dim in _PARAMETERS:
            if layout == "nhwc" and (len(dim) < 4 or dim[2:] == (1, 1)):
                continue
            t = _spec(dim, dtype, layout)
            for op, ports, names, tail in (
                ("adam_step", "p g m v", "step lr beta1 beta2 eps weight_decay", "-> next_p, next_m, next_v"),
                ("sgd_step", "p g buf", "lr momentum dampening weight_decay", "-> next_p, next_buf"),
                ("sgd_step", "p g", "lr momentum dampening weight_decay", "-> next_p"),
            ):
                full = " ".join(f"{p}={t}" for p in ports.split())
                scalars = " ".join(f"{n}=scalar:{'f32' if n == 'step' else 'f64'}" for n in names.split())
                line = Graph.parse(f"{op} {full} {scalars} {tail}").line
                yield Problem(f"{op}:{_x(dim)}", 1, "fwd", layout, line)


# --- resampling, adaptive pooling, layout ---
#: x, size of the result; the last are volumes.
_RESAMPLED = (
    ((2, 256, 25, 25), (50, 50)),
    ((2, 64, 56, 56), (112, 112)),
    ((2, 21, 65, 65), (513, 513)),
    ((8, 3, 256, 256), (224, 224)),
    ((1, 16, 8, 32, 32), (16, 64, 64)),
)
_ADAPTED = (((8, 512, 13, 13), (7, 7)), ((8, 256, 28, 28), (6, 6)), ((2, 512, 64, 64), (3, 3)),
            ((2, 64, 16, 28, 28), (4, 7, 7)))  # fmt: skip
_VOLUMES = ((2, 64, 16, 56, 56),)


def _both(name: str, fwd: str, bwd: str) -> Iterator[tuple[str, str, str]]:
    yield name, "fwd", fwd
    yield name, "bwd", bwd


def _resample(layouts: Sequence[str], dtype: str) -> Iterator[Problem]:
    for layout in layouts:
        lines: list[tuple[str, str, str]] = []

        def spec(dim: Sequence[int], of: str = dtype, layout: str = layout) -> str:
            return _spec(dim, of, layout)

        for x, size in _RESAMPLED:
            for mode in ("nearest", "linear"):
                y = (*x[:2], *size)
                lines += _both(
                    f"resample:{mode}:{_x(x)}to{_x(size)}",
                    f"resample x={spec(x)} size={_x(size)} mode={mode}",
                    f"resample_backward dy={spec(y)} size={_x(x[2:])} mode={mode}",
                )
        for x, size in _ADAPTED:
            out, index = spec((*x[:2], *size)), spec((*x[:2], *size), "i64")
            tail = f"size={_x(x[2:])}"
            label = f"{_x(x)}to{_x(size)}"
            avg, top = "adaptive_avg_pool", "adaptive_max_pool"
            fwd = f"{avg} x={spec(x)} size={_x(size)}"
            lines += _both(f"{avg}:{label}", fwd, f"{avg}_backward dy={out} {tail}")
            fwd = f"{top} x={spec(x)} size={_x(size)} -> y, index"
            lines += _both(f"{top}:{label}", fwd, f"{top}_backward dy={out} index={index} {tail}")
        for x in _VOLUMES:
            half = (*x[:2], *(n // 2 for n in x[2:]))
            out, index = spec(half), spec(half, "i64")
            tail = f"window=2 stride=2 size={_x(x[2:])}"
            fwd = f"max_pool x={spec(x)} window=2 stride=2 -> y, index"
            lines += _both(f"max_pool3d:{_x(x)}", fwd, f"max_pool_backward dy={out} index={index} {tail}")
            fwd = f"avg_pool x={spec(x)} window=2 stride=2"
            lines += _both(f"avg_pool3d:{_x(x)}", fwd, f"avg_pool_backward dy={out} {tail}")
        if layout == "nchw":
            grid = f"grid={_spec((2, 64, 64, 2), dtype, layout)}"
            lines.append(("grid_sample", "fwd", f"grid_sample x={spec((2, 64, 64, 64))} {grid}"))
        for name, which, line in lines:
            if layout == "nchw" or Graph.parse(line).inputs[0].rank == 4:
                yield Problem(name, 1, which, layout, Graph.parse(line).line)


def _layout(layouts: Sequence[str], dtype: str) -> Iterator[Problem]:
    if "nchw" not in layouts:
        return
    for x in ((2, 64, 28, 28), (2, 64, 128, 128), (8, 64, 128, 128)):
        y = (*x[:2], x[2] + 2, x[3] + 2)
        for mode in ("reflect", "replicate"):
            tail = f"pre=0x0x1x1 post=0x0x1x1 mode={mode}"
            fwd, bwd = (
                f"pad x={_spec(x, dtype, 'nchw')} {tail}",
                f"pad_backward dy={_spec(y, dtype, 'nchw')} {tail}",
            )
            for name, which, line in _both(f"pad:{mode}:{_x(x)}", fwd, bwd):
                yield Problem(name, 1, which, "nchw", Graph.parse(line).line)
    parts: tuple[tuple[int, ...], ...] = ((2, 64, 28, 28), (8, 64, 56, 56), (8, 128, 112, 112), (4096, 256))
    for part in parts:
        t = _spec(part, dtype, "nchw")
        line = f"concatenate x0={t} x1={t} axis=1"
        yield Problem(f"concatenate:{_x(part)}", 1, "fwd", "nchw", Graph.parse(line).line)


# --- tiny problems: what a call costs decides. Convolutions: N, C, K, size, window, stride, pad, groups ---
_ROWS = ((64, 64), (512, 768), (2048, 768), (8192, 768), (1024, 4096), (4096, 4096))
_GROUPED = ((4, 64, 8), (8, 256, 16), (2, 128, 128), (8, 256, 56), (4, 320, 64))  # N, C, size; 32 groups


def _norms(layouts: Sequence[str], dtype: str) -> Iterator[Problem]:
    for layout in layouts:
        lines: list[tuple[str, str, str]] = []
        for m, n in _ROWS if layout == "nchw" else ():
            x, per, stat = _spec((m, n), dtype, "nchw"), f"{n}:{dtype}", f"{m}x1:{dtype}"
            fwd = f"layernorm x={x} scale={per} bias={per} -> y, mean={stat}, inv_std={stat}"
            bwd = (
                f"layernorm_backward dy={x} x={x} scale={per} mean={stat} inv_std={stat} -> dx, dscale, dbias"
            )
            lines += [(f"layernorm:{m}x{n}", "fwd", fwd), (f"layernorm:{m}x{n}", "bwd", bwd)]
        for b, c, size in _GROUPED:
            x, per, stat = _spec((b, c, size, size), dtype, layout), f"{c}:{dtype}", f"{b}x32:{dtype}"
            fwd = f"groupnorm x={x} scale={per} bias={per} groups=32 -> y, mean={stat}, inv_std={stat}"
            bwd = f"groupnorm_backward dy={x} x={x} scale={per} mean={stat} inv_std={stat} groups=32"
            name = f"groupnorm:{b}x{c}x{size}"
            lines += [(name, "fwd", fwd), (name, "bwd", f"{bwd} -> dx, dscale, dbias")]
        for name, which, line in lines:
            yield Problem(name, 1, which, layout, Graph.parse(line).line)


_TINY_CONVS = (
    (1, 4, 4, 4, 1, 1, 0, 1), (1, 16, 16, 8, 1, 1, 0, 1), (4, 64, 64, 8, 1, 1, 0, 1),
    (1, 16, 32, 8, 1, 2, 0, 1), (4, 64, 64, 14, 1, 2, 0, 1),
    (1, 1, 1, 4, 3, 1, 0, 1), (1, 3, 8, 16, 3, 1, 1, 1), (1, 16, 16, 8, 3, 1, 1, 1),
    (4, 16, 16, 14, 3, 1, 1, 1), (1, 3, 8, 16, 3, 2, 1, 1), (4, 16, 32, 14, 3, 2, 1, 1),
    (1, 1, 6, 28, 5, 1, 0, 1), (8, 1, 6, 28, 5, 1, 2, 1), (1, 3, 8, 32, 7, 2, 3, 1),
    (1, 8, 8, 4, 3, 1, 1, 8), (1, 16, 16, 8, 3, 1, 1, 16), (4, 32, 32, 14, 3, 1, 1, 32),
    (1, 16, 16, 8, 3, 1, 1, 4), (4, 32, 32, 8, 3, 1, 1, 4),
)  # fmt: skip
_TINY_PLANES = ((1, 1, 4), (1, 16, 8), (4, 16, 8), (8, 16, 4), (1, 64, 7))
_TINY_MATRICES = ((1, 8, 8), (8, 8, 8), (8, 64, 10), (32, 64, 64), (1, 512, 512))
_TINY_ROWS = ((1, 10), (8, 8), (32, 10), (64, 128), (1, 1000))


def _tiny(layouts: Sequence[str], dtype: str) -> Iterator[Problem]:
    for layout in layouts:
        for n, c, k, size, window, stride, pad, groups in _TINY_CONVS:
            out = (size + 2 * pad - window) // stride + 1
            name = f"conv:{n}x{c}x{size}x{size}to{k}by{window}s{stride}g{groups}"
            row = {"name": name, "count": 1, "n": n, "c": c, "k": k, "groups": groups, "in": [size] * 2,
                   "out": [out] * 2, "kernel": [window] * 2, "stride": [stride] * 2, "pad_l": [pad] * 2,
                   "dilation": [1, 1]}  # fmt: skip
            yield from _conv(row, layout, dtype)
        for n, c, size in _TINY_PLANES:
            row = {"name": f"{n}x{c}x{size}x{size}", "count": 1, "n": n, "c": c, "spatial": [size] * 2}
            for maker in (_norm, _relu, _mean):
                yield from maker(row, layout, dtype)
            for mode, window in (("max", 2), ("max", 3), ("avg", 2), ("avg", size)):
                stride, pad = (size, 0) if window == size else (2, window // 3)
                shape = {"in": [size] * 2, "kernel": [window] * 2, "stride": [stride] * 2, "pad_l": [pad] * 2}
                yield from _pool({**row, **shape, "mode": mode}, layout, dtype)
        for n, k, out in _TINY_MATRICES:
            row = {"name": f"linear:{n}x{k}to{out}", "n": n, "in_features": k, "out_features": out}
            yield from _linear(row, layout, dtype)
        for n, size in _TINY_ROWS:
            for mode in ("softmax", "log_softmax"):
                row = {"name": f"{mode}:{n}x{size}", "dims": [n, size], "mode": mode}
                yield from _softmax(row, layout, dtype)
