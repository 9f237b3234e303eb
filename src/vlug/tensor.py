"""Tensor: what a graph knows of an array. Dimensions are logical (N, C, spatial…), layout is strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlug.dtypes import F32, DType, dtype
from vlug.errors import ParseError, ShapeError

__all__ = ["Tensor", "channels_last_strides", "contiguous_strides", "parse_dims"]

_LIMIT = 1 << 62
_MOST_DIMS = 32  # what every NumPy release has


def contiguous_strides(dim: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements: the last dimension runs fastest."""
    strides, n = [], 1
    for d in reversed(dim):
        strides.append(n)
        n *= max(d, 1)
    return tuple(reversed(strides))


def channels_last_strides(dim: Sequence[int]) -> tuple[int, ...]:
    """NHWC strides in elements for logical N, C, spatial…: channels run fastest, batch slowest."""
    if len(dim) < 3:
        return contiguous_strides(dim)
    n, c, *spatial = dim
    s = contiguous_strides((n, *spatial, c))
    return (s[0], s[-1], *s[1:-1])


@dataclass(frozen=True)
class Tensor:
    """Metadata of an array: no data.

    dim:     logical dimensions, N C spatial… for images, K C/groups spatial… for weights.
    stride:  in elements, one for each dimension, 0 or more.
    dtype:   element type.
    virtual: never in memory unless an engine puts it there (an intermediate of a graph).
    """

    dim: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: DType = F32
    name: str = ""
    virtual: bool = False

    def __post_init__(self) -> None:
        label = f"tensor {self.name}" if self.name else "tensor"
        if len(self.dim) != len(self.stride):
            raise ShapeError(f"{label}: {len(self.dim)} dimensions but {len(self.stride)} strides")
        if any(d < 0 for d in self.dim):
            raise ShapeError(f"{label}: dimensions {self.dim} must be 0 or more")
        if any(s < 0 for s in self.stride):
            raise ShapeError(f"{label}: strides {self.stride} must be 0 or more")
        if len(self.dim) > _MOST_DIMS:
            raise ShapeError(f"{label}: {len(self.dim)} dimensions, allowed are {_MOST_DIMS}")
        if max(*self.dim, *self.stride, math.prod(self.dim), self.span, 0) > _LIMIT:
            raise ShapeError(f"{label}: {self.dim} with strides {self.stride} reaches past 2^62 elements")

    @classmethod
    def of(
        cls,
        dim: Sequence[int],
        dtype_: DType | str = F32,
        layout: str | Sequence[int] = "nchw",
        name: str = "",
        virtual: bool = False,
    ) -> Tensor:
        """A tensor of `dim` with layout "nchw" (row-major), "nhwc" (channels last) or explicit strides."""
        dim = tuple(int(d) for d in dim)
        if layout == "nchw":
            stride = contiguous_strides(dim)
        elif layout == "nhwc":
            stride = channels_last_strides(dim)
        elif isinstance(layout, str):
            raise ShapeError(f"layout: {layout!r} is not nchw, nhwc or a sequence of strides")
        else:
            stride = tuple(int(s) for s in layout)
        return cls(dim, stride, dtype(dtype_), name, virtual)

    @property
    def rank(self) -> int:
        return len(self.dim)

    @property
    def numel(self) -> int:
        return math.prod(self.dim)

    @property
    def span(self) -> int:
        """Elements from the first to one past the last that can be touched (0 if empty)."""
        if 0 in self.dim:
            return 0
        return 1 + sum((d - 1) * s for d, s in zip(self.dim, self.stride))

    @property
    def nbytes(self) -> int:
        """Bytes that hold the elements themselves (not gaps between them)."""
        return self.numel * self.dtype.itemsize

    def has_strides(self, want: Sequence[int]) -> bool:
        """Whether the strides are `want`, those of size-1 dimensions (or an empty tensor) aside."""
        return self.numel == 0 or all(d == 1 or s == w for d, s, w in zip(self.dim, self.stride, want))

    @property
    def is_contiguous(self) -> bool:
        return self.has_strides(contiguous_strides(self.dim))

    @property
    def is_channels_last(self) -> bool:
        """Whether the layout is NHWC; a tensor may be both this and contiguous (C = 1, or 1×1 planes)."""
        return self.rank >= 3 and self.has_strides(channels_last_strides(self.dim))

    @property
    def layout(self) -> str:
        """ "nchw" if row-major, else "nhwc" if channels last, else "" (strides as they are)."""
        return "nchw" if self.is_contiguous else "nhwc" if self.is_channels_last else ""

    @property
    def normalised(self) -> Tensor:
        """The same tensor with the strides of size-1 dimensions (which mean nothing) made canonical."""
        layout = self.layout
        if layout:
            return replace(self, stride=Tensor.of(self.dim, self.dtype, layout).stride)
        return replace(self, stride=tuple(0 if d == 1 else s for d, s in zip(self.dim, self.stride)))

    @property
    def overlaps(self) -> bool:
        """Whether two indices may share an element (stride 0 or less than the inner dimensions cover)."""
        reach = 1
        for s, d in sorted((s, d) for d, s in zip(self.dim, self.stride) if d > 1):
            if s < reach:
                return True
            reach = s * (d - 1) + reach
        return False

    def renamed(self, name: str, virtual: bool | None = None) -> Tensor:
        return replace(self, name=name, virtual=self.virtual if virtual is None else virtual)

    # --- text: DIMS[:dtype][:layout], as in 8x64x56x56:f32:nhwc ---
    @property
    def spec(self) -> str:
        """The tensor as it stands in a problem line: dims, dtype, layout unless row-major."""
        t = self.normalised
        dims = "x".join(map(str, t.dim)) if t.dim else "scalar"
        layout = t.layout
        tail = "" if layout == "nchw" else f":{layout}" if layout else ":s" + "x".join(map(str, t.stride))
        return f"{dims}:{t.dtype.name}{tail}"

    @classmethod
    def parse(cls, spec: str, name: str = "") -> Tensor:
        """The tensor of a spec such as `8x64x56x56:f32:nhwc` or `8x64:bf16:s128x1`; dtype defaults to f32."""
        dims, *rest = spec.split(":")
        dim = () if dims == "scalar" else parse_dims(dims, name or "tensor")
        layout: str | tuple[int, ...] = "nchw"
        kind: DType = F32
        for part in rest:
            if part in ("nchw", "nhwc"):
                layout = part
            elif part.startswith("s") and part[1:2].isdigit():
                layout = parse_dims(part[1:], f"{name or 'tensor'} strides")
            else:
                kind = dtype(part, name or "tensor")
        return cls.of(dim, kind, layout, name)

    def __str__(self) -> str:
        return f"{self.name}={self.spec}" if self.name else self.spec


def parse_dims(text: str, argument: str) -> tuple[int, ...]:
    """`8x64x56` as integers; raises ParseError naming `argument`."""
    try:
        return tuple(int(p) for p in text.split("x"))
    except ValueError:
        raise ParseError(f"{argument}: {text!r} is not integers joined by x, as in 8x64x56x56") from None
