"""Builder methods of Graph: sums and means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlug.ops.builder.base import Base, Ints
from vlug.tensor import Tensor

__all__ = ["ReductionMethods"]


class ReductionMethods(Base):
    """Sums and means."""

    def reduction(
        self, x: Tensor, *, mode: str = "add", axes: Ints = (), keepdim: bool = False, **options: Any
    ) -> Tensor:
        """Sum (mode "add") or mean of x over `axes`, all if none are given."""
        y: Tensor = self.call("reduction", x, mode=mode, axes=axes, keepdim=keepdim, **options)
        return y

    def reduction_backward(
        self,
        dy: Tensor,
        *,
        size: Sequence[int],
        mode: str = "add",
        axes: Ints = (),
        keepdim: bool = False,
        **options: Any,
    ) -> Tensor:
        """dy spread over the dimensions that reduction summed; size: all dims of dx."""
        dx: Tensor = self.call(
            "reduction_backward", dy, size=tuple(size), mode=mode, axes=axes, keepdim=keepdim, **options
        )
        return dx
