"""Builder methods of Graph: reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.ops.builder.base import Base, Ints
from vlug.tensor import Tensor

__all__ = ["ReductionMethods"]


class ReductionMethods(Base):
    """Reductions."""

    def reduction(
        self, x: Tensor, *, mode: str = "add", axes: Ints = (), keepdim: bool = False, **options: Any
    ) -> Tensor:
        """x reduced over `axes`, all if none are given; the modes stand in ops.reduction.MODES."""
        y: Tensor = self.call("reduction", x, mode=mode, axes=axes, keepdim=keepdim, **options)
        return y

    def reduction_backward(
        self,
        dy: Tensor,
        x: Tensor | None = None,
        y: Tensor | None = None,
        *,
        size: Sequence[int],
        mode: str = "add",
        axes: Ints = (),
        keepdim: bool = False,
        **options: Any,
    ) -> Tensor:
        """dx of reduction's dy, of dims `size`; x and y for the modes that need them."""
        dx: Tensor = self.call(
            "reduction_backward", dy, x, y, size=tuple(size), mode=mode, axes=axes, keepdim=keepdim, **options
        )
        return dx
