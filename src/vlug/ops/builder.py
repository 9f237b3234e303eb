"""The builder methods of Graph, one an operation, with cuDNN's names: written out to be found and typed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vlug.tensor import Tensor

__all__ = ["Methods"]

Ints = int | Sequence[int]


class Methods:
    """Builder methods over `call`. In each, `options` may hold names= and like= (see Graph.append).

    Attributes of spatial dimensions are one int for all of them or one int each. padding= sets pre_padding
    and post_padding alike.
    """

    def call(self, name: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        raise NotImplementedError

    # --- convolution ---
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
            **_padding(padding, pre_padding, post_padding),
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
            **_padding(padding, pre_padding, post_padding),
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
            **_padding(padding, pre_padding, post_padding),
            stride=stride,
            dilation=dilation,
            groups=groups,
            **options,
        )
        return dw

    # --- products and pointwise ---
    def matmul(
        self, a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, **options: Any
    ) -> Tensor:
        """c = a·b over the last two dimensions, the others broadcast."""
        c: Tensor = self.call("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, **options)
        return c

    def bias(self, x: Tensor, b: Tensor, *, axis: int = 1, **options: Any) -> Tensor:
        """y = x + b, b along `axis` of x."""
        y: Tensor = self.call("bias", x, b, axis=axis, **options)
        return y

    def add(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a + b, broadcast."""
        y: Tensor = self.call("add", a, b, **options)
        return y

    def mul(self, a: Tensor, b: Tensor, **options: Any) -> Tensor:
        """y = a · b, broadcast."""
        y: Tensor = self.call("mul", a, b, **options)
        return y

    def relu(
        self,
        x: Tensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        **options: Any,
    ) -> Tensor:
        """y = x between the clips, lower_clip + negative_slope·(x - lower_clip) below, upper_clip above."""
        y: Tensor = self.call(
            "relu",
            x,
            negative_slope=float(negative_slope),
            lower_clip=float(lower_clip),
            upper_clip=float(upper_clip),
            **options,
        )
        return y

    def relu_backward(
        self,
        dy: Tensor,
        x: Tensor,
        *,
        negative_slope: float = 0.0,
        lower_clip: float = 0.0,
        upper_clip: float = math.inf,
        **options: Any,
    ) -> Tensor:
        """dx of dy and relu's x (or its y)."""
        dx: Tensor = self.call(
            "relu_backward",
            dy,
            x,
            negative_slope=float(negative_slope),
            lower_clip=float(lower_clip),
            upper_clip=float(upper_clip),
            **options,
        )
        return dx

    # --- reductions ---
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

    # --- pooling ---
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
            **_padding(padding, pre_padding, post_padding),
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
            **_padding(padding, pre_padding, post_padding),
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
            **_padding(padding, pre_padding, post_padding),
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
            **_padding(padding, pre_padding, post_padding),
            stride=stride,
            ceil=ceil,
            count_include_pad=count_include_pad,
            divisor=divisor,
            **options,
        )
        return dx

    # --- normalisation ---
    def batchnorm(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        unbiased: bool = True,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """y, mean, inv_std and, where running statistics are given, next_running_mean, next_running_var."""
        outs: tuple[Tensor, ...] = self.call(
            "batchnorm",
            x,
            scale,
            bias,
            running_mean,
            running_var,
            eps=float(eps),
            momentum=float(momentum),
            unbiased=unbiased,
            **options,
        )
        return outs

    def batchnorm_inference(
        self,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-5,
        **options: Any,
    ) -> Tensor:
        """y = scale · (x - mean) / sqrt(var + eps) + bias."""
        y: Tensor = self.call("batchnorm_inference", x, mean, var, scale, bias, eps=float(eps), **options)
        return y

    def batchnorm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        scale: Tensor | None,
        mean: Tensor,
        inv_std: Tensor,
        *,
        training: bool = True,
        **options: Any,
    ) -> Any:
        """dx, dscale, dbias; names= with "_" leaves some out."""
        return self.call("batchnorm_backward", dy, x, scale, mean, inv_std, training=training, **options)

    # --- softmax and loss ---
    def softmax(self, x: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """y = exp(x) / Σ exp(x) along axis."""
        y: Tensor = self.call("softmax", x, axis=axis, **options)
        return y

    def softmax_backward(self, dy: Tensor, y: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """dx of dy and softmax's y."""
        dx: Tensor = self.call("softmax_backward", dy, y, axis=axis, **options)
        return dx

    def log_softmax(self, x: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """y = x - log Σ exp(x) along axis."""
        y: Tensor = self.call("log_softmax", x, axis=axis, **options)
        return y

    def log_softmax_backward(self, dy: Tensor, y: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        """dx of dy and log_softmax's y."""
        dx: Tensor = self.call("log_softmax_backward", dy, y, axis=axis, **options)
        return dx

    def cross_entropy(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> Any:
        """loss and lse of logits x and classes target; names=("loss",) leaves lse out."""
        return self.call(
            "cross_entropy",
            x,
            target,
            weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=float(label_smoothing),
            **options,
        )

    def cross_entropy_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        lse: Tensor | None = None,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> Tensor:
        """dx of cross_entropy's dloss."""
        dx: Tensor = self.call(
            "cross_entropy_backward",
            dloss,
            x,
            target,
            weight,
            lse,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=float(label_smoothing),
            **options,
        )
        return dx


def _padding(both: Ints | None, pre: Ints | None, post: Ints | None) -> dict[str, Ints | None]:
    return {"pre_padding": both if pre is None else pre, "post_padding": both if post is None else post}
