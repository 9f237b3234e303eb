"""Builder methods of Graph: sampling at the places of a grid."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base
from vlug.tensor import Tensor

__all__ = ["GridMethods"]


class GridMethods(Base):
    """Sampling at the places of a grid."""

    def grid_sample(
        self,
        x: Tensor,
        grid: Tensor,
        *,
        mode: str = "linear",
        padding: str = "zeros",
        align_corners: bool = False,
        **options: Any,
    ) -> Tensor:
        """y of x (N, C, H, W) at the places of grid (N, P, Q, 2); mode linear or nearest."""
        at = {"mode": mode, "padding": padding, "align_corners": align_corners}
        y: Tensor = self.call("grid_sample", x, grid, **at, **options)
        return y

    def grid_sample_backward(
        self,
        dy: Tensor,
        x: Tensor,
        grid: Tensor,
        *,
        mode: str = "linear",
        padding: str = "zeros",
        align_corners: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """dx and dgrid of grid_sample's dy."""
        at = {"mode": mode, "padding": padding, "align_corners": align_corners}
        made: tuple[Tensor, Tensor] = self.call("grid_sample_backward", dy, x, grid, **at, **options)
        return made
