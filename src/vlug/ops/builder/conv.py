"""Builder methods of Graph: convolution."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base, Ints, paddings
from vlug.tensor import Tensor

__all__ = ["ConvMethods"]


class ConvMethods(Base):
    """Convolution."""

    def conv_fprop(
        self,
        x: Tensor,
        w: Tensor,
        *,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints = 1,
        dilation: Ints = 1,
        groups: int = 1,
        **options: Any,
    ) -> Tensor:
        """y of x (N, C, spatial) and w (K, C/groups, spatial): cross-correlation."""
        y: Tensor = self.call(
            "conv_fprop",
            x,
            w,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            dilation=dilation,
            groups=groups,
            **options,
        )
        return y

    def conv_dgrad(
        self,
        dy: Tensor,
        w: Tensor,
        *,
        size: Ints,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints = 1,
        dilation: Ints = 1,
        groups: int = 1,
        **options: Any,
    ) -> Tensor:
        """dx of dy and w; size: spatial dims of dx. Also the transposed convolution."""
        dx: Tensor = self.call(
            "conv_dgrad",
            dy,
            w,
            size=size,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            dilation=dilation,
            groups=groups,
            **options,
        )
        return dx

    def conv_wgrad(
        self,
        dy: Tensor,
        x: Tensor,
        *,
        size: Ints,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints = 1,
        dilation: Ints = 1,
        groups: int = 1,
        **options: Any,
    ) -> Tensor:
        """dw of dy and x; size: spatial dims of dw (R×S)."""
        dw: Tensor = self.call(
            "conv_wgrad",
            dy,
            x,
            size=size,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            dilation=dilation,
            groups=groups,
            **options,
        )
        return dw
