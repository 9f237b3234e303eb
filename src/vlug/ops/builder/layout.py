"""Builder methods of Graph: operations that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["LayoutMethods"]

Numbers = Sequence[int]


class LayoutMethods(Base):
    """Operations that move elements: their results are copies."""

    def reshape(self, x: Tensor, *, size: Numbers, **options: Any) -> Tensor:
        """The elements of x in row-major order, as dims `size`."""
        y: Tensor = self.call("reshape", x, size=tuple(size), **options)
        return y

    def transpose(self, x: Tensor, *, permutation: Numbers | None = None, **options: Any) -> Tensor:
        """Dimension i of y is permutation[i] of x; by default all in reverse."""
        y: Tensor = self.call("transpose", x, permutation=permutation, **options)
        return y

    def slice(
        self,
        x: Tensor,
        *,
        start: Numbers | None = None,
        stop: Numbers | None = None,
        step: Numbers | None = None,
        **options: Any,
    ) -> Tensor:
        """x[start:stop:step] along every dimension."""
        y: Tensor = self.call("slice", x, start=start, stop=stop, step=step, **options)
        return y

    def slice_backward(
        self,
        dy: Tensor,
        *,
        size: Numbers,
        start: Numbers | None = None,
        stop: Numbers | None = None,
        step: Numbers | None = None,
        **options: Any,
    ) -> Tensor:
        """dx of dims `size`: dy at the slice, zeros elsewhere."""
        at = {"start": start, "stop": stop, "step": step, "size": tuple(size)}
        dx: Tensor = self.call("slice_backward", dy, **at, **options)
        return dx

    def concatenate(self, *inputs: Tensor, axis: int = 0, **options: Any) -> Tensor:
        """The inputs (up to 16) one after the other along `axis`."""
        y: Tensor = self.call("concatenate", *inputs, axis=axis, **options)
        return y

    def broadcast(self, x: Tensor, *, size: Numbers | None = None, **options: Any) -> Tensor:
        """x broadcast to dims `size`; without it a copy, into another layout by like=."""
        y: Tensor = self.call("broadcast", x, size=None if size is None else tuple(size), **options)
        return y

    def pad(
        self,
        x: Tensor,
        *,
        pre: Numbers,
        post: Numbers | None = None,
        mode: str = "constant",
        value: float = 0.0,
        **options: Any,
    ) -> Tensor:
        """x with `pre` and `post` elements around: mode constant, reflect, replicate or circular."""
        y: Tensor = self.call("pad", x, pre=pre, post=post, mode=mode, value=float(value), **options)
        return y

    def pad_backward(
        self,
        dy: Tensor,
        *,
        pre: Numbers,
        post: Numbers | None = None,
        mode: str = "constant",
        **options: Any,
    ) -> Tensor:
        """dx of pad's dy."""
        dx: Tensor = self.call("pad_backward", dy, pre=pre, post=post, mode=mode, **options)
        return dx
