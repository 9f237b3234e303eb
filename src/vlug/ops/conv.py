"""Convolution in its three directions: fprop (x, w to y), dgrad (dy, w to dx), wgrad (dy, x to dw)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from vlug.ops.base import Array, Builder, Cost, Operation, layout_of, need, register
from vlug.ops.window import full, out_size, pad_spatial, taps
from vlug.tensor import Tensor

__all__ = ["ConvDgrad", "ConvFprop", "ConvWgrad"]


@dataclass(frozen=True)
class _Conv(Operation):
    """y[n,k,p] = Σ_{c,r} x[n, c, p·stride + r·dilation - pre_padding] · w[k,c,r] within each group.

    Cross-correlation, as every framework means it. N, C, spatial (one or more dimensions); w is K, C/groups,
    spatial; group g joins input channels g·C/groups… to output channels g·K/groups….
    """

    pre_padding: tuple[int, ...] = ()
    post_padding: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    short: ClassVar[dict[str, str]] = {"pre_padding": "pad", "post_padding": "post"}
    exact: ClassVar[bool] = True

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        rank = self.spatial_rank(inputs)
        pre = full(self.pre_padding, rank, (0,), f"{self.name}: pad", 0)
        return replace(
            self,
            pre_padding=pre,
            post_padding=full(self.post_padding, rank, pre, f"{self.name}: post", 0),
            stride=full(self.stride, rank, (1,), f"{self.name}: stride", 1),
            dilation=full(self.dilation, rank, (1,), f"{self.name}: dilation", 1),
        )

    def _spatial(self, size: Sequence[int], window: Sequence[int]) -> tuple[int, ...]:
        """Spatial dims of y for those of x and w."""
        for r in window:
            self.expect(r >= 1, f"w's spatial dims {tuple(window)} must be 1 or more")
        return tuple(
            out_size(h, r, a, b, s, d, self.name)
            for h, r, a, b, s, d in zip(
                size, window, self.pre_padding, self.post_padding, self.stride, self.dilation
            )
        )

    def _check_ranks(self, first: Tensor, second: Tensor) -> None:
        self.expect(first.rank >= 3, f"{self.port(0)} {first.dim} must have 3 dimensions or more")
        self.expect(
            second.rank == first.rank,
            f"{self.port(1)} {second.dim} must have as many dimensions as {self.port(0)} {first.dim}",
        )
        self.expect(self.groups >= 1, f"groups {self.groups} must be 1 or more")
        self.check_dtypes(first, second, same=(1,))

    def _check_k(self, k: int, what: str) -> None:
        self.expect(
            k % self.groups == 0, f"groups {self.groups} must divide the {k} output channels of {what}"
        )

    def _flops(self, y: Tensor, w: Tensor) -> int:
        return 2 * y.numel * math.prod(w.dim[1:])


def _grouped(a: Array, groups: int, axis: int) -> Array:
    """`a` with its dimension `axis` split in groups, groups outermost within it."""
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])


@register
@dataclass(frozen=True)
class ConvFprop(_Conv):
    __doc__ = _Conv.__doc__

    name: ClassVar[str] = "conv_fprop"
    inputs: ClassVar[tuple[str, ...]] = ("x", "w")
    outputs: ClassVar[tuple[str, ...]] = ("y",)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, w = need(inputs)
        self._check_ranks(x, w)
        self.expect(
            x.dim[1] == w.dim[1] * self.groups,
            f"x has {x.dim[1]} channels, but w {w.dim} with groups={self.groups} takes "
            f"{w.dim[1]} × {self.groups} = {w.dim[1] * self.groups}",
        )
        self._check_k(w.dim[0], "w")
        op = self.bind(inputs)
        out = op._spatial(x.dim[2:], w.dim[2:])
        return (Tensor.of((x.dim[0], w.dim[0], *out), x.dtype, layout_of(x, w)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = need(inputs)
        op = self.bind((Tensor.of(x.shape),))
        g, out = op.groups, op._spatial(x.shape[2:], w.shape[2:])
        n, k = x.shape[0], w.shape[0]
        xp = pad_spatial(x, op.pre_padding, op.post_padding)
        wg = _grouped(w, g, 0)
        y = np.zeros((n, g, k // g, math.prod(out)), x.dtype)
        for at, window in taps(w.shape[2:], op.stride, op.dilation, out):
            seen = _grouped(xp[(..., *window)].reshape(n, x.shape[1], math.prod(out)), g, 1)
            y += wg[(..., *at)] @ seen
        return (y.reshape(n, k, *out),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        x, w = need(inputs)
        dy = grads[0]
        if dy is None:
            return None, None
        dx = g.append(ConvDgrad(*_attributes(self), size=x.dim[2:]), (dy, w))[0]
        dw = g.append(ConvWgrad(*_attributes(self), size=w.dim[2:]), (dy, x))[0]
        return dx, dw

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        x, w = need(inputs)
        (y,) = need(outputs)
        return Cost(self._flops(y, w), x.nbytes + w.nbytes + y.nbytes)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, w, tail in _SAMPLES:
            yield f"conv_fprop x={x} w={w} {tail}".strip()


@register
@dataclass(frozen=True)
class ConvDgrad(_Conv):
    """Gradient of conv_fprop in x: dx[n,c,h] = Σ dy[n,k,p] · w[k,c,r] over p·stride + r·dilation - pre = h.

    size: spatial dims of dx, of the stride-many that give dy's; elements no window reaches are 0. This is
    also the transposed convolution of dy, with w as PyTorch keeps it (C_in, C_out/groups, spatial): its
    output padding is size - ((dy - 1) · stride - pre - post + (r - 1) · dilation + 1).
    """

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "conv_dgrad"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "w")
    outputs: ClassVar[tuple[str, ...]] = ("dx",)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        size = full(self.size, self.spatial_rank(inputs), (), f"{self.name}: size", 0)
        return replace(super().bind(inputs), size=size)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, w = need(inputs)
        self._check_ranks(dy, w)
        self.expect(dy.dim[1] == w.dim[0], f"dy has {dy.dim[1]} channels, but w {w.dim} gives {w.dim[0]}")
        self._check_k(w.dim[0], "w")
        op = self.bind(inputs)
        want = op._spatial(op.size, w.dim[2:])
        self.expect(
            want == dy.dim[2:],
            f"size {op.size} with w {w.dim} gives dy spatial dims {want}, but dy is {dy.dim}",
        )
        dim = (dy.dim[0], w.dim[1] * self.groups, *op.size)
        return (Tensor.of(dim, dy.dtype, layout_of(dy, w)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, w = need(inputs)
        op = self.bind((Tensor.of(dy.shape),))
        g, out, n = op.groups, dy.shape[2:], dy.shape[0]
        c = w.shape[1] * g
        room = [h + a + b for h, a, b in zip(op.size, op.pre_padding, op.post_padding)]
        dxp = np.zeros((n, c, *room), dy.dtype)
        wg = np.swapaxes(_grouped(w, g, 0), 1, 2)
        dyg = _grouped(dy.reshape(n, dy.shape[1], math.prod(out)), g, 1)
        for at, window in taps(w.shape[2:], op.stride, op.dilation, out):
            dxp[(..., *window)] += (wg[(..., *at)] @ dyg).reshape(n, c, *out)
        inner: tuple[Any, ...] = tuple(slice(a, a + h) for a, h in zip(op.pre_padding, op.size))
        return (np.ascontiguousarray(dxp[(..., *inner)]),)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        dy, w = need(inputs)
        v = grads[0]
        if v is None:
            return None, None
        return (
            g.append(ConvFprop(*_attributes(self)), (v, w))[0],
            g.append(ConvWgrad(*_attributes(self), size=w.dim[2:]), (dy, v))[0],
        )

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        dy, w = need(inputs)
        (dx,) = need(outputs)
        return Cost(self._flops(dy, w), dy.nbytes + w.nbytes + dx.nbytes)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, w, tail in _SAMPLES:
            y = _sample_y(x, w, tail)
            size = "x".join(x.split("x")[2:])
            yield f"conv_dgrad dy={y} w={w} {tail} size={size}".replace("  ", " ")


@register
@dataclass(frozen=True)
class ConvWgrad(_Conv):
    """Gradient of conv_fprop in w: dw[k,c,r] = Σ_{n,p} dy[n,k,p] · x[n, c, p·stride + r·dilation - pre].

    size: spatial dims of dw (R×S).
    """

    size: tuple[int, ...] = field(kw_only=True)

    name: ClassVar[str] = "conv_wgrad"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x")
    outputs: ClassVar[tuple[str, ...]] = ("dw",)

    def bind(self, inputs: Sequence[Tensor | None]) -> Self:
        size = full(self.size, self.spatial_rank(inputs), (), f"{self.name}: size", 1)
        return replace(super().bind(inputs), size=size)

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x = need(inputs)
        self._check_ranks(dy, x)
        self.expect(dy.dim[0] == x.dim[0], f"dy {dy.dim} and x {x.dim} must have the same batch size")
        self.expect(
            x.dim[1] % self.groups == 0, f"groups {self.groups} must divide the {x.dim[1]} channels of x"
        )
        self._check_k(dy.dim[1], "dy")
        op = self.bind(inputs)
        want = op._spatial(x.dim[2:], op.size)
        self.expect(
            want == dy.dim[2:],
            f"x {x.dim} with size {op.size} gives dy spatial dims {want}, but dy is {dy.dim}",
        )
        dim = (dy.dim[1], x.dim[1] // self.groups, *op.size)
        return (Tensor.of(dim, dy.dtype, layout_of(x, dy)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x = need(inputs)
        op = self.bind((Tensor.of(dy.shape),))
        g, out, n, k = op.groups, dy.shape[2:], dy.shape[0], dy.shape[1]
        xp = pad_spatial(x, op.pre_padding, op.post_padding)
        # G, K/G, N·P and G, N·P, C/G: one product a tap
        dyg = np.moveaxis(_grouped(dy.reshape(n, k, math.prod(out)), g, 1), 0, 2).reshape(
            g, k // g, n * math.prod(out)
        )
        dw: Array = np.zeros((k, x.shape[1] // g, *op.size), dy.dtype)
        for at, window in taps(op.size, op.stride, op.dilation, out):
            seen = _grouped(xp[(..., *window)].reshape(n, x.shape[1], math.prod(out)), g, 1)
            xg = np.moveaxis(seen, 0, 2).reshape(g, x.shape[1] // g, n * math.prod(out))
            dw[(..., *at)] = (dyg @ np.swapaxes(xg, 1, 2)).reshape(k, x.shape[1] // g)
        return (dw,)

    def vjp(
        self,
        g: Builder,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        grads: Sequence[Tensor | None],
    ) -> tuple[Tensor | None, ...]:
        dy, x = need(inputs)
        v = grads[0]
        if v is None:
            return None, None
        return (
            g.append(ConvFprop(*_attributes(self)), (x, v))[0],
            g.append(ConvDgrad(*_attributes(self), size=x.dim[2:]), (dy, v))[0],
        )

    def cost(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> Cost:
        dy, x = need(inputs)
        (dw,) = need(outputs)
        return Cost(self._flops(dy, dw), dy.nbytes + x.nbytes + dw.nbytes)

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, w, tail in _SAMPLES:
            y = _sample_y(x, w, tail)
            size = "x".join(w.split("x")[2:])
            yield f"conv_wgrad dy={y} x={x} {tail} size={size}".replace("  ", " ")


def _attributes(op: _Conv) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    return op.pre_padding, op.post_padding, op.stride, op.dilation, op.groups


def _sample_y(x: str, w: str, tail: str) -> str:
    ins = (Tensor.parse(x), Tensor.parse(w))
    op = ConvFprop.from_attributes(dict(t.split("=") for t in tail.split()), ins)
    return "x".join(map(str, op.infer(*ins)[0].dim))


# x, w, attributes: one line for each case that an implementation may treat apart.
_SAMPLES = (
    ("2x16x10x10", "32x16x3x3", "pad=1"),
    ("1x64x7x7", "64x64x1x1", ""),
    ("2x3x23x23", "16x3x7x7", "pad=3 stride=2"),
    ("2x17x9x13", "19x17x3x3", "pad=1"),  # nothing divides a vector
    ("3x35x6x3", "5x35x2x3", "pad=1x0"),  # A5: C = 35
    ("2x8x14x14", "24x8x1x1", "stride=2"),  # A11: stride > kernel
    ("2x4x11x9", "6x4x3x2", "stride=3x2 pad=1"),
    ("1x6x12x12", "10x6x3x3", "pad=2 dilation=2"),
    ("1x5x15x17", "4x5x3x2", "dilation=3x2 stride=2x1 pad=3x0"),
    ("2x32x8x8", "64x8x3x3", "pad=1 groups=4"),
    ("2x6x7x7", "9x2x3x3", "groups=3"),
    ("2x24x12x10", "24x1x3x3", "pad=1 groups=24"),  # depthwise
    ("1x19x9x9", "19x1x5x5", "pad=2 stride=2 groups=19"),
    ("1x5x8x8", "10x1x3x3", "pad=1 groups=5"),  # depthwise, two outputs a channel
    ("1x16x9x9", "16x1x3x3", "pad=2 dilation=2 groups=16"),
    ("1x1x4x4", "1x1x2x2", "pad=0 post=1"),  # E1: SAME with an even kernel
    ("2x3x9x8", "4x3x4x4", "pad=1x0 post=2x3 stride=2"),
    ("1x8x3x3", "8x8x5x5", "pad=1"),  # kernel larger than the input
    ("2x4x2x2", "4x4x7x7", "pad=3"),
    ("1x1x2x2", "1x1x2x2", ""),  # E3
    ("4x64x1x1", "32x64x1x1", ""),  # A3: 1×1 planes
    ("2x1x3x40", "2x1x1x41", "pad=0x20"),  # E15: a long kernel
    ("8x8x8x8", "8x8x8x8", ""),  # B9: all dims equal
    ("1x3x1x33", "70x3x1x3", "pad=0x1"),
    ("1x130x5x5", "3x130x3x3", "pad=1"),
    ("0x3x3x3", "3x3x3x3", ""),  # B1
    ("2x0x4x4", "3x0x3x3", "pad=1"),
    ("2x3x4x4", "0x3x3x3", "pad=1"),
    ("2x5x4x4", "0x1x3x3", "pad=1 groups=5"),
    ("2x3x0x4", "5x3x1x1", ""),
    ("2x3x20", "4x3x3", "pad=1 stride=2"),  # one dimension
    ("1x2x4x5x6", "3x2x2x3x3", "pad=1x0x1"),  # three
    ("2x6x6x5x6", "10x3x3x2x3", "pad=1 post=0x1x2 stride=2x1x2 dilation=1x2x1 groups=2"),
    ("1x19x3x4x5", "33x19x1x1x1", ""),  # the depth joins the rows
)
