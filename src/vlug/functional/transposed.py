"""Eager calls: transposed convolution in one, two and three dimensions, as PyTorch means it."""

from __future__ import annotations

from typing import Any

from vlug.errors import BadInput, ShapeError
from vlug.functional.base import Array, Ints, Padding, Step, arg, chain, integers, one, spatial, window_of
from vlug.runtime import handle

__all__ = [
    "conv_transpose1d",
    "conv_transpose1d_backward",
    "conv_transpose2d",
    "conv_transpose2d_backward",
    "conv_transpose3d",
    "conv_transpose3d_backward",
]


def conv_transpose1d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """y (N, K, (W - 1) · stride - 2 · padding + (S - 1) · dilation + output_padding + 1) of x (N, C, W) and
    w (C, K/groups, S), plus bias (K) if given: the gradient of a convolution in its input.

    output_padding: elements more at the end; less than stride or dilation.
    """
    return _forward(1, x, w, bias, out, (stride, padding, dilation), output_padding, groups)


def conv_transpose2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """y (N, K, P, Q) of x (N, C, H, W) and w (C, K/groups, R, S), plus bias (K) if given.

    P = (H - 1) · stride - 2 · padding + (R - 1) · dilation + output_padding + 1, and Q likewise;
    output_padding must be less than stride or dilation in each dimension.
    padding: also ((top, bottom), (left, right)).
    """
    return _forward(2, x, w, bias, out, (stride, padding, dilation), output_padding, groups)


def conv_transpose3d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    out: Any = None,
) -> Array:
    """y (N, K, O, P, Q) of x (N, C, D, H, W) and w (C, K/groups, T, R, S), plus bias (K) if given; sizes as
    conv_transpose2d's."""
    return _forward(3, x, w, bias, out, (stride, padding, dilation), output_padding, groups)


def conv_transpose1d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv_transpose1d's dy, whose dims tell the output padding."""
    return _backward(1, dy, x, w, (stride, padding, dilation), groups)


def conv_transpose2d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv_transpose2d's dy, whose dims tell the output padding."""
    return _backward(2, dy, x, w, (stride, padding, dilation), groups)


