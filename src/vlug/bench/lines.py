"""Sets of problems as lines: reductions, losses with rows by index, convolutions that are not 2-D."""

from __future__ import annotations

from collections.abc import Iterator

from vlug.ops import OPERATIONS
from vlug.tensor import Tensor

__all__ = ["SETS"]

#: Rows and columns: tiny, small, large.
_SIZES = ((64, 100), (512, 1000), (2048, 4096))


def _reductions(dtype: str) -> Iterator[tuple[str, str, str]]:
    for m, n in _SIZES:
        for mode in ("add", "mean", "mul", "max", "amax", "norm1", "norm2"):
            for where, axes in (("all", "0x1"), ("inner", "1"), ("outer", "0")):
                yield f"{mode}:{where}:{m}x{n}", "fwd", f"reduction x={m}x{n}:{dtype} axes={axes} mode={mode}"


def _losses(dtype: str) -> Iterator[tuple[str, str, str]]:
    for m, n in _SIZES:
        x = f"{m}x{n}:{dtype}"
        for mode in ("mean", "none"):
            words = f"x={x} target={x} reduction={mode}"
            for op in ("mse_loss", "smooth_l1_loss", "huber_loss"):
                yield f"{op}:{mode}:{m}x{n}", "fwd", f"{op} {words}"
            dloss = f"scalar:{dtype}" if mode == "mean" else x
            back = f"mse_loss_backward dloss={dloss} {words} -> dx"
            yield f"mse_loss:{mode}:{m}x{n}", "bwd", back
        for name, dims, rest in ((f"{m}x{n}", f"{m}x{n}", f"{m}"), (f"{m // 64}x21x{n}", "", "")):
            if not dims:
                dims, rest = f"{max(m // 64, 1)}x21x{n // 4}x4", f"{max(m // 64, 1)}x{n // 4}x4"
            at = f"target={rest}:i64"
            yield f"nll:{name}", "fwd", f"nll_loss x={dims}:{dtype} {at}"
            back = f"nll_loss_backward dloss=scalar:{dtype} {at} total=scalar:{dtype} size={dims}"
            yield f"nll:{name}", "bwd", back
    for rows, d, places in ((1000, 64, 64), (1000, 64, 4096), (30000, 512, 256), (30000, 512, 4096)):
        indices = f"indices={places}:i64"
        yield f"embedding:{rows}x{d}:{places}", "fwd", f"embedding weight={rows}x{d}:{dtype} {indices}"
        back = f"embedding_backward dy={places}x{d}:{dtype} {indices} size={rows}x{d}"
        yield f"embedding:{rows}x{d}:{places}", "bwd", back


#: Name, x, w, attributes: convolutions of one and three dimensions as speech and video networks have them.
_BREADTH = (
    ("1d:k3", "8x512x1000", "512x512x3", "pad=1"),
    ("1d:k3s2", "8x512x1000", "512x512x3", "stride=2"),
    ("1d:k1", "8x256x1000", "512x256x1", ""),
    ("1d:first", "8x1x16000", "512x1x10", "stride=5"),
    ("1d:dilated", "8x128x4000", "128x128x3", "pad=64 dilation=64"),
    ("1d:depthwise", "8x256x1000", "256x1x31", "pad=15 groups=256"),
    ("3d:k3", "4x64x8x28x28", "64x64x3x3x3", "pad=1"),
    ("3d:k3s2", "4x64x8x28x28", "128x64x3x3x3", "pad=1 stride=2"),
    ("3d:k1", "4x128x8x14x14", "256x128x1x1x1", ""),
    ("3d:first", "4x3x8x56x56", "64x3x3x7x7", "pad=1x3x3 stride=1x2x2"),
)
#: Name, x, w, attributes of the convolution it is the gradient of, dims of the result: transposed ones.
_TRANSPOSED = (
    ("up:k4s2", "8x128x16x16", "128x64x4x4", "pad=1 stride=2", "32x32"),
    ("up:k2s2", "8x128x28x28", "128x64x2x2", "stride=2", "56x56"),
    ("up:k3s2", "8x128x6x6", "128x64x3x3", "pad=1 stride=2", "11x11"),
    ("up:k3s2+1", "8x128x6x6", "128x64x3x3", "pad=1 stride=2", "12x12"),
    ("up1d:k16s8", "4x256x200", "256x128x16", "pad=4 stride=8", "1600"),
    ("up3d:k2s2", "2x64x8x14x14", "64x32x2x2x2", "stride=2", "16x28x28"),
)


def _conv_breadth(dtype: str) -> Iterator[tuple[str, str, str]]:
    for name, x, w, tail in _BREADTH:
        ins = (Tensor.parse(x), Tensor.parse(w))
        op = OPERATIONS["conv_fprop"].from_attributes(dict(t.split("=") for t in tail.split()), ins)
        y = "x".join(map(str, op.infer(*ins)[0].dim))
        size, window = ("x".join(t.split("x")[2:]) for t in (x, w))
        yield name, "fwd", f"conv_fprop x={x}:{dtype} w={w}:{dtype} {tail}"
        yield name, "dgrad", f"conv_dgrad dy={y}:{dtype} w={w}:{dtype} {tail} size={size}"
        yield name, "wgrad", f"conv_wgrad dy={y}:{dtype} x={x}:{dtype} {tail} size={window}"
    for name, x, w, tail, size in _TRANSPOSED:
        y = f"{x.split('x')[0]}x{w.split('x')[1]}x{size}"
        window = "x".join(w.split("x")[2:])
        yield name, "fwd", f"conv_dgrad dy={x}:{dtype} w={w}:{dtype} {tail} size={size}"
        yield name, "dgrad", f"conv_fprop x={y}:{dtype} w={w}:{dtype} {tail}"
        yield name, "wgrad", f"conv_wgrad dy={x}:{dtype} x={y}:{dtype} {tail} size={window}"


#: Rows of classifiers, of vocabularies, of attention.
_ROWS = ("512x1000", "8192x128", "4096x1024", "512x32000", "16x512x512")


def _softmax_rows(dtype: str) -> Iterator[tuple[str, str, str]]:
    for dims in _ROWS:
        x, axis = f"{dims}:{dtype}", dims.count("x")
        for name in ("softmax", "log_softmax"):
            yield f"{name}:{dims}", "fwd", f"{name} x={x} axis={axis}"
            yield f"{name}:{dims}", "bwd", f"{name}_backward dy={x} y={x} axis={axis}"


SETS = {
    "reductions": _reductions,
    "losses": _losses,
    "conv_breadth": _conv_breadth,
    "softmax_rows": _softmax_rows,
}
