"""Builder methods of Graph: pooling."""

from __future__ import annotations

from typing import Any

from vlug.ops.builder.base import Base, Ints, paddings
from vlug.tensor import Tensor

__all__ = ["PoolMethods"]


class PoolMethods(Base):
    """Pooling."""

    def max_pool(
        self,
        x: Tensor,
        *,
        window: Ints,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints | None = None,
        dilation: Ints = 1,
        ceil: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """y and index (i64, flat in the plane) of each window's largest; names=("y",) leaves index out."""
        y: tuple[Tensor, Tensor] = self.call(
            "max_pool",
            x,
            window=window,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            dilation=dilation,
            ceil=ceil,
            **options,
        )
        return y

    def max_pool_backward(
        self,
        dy: Tensor,
        index: Tensor,
        *,
        size: Ints,
        window: Ints,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints | None = None,
        dilation: Ints = 1,
        **options: Any,
    ) -> Tensor:
        """dx of dy and max_pool's index; size: spatial dims of dx."""
        dx: Tensor = self.call(
            "max_pool_backward",
            dy,
            index,
            size=size,
            window=window,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            dilation=dilation,
            **options,
        )
        return dx

    def avg_pool(
        self,
        x: Tensor,
        *,
        window: Ints,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints | None = None,
        ceil: bool = False,
        count_include_pad: bool = True,
        divisor: int = 0,
        **options: Any,
    ) -> Tensor:
        """y = mean of each window."""
        y: Tensor = self.call(
            "avg_pool",
            x,
            window=window,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            ceil=ceil,
            count_include_pad=count_include_pad,
            divisor=divisor,
            **options,
        )
        return y

    def avg_pool_backward(
        self,
        dy: Tensor,
        *,
        size: Ints,
        window: Ints,
        padding: Ints | None = None,
        pre_padding: Ints | None = None,
        post_padding: Ints | None = None,
        stride: Ints | None = None,
        ceil: bool = False,
        count_include_pad: bool = True,
        divisor: int = 0,
        **options: Any,
    ) -> Tensor:
        """dx of avg_pool's dy; size: spatial dims of dx."""
        dx: Tensor = self.call(
            "avg_pool_backward",
            dy,
            size=size,
            window=window,
            **paddings(padding, pre_padding, post_padding),
            stride=stride,
            ceil=ceil,
            count_include_pad=count_include_pad,
            divisor=divisor,
            **options,
        )
        return dx
