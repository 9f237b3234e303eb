"""Sampling at the places of a grid, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vlug.ops.base import Array, Builder, Cost, Operation, layout_of, need, register
from vlug.tensor import Tensor

__all__ = ["GridSample", "GridSampleBackward"]

MODES = ("linear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
Tensors = Sequence[Tensor | None]


@dataclass(frozen=True)
class _Grid(Operation):
    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False

    def check_grid(self, x: Tensor, grid: Tensor) -> None:
        self.expect(self.mode in MODES, f"mode {self.mode!r} must be one of {', '.join(MODES)}")
        allowed = ", ".join(PADDINGS)
        self.expect(self.padding in PADDINGS, f"padding {self.padding!r} must be one of {allowed}")
        self.expect(x.rank == 4, f"x {x.dim} must have 4 dimensions (N, C, H, W)")
        fits = grid.rank == 4 and grid.dim[0] == x.dim[0] and grid.dim[3] == 2
        self.expect(fits, f"grid {grid.dim} must have the dims ({x.dim[0]}, P, Q, 2)")
        self.expect(0 not in x.dim[2:] or not grid.numel, f"x {x.dim} has no elements to sample")

    def cost(self, inputs: Tensors, outputs: Tensors) -> Cost:
        tensors = [t for t in (*inputs, *outputs) if t is not None]
        return Cost(8 * max(t.numel for t in tensors), sum(t.nbytes for t in tensors))

    def places(self, g: Array, size: int) -> tuple[Array, Array]:
        """Where coordinates of the grid lie among `size` elements (float64), and the derivative."""
        with np.errstate(invalid="ignore", over="ignore"):
            g = g.astype(np.float64)
            scale = (size - 1 if self.align_corners else size) * 0.5
            at = (g + 1) * scale - (0 if self.align_corners else 0.5)
            slope = np.full(at.shape, scale)
            if self.padding == "reflection":
                low = 0.0 if self.align_corners else -0.5
                span = float(size - 1 if self.align_corners else size)
                if span == 0:
                    return np.zeros(at.shape), np.zeros(at.shape)
                slope = np.where(at < low, -slope, slope)
                at = np.abs(at - low)
                turns = np.floor(at / span)
                odd = np.floor(turns / 2) * 2 != turns
                rest = at - turns * span
                at = np.where(odd, span - rest, rest) + low
                slope = np.where(odd, -slope, slope)
            if self.padding != "zeros":
                slope = np.where((at > 0) & (at < size - 1), slope, 0.0)
                at = np.where(at > 0, np.minimum(at, size - 1), 0.0)  # NaN: 0
            return at, slope

    def corners(self, grid: Array, size: Sequence[int]) -> tuple[list[tuple[Array, ...]], Array, Array]:
        """(inside, row, column, weight, its derivatives by column and row) of each element that a result
        takes, and the derivatives of column and row by the grid."""
        (y, dy), (x, dx) = self.places(grid[..., 1], size[0]), self.places(grid[..., 0], size[1])
        with np.errstate(invalid="ignore", over="ignore"):
            if self.mode == "nearest":
                rows, columns = np.rint(y), np.rint(x)
                terms = [(rows, columns, np.ones(x.shape), np.zeros(x.shape), np.zeros(x.shape))]
            else:
                y0, x0 = np.floor(y), np.floor(x)
                b, a = y - y0, x - x0
                terms = [
                    (y0, x0, (1 - b) * (1 - a), -(1 - b), -(1 - a)),
                    (y0, x0 + 1, (1 - b) * a, 1 - b, -a),
                    (y0 + 1, x0, b * (1 - a), -b, 1 - a),
                    (y0 + 1, x0 + 1, b * a, b, a),
                ]
            found = []
            for r, c, w, dc, dr in terms:
                inside = (r >= 0) & (r < size[0]) & (c >= 0) & (c < size[1])
                at = [np.where(inside, v, 0).astype(np.int64) for v in (r, c)]
                found.append((inside, *at, *(np.where(inside, v, 0 * v) for v in (w, dc, dr))))
        return found, dx, dy


@register
@dataclass(frozen=True)
class GridSample(_Grid):
    """y[n,c,p,q] = x[n,c] at the place grid[n,p,q] = (column, row), -1 … 1 being the plane.

    align_corners: -1 and 1 are the centres of the corner elements, else their outer edges. mode linear: four
    elements, nearest: one (ties to even). What lies outside: padding zeros; border: the nearest element of
    the plane; reflection: mirrored at the edges. A place that is not finite gives NaN with linear and zeros;
    else it is outside (zeros), 0 (NaN, and infinity that is mirrored) or the border.
    """

    name: ClassVar[str] = "grid_sample"
    inputs: ClassVar[tuple[str, ...]] = ("x", "grid")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, grid = need(inputs)
        self.check_dtypes(x, grid, same=(1,))
        self.check_grid(x, grid)
        return (Tensor.of((*x.dim[:2], *grid.dim[1:3]), x.dtype, layout_of(x)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, grid = need(inputs)
        y = np.zeros((*x.shape[:2], *grid.shape[1:3]), x.dtype)
        if not y.size:
            return (y,)
        n = np.arange(x.shape[0])[:, None, None]
        for inside, r, c, w, *_ in self.corners(grid, x.shape[2:])[0]:
            term = np.moveaxis(x[n, :, r, c], -1, 1) * w.astype(x.dtype)[:, None]
            y += np.where(inside[:, None], term, w.astype(x.dtype)[:, None])
        return (y,)

    def vjp(self, g: Builder, inputs: Tensors, outputs: Tensors, grads: Tensors) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None
        op = GridSampleBackward(self.mode, self.padding, self.align_corners)
        return tuple(g.append(op, (grads[0], *inputs)))

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, out, tail in _SAMPLES:
            yield f"grid_sample x={x} grid={x[0]}x{out}x2 {tail}"


@register
@dataclass(frozen=True)
class GridSampleBackward(_Grid):
    """dx and dgrid of grid_sample's dy; nearest: dgrid is 0."""

    name: ClassVar[str] = "grid_sample_backward"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "grid")
    outputs: ClassVar[tuple[str, ...]] = ("dx?", "dgrid?")

    def infer(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        dy, x, grid = need(inputs)
        self.check_dtypes(dy, x, grid, same=(1, 2))
        self.check_grid(x, grid)
        want = (*x.dim[:2], *grid.dim[1:3])
        self.expect(dy.dim == want, f"dy {dy.dim} must have the dims {want}")
        return Tensor.of(x.dim, x.dtype, layout_of(x)), Tensor.of(grid.dim, x.dtype)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        dy, x, grid = need(inputs)
        dx, dgrid = np.zeros(x.shape, x.dtype), np.zeros(grid.shape, x.dtype)
        if not dy.size:
            return dx, dgrid
        n = np.arange(x.shape[0])[:, None, None]
        terms, by_x, by_y = self.corners(grid, x.shape[2:])
        grad = np.moveaxis(dy, 1, -1)
        for inside, r, c, w, dc, dr in terms:
            part = np.where(inside[..., None], grad * w.astype(x.dtype)[..., None], x.dtype.type(0))
            places: Any = (n, slice(None), r, c)
            np.add.at(dx, places, part)
            dot = np.where(inside, (x[n, :, r, c] * grad).sum(-1), x.dtype.type(0))
            dgrid[..., 0] += dot * dc.astype(x.dtype)
            dgrid[..., 1] += dot * dr.astype(x.dtype)
        dgrid[..., 0] *= by_x.astype(x.dtype)
        dgrid[..., 1] *= by_y.astype(x.dtype)
        return dx, dgrid

    @classmethod
    def samples(cls) -> Iterator[str]:
        for x, out, tail in _SAMPLES:
            n, c, *_ = x.split("x")
            yield f"grid_sample_backward dy={n}x{c}x{out} x={x} grid={n}x{out}x2 {tail}"


_SAMPLES: tuple[Any, ...] = (
    *(
        ("2x3x5x7", "4x20", f"mode={m} padding={p} align_corners={a}")
        for m in MODES
        for p in PADDINGS
        for a in (0, 1)
    ),
    ("1x19x9x8", "6x33", ""),
    ("2x3x1x7", "3x3", "padding=reflection align_corners=1"),
    ("0x3x4x4", "2x2", ""),
    ("2x3x4x4", "0x2", ""),
)