def conv_transpose3d_backward(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> tuple[Array, Array, Array]:
    """dx, dw and dbias of conv_transpose3d's dy, whose dims tell the output padding."""
    return _backward(3, dy, x, w, (stride, padding, dilation), groups)


Window = tuple[Ints, Padding, Ints]  # stride, padding, dilation


class _Sizes:
    """Attributes of the convolution whose gradient this is, and spatial dims.

    reached: dims that x reaches; beyond them, where an output padding is no less than the stride, are zeros.
    """

    def __init__(self, x: handle.Array, w: handle.Array, window: Window, groups: int):
        rank = len(w.shape) - 2
        if isinstance(window[1], str):
            raise BadInput(f"padding: {window[1]!r} must be integers or pairs")
        self.at: dict[str, Any] = window_of(x.shape, w.shape[2:], *window) | integers(groups=groups)
        for name, least in (("stride", 1), ("dilation", 1), ("pre_padding", 0), ("post_padding", 0)):
            if min(self.at[name]) < least:
                shown = name.removeprefix("pre_").removeprefix("post_")
                raise ShapeError(f"{shown}: {self.at[name]} must be {least} or more")
        if self.at["groups"] < 1 or x.shape[1] % self.at["groups"]:
            raise ShapeError(f"groups: {groups} must divide the {x.shape[1]} channels of x")
        if x.shape[1] != w.shape[0]:
            raise ShapeError(f"w: {w.shape} takes {w.shape[0]} channels, but x {x.shape} has {x.shape[1]}")
        if min(w.shape[2:]) < 1:
            raise ShapeError(f"w: {w.shape} has a window of no elements")
        steps = zip(x.shape[2:], w.shape[2:], *(self.at[n] for n in ("stride", "dilation")))
        self.least = [(h - 1) * s + (r - 1) * d + 1 for h, r, s, d in steps]
        ends = zip(self.least, self.at["pre_padding"], self.at["post_padding"])
        self.least = [n - a - b for n, a, b in ends]
        self.most = [max(s, d) - 1 for s, d in zip(self.at["stride"], self.at["dilation"])]
        self.size: tuple[int, ...] = ()
        self.reached: tuple[int, ...] = ()
        self.rank = rank

    def pad(self, more: tuple[int, ...]) -> _Sizes:
        """With so much output padding: taken from the padding behind, where x reaches."""
        self.size = tuple(n + p for n, p in zip(self.least, more))
        if min(self.size) < 0:
            raise ShapeError(f"padding: leaves y the spatial dims {self.size}")
        post = self.at["post_padding"]
        inside = [min(p, b) for p, b in zip(more, post)]
        rest = [p - i for p, i in zip(more, inside)]
        self.at["post_padding"] = tuple(b - i for b, i in zip(post, inside))
        over = [r if r >= s else 0 for r, s in zip(rest, self.at["stride"])]
        self.reached = tuple(n - o for n, o in zip(self.size, over))
        return self

    @property
    def inside(self) -> tuple[slice, ...]:
        return (slice(None), slice(None), *(slice(0, n) for n in self.reached))


def _forward(
    rank: int, x: Any, w: Any, bias: Any, out: Any, window: Window, output_padding: Ints, groups: int
) -> Array:
    a, weight = arg(x, "x", rank + 2), arg(w, "w", rank + 2)
    sizes = _Sizes(a, weight, window, groups)
    more = spatial(output_padding, "output_padding", rank)
    for p, most in zip(more, sizes.most):
        if not 0 <= p <= most:
            raise BadInput(f"output_padding: {more} must be 0 or more, and less than stride or dilation")
    sizes.pad(more)
    steps: list[Step] = [("conv_dgrad", ("dy", "w"), {**sizes.at, "size": sizes.reached})]
    arrays = {"dy": a, "w": weight}
    if bias is not None:
        arrays["bias"] = arg(bias, "bias", 1)
        steps.append(("bias", ("", "bias"), {}))
    if sizes.reached == sizes.size:
        return chain(steps, arrays, {"y": out})[0]
    shape = (a.shape[0], weight.shape[1] * groups, *sizes.size)
    if out is None:
        whole: Array = handle.empty(shape, a.dtype)
    else:
        whole = handle.array(out, "out", True).numpy()
        if whole.shape != shape:
            raise ShapeError(f"out: dims are {whole.shape}, the result has {shape}")
    whole[...] = 0 if bias is None else arrays["bias"].numpy().reshape(-1, *(1,) * rank)
    chain(steps, arrays, {"y": whole[sizes.inside]})
    return whole


def _backward(
    rank: int, dy: Any, x: Any, w: Any, window: Window, groups: int
) -> tuple[Array, Array, Array]:
    g, a, weight = arg(dy, "dy", rank + 2), arg(x, "x", rank + 2), arg(w, "w", rank + 2)
    sizes = _Sizes(a, weight, window, groups)
    more = tuple(have - least for have, least in zip(g.shape[2:], sizes.least))
    channels = weight.shape[1] * groups
    if g.shape[:2] != (a.shape[0], channels) or not all(0 <= p <= m for p, m in zip(more, sizes.most)):
        wanted = ", ".join(f"{n} to {n + m}" if m else str(n) for n, m in zip(sizes.least, sizes.most))
        raise ShapeError(f"dy: {g.shape} must be {(a.shape[0], channels)} and spatial dims {wanted}")
    sizes.pad(more)
    seen = g
    if sizes.reached != sizes.size:
        seen = handle.array(g.numpy()[sizes.inside], "dy")
    dx = one("conv_fprop", {"x": seen, "w": weight}, "y", None, **sizes.at)
    dw = one("conv_wgrad", {"dy": a, "x": seen}, "dw", None, size=weight.shape[2:], **sizes.at)
    return dx, dw, one("reduction", {"x": g}, "y", None, axes=(0, *range(2, rank + 2)))
