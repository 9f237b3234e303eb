"""What operations mean, nothing of how: importing this package registers every one of them."""

from vlug.ops import conv, matmul, pointwise, reduction

__all__ = ["conv", "matmul", "pointwise", "reduction"]
